//! Nobody else on the machine reads what the program writes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::program::{Place, import, jobs};

/// Runs a command as a shell with this umask would.
fn under(umask: &str, command: &Command) {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask} && exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    let output = shell.env_remove("TIDEGATE_LOG").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The bits of a mode that any file or folder below has, and their number.
fn modes(folder: &Path) -> (u32, usize) {
    let mode = std::fs::metadata(folder).unwrap().permissions().mode() & 0o777;
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.fold((mode, 1), |(bits, count), path| {
        let (more, below) = match path.is_dir() {
            true => modes(&path),
            false => (std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 1),
        };
        (bits | more, count + below)
    })
}

#[test]
fn log_and_tables_are_for_their_user_alone() {
    for (umask, expected) in [("022", 0o700), ("077", 0o700), ("027", 0o750)] {
        let place = Place::new();
        let file = place.file("jobs.csv", jobs(3));
        under(umask, &import(file, "jobs_csv", &place.data()));
        let (bits, count) = modes(&place.data());
        assert!(count > 5, "it wrote {count} files");
        assert_eq!(bits, expected, "umask {umask}: {bits:o}");
    }
}
