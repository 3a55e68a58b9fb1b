//! A watcher in a process of its own that can be killed: this test program, started once more.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_collect::slurm::{SlurmOptions, start};
use tidegate_collect::{Reading, Sink};
use tidegate_events::Event;

const FOLDER: &str = "TIDEGATE_TEST_WATCH_FOLDER";
const CONF: &str = "TIDEGATE_TEST_WATCH_CONF";

/// Appends events to a file like a log; a torn end was never acknowledged.
struct Journal {
    file: File,
    batch: Mutex<Vec<u8>>,
}

impl Sink for Journal {
    fn reading(&self, _: Reading) {}

    fn event(&self, mut event: Event) {
        let record = event.record().unwrap();
        let mut batch = self.batch.lock().unwrap();
        batch.extend((record.payload.len() as u32).to_le_bytes());
        batch.extend(record.schema.to_le_bytes());
        batch.extend(&record.payload);
    }

    fn store(&self) -> Result<(), String> {
        let batch = std::mem::take(&mut *self.batch.lock().unwrap());
        let mut file = &self.file;
        let write = |file: &mut &File| {
            // One write for each batch: only a process's last one can be torn.
            file.write_all(&(batch.len() as u32).to_le_bytes())?;
            file.write_all(&batch)?;
            file.sync_data()
        };
        write(&mut file).map_err(|error: io::Error| error.to_string())
    }
}

/// Watchers, one after the other, each with a journal of its own and the same state.
pub struct Watching {
    folder: PathBuf,
    conf: PathBuf,
    child: Option<Child>,
    lives: u32,
}

impl Watching {
    pub fn begin(folder: &Path, conf: PathBuf) -> Self {
        let mut watching = Self { folder: folder.to_owned(), conf, child: None, lives: 0 };
        watching.revive();
        watching
    }

    /// Starts a watcher where the last one was killed.
    pub fn revive(&mut self) {
        self.lives += 1;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "watching::a_watcher_to_be_killed", "--ignored", "--nocapture"]);
        command
            .env(FOLDER, &self.folder)
            .env(CONF, &self.conf)
            .env("TIDEGATE_TEST_WATCH_LIFE", self.lives.to_string());
        self.child = Some(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Everything that was acknowledged by all processes.
    pub fn events(&self) -> Vec<Event> {
        (1..=self.lives).flat_map(|life| journal(&self.folder.join(format!("journal-{life}")))).collect()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.kill();
    }
}

fn journal(path: &Path) -> Vec<Event> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let mut events = Vec::new();
    let mut rest = &bytes[..];
    while let Some((batch, after)) = take(rest) {
        let mut batch = batch;
        while !batch.is_empty() {
            let schema = u32::from_le_bytes(batch[4..8].try_into().unwrap());
            let len = u32::from_le_bytes(batch[..4].try_into().unwrap()) as usize;
            events.push(Event::decode(schema, &batch[8..8 + len]).unwrap());
            batch = &batch[8 + len..];
        }
        rest = after;
    }
    events
}

fn take(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_at_checked(4)?;
    rest.split_at_checked(u32::from_le_bytes(len.try_into().unwrap()) as usize)
}

#[test]
#[ignore = "runs inside of another test, and is killed by it"]
fn a_watcher_to_be_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let mut options = SlurmOptions::new("tidegate");
    options.interval = Duration::from_secs(1);
    options.inventory_interval = Duration::from_secs(5);
    options.state = Some(folder.clone());
    options.conf = std::env::var_os(CONF).map(PathBuf::from);
    let life = std::env::var("TIDEGATE_TEST_WATCH_LIFE").unwrap();
    let journal = folder.join(format!("journal-{life}"));
    let journal = OpenOptions::new().create_new(true).append(true).open(journal).unwrap();
    let watcher = start(options, Arc::new(Journal { file: journal, batch: Mutex::default() })).unwrap();
    // Until the parent process is gone.
    io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
    watcher.stop();
}
