use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::LogError;
use crate::fault::point;

/// Format of the data folder that this program writes. Raised when an older program could no longer
/// read the folder.
const FORMAT_VERSION: u32 = 1;
const FORMAT_FILE: &str = "FORMAT";
const LOCK_FILE: &str = "LOCK";
/// How long to wait for the lock of a process that is dead. A child that it forked just before
/// kill -9 inherits the lock and keeps it until exec.
pub(crate) const OUTLIVES: Duration = Duration::from_secs(5);
pub(crate) const ASKED_EVERY: Duration = Duration::from_millis(10);

/// A data folder: `FORMAT`, `LOCK`, and below it the log and the lake.
///
/// [`DataDir::open`] makes this process its only writer for as long as the value lives,
/// [`DataDir::open_beside`] one of several. The operating system releases the lock when the process
/// dies.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Held, never read: closing the file releases the lock.
    _lock: Option<File>,
}

impl DataDir {
    /// Opens the folder for writing; creates it where there is none.
    ///
    /// Fails with [`LogError::AlreadyOpen`] while another process has it open for writing, and with
    /// [`LogError::NewerFormat`] if a newer program wrote it. Waits up to five seconds for a lock
    /// whose holder is dead.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LogError> {
        Self::open_as(path.as_ref(), Writers::One)
    }

    /// Opens the folder for writing, shared with other processes: for a lake whose log is on Kafka.
    ///
    /// Fails as [`DataDir::open`] does while a process has the folder exclusively.
    pub fn open_beside(path: impl AsRef<Path>) -> Result<Self, LogError> {
        Self::open_as(path.as_ref(), Writers::Several)
    }

    fn open_as(path: &Path, writers: Writers) -> Result<Self, LogError> {
        let path = path.to_path_buf();
        let io = |what: &str, source| LogError::io(&path, format!("{what} {}", path.display()), source);
        if path.is_file() {
            return Err(LogError::NotAFolder { path });
        }
        fs::create_dir_all(&path).map_err(|e| io("creating the data folder", e))?;
        let lock = lock_for(&path, writers)?;
        if !check_format(&path)? {
            write_format(&path).map_err(|e| io("writing the format file of", e))?;
        }
        for sub in ["log", "lake"] {
            fs::create_dir_all(path.join(sub)).map_err(|e| io("creating a folder in", e))?;
        }
        File::open(&path).and_then(|dir| dir.sync_all()).map_err(|e| io("fsyncing", e))?;
        Ok(Self { path, _lock: Some(lock) })
    }

    /// Opens an existing folder for reading beside a possible writer; takes no lock and writes
    /// nothing.
    pub fn open_shared(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let path = path.as_ref().to_path_buf();
        if !check_format(&path)? {
            return Err(LogError::NotADataDir { dir: path });
        }
        Ok(Self { path, _lock: None })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the embedded log lives.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where the tables live.
    pub fn lake(&self) -> PathBuf {
        self.path.join("lake")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    One,
    Several,
}

/// Locks the folder exclusively until the file is closed.
pub(crate) fn lock(dir: &Path) -> Result<File, LogError> {
    lock_for(dir, Writers::One)
}

fn lock_for(dir: &Path, writers: Writers) -> Result<File, LogError> {
    let path = dir.join(LOCK_FILE);
    let io = |e| LogError::io(dir, format!("locking {}", path.display()), e);
    let mut file =
        File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
    let deadline = Instant::now() + OUTLIVES;
    loop {
        let locked = match writers {
            Writers::One => file.try_lock(),
            Writers::Several => file.try_lock_shared(),
        };
        match locked {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {
                let pid = fs::read_to_string(&path).ok().and_then(|pid| pid.trim().parse().ok());
                if !pid.is_some_and(is_gone) || Instant::now() >= deadline {
                    return Err(LogError::AlreadyOpen { dir: dir.to_path_buf(), pid });
                }
                sleep(ASKED_EVERY);
            }
            Err(TryLockError::Error(e)) => return Err(io(e)),
        }
    }
    // For the error message of a second process; the lock itself does not depend on the content.
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(io)?;
    Ok(file)
}

/// Whether the process is gone; `false` where the system cannot tell.
fn is_gone(pid: u32) -> bool {
    Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether the folder has a format this program reads; `false` if it has none yet.
fn check_format(dir: &Path) -> Result<bool, LogError> {
    let path = dir.join(FORMAT_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(LogError::io(dir, format!("reading {}", path.display()), e)),
    };
    match text.trim().parse::<u32>() {
        Ok(found) if found > FORMAT_VERSION => {
            Err(LogError::NewerFormat { place: dir.display().to_string(), found, supported: FORMAT_VERSION })
        }
        Ok(_) => Ok(true),
        Err(_) => Err(LogError::CorruptStore {
            dir: dir.to_path_buf(),
            what: format!("{} holds {text:?}, not a format number", path.display()),
        }),
    }
}

/// Written aside and renamed, so that a crash leaves either no format file or a whole one.
fn write_format(dir: &Path) -> std::io::Result<()> {
    // Processes that share a new folder may come here at the same time.
    let aside = dir.join(format!("FORMAT.{}", std::process::id()));
    let mut file = File::create(&aside)?;
    writeln!(file, "{FORMAT_VERSION}")?;
    file.sync_all()?;
    point("format aside", dir);
    fs::rename(&aside, dir.join(FORMAT_FILE))?;
    point("format", dir);
    File::open(dir)?.sync_all()
}
