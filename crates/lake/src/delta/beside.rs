//! Files beside a table's data: what a process computed from the table and may compute again.
//!
//! They lie in a folder whose name begins with an underscore, which Delta readers and the sweep for
//! dead files leave alone. They go with the table when its folder is deleted.

use deltalake::{ObjectStoreError, Path};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;

use super::DeltaStore;
use crate::error::Result;

impl DeltaStore {
    /// Identity of the table: a table that is made anew has another one.
    pub fn table_id(&self) -> Result<String> {
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?;
        Ok(snapshot.metadata().id().to_owned())
    }

    /// Writes a file, durable and whole on return.
    pub async fn write_beside(&self, folder: &str, name: &str, bytes: Vec<u8>) -> Result<()> {
        self.table.object_store().put(&path(folder, name), bytes.into()).await?;
        Ok(())
    }

    /// Names of the files in a folder, in order, with their bytes.
    pub async fn list_beside(&self, folder: &str) -> Result<Vec<(String, u64)>> {
        let store = self.table.object_store();
        let files: Vec<_> = store.list(Some(&Path::from(folder))).try_collect().await?;
        let named = |file: &object_store::ObjectMeta| Some((file.location.filename()?.to_owned(), file.size));
        let mut names: Vec<(String, u64)> = files.iter().filter_map(named).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Reads a file; `None` if it is not there.
    pub async fn read_beside(&self, folder: &str, name: &str) -> Result<Option<bytes::Bytes>> {
        match self.table.object_store().get(&path(folder, name)).await {
            Ok(file) => Ok(Some(file.bytes().await?)),
            Err(ObjectStoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Deletes a file, if it is there.
    pub async fn delete_beside(&self, folder: &str, name: &str) -> Result<()> {
        match self.table.object_store().delete(&path(folder, name)).await {
            Ok(()) | Err(ObjectStoreError::NotFound { .. }) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

fn path(folder: &str, name: &str) -> Path {
    Path::from(format!("{folder}/{name}"))
}
