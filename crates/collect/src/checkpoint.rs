//! What a source must know after a restart, kept in a file together with what it has yet to tell.
//!
//! Told first and written later, a kill in between would leave a source that does not know what it
//! told: a hold would stay open for ever. So the new state and the events that led to it are
//! written at once (a *transactional outbox*), and told then. One that died tells the events of the
//! file again; they have the same content, therefore the same ids, and count once.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_events::Event;

use crate::reading::Sink;

/// The file, and the events that belong to the state in it and may not be safe with the sink.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    /// None: all is forgotten with the process.
    path: Option<PathBuf>,
    pending: Vec<Event>,
    /// Of the pending ones, those that the sink was told in this life.
    told: usize,
    /// As the file has it.
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
    /// What was saved last; `None` where nothing was, or nothing that can be read. A damaged file
    /// is set aside, for an agent that begins anew sees more than one that does not start.
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
                    "{} is damaged: {error}; it is {} now, and what it said is begun anew",
                    path.display(),
                    aside.display()
                );
                Ok((None, checkpoint))
            }
        }
    }

    /// Events that are not known to be safe, oldest first.
    pub(crate) fn pending(&self) -> &[Event] {
        &self.pending
    }

    /// Takes events that belong to the state that is saved next.
    pub(crate) fn add(&mut self, events: impl IntoIterator<Item = Event>) {
        self.pending.extend(events);
    }

    /// The pending events are safe. The file need not say so: told again they are the same.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
        self.told = 0;
    }

    /// Replaces the file by this state and the pending events, if it says something else.
    ///
    /// # Errors
    /// The disk does not take it: the file is as it was.
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

    /// Saves the state, tells what is pending, and saves that it is told. What cannot be saved is
    /// told all the same: a full disk must not make blind, and the agent sends on from memory. It
    /// is saved with the next call.
    ///
    /// # Errors
    /// The disk does not take the state, or the sink the events: a kill may lose them.
    pub(crate) fn hand_on(&mut self, state: &impl Serialize, sink: &dyn Sink) -> Result<(), String> {
        let saved = self.save(state);
        self.pending[self.told..].iter().for_each(|event| sink.event(event.clone()));
        self.told = self.pending.len();
        saved.map_err(|error| error.to_string())?;
        if self.told > 0 {
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

/// Replaces a file at once: after a kill or a power cut the old one is there or the new one.
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

    /// Keeps events as long as it has room.
    #[derive(Default)]
    struct Told {
        events: Mutex<Vec<Event>>,
        is_full: bool,
    }

    impl Sink for Told {
        fn reading(&self, _: Reading) {}

        fn event(&self, event: Event) {
            self.events.lock().unwrap().push(event);
        }

        fn store(&self) -> Result<(), String> {
            if self.is_full { Err("full".into()) } else { Ok(()) }
        }
    }

    fn event(job: &str) -> Event {
        // As sources tell it: without a cluster and an id, which the agent fills in.
        Event::Job(v1::JobEvent { job_id: job.into(), ..Default::default() })
    }

    #[test]
    fn what_was_not_told_when_the_process_died_is_told_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = Some(folder.path().join("state.json"));
        let (state, mut first) = Checkpoint::open::<u64>(path.clone()).unwrap();
        assert_eq!(state, None);
        first.add([event("a"), event("b")]);
        first.hand_on(&7u64, &Told { is_full: true, ..Told::default() }).unwrap_err();

        let (state, mut second) = Checkpoint::open::<u64>(path.clone()).unwrap();
        assert_eq!((state, second.pending()), (Some(7), [event("a"), event("b")].as_slice()));
        let told = Told::default();
        second.add([event("c")]);
        second.hand_on(&8u64, &told).unwrap();
        assert_eq!(*told.events.lock().unwrap(), [event("a"), event("b"), event("c")]);

        let (state, third) = Checkpoint::open::<u64>(path).unwrap();
        assert_eq!((state, third.pending()), (Some(8), [].as_slice()));
    }

    #[test]
    fn what_the_disk_does_not_take_is_told_once_and_saved_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let (_, mut checkpoint) = Checkpoint::open::<u64>(Some(path.clone())).unwrap();
        // A folder cannot be replaced by a file.
        fs::create_dir(&path).unwrap();
        let told = Told::default();
        checkpoint.add([event("a")]);
        for _ in 0..2 {
            let error = checkpoint.hand_on(&1u64, &told).unwrap_err();
            assert!(error.contains("state.json"), "{error}");
        }
        checkpoint.add([event("b")]);
        fs::remove_dir(&path).unwrap();
        checkpoint.hand_on(&2u64, &told).unwrap();
        assert_eq!(*told.events.lock().unwrap(), [event("a"), event("b")]);
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
