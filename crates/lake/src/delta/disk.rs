//! Files of tables on a local disk: whole and fsynced before anybody can see them.
//!
//! The store that delta-rs brings writes a file aside and gives it its name without an fsync in
//! between: after a power cut a commit could be empty, and rows that a merge of files wrote anew be
//! gone with the old ones. Here a file is on the disk before it has its name, and its name before
//! the write returns.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Once};

use async_trait::async_trait;
use deltalake::DeltaResult;
use deltalake::logstore::{ObjectStoreFactory, ObjectStoreRef, StorageConfig, object_store_factories};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use tidegate_log::fault::point;
use url::Url;

/// From now on delta-rs opens tables on the local disk here. Called wherever a table is opened; who
/// lays a store of its own over this one calls it first.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let files = Url::parse("file://").expect("a scheme is a URL");
        object_store_factories().insert(files, Arc::new(Disk::default()));
    });
}

/// All of the local disk. Reading and listing is the plain store's.
#[derive(Debug, Clone, Default)]
struct Disk {
    plain: Arc<LocalFileSystem>,
}

impl ObjectStoreFactory for Disk {
    fn parse_url_opts(&self, url: &Url, _: &StorageConfig) -> DeltaResult<(ObjectStoreRef, Path)> {
        Ok((Arc::new(self.clone()), Path::from_url_path(url.path())?))
    }
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("local disk")
    }
}

/// Whether a file may take the place of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    Any,
}

/// Writes a file aside, and gives it its name once it is on the disk.
fn write(path: &FilePath, payload: &PutPayload, place: Place) -> std::io::Result<()> {
    let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
    make(folder)?;
    let (aside, mut file) = staged(path)?;
    payload.iter().try_for_each(|bytes| file.write_all(bytes))?;
    point("file aside", &aside);
    file.sync_all()?;
    let named = match place {
        Place::Any => fs::rename(&aside, path),
        // Of several who write one version the first is it.
        Place::Free => fs::hard_link(&aside, path),
    };
    if named.is_ok() {
        point("file", path);
    }
    if place == Place::Free || named.is_err() {
        fs::remove_file(&aside)?;
    }
    named.and_then(|()| sync(folder))
}

/// Makes a folder that stays: whoever fsyncs a file in it has not fsynced that the folder is there.
pub(super) fn make(folder: &FilePath) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().ok_or(ErrorKind::InvalidInput)?;
    make(parent)?;
    match fs::create_dir(folder) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| sync(parent)),
    }
}

/// A new file beside `path`. Its name ends as the plain store's own do, so that no listing shows
/// it.
fn staged(path: &FilePath) -> std::io::Result<(PathBuf, File)> {
    let mut number = 0_u64;
    loop {
        number += 1;
        let mut name = path.as_os_str().to_owned();
        name.push(format!("#{number}"));
        match File::create_new(&name) {
            Ok(file) => return Ok((name.into(), file)),
            // Somebody writes it too, or died over it.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
}

fn sync(path: &FilePath) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a file durable that was given its name already.
fn settle(path: &FilePath) -> std::io::Result<()> {
    sync(path)?;
    point("file", path);
    path.parent().map_or(Ok(()), sync)
}

impl Disk {
    /// Does blocking work on the file at a location, off the async threads.
    async fn at<T: Send + 'static>(
        &self,
        at: &Path,
        work: impl FnOnce(&FilePath) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let path = self.plain.path_to_filesystem(at)?;
        let worked = tokio::task::spawn_blocking(move || work(&path).map_err(|e| (path, e))).await?;
        worked.map_err(|(path, e)| {
            let (path, kind) = (path.display().to_string(), e.kind());
            match kind {
                ErrorKind::AlreadyExists => Error::AlreadyExists { path, source: Box::new(e) },
                // Its kind stays: whoever meets a full disk says so.
                _ => Error::Generic {
                    store: "local disk",
                    source: Box::new(std::io::Error::new(kind, format!("write {path}: {e}"))),
                },
            }
        })
    }
}

#[async_trait]
impl ObjectStore for Disk {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let place = match opts.mode {
            PutMode::Overwrite => Place::Any,
            PutMode::Create => Place::Free,
            PutMode::Update(_) => return self.plain.put_opts(at, payload, opts).await,
        };
        self.at(at, move |path| write(path, &payload, place)).await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let parts = self.plain.put_multipart_opts(at, opts).await?;
        Ok(Box::new(Upload { parts, disk: self.clone(), at: at.clone() }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.plain.get_opts(at, options).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        self.plain.get_ranges(at, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let plain = Arc::clone(&self.plain);
        let deleted = move |gone: Result<Path>| {
            if let Some(path) = gone.as_ref().ok().and_then(|at| plain.path_to_filesystem(at).ok()) {
                point("file deleted", &path);
            }
            gone
        };
        self.plain.delete_stream(locations).map(deleted).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.plain.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.plain.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.plain.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.plain.copy_opts(from, to, options).await?;
        self.at(to, settle).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.plain.rename_opts(from, to, options).await?;
        self.at(to, settle).await
    }
}

/// A file that comes in parts, as large ones do. It has its name a moment before it is on the disk,
/// and nobody is told of it until it is.
#[derive(Debug)]
struct Upload {
    parts: Box<dyn MultipartUpload>,
    disk: Disk,
    at: Path,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let done = self.parts.complete().await?;
        self.disk.at(&self.at, settle).await?;
        Ok(done)
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.abort().await
    }
}
