//! NVIDIA's XID codes: what each says about the device rather than the program. Source: NVIDIA "XID
//! Errors" (r580), catalogue and recommended actions; Meta's RSC study (HPCA'25) for the classes
//! that precede the loss of a node.

use serde::{Deserialize, Serialize};

/// Subject of an XID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XidClass {
    /// A fault of the program, e.g. an illegal address. Says nothing about the device.
    Application,
    /// Memory: ECC, remapped rows, contained errors.
    Memory,
    /// NVLink or NVSwitch.
    Link,
    /// The device is gone from the bus, or does not answer.
    Lost,
    /// Firmware: GSP, PMU.
    Firmware,
    /// Host: PCIe, driver.
    Host,
    /// Not in the catalogue.
    Unknown,
}

/// Entry of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Xid {
    /// Subject.
    pub class: XidClass,
    /// Logarithm of the likelihood ratio of a bad device per occurrence.
    pub weight: f64,
    /// The device does no more work until it is reset or replaced.
    pub fatal: bool,
}

/// Looks up a code. An unknown code adds a little, because it is rarer on good devices.
pub fn xid(code: u32) -> Xid {
    use XidClass::{Application, Firmware, Host, Link, Lost, Memory, Unknown};
    let (class, weight, fatal) = match code {
        // 13 graphics exception, 31 page fault, 43 stopped, 45 preemptive removal, 68, 69, 137
        // NVLink fault by address
        13 | 31 | 43 | 45 | 68 | 69 | 137 => (Application, 0.0, false),
        // 48 uncorrectable ECC; 63 row remapped (or page retired), 64 the same failed; 92 rate of
        // single-bit errors high; 94 contained, 95 uncontained; 140 unrecovered ECC; 160 onwards:
        // remapping
        48 | 95 | 140 => (Memory, 3.0, true),
        64 => (Memory, 4.0, true),
        63 => (Memory, 1.0, false),
        92 => (Memory, 1.5, false),
        94 => (Memory, 2.0, false),
        // 74 NVLink error; 144 to 150 NVLink on Blackwell
        74 | 144..=150 => (Link, 2.5, false),
        // 79 fallen off the bus; 154 says which recovery is needed
        79 => (Lost, 4.0, true),
        154 => (Lost, 2.0, false),
        // 61, 62 PMU; 119, 120 GSP
        61 | 62 => (Firmware, 2.0, true),
        119 | 120 => (Firmware, 2.5, true),
        // 32 bad push buffer over PCIe, 38 driver, 110 security fault, 121 C2C link
        32 | 38 | 110 => (Host, 1.0, false),
        121 => (Link, 1.5, false),
        _ => (Unknown, 0.5, false),
    };
    Xid { class, weight, fatal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_not_held_against_devices() {
        assert_eq!(xid(31).weight, 0.0);
        assert_eq!(xid(13).class, XidClass::Application);
        assert!(xid(79).fatal && xid(64).fatal && !xid(63).fatal);
        assert_eq!(xid(9999).class, XidClass::Unknown);
    }
}
