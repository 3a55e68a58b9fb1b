//! The key-value store below the log: opening it, small metadata, and its errors in the log's
//! terms.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Instant;

use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::journal;
use crate::data_dir::{ASKED_EVERY, OUTLIVES, lock};
use crate::fault::point;
use crate::{LogError, TopicPartition};

/// Frames of at least this size go to blob files at their first flush and are never rewritten by
/// compaction.
const SEPARATE_FROM_BYTES: u32 = 1024;
/// Bytes of journal after which memory tables are flushed; bounds the time of a restart.
const JOURNAL_BYTES: u64 = 128 << 20;
/// As large as what the store writes in the background at once, a memory table of the default size.
const PROBE_BYTES: usize = 16 << 20;
const META: &str = "meta";

pub(super) struct Store {
    pub dir: PathBuf,
    pub db: Database,
    /// Topics, ends, starts, producers, consumer groups, times of writing and the generation; see
    /// [`MetaKey`].
    pub meta: Keyspace,
    memory_table_bytes: u64,
    failure: OnceLock<LogError>,
    /// Released last, after the store is closed.
    _lock: File,
}

/// Keys of the small state. Topic and source names hold no slash before their last part, so keys
/// never collide.
pub(super) enum MetaKey<'a> {
    Generation,
    Topic(&'a str),
    Start(&'a TopicPartition),
    End(&'a TopicPartition),
    Producer(&'a TopicPartition, &'a str),
    Group(&'a TopicPartition, &'a str),
    Written(&'a TopicPartition),
}

impl MetaKey<'_> {
    pub fn name(&self) -> String {
        let place = |at: &TopicPartition| format!("{}/{:010}", at.topic, at.partition);
        match self {
            Self::Generation => "generation".into(),
            Self::Topic(topic) => format!("topic/{topic}"),
            Self::Start(at) => format!("start/{}", place(at)),
            Self::End(at) => format!("end/{}", place(at)),
            Self::Producer(at, source) => format!("producer/{}/{source}", place(at)),
            Self::Group(at, group) => format!("group/{}/{group}", place(at)),
            Self::Written(at) => format!("written/{}", place(at)),
        }
    }
}

impl Store {
    pub fn open(dir: &Path, memory_table_bytes: u64) -> Result<Self, LogError> {
        let path = dir.join("store");
        fs::create_dir_all(dir).map_err(|e| LogError::io(dir, format!("creating {}", dir.display()), e))?;
        let lock = lock(dir)?;
        journal::check(dir, &path)?;
        if !path.exists() {
            create(dir, &path, memory_table_bytes)?;
        }
        let opened = open_database(&path, memory_table_bytes);
        let (db, meta) = opened.map_err(|e| classify(dir, "opening the store", e))?;
        Ok(Self {
            dir: dir.to_path_buf(),
            db,
            meta,
            memory_table_bytes,
            failure: OnceLock::new(),
            _lock: lock,
        })
    }

    /// Opens or creates the keyspace of one segment.
    pub fn segment_keyspace(&self, name: &str) -> Result<Keyspace, LogError> {
        let options = || {
            // Frames are compressed already.
            let blobs = KvSeparationOptions::default()
                .compression(CompressionType::None)
                .separation_threshold(SEPARATE_FROM_BYTES);
            KeyspaceCreateOptions::default()
                .max_memtable_size(self.memory_table_bytes)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
                .with_kv_separation(Some(blobs))
        };
        let keyspace = self.db.keyspace(name, options).map_err(|e| self.error("opening a segment", e))?;
        point("segment", &self.dir);
        Ok(keyspace)
    }

    /// Frees a segment's space once its last reader is done.
    pub fn delete_segment(&self, keyspace: &Keyspace) -> Result<(), LogError> {
        let deleted = self.db.delete_keyspace(keyspace.clone());
        point("segment dropped", &self.dir);
        deleted.map_err(|e| self.error("dropping a segment", e))
    }

    /// The numbers stored under `key`, e.g. one offset, or epoch and next sequence number.
    pub fn numbers<const N: usize>(&self, key: &MetaKey<'_>) -> Result<Option<[u64; N]>, LogError> {
        let name = key.name();
        let value = self.meta.get(&name).map_err(|e| self.error("reading the log's state", e))?;
        value.map(|value| self.parse_numbers(&name, &value)).transpose()
    }

    pub fn parse_numbers<const N: usize>(&self, name: &str, value: &[u8]) -> Result<[u64; N], LogError> {
        let (numbers, rest) = value.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|n| u64::from_be_bytes(*n)).collect();
        numbers.try_into().ok().filter(|_| rest.is_empty()).ok_or_else(|| LogError::CorruptStore {
            dir: self.dir.clone(),
            what: format!("{name} holds {} bytes, expected {}", value.len(), N * 8),
        })
    }

    /// The JSON stored under `key`.
    pub fn json<T: serde::de::DeserializeOwned>(&self, key: &MetaKey<'_>) -> Result<Option<T>, LogError> {
        let name = key.name();
        let value = self.meta.get(&name).map_err(|e| self.error("reading the log's state", e))?;
        let parse = |value: fjall::Slice| {
            serde_json::from_slice(&value).map_err(|e| LogError::CorruptStore {
                dir: self.dir.clone(),
                what: format!("{name} is not what is stored there: {e}"),
            })
        };
        value.map(parse).transpose()
    }

    /// All entries of the small state whose key begins with `prefix`: rest of the key, value.
    pub fn entries(&self, prefix: &str) -> Result<Vec<(String, fjall::Slice)>, LogError> {
        self.meta
            .prefix(prefix)
            .map(|entry| {
                let (key, value) =
                    entry.into_inner().map_err(|e| self.error("reading the log's state", e))?;
                let key =
                    String::from_utf8(key[prefix.len()..].to_vec()).map_err(|_| LogError::CorruptStore {
                        dir: self.dir.clone(),
                        what: format!("a key below {prefix} is not text"),
                    })?;
                Ok((key, value))
            })
            .collect()
    }

    /// Writes one entry of the small state; durable on return.
    pub fn put(&self, key: &MetaKey<'_>, value: Vec<u8>) -> Result<(), LogError> {
        self.check_running()?;
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        batch.insert(&self.meta, key.name(), value);
        batch.commit().map_err(|e| self.stop("writing the log's state", e))?;
        point("note", &self.dir);
        Ok(())
    }

    /// Deletes entries of the small state, all or none; durable on return.
    pub fn remove(&self, keys: &[MetaKey<'_>]) -> Result<(), LogError> {
        self.check_running()?;
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        keys.iter().for_each(|key| batch.remove(&self.meta, key.name()));
        batch.commit().map_err(|e| self.stop("writing the log's state", e))?;
        point("note", &self.dir);
        Ok(())
    }

    /// Refuses once a write has failed: what reached the disk is then unknown until a restart reads
    /// it back.
    pub fn check_running(&self) -> Result<(), LogError> {
        match self.failure.get() {
            None => Ok(()),
            Some(full @ LogError::Full { .. }) => Err(full.clone()),
            Some(failure) => Err(LogError::Stopped { reason: failure.to_string() }),
        }
    }

    /// Stops the log until it is opened again; later writes return the reason.
    pub fn stop(&self, what: &str, source: fjall::Error) -> LogError {
        let failure = self.error(what, source);
        tracing::error!(dir = %self.dir.display(), "the log stops: {failure}");
        self.failure.get_or_init(|| failure).clone()
    }

    pub fn error(&self, what: &str, source: fjall::Error) -> LogError {
        classify(&self.dir, what, source)
    }
}

/// Creates an empty store under another name and renames it: a half-created store would not open.
fn create(dir: &Path, path: &Path, memory_table_bytes: u64) -> Result<(), LogError> {
    let io = |e| LogError::io(dir, format!("creating {}", path.display()), e);
    let aside = dir.join("store.new");
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(io)?;
    }
    drop(open_database(&aside, memory_table_bytes).map_err(|e| classify(dir, "creating the store", e))?);
    point("log made aside", dir);
    fs::rename(&aside, path).map_err(io)?;
    point("log made", dir);
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io)
}

/// Opens the store. The caller already holds the log's lock, so no other log uses the store: if it
/// is still locked, a child of a killed process has not reached exec yet, and we wait for it.
fn open_database(path: &Path, memory_table_bytes: u64) -> fjall::Result<(Database, Keyspace)> {
    let opening = || {
        let db = Database::builder(path)
            .worker_threads(1)
            .max_journaling_size(JOURNAL_BYTES)
            .journal_compression(CompressionType::None)
            .open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(memory_table_bytes);
        let meta = db.keyspace(META, options)?;
        Ok((db, meta))
    };
    let deadline = Instant::now() + OUTLIVES;
    loop {
        // The store panics on some kinds of damaged files where it ought to return an error.
        let opened = catch_unwind(AssertUnwindSafe(opening)).unwrap_or(Err(fjall::Error::Unrecoverable));
        if !matches!(opened, Err(fjall::Error::Locked)) || Instant::now() >= deadline {
            return opened;
        }
        sleep(ASKED_EVERY);
    }
}

/// Translates an error of the store.
fn classify(dir: &Path, what: &str, source: fjall::Error) -> LogError {
    use fjall::Error;
    match source {
        Error::Locked => LogError::AlreadyOpen { dir: dir.to_path_buf(), pid: None },
        Error::Poisoned => match probe_space(dir) {
            Err(full @ LogError::Full { .. }) => full,
            _ => LogError::Stopped {
                reason: format!("{what}: the store stopped after a failed background write"),
            },
        },
        other => match damage_or_io(other) {
            Ok(e) => LogError::io(dir, format!("{what} in {}", dir.display()), e),
            Err(damage) => {
                LogError::CorruptStore { dir: dir.to_path_buf(), what: format!("{what}: {damage}") }
            }
        },
    }
}

/// Separates failed operations (`Ok`) from damage (`Err` with a description). A file that is
/// missing, too short or unexpected is damage.
pub(super) fn damage_or_io(source: fjall::Error) -> Result<std::io::Error, String> {
    use ErrorKind::{AlreadyExists, InvalidData, InvalidInput, NotFound, UnexpectedEof};
    use fjall::{Error, LsmError};
    match source {
        Error::Io(e) | Error::Storage(LsmError::Io(e)) => match e.kind() {
            AlreadyExists | NotFound | UnexpectedEof | InvalidData | InvalidInput => Err(e.to_string()),
            _ => Ok(e),
        },
        other => Err(format!("{other:?}")),
    }
}

/// The store does not keep the cause when its background writer fails; a full disk is by far the
/// likeliest one.
fn probe_space(dir: &Path) -> Result<(), LogError> {
    let probe = dir.join("space.probe");
    let written = fs::write(&probe, vec![0; PROBE_BYTES]);
    // The probe held nothing; a file left behind would only be overwritten by the next one.
    fs::remove_file(&probe).ok();
    written.map_err(|e| LogError::io(dir, "probing for space", e))
}
