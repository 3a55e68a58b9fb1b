//! Options, status and start errors of the NVML source.

use std::path::PathBuf;
use std::time::Duration;

use crate::xid::XidOptions;

/// Options of the source. The defaults suit a production node.
#[derive(Debug, Clone)]
pub struct NvmlOptions {
    /// Path of the library; by default `libnvidia-ml.so.1` from the system's loader.
    pub lib_path: Option<PathBuf>,
    /// Time between two ticks; at least 100 ms, which GPM needs.
    pub interval: Duration,
    /// A device that has not answered a tick for this long is reported as stale.
    pub stale_after: Duration,
    /// How often slowly changing values are read.
    pub slow_every: Duration,
    /// How often processes are listed.
    pub processes_every: Duration,
    /// How often to look for lost and new devices, and to retry a driver that does not start.
    pub rescan_every: Duration,
    /// A lost device that does not return makes the library restart after this time, then after
    /// twice as long, up to an hour. All devices miss some ticks then.
    pub reopen_after: Duration,
    /// How long [`start`](super::start) waits for the driver.
    pub start_timeout: Duration,
    /// Sources of XIDs.
    pub xid: XidOptions,
    /// Folder of process names and the driver's lists; `/proc` except in tests.
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
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum NvmlSourceError {
    #[error(
        "cannot load {library}: {reason}; install NVIDIA's driver on this node, or name its library with --nvml-lib"
    )]
    NoLibrary { library: String, reason: String },
    #[error(
        "{library} does not start: {reason}; see whether nvidia-smi works and the driver's kernel module is loaded"
    )]
    NoDriver { library: String, reason: String },
    #[error("the driver does not report {what}: {reason}; see whether nvidia-smi works")]
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

/// State of the source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NvmlStatus {
    /// Known devices.
    pub devices: usize,
    /// Devices that are lost.
    pub lost: usize,
    /// Devices that do not answer.
    pub stale: usize,
    /// Version of the driver.
    pub driver_version: Option<String>,
    /// Why the kernel log is not read, if it is not.
    pub kernel_log: Option<String>,
    /// Whether the kernel log is read.
    pub kernel_log_read: bool,
    /// Records that the kernel overwrote before they were read.
    pub kernel_records_lost: u64,
}
