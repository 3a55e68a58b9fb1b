//! XID errors: the driver's GPU errors, from NVML and from the kernel log.
//!
//! Both sources report the same errors. The kernel log has one line per error, with the process.
//! NVML has events, but reports only the *last* code for all that piled up, and no process. So
//! where the kernel log is readable, each of its lines is one occurrence; an NVML event within
//! [`XidOptions::window`] of an unconfirmed line of the same GPU confirms it (see [`Join`]).
//! Occurrences are never merged, however close they are.

mod catalog;
mod join;
mod kernel_log;
mod line;
mod position;

use std::path::PathBuf;
use std::time::Duration;

pub use catalog::{Cause, Severity, Xid, catalog, xid};
pub use join::{Join, Occurrence};
pub(crate) use kernel_log::KernelLog;
pub use kernel_log::kernel_log_readable;
pub use line::{KernelReport, PciAddress, parse};
pub(crate) use position::LogPosition;

/// Sources of XIDs beside NVML.
#[derive(Debug, Clone)]
pub struct XidOptions {
    /// The kernel log; `None` reads NVML alone. `/dev/kmsg` needs CAP_SYSLOG where
    /// `kernel.dmesg_restrict` is 1, and read permission on the device (root by default).
    pub kernel_log: Option<PathBuf>,
    /// File that saves the position in the kernel log of this boot, so that lines from before a
    /// restart are emitted exactly once. `None`: lines from before the start are skipped.
    pub position: Option<PathBuf>,
    /// Reports of both sources within this time are one occurrence.
    pub window: Duration,
}

impl Default for XidOptions {
    fn default() -> Self {
        Self { kernel_log: Some("/dev/kmsg".into()), position: None, window: Duration::from_secs(3) }
    }
}
