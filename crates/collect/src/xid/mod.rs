//! XID errors: what the driver reports of a GPU, told by NVML and by the kernel's log.
//!
//! A GPU error reaches us on two ways. The kernel's log has one line for each report, with the
//! process. NVML has events, but tells the code of the *last* XID for all that piled up, and no
//! process. So where the kernel's log can be read, a line of it is an occurrence and counts; an
//! event of NVML within [`XidOptions::window`] of an unconfirmed line of the same GPU confirms it
//! (see [`Join`]). Occurrences are never merged, however close they are.

mod catalog;
mod join;
mod kernel_log;
mod line;
mod told;

use std::path::PathBuf;
use std::time::Duration;

pub use catalog::{Cause, Severity, Xid, catalog, xid};
pub use join::{Join, Occurrence};
pub(crate) use kernel_log::KernelLog;
pub use kernel_log::kernel_log_readable;
pub use line::{KernelReport, PciAddress, parse};
pub(crate) use told::Told;

/// Where XIDs are read, beside NVML.
#[derive(Debug, Clone)]
pub struct XidOptions {
    /// The kernel's log; none: NVML alone. Reading `/dev/kmsg` needs CAP_SYSLOG where
    /// `kernel.dmesg_restrict` is 1, and read permission on the device (root's by default).
    pub kernel_log: Option<PathBuf>,
    /// File that remembers how far the kernel's log was read in this boot, so that what happened
    /// while nobody watched is told once and what was told is not told again. None: lines from
    /// before the start are skipped.
    pub position: Option<PathBuf>,
    /// Reports of both sources that are no farther apart are of one occurrence.
    pub window: Duration,
}

impl Default for XidOptions {
    fn default() -> Self {
        Self { kernel_log: Some("/dev/kmsg".into()), position: None, window: Duration::from_secs(3) }
    }
}
