//! What maintenance needs to know of the lake: which stores, who still reads old files, and which
//! versions joined tables have yet to work off.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::{Lake, joined};
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::delta::{DeltaStore, FileTotal};
use crate::error::Result;
use crate::pipeline::plan::Planned;
use crate::raw::raw_tables;
use crate::state::GroupState;

/// When each catalog that may be in use was published, the oldest first.
#[derive(Debug, Default)]
pub(super) struct CatalogsInUse(VecDeque<(Instant, Weak<Catalog>)>);

impl CatalogsInUse {
    /// Remembers a catalog, and forgets those that nobody holds any longer.
    pub fn publish(&mut self, catalog: &Arc<Catalog>) {
        self.0.retain(|(_, catalog)| catalog.strong_count() > 0);
        self.0.push_back((Instant::now(), Arc::downgrade(catalog)));
    }

    fn oldest(&self) -> Option<Instant> {
        self.0.iter().find(|(_, catalog)| catalog.strong_count() > 0).map(|(at, _)| *at)
    }
}

impl Lake {
    /// For tests of long runs: the clock that dates removed files and ages Delta logs.
    pub fn set_clock(&mut self, clock: &Clock) {
        self.stores.values_mut().for_each(|store| store.set_clock(clock.clone()));
    }

    /// Tables with their stores and the log partitions this process owns, for maintenance.
    pub(crate) fn stores_mut(&mut self) -> impl Iterator<Item = (&mut DeltaStore, Vec<u32>)> {
        let states = &self.states;
        let joined: BTreeSet<String> =
            self.plan.stored_joined().map(|planned| planned.spec.name.clone()).collect();
        let keeper = states.get(&(joined::OWNER.0.to_owned(), joined::OWNER.1)).map(|state| state.partition);
        let owned = move |table: &str| {
            let keeps = |s: &&GroupState| s.group.commit_order().iter().any(|spec| spec.name == table);
            if joined.contains(table) {
                keeper.into_iter().collect()
            } else {
                states.values().filter(keeps).map(|s| s.partition).collect()
            }
        };
        self.stores.iter_mut().map(move |(table, store)| (store, owned(table)))
    }

    /// By table that has a new checkpoint: the first version that a joined table has yet to work
    /// off. Without it the joined table would not know which windows are invalid, and compute all
    /// of them again.
    pub(crate) async fn versions_needed(&mut self) -> Result<BTreeMap<String, i64>> {
        let mut needed: BTreeMap<String, i64> = BTreeMap::new();
        // The owner of joined tables remembers what it committed; any other process has to ask.
        let is_owner = self.states.contains_key(&(joined::OWNER.0.to_owned(), joined::OWNER.1));
        let joined: Vec<Planned> = self.plan.stored_joined().cloned().collect();
        for (number, raw) in (0..).zip(raw_tables()) {
            let name = &raw.spec.name;
            let Some(group) = self.plan.groups.iter().find(|group| group.raw.spec.name == *name) else {
                continue;
            };
            let anchor = group.commit_order().pop().expect("a group has a raw table").name.clone();
            if !self.stores[&anchor].has_new_checkpoint() {
                continue;
            }
            for planned in joined.iter().filter(|planned| planned.roots.contains(name)) {
                let store = self.store_mut(&planned.spec.name);
                let done = match is_owner {
                    true => store.progress(number).await?,
                    false => store.committed_progress(number).await?,
                };
                // A table that was never computed begins with everything anyway.
                if done > 0 {
                    let first = needed.entry(anchor.clone()).or_insert(i64::MAX);
                    *first = (*first).min(done as i64);
                }
            }
        }
        Ok(needed)
    }

    /// By table: files that this process has replaced and not deleted yet.
    pub fn dead_files(&self) -> BTreeMap<String, FileTotal> {
        self.stores.iter().map(|(name, store)| (name.clone(), store.dead_files())).collect()
    }

    /// By table: files of the newest version.
    pub fn live_files(&self) -> Result<BTreeMap<String, FileTotal>> {
        let mut tables = BTreeMap::new();
        for (name, store) in &self.stores {
            let mut total = FileTotal::default();
            store.files()?.iter().for_each(|file| total.add(file.size.unsigned_abs()));
            tables.insert(name.clone(), total);
        }
        Ok(tables)
    }

    /// Since when the oldest catalog in use is published.
    pub(crate) fn in_use_since(&self) -> Instant {
        self.in_use.oldest().unwrap_or_else(Instant::now)
    }

    /// Publishes what maintenance changed.
    pub(crate) async fn republish(&mut self) -> Result<()> {
        self.publish().await
    }
}
