//! Folders as the lake addresses them, and their size.

use std::path::Path;

use tidegate_log::DataDir;
use url::Url;

use crate::CommandError;

/// URL of the lake inside a data folder.
pub fn lake_url(folder: &DataDir) -> Result<Url, CommandError> {
    folder_url(&folder.lake())
}

/// URL of a folder, as the lake takes it.
pub fn folder_url(folder: &Path) -> Result<Url, CommandError> {
    let folder = std::path::absolute(folder)?;
    Url::from_directory_path(&folder)
        .map_err(|()| format!("{} is not an absolute path", folder.display()).into())
}

/// Bytes of all files below a folder.
pub fn folder_bytes(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { folder_bytes(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}
