//! Parser of XID lines in the kernel log.

use std::fmt;

/// PCI address of a device, as sysfs writes it: `0000:17:00.0`. The driver omits the function and
/// NVML writes eight digits of domain; all forms compare equal here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// PCI domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
}

impl PciAddress {
    /// Parses `0000:17:00`, `PCI:0000:17:00.0` or `00000000:17:00.0`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("PCI:").unwrap_or(text);
        let mut parts = text.split(':');
        let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let device = rest.split_once('.').map_or(rest, |(device, _)| device);
        Some(Self {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// An XID line, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// Whether it is an NVSwitch error (SXid), not a GPU error.
    pub switch: bool,
    /// XID or SXid.
    pub code: u32,
    /// Address of the device.
    pub pci: PciAddress,
    /// MIG GPU instance, where the driver names one (`GPU-I:05`).
    pub gpu_instance: Option<u32>,
    /// Process id, if known.
    pub pid: Option<u32>,
    /// Name of the process.
    pub process: Option<String>,
    /// The rest of the line.
    pub text: String,
}

/// Parses the message of a line (without the kernel's prefix): `NVRM: Xid (PCI:0000:17:00): 79,
/// pid=1234, name=python, …`, the older form without `PCI:` and process, and `SXid` of NVSwitches.
/// `None` for anything else.
pub fn parse(message: &str) -> Option<KernelReport> {
    let (switch, rest) = if let Some((_, rest)) = message.split_once("NVRM: Xid (") {
        (false, rest)
    } else {
        let (before, rest) = message.split_once(": SXid (")?;
        before.contains("nvidia-nvswitch").then_some(())?;
        (true, rest)
    };
    let (place, rest) = rest.split_once("): ")?;
    let mut place = place.split_whitespace();
    let pci = PciAddress::parse(place.next()?)?;
    let gpu_instance = place.find_map(|word| u32::from_str_radix(word.strip_prefix("GPU-I:")?, 16).ok());
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let code = rest[..digits].parse().ok()?;
    let mut text = rest[digits..].trim_start_matches([',', ' ']);
    let mut pid = None;
    if let Some((value, after)) = field(text, "pid=") {
        pid = value.trim_matches('\'').parse().ok();
        text = after;
    }
    let mut process = None;
    if let Some((value, after)) = field(text, "name=") {
        process = (!value.is_empty() && !value.contains("<unknown>")).then(|| value.to_owned());
        text = after;
    }
    Some(KernelReport { switch, code, pci, gpu_instance, pid, process, text: text.trim_end().to_owned() })
}

/// Splits `key=value, rest`.
fn field<'a>(text: &'a str, key: &str) -> Option<(&'a str, &'a str)> {
    let text = text.strip_prefix(key)?;
    Some(text.split_once(',').map_or((text, ""), |(value, rest)| (value.trim(), rest.trim_start())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(line: &str) -> KernelReport {
        parse(line).unwrap_or_else(|| panic!("{line}"))
    }

    #[test]
    fn all_forms_of_lines_are_parsed() {
        let new =
            report("NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python3, GPU has fallen off the bus.");
        assert_eq!((new.code, new.pid, new.process.as_deref()), (79, Some(1234), Some("python3")));
        assert_eq!((new.pci.to_string().as_str(), new.switch), ("0000:17:00.0", false));
        assert_eq!(new.text, "GPU has fallen off the bus.");
        let old = report("NVRM: Xid (0000:03:00): 14, Channel 00000001");
        assert_eq!((old.code, old.pid, old.text.as_str()), (14, None, "Channel 00000001"));
        let unknown = report("NVRM: Xid (PCI:000a:c1:00): 45, pid='<unknown>', name=<unknown>, Ch 00000010");
        assert_eq!((unknown.pid, unknown.process, unknown.pci.domain), (None, None, 10));
        let no_name =
            report("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping");
        assert_eq!((no_name.pid, no_name.pci.device), (Some(1896), 0x1c));
        assert_eq!(no_name.text, "Row Remapper: New row marked for remapping");
        let mig = report("NVRM: Xid (PCI:0000:4f:00 GPU-I:0d): 13, pid=7, name=a b, Graphics Exception");
        assert_eq!((mig.gpu_instance, mig.process.as_deref()), (Some(13), Some("a b")));
        let bare = report("[ 12.5] NVRM: Xid (PCI:0000:17:00): 62");
        assert_eq!((bare.code, bare.text.as_str()), (62, ""));
        let switch =
            report("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore");
        assert_eq!((switch.switch, switch.code), (true, 28006));
        assert_eq!(switch.text, "Non-fatal, Link 46 MC TS crumbstore");
    }

    #[test]
    fn other_lines_are_ignored() {
        for line in [
            "",
            "NVRM: GPU at PCI:0000:03:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
            "NVRM: Xid (PCI:0000:17:00): , pid=1",
            "NVRM: Xid (nowhere): 79, pid=1",
            "NVRM: Xid (PCI:0000:17:00",
            "NVRM: Xid (PCI:0000:17:00): 99999999999",
            "someone: SXid (PCI:0000:c1:00.0): 1, x",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn all_forms_of_an_address_are_equal() {
        let all = ["0000:17:00", "PCI:0000:17:00", "00000000:17:00.0", "0000:17:00.0", "0:17:0"];
        assert!(all.iter().all(|a| PciAddress::parse(a) == PciAddress::parse("0000:17:00")));
        assert_eq!(PciAddress::parse("17:00.0"), None);
    }
}
