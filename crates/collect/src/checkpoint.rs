//! Crash-safe state of a source, saved together with the events that it has yet to emit.
//!
//! If a source emitted first and saved later, a kill in between would leave it without memory of
//! what it emitted: a hold would stay open for ever. So the new state and its events are saved at
//! once (a *transactional outbox*) and emitted then. After a crash the events of the file are
//! emitted again. Their content is the same, therefore their ids are too, and they count once.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_events::Event;

use crate::reading::Sink;

/// The file, and the events of its state that may not be safe with the sink.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    /// `None`: nothing survives the process.
    path: Option<PathBuf>,
    pending: Vec<Event>,
    /// Pending events that the sink got from this process.
    emitted: usize,
    /// The file's content.
    written: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Content<T> {
    state: T,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pending: Vec<Encoded>,
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    schema: u32,
    payload: Vec<u8>,
}

impl Checkpoint {
    /// Opens the file and returns the saved state. `None` if there is none, or none that can be
    /// read: a damaged file is set aside, because starting afresh beats not starting.
    ///
    /// # Errors
    /// The file cannot be read or moved.
    pub(crate) fn open<T: DeserializeOwned>(path: Option<PathBuf>) -> io::Result<(Option<T>, Self)> {
        let mut checkpoint = Self { path, ..Self::default() };
        let Some(path) = &checkpoint.path else { return Ok((None, checkpoint)) };
        let json = match fs::read(path) {
            Ok(json) => json,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((None, checkpoint)),
            Err(error) => return Err(named("read", path, &error)),
        };
        match read(&json) {
            Ok((state, pending)) => {
                (checkpoint.pending, checkpoint.written) = (pending, json);
                Ok((Some(state), checkpoint))
            }
            Err(error) => {
                let aside = beside(path, "damaged");
                fs::rename(path, &aside).map_err(|error| named("move", path, &error))?;
                tracing::error!(
                    "{} is damaged: {error}; it is {} now, and its state begins anew",
                    path.display(),
                    aside.display()
                );
                Ok((None, checkpoint))
            }
        }
    }

    /// Events that may not be safe yet, oldest first.
    pub(crate) fn pending(&self) -> &[Event] {
        &self.pending
    }

    /// Adds events of the state that is saved next.
    pub(crate) fn add(&mut self, events: impl IntoIterator<Item = Event>) {
        self.pending.extend(events);
    }

    /// Forgets the pending events, which are safe now. The file need not say so: emitted again,
    /// they have the same ids.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
        self.emitted = 0;
    }

    /// Replaces the file with this state and the pending events, unless it is unchanged.
    ///
    /// # Errors
    /// The disk refused it, and the file is unchanged.
    pub(crate) fn save(&mut self, state: &impl Serialize) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let encoded =
            |event: &Event| Encoded { schema: event.schema().number(), payload: event.encode_to_vec() };
        let content = Content { state, pending: self.pending.iter().map(encoded).collect() };
        let json = serde_json::to_vec(&content)?;
        if json != self.written {
            replace(path, &json).map_err(|error| named("write", path, &error))?;
            self.written = json;
        }
        Ok(())
    }

    /// Saves the state, emits pending events, and saves that they are emitted. Events are emitted
    /// even if the save fails, because a full disk must not blind us: the agent sends from memory.
    /// The next call saves them.
    ///
    /// # Errors
    /// The disk refused the state, or the sink the events; a kill may lose them.
    pub(crate) fn save_and_emit(&mut self, state: &impl Serialize, sink: &dyn Sink) -> Result<(), String> {
        let saved = self.save(state);
        self.pending[self.emitted..].iter().for_each(|event| sink.event(event.clone()));
        self.emitted = self.pending.len();
        saved.map_err(|error| error.to_string())?;
        if self.emitted > 0 {
            sink.store()?;
            self.forget();
            self.save(state).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn read<T: DeserializeOwned>(json: &[u8]) -> Result<(T, Vec<Event>), Box<dyn std::error::Error>> {
    let content: Content<T> = serde_json::from_slice(json)?;
    let decode = |event: &Encoded| Event::decode_draft(event.schema, &event.payload);
    let pending = content.pending.iter().map(decode).collect::<Result<_, _>>()?;
    Ok((content.state, pending))
}

/// Replaces a file atomically: after a kill or power cut either the old or the new one is there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = beside(path, "new");
    let mut file = File::create(&aside)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&aside, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// `PATH.SUFFIX`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tidegate_events::v1;

    use super::*;
    use crate::reading::Reading;

    /// Keeps events, and refuses to store them while it is full.
    #[derive(Default)]
    struct RecordingSink {
        events: Mutex<Vec<Event>>,
        is_full: bool,
    }

    impl Sink for RecordingSink {
        fn reading(&self, _: Reading) {}

        fn event(&self, event: Event) {
            self.events.lock().unwrap().push(event);
        }

        fn store(&self) -> Result<(), String> {
            if self.is_full { Err("full".into()) } else { Ok(()) }
        }
    }

    fn event(job: &str) -> Event {
        // As sources emit it: without cluster and id, which the agent fills in.
        Event::Job(v1::JobEvent { job_id: job.into(), ..Default::default() })
    }

    #[test]
    fn events_of_a_killed_process_are_emitted_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = Some(folder.path().join("state.json"));
        let (state, mut first) = Checkpoint::open::<u64>(path.clone()).unwrap();
        assert_eq!(state, None);
        first.add([event("a"), event("b")]);
        first.save_and_emit(&7u64, &RecordingSink { is_full: true, ..RecordingSink::default() }).unwrap_err();

        let (state, mut second) = Checkpoint::open::<u64>(path.clone()).unwrap();
        assert_eq!((state, second.pending()), (Some(7), [event("a"), event("b")].as_slice()));
        let sink = RecordingSink::default();
        second.add([event("c")]);
        second.save_and_emit(&8u64, &sink).unwrap();
        assert_eq!(*sink.events.lock().unwrap(), [event("a"), event("b"), event("c")]);

        let (state, third) = Checkpoint::open::<u64>(path).unwrap();
        assert_eq!((state, third.pending()), (Some(8), [].as_slice()));
    }

    #[test]
    fn events_are_emitted_once_though_the_disk_refuses_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let (_, mut checkpoint) = Checkpoint::open::<u64>(Some(path.clone())).unwrap();
        // A folder cannot be replaced by a file.
        fs::create_dir(&path).unwrap();
        let sink = RecordingSink::default();
        checkpoint.add([event("a")]);
        for _ in 0..2 {
            let error = checkpoint.save_and_emit(&1u64, &sink).unwrap_err();
            assert!(error.contains("state.json"), "{error}");
        }
        checkpoint.add([event("b")]);
        fs::remove_dir(&path).unwrap();
        checkpoint.save_and_emit(&2u64, &sink).unwrap();
        assert_eq!(*sink.events.lock().unwrap(), [event("a"), event("b")]);
        let (state, again) = Checkpoint::open::<u64>(Some(path)).unwrap();
        assert_eq!((state, again.pending()), (Some(2), [].as_slice()));
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, "{\"state\": ").unwrap();
        let (state, _) = Checkpoint::open::<u64>(Some(path)).unwrap();
        assert_eq!(state, None);
        assert_eq!(fs::read_to_string(folder.path().join("state.json.damaged")).unwrap(), "{\"state\": ");
    }
}
