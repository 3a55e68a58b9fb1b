//! The committed tables, for readers that do not write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use url::Url;

use super::full_rows::{FullRows, StoredTable};
use super::overlay::Overlay;
use super::{Catalog, Stored, TableLag, build};
use crate::delta::DeltaStore;
use crate::engine::{self, Limits};
use crate::error::Result;
use crate::pipeline::plan::{Group, Plan};
use crate::table::PARTITION;

/// Catalog of the committed tables below `root`. Takes no lock and creates nothing.
pub async fn committed_catalog(root: &Url, plan: &Plan, limits: Limits) -> Result<Catalog> {
    let runtime = engine::runtime(limits)?;
    let ctx = engine::session(&runtime, limits);
    let (mut stored, mut lag, mut places) = (Vec::new(), Vec::new(), BTreeMap::new());
    let joined = plan.stored_joined().map(|planned| Arc::clone(&planned.spec));
    for spec in plan.groups.iter().flat_map(Group::commit_order).chain(joined) {
        let store = DeltaStore::open(root, Arc::clone(&spec)).await?;
        let (provider, partitions) = match &store {
            Some(store) => (Some(store.provider().await?), partition_count(store)?),
            None => (None, 0),
        };
        if let Some(store) = &store
            && let Some(planned) = plan.stored_joined().find(|planned| planned.spec.name == spec.name)
        {
            lag.push(TableLag::new(planned, &store.pending().await?));
        }
        let version = store.as_ref().map_or(Stored::NO_TABLE, DeltaStore::version);
        let place = Stored { version, partitions, overlay: Overlay::default() };
        places.insert(spec.name.clone(), place);
        let rows = FullRows::overlaid(&ctx, &spec, provider, Overlay::default());
        stored.push(StoredTable { spec, rows, partitions });
    }
    let catalog = build::public_catalog(&runtime, plan, stored, lag, &BTreeMap::new()).await?;
    Ok(Catalog { stored: places, ..catalog })
}

fn partition_count(store: &DeltaStore) -> Result<u32> {
    let files = store.files()?;
    let partitions: BTreeSet<&str> = files.iter().filter_map(|f| f.partition_value(PARTITION)).collect();
    Ok(partitions.len() as u32)
}
