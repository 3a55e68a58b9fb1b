//! An object store that counts what is asked of it and the bytes of data files, and dates files by
//! a clock of the test.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path as FilePath;
use std::sync::{Arc, LazyLock, Mutex};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use deltalake::DeltaResult;
use deltalake::logstore::{ObjectStoreFactory, ObjectStoreRef, StorageConfig, object_store_factories};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tidegate_lake::clock::Clock;
use url::Url;

/// Listings of a folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Listings {
    /// From an offset on, as in a search for the newest version.
    pub from_offset: usize,
    /// Of the whole folder.
    pub whole: usize,
}

/// Bytes of Parquet files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Read, in whole or in part.
    pub read: u64,
    /// Written.
    pub written: u64,
}

static BYTES: LazyLock<Mutex<BTreeMap<String, Bytes>>> = LazyLock::new(Mutex::default);

/// Bytes of data files below a folder since the last call.
pub fn take_bytes(folder: &FilePath) -> Bytes {
    let folder = Path::from_absolute_path(folder).unwrap().to_string();
    let mut sum = Bytes::default();
    BYTES.lock().unwrap().retain(|path, bytes| {
        let is_here = path.starts_with(&folder);
        if is_here {
            sum.read += bytes.read;
            sum.written += bytes.written;
        }
        !is_here
    });
    sum
}

fn count_bytes(at: &Path, read: u64, written: u64) {
    if at.as_ref().ends_with(".parquet") && !at.as_ref().contains("_delta_log") {
        let mut counted = BYTES.lock().unwrap();
        let bytes = counted.entry(at.to_string()).or_default();
        bytes.read += read;
        bytes.written += written;
    }
}

/// What was asked below a folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Costs {
    /// Listings of folders of Delta logs, and the entries that these folders had.
    pub log_listings: u64,
    pub log_entries: u64,
    /// Listings of other folders.
    pub data_listings: u64,
    /// Reads and writes of files, and deletions.
    pub reads: u64,
    pub writes: u64,
    pub deletions: u64,
}

impl Costs {
    pub fn add(&mut self, other: Self) {
        self.log_listings += other.log_listings;
        self.log_entries += other.log_entries;
        self.data_listings += other.data_listings;
        self.reads += other.reads;
        self.writes += other.writes;
        self.deletions += other.deletions;
    }
}

/// A folder whose costs are counted and whose files are dated.
struct Watched {
    clock: Clock,
    costs: Costs,
    written: HashMap<Path, DateTime<Utc>>,
}

static WATCHED: LazyLock<Mutex<BTreeMap<String, Watched>>> = LazyLock::new(Mutex::default);

/// Counts what is asked below a folder from now on, and dates the files written there.
pub fn watch(folder: &FilePath, clock: &Clock) {
    install();
    let folder = Path::from_absolute_path(folder).unwrap().to_string();
    let watched = Watched { clock: clock.clone(), costs: Costs::default(), written: HashMap::new() };
    WATCHED.lock().unwrap().insert(folder, watched);
}

/// What was asked below a watched folder since the last call.
pub fn take_costs(folder: &FilePath) -> Costs {
    let folder = Path::from_absolute_path(folder).unwrap().to_string();
    std::mem::take(&mut WATCHED.lock().unwrap().get_mut(&folder).unwrap().costs)
}

fn of_watched(at: &Path, note: impl FnOnce(&mut Watched)) {
    let mut all = WATCHED.lock().unwrap();
    if let Some((_, watched)) = all.iter_mut().find(|(folder, _)| at.as_ref().starts_with(folder.as_str())) {
        note(watched);
    }
}

fn listed(folder: Option<&Path>) {
    let Some(folder) = folder else { return };
    of_watched(folder, |watched| match folder.as_ref().ends_with("_delta_log") {
        true => {
            watched.costs.log_listings += 1;
            let entries = std::fs::read_dir(FilePath::new("/").join(folder.as_ref()));
            watched.costs.log_entries += entries.map_or(0, Iterator::count) as u64;
        }
        false => watched.costs.data_listings += 1,
    });
}

fn dated(meta: Result<ObjectMeta>) -> Result<ObjectMeta> {
    let mut meta = meta?;
    of_watched(&meta.location.clone(), |watched| {
        if let Some(time) = watched.written.get(&meta.location) {
            meta.last_modified = *time;
        }
    });
    Ok(meta)
}

fn written(at: &Path) {
    of_watched(at, |watched| {
        watched.costs.writes += 1;
        watched.written.insert(at.clone(), watched.clock.now());
    });
}

static COUNTED: LazyLock<Mutex<BTreeMap<String, Listings>>> = LazyLock::new(Mutex::default);

/// Opens local tables through a counting store from now on. This holds for the whole process, so
/// listings are counted by folder.
pub fn install() {
    tidegate_lake::delta::install_disk();
    object_store_factories().insert(Url::parse("file://").unwrap(), Arc::new(Counting));
}

/// Listings of a folder since the last call.
pub fn take(folder: &FilePath) -> Listings {
    let folder = Path::from_absolute_path(folder).unwrap();
    COUNTED.lock().unwrap().remove(folder.as_ref()).unwrap_or_default()
}

fn count(folder: Option<&Path>, add: impl FnOnce(&mut Listings)) {
    let folder = folder.map(Path::to_string).unwrap_or_default();
    add(COUNTED.lock().unwrap().entry(folder).or_default());
}

#[derive(Debug)]
struct Counting;

impl ObjectStoreFactory for Counting {
    fn parse_url_opts(&self, url: &Url, _: &StorageConfig) -> DeltaResult<(ObjectStoreRef, Path)> {
        let (inner, path) = object_store::parse_url(url)?;
        Ok((Arc::new(CountingStore { inner: inner.into() }), path))
    }
}

#[derive(Debug)]
struct CountingStore {
    inner: ObjectStoreRef,
}

impl std::fmt::Display for CountingStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for CountingStore {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        count_bytes(at, 0, payload.content_length() as u64);
        written(at);
        self.inner.put_opts(at, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        written(at);
        self.inner.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        of_watched(at, |watched| watched.costs.reads += 1);
        let is_head = options.head;
        let found = self.inner.get_opts(at, options).await?;
        if !is_head {
            count_bytes(at, found.range.end - found.range.start, 0);
        }
        Ok(found)
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        of_watched(at, |watched| watched.costs.reads += 1);
        count_bytes(at, ranges.iter().map(|range| range.end - range.start).sum(), 0);
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let deleted = |gone: Result<Path>| {
            if let Ok(at) = &gone {
                of_watched(at, |watched| watched.costs.deletions += 1);
            }
            gone
        };
        self.inner.delete_stream(locations).map(deleted).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        count(prefix, |listings| listings.whole += 1);
        listed(prefix);
        self.inner.list(prefix).map(dated).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        count(prefix, |listings| listings.from_offset += 1);
        listed(prefix);
        self.inner.list_with_offset(prefix, offset).map(dated).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        count(prefix, |listings| listings.whole += 1);
        listed(prefix);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}
