//! Catalogue of XID codes: severity, cause and advised action.

use std::sync::LazyLock;

/// How bad an XID is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing is lost.
    Info,
    /// Nothing is lost yet.
    Warning,
    /// A process lost its work; the GPU continues.
    Error,
    /// The GPU must not be used before a reset or repair.
    Fatal,
}

impl Severity {
    /// Stable text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Fatal => "fatal",
        }
    }
}

/// Where the cause usually lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The program.
    Application,
    /// The driver.
    Driver,
    /// The GPU or its memory.
    Hardware,
    /// NVLink or PCIe.
    Link,
}

/// Catalogue entry of an XID code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xid {
    /// The XID.
    pub code: u32,
    /// Stable name, e.g. `fallen_off_bus`.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Where the cause usually lies.
    pub cause: Cause,
    /// Immediate action, as a stable name: `none`, `watch`, `restart_application`, `reset_gpu`,
    /// `reset_gpu_when_idle`, `reboot_node`, …
    pub action: &'static str,
    /// Meaning, in one sentence.
    pub meaning: &'static str,
}

/// `schemas/xid_catalog.csv`: no field is quoted or holds a comma.
const FILE: &str = include_str!("../../../../schemas/xid_catalog.csv");

/// All known codes, sorted. After NVIDIA's public catalogue
/// (<https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html>), in our words;
/// severities are our reading of the advised actions.
pub fn catalog() -> &'static [Xid] {
    static CATALOG: LazyLock<Vec<Xid>> = LazyLock::new(|| {
        FILE.lines().skip(1).map(|line| entry(line).expect("a test reads the file")).collect()
    });
    &CATALOG
}

/// The entry of a code, if it is known.
pub fn xid(code: u32) -> Option<&'static Xid> {
    let all = catalog();
    all.binary_search_by_key(&code, |xid| xid.code).ok().map(|at| &all[at])
}

fn entry(line: &'static str) -> Option<Xid> {
    let mut fields = line.split(',');
    let entry = Xid {
        code: fields.next()?.parse().ok()?,
        name: fields.next()?,
        severity: match fields.next()? {
            "info" => Severity::Info,
            "warning" => Severity::Warning,
            "error" => Severity::Error,
            "fatal" => Severity::Fatal,
            _ => return None,
        },
        cause: match fields.next()? {
            "application" => Cause::Application,
            "driver" => Cause::Driver,
            "hardware" => Cause::Hardware,
            "link" => Cause::Link,
            _ => return None,
        },
        action: fields.next()?,
        meaning: fields.next()?,
    };
    fields.next().is_none().then_some(entry)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_file_is_a_catalogue() {
        assert_eq!(FILE.lines().next(), Some("code,name,severity,cause,action,meaning"));
        for line in FILE.lines().skip(1) {
            let xid = entry(line).unwrap_or_else(|| panic!("{line}"));
            assert!(!xid.name.is_empty() && !xid.action.is_empty() && xid.meaning.len() > 20, "{line}");
            assert!(!line.contains('"'), "{line}");
        }
        let all = catalog();
        assert!(all.len() >= 60, "{}", all.len());
        assert!(all.windows(2).all(|two| two[0].code < two[1].code), "in order of codes, each once");
        assert_eq!(all.iter().map(|x| x.name).collect::<HashSet<_>>().len(), all.len(), "names are unique");
    }

    #[test]
    fn known_and_unknown_codes() {
        let lost = xid(79).unwrap();
        assert_eq!(
            (lost.name, lost.severity, lost.action),
            ("fallen_off_bus", Severity::Fatal, "reboot_node")
        );
        assert_eq!(xid(31).unwrap().cause, Cause::Application);
        assert_eq!(xid(9999), None);
    }
}
