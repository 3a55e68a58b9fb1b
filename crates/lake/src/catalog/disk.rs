//! What the tables take on disk, for readers that do not write.

use std::sync::Arc;

use url::Url;

use crate::delta::{DeltaStore, TableDisk};
use crate::error::Result;
use crate::pipeline::plan::{Group, Plan};

/// What each stored table below `root` takes, in the plan's order. Takes no lock and creates
/// nothing. Lists the folder of every table.
pub async fn disk_use(root: &Url, plan: &Plan) -> Result<Vec<TableDisk>> {
    let joined = plan.stored_joined().map(|planned| Arc::clone(&planned.spec));
    let mut tables = Vec::new();
    for spec in plan.groups.iter().flat_map(Group::commit_order).chain(joined) {
        if let Some(store) = DeltaStore::open(root, spec).await? {
            tables.push(store.disk_use().await?);
        }
    }
    Ok(tables)
}
