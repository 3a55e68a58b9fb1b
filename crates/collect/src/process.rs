//! What `/proc` tells everybody of a process.

use std::fs;
use std::path::Path;

/// A process on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its effective user.
    pub uid: u32,
    /// Whether it has a process id of its own in a namespace below that of `/proc`: it runs in a
    /// container.
    pub contained: bool,
}

impl Process {
    /// Reads `PROC/PID/status`. `None` if the process is gone or hidden.
    pub(crate) fn read(proc: &Path, pid: u32) -> Option<Self> {
        let status = fs::read_to_string(proc.join(pid.to_string()).join("status")).ok()?;
        let words = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::split_ascii_whitespace)
        };
        // Real, effective, saved and filesystem user.
        let uid = words("Uid:")?.nth(1)?.parse().ok()?;
        let contained = words("NSpid:").is_none_or(|ids| ids.count() != 1);
        Some(Self { uid, contained })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let process = Process::read(Path::new("/proc"), std::process::id()).unwrap();
        assert_eq!(process.uid, nix::unistd::Uid::effective().as_raw());
        assert!(!process.contained, "seen from its own namespace");
        assert_eq!(Process::read(Path::new("/proc"), u32::MAX), None);
    }

    #[test]
    fn the_effective_user_and_the_container_count() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("7")).unwrap();
        let write = |text: &str| fs::write(folder.path().join("7/status"), text).unwrap();
        let read = || Process::read(folder.path(), 7);
        write("Name:\tUid: 0\nUid:\t1000\t0\t0\t0\nNSpid:\t7\t1\n");
        assert_eq!(read(), Some(Process { uid: 0, contained: true }));
        // A kernel that does not tell counts as a container.
        write("Uid:\t0\t0\t0\t0\n");
        assert_eq!(read(), Some(Process { uid: 0, contained: true }));
        write("Name:\tx\n");
        assert_eq!(read(), None);
    }
}
