//! Options, status and start errors of the NVML source.

use std::path::PathBuf;
use std::time::Duration;

use crate::xid::XidOptions;

/// How the source works. The defaults are right for a node in production.
#[derive(Debug, Clone)]
pub struct NvmlOptions {
    /// Path of the library; by default `libnvidia-ml.so.1` where the system's loader finds it.
    pub lib_path: Option<PathBuf>,
    /// Time between two ticks; at least 100 ms, which GPM needs.
    pub interval: Duration,
    /// A tick that a device has not answered for so long is committed of as stale.
    pub stale_after: Duration,
    /// How often values that change seldom are read.
    pub slow_every: Duration,
    /// How often processes are listed.
    pub processes_every: Duration,
    /// How often lost devices, new ones, and a driver that does not start are looked for.
    pub rescan_every: Duration,
    /// A lost device that does not come back by itself makes the library start anew after this,
    /// then after twice as long, up to an hour. All devices miss some ticks then.
    pub reopen_after: Duration,
    /// How long [`start`] waits for the driver.
    pub start_timeout: Duration,
    pub xid: XidOptions,
    /// Where process names and the driver's lists are; `/proc` but in tests.
    pub proc_root: PathBuf,
}

impl Default for NvmlOptions {
    fn default() -> Self {
        Self {
            lib_path: None,
            interval: Duration::from_secs(1),
            stale_after: Duration::from_secs(5),
            slow_every: Duration::from_secs(10),
            processes_every: Duration::from_secs(5),
            rescan_every: Duration::from_secs(10),
            reopen_after: Duration::from_secs(60),
            start_timeout: Duration::from_secs(60),
            xid: XidOptions::default(),
            proc_root: "/proc".into(),
        }
    }
}

/// Why the source did not start.
#[derive(Debug, thiserror::Error)]
pub enum NvmlSourceError {
    #[error(
        "cannot load {library}: {reason}; install NVIDIA's driver on this node, or name its library with --nvml-lib"
    )]
    NoLibrary { library: String, reason: String },
    #[error(
        "{library} does not start: {reason}; see whether nvidia-smi works and the driver's kernel module is loaded"
    )]
    NoDriver { library: String, reason: String },
    #[error("the driver does not tell {what}: {reason}; see whether nvidia-smi works")]
    Refused { what: &'static str, reason: String },
    #[error(
        "the driver has not started after {seconds} s; a GPU may be wedged: see the kernel's log for NVRM lines"
    )]
    Hangs { seconds: u64 },
    #[error("an interval of {0:?} is too short: GPM needs 100 ms")]
    Interval(Duration),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What the source sees at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NvmlStatus {
    pub devices: usize,
    pub lost: usize,
    pub stale: usize,
    pub driver_version: Option<String>,
    /// Whether the kernel's log is read, and if not, why.
    pub kernel_log: Option<String>,
    pub kernel_log_read: bool,
    /// Records that the kernel overwrote before they were read.
    pub kernel_records_lost: u64,
}
