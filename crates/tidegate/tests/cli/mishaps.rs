//! Failures during an import: a second writer, an endless line, a vanishing file, a full disk.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::program::{
    Ended, GOOD_ROW, HEADER, Place, import, jobs, query, run, succeed, tidegate, wait_until,
};

/// A running import that reads from this process.
struct Importing(Child);

impl Importing {
    fn start(data: &Path) -> Self {
        let mut child = import("-", "jobs_csv", data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lock = data.join("LOCK");
        let pid = child.id().to_string();
        child.stdin.as_mut().unwrap().write_all(HEADER.as_bytes()).unwrap();
        wait_until("the import has its data folder", || {
            fs::read_to_string(&lock).is_ok_and(|t| t.trim() == pid)
        });
        Self(child)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn end(self) -> Ended {
        self.0.wait_with_output().unwrap().into()
    }
}

#[test]
fn a_reader_who_leaves_is_no_failure() {
    let place = Place::new();
    let file = place.file("jobs.csv", jobs(3));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = import(&file, "jobs_csv", &place.data()).stdout(writer).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(query(&place.data(), "SELECT count(*) AS n FROM jobs"), "n\n3\n");
}

#[test]
fn a_second_writer_hears_who_is_the_first() {
    let place = Place::new();
    let mut first = Importing::start(&place.data());
    let file = place.file("jobs.csv", jobs(3));
    let holder = format!(
        "{} is in use by process {}; stop it or choose another folder",
        place.data().display(),
        first.0.id()
    );
    place.import(&file, "jobs_csv").refused(&[&holder]);
    run(tidegate().args(["pipeline", "run", "--data"]).arg(place.data())).refused(&[&holder]);
    first.write(GOOD_ROW.as_bytes());
    let ended = first.end();
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    succeed(&mut import(&file, "jobs_csv", &place.data()));
    assert_eq!(query(&place.data(), "SELECT count(*) AS n FROM jobs"), "n\n3\n");
}

/// Peak memory of a process, KiB.
fn peak_kib(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB")).unwrap();
    peak.trim().parse().unwrap()
}

#[test]
fn a_giant_line_is_refused_in_little_memory() {
    const GROWTH_KIB: usize = 16 << 10;
    const FIRST_MIB: usize = 16;
    let line_mib: usize = std::env::var("TIDEGATE_GIANT_LINE_MIB").map_or(300, |mib| mib.parse().unwrap());
    let place = Place::new();
    let mut reading = Importing::start(&place.data());
    let block = vec![b'x'; 1 << 20];
    let mut peak_after = |mib| {
        (0..mib).for_each(|_| reading.write(&block));
        peak_kib(reading.0.id())
    };
    // All but what a pipe holds has been read each time.
    let begun = peak_after(FIRST_MIB);
    let grown = peak_after(line_mib - FIRST_MIB) - begun;
    assert!(grown < GROWTH_KIB, "{grown} KiB more than {begun} KiB for a line of {line_mib} MiB");
    reading.write(b"\n");
    reading.write(GOOD_ROW.as_bytes());
    let ended = reading.end();
    assert_eq!(ended.status, Some(3), "{}", ended.stderr);
    let letters =
        query(&place.data(), "SELECT origin, line, code, reason, length(raw) AS kept FROM dead_letters");
    let expected = "origin,line,code,reason,kept\n\
                    stdin,2,LINE_TOO_LONG,the line is longer than 1048576 bytes; is its line end missing?,4096\n";
    assert_eq!(letters, expected);
    assert_eq!(query(&place.data(), "SELECT count(*) AS n FROM jobs"), "n\n1\n");
}

/// Starts the import of a big file and does something to the file once a part of it has been read.
fn disturbed(place: &Place, rows: usize, disturb: impl FnOnce(&Path)) -> Ended {
    const PADDING: usize = 8 << 10;
    let header = HEADER.replace('\n', ",note\n");
    let row = |job| format!("{job},vision,1,2024-03-01T00:00:00Z,,,,{:x<PADDING$}\n", "");
    let file = place.file("jobs.csv", header + &(0..rows).map(row).collect::<String>());
    let mut child = import(&file, "jobs_csv", &place.data())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let proc = PathBuf::from(format!("/proc/{}", child.id()));
    let position = || -> Option<u64> {
        let mut descriptors = proc.join("fd").read_dir().ok()?.map_while(Result::ok);
        let opened = descriptors.find(|d| fs::read_link(d.path()).is_ok_and(|target| target == file))?;
        let info = fs::read_to_string(proc.join("fdinfo").join(opened.file_name())).ok()?;
        info.lines().find_map(|line| line.strip_prefix("pos:"))?.trim().parse().ok()
    };
    // Not `wait_until`, which asks ever more rarely: the file may be read within a second.
    while position().is_none_or(|bytes| bytes == 0) {
        assert!(child.try_wait().unwrap().is_none(), "the import ended before the file was disturbed");
        std::thread::sleep(Duration::from_millis(1));
    }
    disturb(&file);
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_refused() {
    let place = Place::new();
    let ended = disturbed(&place, 16_000, |file| {
        fs::File::options().write(true).open(file).unwrap().set_len(1).unwrap()
    });
    ended.refused(&["jobs.csv shrank while it was read: ", " bytes; import it again when it is complete"]);
}

#[test]
fn a_file_that_is_deleted_while_it_is_read_is_read_to_its_end() {
    let place = Place::new();
    let ended = disturbed(&place, 8_000, |file| fs::remove_file(file).unwrap());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert_eq!(query(&place.data(), "SELECT count(*) AS n FROM jobs"), "n\n8000\n");
}

/// Imports on a file system of that size, then again on a larger one. Needs root, who may mount in
/// a namespace of his own.
const SMALL_THEN_LARGE_DISK: &str = r#"
mount -t tmpfs -o size="$1" tmpfs "$2"
"$3" import jobs "$4" --map jobs_csv --data "$2/data" && exit 9
echo "ended with $?" >&2
mount -o remount,size=1g "$2"
"$3" import jobs "$4" --map jobs_csv --data "$2/data" >&2 || exit 8
"$3" sql --data "$2/data" --format csv "SELECT * FROM jobs ORDER BY cluster, job_id"
"#;

/// What the files below a folder take up on the disk.
fn allocated_bytes(folder: &Path) -> u64 {
    let entries = folder.read_dir().unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            if entry.path().is_dir() {
                allocated_bytes(&entry.path())
            } else {
                entry.metadata().unwrap().blocks() * 512
            }
        })
        .sum()
}

#[test]
fn a_full_disk_is_named_and_costs_nothing() {
    let place = Place::new();
    let file = place.file("jobs.csv", jobs(20_000));
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        // Without the right to mount, a limit on the size of files stands in for the disk; the log
        // meets it first.
        let limited = "trap '' XFSZ; ulimit -f 100; exec \"$@\"";
        let program = import(&file, "jobs_csv", &place.data());
        let mut command = Command::new("sh");
        command.args(["-c", limited, "sh"]).arg(program.get_program()).args(program.get_args());
        run(&mut command).refused(&["no space left under ", "data/log; free some and start again"]);
        succeed(&mut import(&file, "jobs_csv", &place.data()));
        return;
    }
    let calm = Place::new();
    succeed(&mut import(&file, "jobs_csv", &calm.data()));
    let expected = query(&calm.data(), "SELECT * FROM jobs ORDER BY cluster, job_id");
    let mount = place.0.path().join("mount");
    fs::create_dir(&mount).unwrap();
    // One disk is full before the tables begin, the other while they are written.
    let (log, all) = (allocated_bytes(&calm.data().join("log")), allocated_bytes(&calm.data()));
    let disks = [(log / 2, "mount/data/log; free some"), (log + (all - log) / 2, "mount/data; free some")];
    for (size, full) in disks {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", SMALL_THEN_LARGE_DISK, "sh"]).arg(size.to_string()).arg(&mount);
        let ended = run(command.arg(env!("CARGO_BIN_EXE_tidegate")).arg(&file));
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        for word in ["no space left under ", full, "nothing acknowledged is lost", "ended with 1\n"] {
            assert!(ended.stderr.contains(word), "{size}: {word:?} is missing in\n{}", ended.stderr);
        }
        assert!(ended.stdout == expected, "{size}: other jobs than on a large disk");
    }
}
