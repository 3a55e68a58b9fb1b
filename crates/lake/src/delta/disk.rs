//! Object store on the local disk: files are complete and fsynced before they are visible.
//!
//! The store of delta-rs writes a temporary file and renames it without an fsync in between. After
//! a power cut a commit could be empty, and rows rewritten by compaction could be lost together
//! with the old files. Here a file is on disk before it gets its name, and its name is on disk
//! before the write returns.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Once};
use std::time::SystemTime;

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

/// Makes delta-rs use this store for tables on the local disk. Called wherever a table is opened.
/// Code that wraps this store in another one must call it first.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let files = Url::parse("file://").expect("a scheme is a URL");
        object_store_factories().insert(files, Arc::new(Disk::default()));
    });
}

/// The whole local disk. Reads and listings go to the plain store.
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

/// Whether a file may replace an existing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    New,
    Replace,
}

/// Writes a temporary file and gives it its name once it is on disk.
fn write(path: &FilePath, payload: &PutPayload, target: Target) -> std::io::Result<()> {
    let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
    create_folder(folder)?;
    let (staged_path, mut file) = staged(path)?;
    payload.iter().try_for_each(|bytes| file.write_all(bytes))?;
    point("file aside", &staged_path);
    file.sync_all()?;
    let named = match target {
        Target::Replace => fs::rename(&staged_path, path),
        // Of several writers of one version the first one wins.
        Target::New => fs::hard_link(&staged_path, path),
    };
    if named.is_ok() {
        point("file", path);
    }
    if target == Target::New || named.is_err() {
        fs::remove_file(&staged_path)?;
    }
    named.and_then(|()| sync(folder))
}

/// Creates a folder durably: an fsync of a file inside does not cover the folder's own entry.
pub(super) fn create_folder(folder: &FilePath) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().ok_or(ErrorKind::InvalidInput)?;
    create_folder(parent)?;
    match fs::create_dir(folder) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| sync(parent)),
    }
}

/// A new temporary file beside `path`. Its name ends as those of the plain store do, so listings
/// hide it.
fn staged(path: &FilePath) -> std::io::Result<(PathBuf, File)> {
    let mut number = 0_u64;
    loop {
        number += 1;
        let mut name = path.as_os_str().to_owned();
        name.push(format!("#{number}"));
        match File::create_new(&name) {
            Ok(file) => return Ok((name.into(), file)),
            // Another process is writing it too, or died while it did.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
}

/// Deletes temporary files below a folder that were last written before `border`: their process
/// died while it wrote them, and listings hide them. Returns their number.
pub(super) fn remove_abandoned(folder: &FilePath, border: SystemTime) -> std::io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            removed += remove_abandoned(&entry.path(), border)?;
        } else if is_staged(&entry.file_name()) {
            // Another process may give the file its name meanwhile.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.modified()? < border {
                point("file deleted", &entry.path());
                remove(&entry.path())?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// Whether a name is one that [`staged`] gives.
fn is_staged(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Deletes a file that may be gone.
fn remove(path: &FilePath) -> std::io::Result<()> {
    fs::remove_file(path).or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

fn sync(path: &FilePath) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a file durable that already has its name.
fn make_durable(path: &FilePath) -> std::io::Result<()> {
    sync(path)?;
    point("file", path);
    path.parent().map_or(Ok(()), sync)
}

impl Disk {
    /// Runs blocking work on the file at a location, off the async threads.
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
                // Keep the kind, so that callers can recognise a full disk.
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
        let target = match opts.mode {
            PutMode::Overwrite => Target::Replace,
            PutMode::Create => Target::New,
            PutMode::Update(_) => return self.plain.put_opts(at, payload, opts).await,
        };
        self.at(at, move |path| write(path, &payload, target)).await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.at(at, |path| {
            create_folder(path.parent().ok_or(ErrorKind::InvalidInput)?)?;
            staged(path)
        });
        let (staged_path, file) = begun.await?;
        let staged = Some((staged_path, Arc::new(file)));
        Ok(Box::new(Upload { staged, bytes: 0, disk: self.clone(), at: at.clone() }))
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
        self.at(to, make_durable).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.plain.rename_opts(from, to, options).await?;
        self.at(to, make_durable).await
    }
}

/// Writes a large file in parts. Each part is synced as it is written, so the last sync is short.
/// The file gets its name at the end.
#[derive(Debug)]
struct Upload {
    /// The temporary file; `None` once it has its name or is gone.
    staged: Option<(PathBuf, Arc<File>)>,
    /// Bytes of the parts so far.
    bytes: u64,
    disk: Disk,
    at: Path,
}

impl Upload {
    fn file(&self) -> std::io::Result<(PathBuf, Arc<File>)> {
        self.staged.clone().ok_or_else(|| std::io::Error::other("the upload has ended"))
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (staged, mut from) = (self.file(), self.bytes);
        self.bytes += data.content_length() as u64;
        let (disk, at) = (self.disk.clone(), self.at.clone());
        Box::pin(async move {
            let written = move |_: &FilePath| {
                let (path, file) = staged?;
                for bytes in data.iter() {
                    file.write_all_at(bytes, from)?;
                    from += bytes.len() as u64;
                }
                point("part of a file", &path);
                file.sync_data()
            };
            disk.at(&at, written).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.file();
        let named = move |path: &FilePath| {
            let (staged_path, file) = staged?;
            point("file aside", &staged_path);
            file.sync_all()?;
            fs::rename(&staged_path, path)?;
            point("file", path);
            sync(path.parent().ok_or(ErrorKind::InvalidInput)?)
        };
        self.disk.at(&self.at, named).await?;
        self.staged = None;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> Result<()> {
        match self.staged.take() {
            Some((staged_path, _)) => self.disk.at(&self.at, move |_| remove(&staged_path)).await,
            None => Ok(()),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some((path, _)) = self.staged.take()
            && let Err(error) = remove(&path)
        {
            tracing::warn!(path = %path.display(), %error, "an unfinished file was not deleted");
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;

    use super::*;

    fn names(folder: &FilePath) -> Vec<String> {
        let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_file_in_parts_gets_its_name_last() {
        let folder = tempfile::tempdir().unwrap();
        let at = Path::from_absolute_path(folder.path().join("a.parquet")).unwrap();
        let disk = Disk::default();
        let mut upload = disk.put_multipart(&at).await.unwrap();
        let parts = [vec![1_u8; 3], vec![2; 5], vec![3; 2]].map(|part| upload.put_part(part.into()));
        // They may end in any order.
        for part in parts.into_iter().rev() {
            part.await.unwrap();
        }
        assert_eq!(names(folder.path()), ["a.parquet#1"]);
        upload.complete().await.unwrap();
        assert_eq!(names(folder.path()), ["a.parquet"]);
        let bytes = disk.get(&at).await.unwrap().bytes().await.unwrap();
        assert_eq!(bytes[..], [1, 1, 1, 2, 2, 2, 2, 2, 3, 3]);
        assert!(upload.put_part(vec![4].into()).await.is_err(), "it has ended");
        drop(upload);
        assert_eq!(names(folder.path()), ["a.parquet"]);
    }

    #[tokio::test]
    async fn nothing_stays_of_a_file_that_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let at = Path::from_absolute_path(folder.path().join("a.parquet")).unwrap();
        for aborts in [true, false] {
            let mut upload = Disk::default().put_multipart(&at).await.unwrap();
            upload.put_part(vec![1].into()).await.unwrap();
            if aborts {
                upload.abort().await.unwrap();
            }
            drop(upload);
            assert!(names(folder.path()).is_empty(), "aborts: {aborts}");
        }
    }

    #[test]
    fn old_temporary_files_are_deleted_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("_partition=0");
        fs::create_dir(&inner).unwrap();
        let border = SystemTime::now();
        for (name, is_old) in
            [("a.parquet#1", true), ("b.parquet#12", false), ("c.parquet", true), ("d#e", true)]
        {
            let age = std::time::Duration::from_secs(60);
            let file = File::create(inner.join(name)).unwrap();
            file.set_modified(if is_old { border - age } else { border + age }).unwrap();
        }
        assert_eq!(remove_abandoned(folder.path(), border).unwrap(), 1);
        let mut left = names(&inner);
        left.sort();
        assert_eq!(left, ["b.parquet#12", "c.parquet", "d#e"]);
    }
}
