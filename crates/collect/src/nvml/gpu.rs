//! A GPU as the driver lists it.

use std::sync::Arc;

use crate::reading::Device;

/// A GPU and its place on the PCI bus: what every event about it names.
#[derive(Debug, Clone)]
pub(super) struct LocatedGpu {
    pub device: Arc<Device>,
    /// PCI address as sysfs writes it: `0000:17:00.0`.
    pub pci: String,
}
