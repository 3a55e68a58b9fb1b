//! Views that several joined tables of one update read, such as `waits` and `free_spans`.
//!
//! Each table has a catalog of its own, in which it sees the joined tables before it. Views of what
//! those do not change are the same in all of these catalogs. They are handed on from one to the
//! next, so that a materialized view is computed once in an update, and until the last table that
//! reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::catalog::TableProvider;

use super::recompute::Inputs;
use crate::pipeline::plan::{Plan, Planned};

type Tables = BTreeMap<String, Arc<dyn TableProvider>>;

/// Views that were made for an earlier table of the update, by name.
#[derive(Debug, Default)]
pub(super) struct SharedViews {
    /// Over all history.
    pub all: Tables,
    /// Over opening balances.
    pub balance: Tables,
}

impl SharedViews {
    /// Keeps the views of these inputs that the tables in `later` read, and no others.
    pub fn hand_on(&mut self, inputs: &Inputs, plan: &Plan, later: &[Planned]) {
        let wanted = unchanging_views(plan, later);
        let of = |tables: &Tables| {
            let kept = tables.iter().filter(|(name, _)| wanted.contains(name.as_str()));
            kept.map(|(name, table)| (name.clone(), Arc::clone(table))).collect()
        };
        self.all = of(&inputs.catalog.tables);
        let balance = inputs.balance.as_ref();
        self.balance = balance.map(|(_, balance)| of(&balance.tables)).unwrap_or_default();
    }
}

/// Views that the tables read, directly or by way of others, and that no joined table changes.
fn unchanging_views<'a>(plan: &'a Plan, tables: &'a [Planned]) -> BTreeSet<&'a str> {
    let mut changing: BTreeSet<&str> = plan.joined.iter().map(|step| step.spec.name.as_str()).collect();
    // In order of dependency.
    for view in &plan.views {
        if view.pipeline.sources.iter().any(|source| changing.contains(source.as_str())) {
            changing.insert(&view.spec.name);
        }
    }
    let mut read = BTreeSet::new();
    let mut open: Vec<&str> =
        tables.iter().flat_map(|table| &table.pipeline.sources).map(String::as_str).collect();
    while let Some(name) = open.pop() {
        let step = plan.joined.iter().chain(&plan.views).find(|step| step.spec.name == name);
        if let Some(step) = step.filter(|_| read.insert(name)) {
            open.extend(step.pipeline.sources.iter().map(String::as_str));
        }
    }
    read.retain(|name| !changing.contains(name));
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn views_are_shared_until_the_last_table_that_reads_them() {
        let plan = Plan::compile(crate::pipeline::shipped()).await.unwrap();
        let tables: Vec<Planned> = plan.stored_joined().cloned().collect();
        let after = |name: &str| {
            let place = tables.iter().position(|table| table.spec.name == name).unwrap();
            unchanging_views(&plan, &tables[place + 1..])
        };
        let shared = after("pool_fit");
        assert!(["waits", "free_spans", "node_holds", "price_of"].iter().all(|view| shared.contains(view)));
        assert!(!shared.contains("pool_fit"), "a table");
        let nothing = after(&tables.last().unwrap().spec.name);
        assert!(nothing.is_empty(), "{nothing:?}");
    }
}
