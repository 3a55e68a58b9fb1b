//! Follows the kernel log (`/dev/kmsg`) on a thread of its own.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

use super::line::{KernelReport, parse};

/// Longest kernel record; a longer line of a file is cut.
const LONGEST: usize = 8192;

/// Whether this process can read the kernel log: opens it and reads nothing.
///
/// # Errors
/// The kernel's error: EPERM or EACCES without CAP_SYSLOG or permission on the device, ENOENT if it
/// is not mounted.
pub fn kernel_log_readable(path: &Path) -> io::Result<()> {
    open(path).map(|_| ())
}

/// The reading thread. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct KernelLog {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    lost: Arc<AtomicU64>,
}

impl KernelLog {
    /// Reads records after number `after`, or only new ones, and passes each report to `report`
    /// with its time, ms since the epoch, and its record number.
    ///
    /// # Errors
    /// As [`kernel_log_readable`].
    pub(crate) fn start(
        path: &Path,
        after: Option<u64>,
        report: impl Fn(KernelReport, i64, Option<u64>) + Send + 'static,
    ) -> io::Result<Self> {
        let mut file = open(path)?;
        if after.is_none() {
            // A pipe cannot seek, and all it holds is new.
            file.seek(SeekFrom::End(0)).map(drop).or_else(|e| {
                if e.raw_os_error() == Some(nix::errno::Errno::ESPIPE as i32) { Ok(()) } else { Err(e) }
            })?;
        }
        let (stop, stopped) = UnixStream::pair()?;
        let lost = Arc::new(AtomicU64::new(0));
        let mut follower = Follower { file, rest: Vec::new(), next: None, lost: Arc::clone(&lost) };
        let thread = thread::Builder::new().name("kmsg".into()).stack_size(128 << 10).spawn(move || {
            let mut take = |record: &str| {
                let record = Record::parse(record);
                let is_old = record.seq.zip(after).is_some_and(|(seq, after)| seq <= after);
                if !is_old && let Some(found) = parse(record.message) {
                    report(found, record.wall_ms(), record.seq);
                }
            };
            while follower.wait(&stopped) {
                if let Err(error) = follower.read(&mut take) {
                    tracing::warn!(%error, "the kernel's log cannot be read any more; XIDs come from NVML alone");
                    return;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), lost })
    }

    /// Number of records that the kernel overwrote before they were read.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for KernelLog {
    fn drop(&mut self) {
        // Closing this end wakes the thread.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that reads the kernel's log failed");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}

struct Follower {
    file: File,
    /// Start of an incomplete line.
    rest: Vec<u8>,
    /// Expected number of the next record.
    next: Option<u64>,
    lost: Arc<AtomicU64>,
}

impl Follower {
    /// Waits for data. Returns false when told to stop.
    fn wait(&self, stop: &UnixStream) -> bool {
        let mut both =
            [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut both, PollTimeout::NONE) {
            Ok(_) => {
                if both[0].revents().is_some_and(|seen| !seen.is_empty()) {
                    return false;
                }
                // A file at its end and a pipe without a writer are always ready, so poll again
                // after a while.
                if self.at_end(both[1].revents()) {
                    !stops_within(stop, Duration::from_millis(100))
                } else {
                    true
                }
            }
            Err(nix::errno::Errno::EINTR) => true,
            Err(_) => false,
        }
    }

    fn at_end(&self, seen: Option<PollFlags>) -> bool {
        let hung_up = seen.is_some_and(|s| s.contains(PollFlags::POLLHUP) && !s.contains(PollFlags::POLLIN));
        hung_up || self.file.metadata().is_ok_and(|m| m.is_file())
    }

    /// Reads everything available. `/dev/kmsg` returns one record a read; a file or pipe as many
    /// lines as fit.
    fn read(&mut self, take: &mut impl FnMut(&str)) -> io::Result<()> {
        let mut buffer = [0; LONGEST];
        loop {
            let count = match self.file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // Records were overwritten; the next read returns the oldest that is left.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => continue,
                Err(e) => return Err(e),
            };
            self.rest.extend_from_slice(&buffer[..count]);
            while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line = String::from_utf8_lossy(&self.rest[..end]).into_owned();
                self.rest.drain(..=end);
                self.count(&line);
                take(&line);
            }
            if self.rest.len() > LONGEST {
                self.rest.clear();
            }
        }
    }

    /// Counts gaps in the numbering, which are lost records.
    fn count(&mut self, line: &str) {
        if let Some(seq) = Record::parse(line).seq
            && let Some(expected) = self.next.replace(seq + 1)
        {
            self.lost.fetch_add(seq.saturating_sub(expected), Ordering::Relaxed);
        }
    }
}

/// Whether the other end of `stop` closes within a time.
fn stops_within(stop: &UnixStream, time: Duration) -> bool {
    let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
    !matches!(poll(&mut [PollFd::new(stop.as_fd(), PollFlags::POLLIN)], timeout), Ok(0))
}

/// A record as `/dev/kmsg` writes it, `priority,number,microseconds,flags;message`, or a bare
/// message.
struct Record<'a> {
    seq: Option<u64>,
    /// Since the kernel started.
    uptime_us: Option<u64>,
    message: &'a str,
}

impl<'a> Record<'a> {
    fn parse(line: &'a str) -> Self {
        let bare = Self { seq: None, uptime_us: None, message: line };
        let Some((head, message)) = line.split_once(';') else { return bare };
        let mut head = head.split(',');
        match (head.next().map(str::parse::<u32>), head.next().map(str::parse), head.next().map(str::parse)) {
            (Some(Ok(_)), Some(Ok(seq)), Some(Ok(us))) => {
                Self { seq: Some(seq), uptime_us: Some(us), message }
            }
            _ => bare,
        }
    }

    /// When it was written, by the current wall clock; now, if it does not say.
    fn wall_ms(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        let uptime = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
        match (self.uptime_us, uptime) {
            (Some(then), Ok(uptime)) => {
                let age_ms = (uptime.as_micros() as i64).saturating_sub_unsigned(then) / 1000;
                now - age_ms.max(0)
            }
            _ => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_with_and_without_a_head() {
        let record = Record::parse("6,339,5140900,-;NVRM: Xid (PCI:0000:17:00): 79, pid=1");
        assert_eq!((record.seq, record.uptime_us), (Some(339), Some(5_140_900)));
        assert!(record.message.starts_with("NVRM"));
        let bare = Record::parse("NVRM: one; two");
        assert_eq!((bare.seq, bare.message), (None, "NVRM: one; two"));
    }

    #[test]
    fn a_record_of_a_while_ago_has_its_time() {
        let uptime = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        let record =
            Record { seq: None, uptime_us: Some(uptime.as_micros() as u64 - 5_000_000), message: "" };
        assert!((now - 5_000 - record.wall_ms()).abs() < 1_000);
    }
}
