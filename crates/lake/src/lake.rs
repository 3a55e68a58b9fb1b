//! The lake: takes events in, keeps every table up to date, commits, and shows a consistent catalog
//! to queries.
//!
//! Progress and state live in the tables themselves. One flush commits the tables of a group one
//! after the other, the anchor last, each with the log offset it now stands at. If the process dies
//! in between, the tables already committed are ahead of the anchor; on restart exactly that
//! stretch of the log is taken in again and only the tables that are behind are committed. Nothing
//! else is kept anywhere, so there is nothing else that could disagree.

mod flush;
mod joined;
mod load;
mod observed;
mod parts;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::JoinType;
use datafusion::prelude::{SessionContext, ident, lit};
use url::Url;

pub use crate::catalog::Catalog;
use crate::catalog::{self, Overlay};
use crate::delta::DeltaStore;
use crate::error::{LakeError, Result};
use crate::exec::{self, Limits};
use crate::group::GroupState;
use crate::intake::{Intake, NewRows};
use crate::plan::{Group, Plan};
use crate::table::{KEY, OFFSET, PARTITION};

/// A group that saw nothing new still notes its progress when it is this many records behind.
const IDLE_PROGRESS: u64 = 1_000;

/// What a flush did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flushed {
    pub commits: u64,
    pub files_added: u64,
    pub bytes_added: u64,
}

/// Whether a lake has one writer or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// This process is the only one that writes.
    Alone,
    /// Other processes keep other log partitions; this one claims those that it attaches, see
    /// `delta/claims.rs`.
    Shared,
}

/// The lake, opened for writing: by one process for all log partitions, or by several for some
/// each.
pub struct Lake {
    plan: Plan,
    limits: Limits,
    sharing: Sharing,
    runtime: Arc<RuntimeEnv>,
    stores: BTreeMap<String, DeltaStore>,
    /// Per raw table and log partition.
    states: BTreeMap<(String, u32), GroupState>,
    /// Windows recomputed and not committed: (windowed table, partition) → segment → rows, public
    /// columns.
    windows: BTreeMap<(String, u32), BTreeMap<i64, RecordBatch>>,
    /// Watermark when windows of several raw tables were put together last, µs.
    assembled_to: Option<i64>,
    observed: observed::Observed,
    published: Arc<RwLock<Arc<Catalog>>>,
    /// For tests: commits left until the next flush fails as if the process had died.
    interrupt_after: Option<u64>,
}

impl std::fmt::Debug for Lake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lake").field("tables", &self.stores.keys()).finish()
    }
}

/// Where queries get the newest catalog from.
#[derive(Debug, Clone)]
pub struct CatalogSource {
    published: Arc<RwLock<Arc<Catalog>>>,
}

impl CatalogSource {
    /// A catalog that does not change.
    pub fn fixed(catalog: Catalog) -> Self {
        Self { published: Arc::new(RwLock::new(Arc::new(catalog))) }
    }

    pub fn current(&self) -> Arc<Catalog> {
        Arc::clone(&self.published.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// The committed tables below `root`, for readers that do not write: no lock is taken and nothing
/// is created.
pub async fn committed_catalog(root: &Url, plan: &Plan, limits: Limits) -> Result<Catalog> {
    let runtime = exec::runtime(limits)?;
    let ctx = exec::session(&runtime, limits);
    let mut stored = Vec::new();
    let joined = plan.stored_joined().map(|planned| Arc::clone(&planned.spec));
    for spec in plan.groups.iter().flat_map(Group::commit_order).chain(joined) {
        let store = DeltaStore::open(root, Arc::clone(&spec)).await?;
        let (provider, partitions) = match &store {
            Some(store) => (Some(store.provider().await?), partition_count(store)?),
            None => (None, 0),
        };
        let rows = catalog::with_overlay(&ctx, &spec, provider, Overlay::default())?;
        stored.push((spec, rows, partitions));
    }
    catalog::build(&runtime, plan, stored).await
}

/// Opens the tables of a group, creating all of them in a new lake. A single one that is missing is
/// a pipeline that was added later: started now it would only see new events, so that is refused.
async fn open_group(root: &Url, group: &Group) -> Result<Vec<(String, DeltaStore)>> {
    let mut found = Vec::new();
    for spec in group.commit_order() {
        found.push((Arc::clone(&spec), DeltaStore::open(root, spec).await?));
    }
    // Another process may be creating them right now, and creates all before it writes to one.
    for (spec, store) in &mut found {
        if store.is_none() {
            *store = DeltaStore::open(root, Arc::clone(spec)).await?;
        }
    }
    // Processes that create and claim them at the same time commit to them, but no file: files are
    // history.
    let mut in_use = false;
    for (_, store) in &found {
        in_use |= store.as_ref().is_some_and(|s| s.files().is_ok_and(|files| !files.is_empty()));
    }
    let missing: Vec<&str> =
        found.iter().filter(|(_, store)| store.is_none()).map(|(spec, _)| spec.name.as_str()).collect();
    if in_use && !missing.is_empty() {
        return Err(LakeError::Refused(format!(
            "{} is new in this data folder, which holds history already; run `tidegate pipeline backfill` (with the same \
             --data and --pipelines) to compute every table from the log",
            missing.join(", ")
        )));
    }
    let mut stores = Vec::new();
    for (spec, store) in found {
        let store = match store {
            Some(store) => store,
            None => DeltaStore::open_or_create(root, Arc::clone(&spec)).await?,
        };
        stores.push((spec.name.clone(), store));
    }
    Ok(stores)
}

fn partition_count(store: &DeltaStore) -> Result<u32> {
    let files = store.files()?;
    let partitions: BTreeSet<&str> = files.iter().filter_map(|f| f.partition_value(PARTITION)).collect();
    Ok(partitions.len() as u32)
}

impl Lake {
    /// Opens every table below `root`, creating those that are missing.
    pub async fn open(root: &Url, plan: Plan, limits: Limits, sharing: Sharing) -> Result<Self> {
        let mut stores = BTreeMap::new();
        for group in &plan.groups {
            stores.extend(open_group(root, group).await?);
        }
        // These are computed from the others, whenever they come.
        for planned in plan.stored_joined() {
            let store = DeltaStore::open_or_create(root, Arc::clone(&planned.spec)).await?;
            stores.insert(planned.spec.name.clone(), store);
        }
        let runtime = exec::runtime(limits)?;
        let mut lake = Self {
            plan,
            limits,
            sharing,
            runtime,
            stores,
            states: BTreeMap::new(),
            windows: BTreeMap::new(),
            assembled_to: None,
            observed: observed::Observed::default(),
            published: Arc::default(),
            interrupt_after: None,
        };
        lake.publish().await?;
        Ok(lake)
    }

    /// Whether other processes keep partitions of it too.
    pub fn is_shared(&self) -> bool {
        self.sharing == Sharing::Shared
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where queries get their tables from.
    pub fn catalog(&self) -> CatalogSource {
        CatalogSource { published: Arc::clone(&self.published) }
    }

    /// State of the groups, for status displays.
    pub fn states(&self) -> impl Iterator<Item = &GroupState> {
        self.states.values()
    }

    /// The lake's own work runs on one thread per query: it costs the least CPU, which the jobs
    /// beside it get.
    fn session(&self) -> SessionContext {
        exec::session(&self.runtime, Limits { threads: 1, ..self.limits })
    }

    /// Makes ready to take in partitions of a topic. Returns for each the offset to read from.
    ///
    /// In a shared lake this process claims them first: whoever kept them before cannot commit for
    /// them any more.
    pub async fn attach(&mut self, topic: &str, partitions: &[u32]) -> Result<Vec<u64>> {
        let of_topic = |group: &&Group| group.raw.schema.topic() == topic;
        let groups: Vec<Group> = self.plan.groups.iter().filter(of_topic).cloned().collect();
        let mut starts = vec![u64::MAX; partitions.len()];
        for group in groups {
            if self.sharing == Sharing::Shared {
                for spec in group.commit_order() {
                    self.store_mut(&spec.name).claim(partitions).await?;
                }
            }
            for (partition, start) in partitions.iter().zip(&mut starts) {
                *start = (*start).min(self.attach_group(&group, *partition).await?);
            }
        }
        let (of, keeper) = Self::keeper();
        let brings_keeper = topic == of && partitions.contains(&keeper);
        if self.sharing == Sharing::Shared && brings_keeper {
            self.claim_joined().await?;
        }
        self.publish().await?;
        Ok(starts.into_iter().map(|start| if start == u64::MAX { 0 } else { start }).collect())
    }

    async fn attach_group(&mut self, group: &Group, partition: u32) -> Result<u64> {
        let mut progress = Vec::new();
        for spec in group.commit_order() {
            progress.push(self.store_mut(&spec.name).progress(partition).await?);
        }
        let anchor = *progress.last().expect("a group has a raw table");
        let furthest = progress.iter().copied().max().unwrap_or(anchor);
        let mut state =
            GroupState::new(group.clone(), partition, anchor, (furthest > anchor).then_some(furthest));
        self.load(&mut state).await?;
        self.states.insert((state.raw().spec.name.clone(), partition), state);
        Ok(anchor)
    }

    /// Lets go of partitions of a topic. What was taken in of them and not committed is dropped.
    pub async fn detach(&mut self, topic: &str, partitions: &[u32]) -> Result<()> {
        let of_topic = |group: &&Group| group.raw.schema.topic() == topic;
        for group in self.plan.groups.clone().iter().filter(of_topic) {
            for spec in group.commit_order() {
                self.store_mut(&spec.name).release(partitions);
                partitions.iter().for_each(|p| drop(self.windows.remove(&(spec.name.clone(), *p))));
            }
            for partition in partitions {
                self.states.remove(&(group.raw.spec.name.clone(), *partition));
            }
        }
        self.publish().await
    }

    /// In a shared lake: looks what other processes have committed. Queries see it after
    /// [`Self::refresh`].
    pub async fn look(&mut self) -> Result<()> {
        if self.sharing == Sharing::Alone {
            return Ok(());
        }
        // A group commits its anchor last. Read first, it never says more than the other tables
        // hold.
        let anchors: BTreeSet<String> = self
            .plan
            .groups
            .iter()
            .filter_map(|group| Some(group.commit_order().pop()?.name.clone()))
            .collect();
        for is_anchor in [true, false] {
            for (_, store) in self.stores.iter_mut().filter(|(name, _)| anchors.contains(*name) == is_anchor)
            {
                store.refresh().await?;
            }
        }
        Ok(())
    }

    /// What takes in the decoded events of a log partition, to be handed to [`Self::absorb`].
    pub fn intake(&self, topic: &str, partition: u32) -> Intake {
        let here =
            self.states.values().filter(|s| s.partition == partition && s.raw().schema.topic() == topic);
        Intake::new(partition, here)
    }

    /// Takes in the records of a log partition up to `end`. Queries see them after
    /// [`Self::refresh`].
    pub fn absorb(&mut self, intake: Intake, end: u64) -> Result<()> {
        let partition = intake.partition;
        for (table, rows) in intake.finish() {
            let state =
                self.states.get_mut(&(table, partition)).expect("an intake is of attached partitions");
            match rows {
                NewRows::Samples(chunks) => {
                    chunks.into_iter().for_each(|chunk| state.absorb_samples(chunk));
                }
                NewRows::Events(batches) => {
                    for (batch, facts) in batches {
                        state.absorb(batch, facts)?;
                    }
                }
            }
            state.absorbed = state.absorbed.max(end);
        }
        Ok(())
    }

    /// Takes in events that waited because their keys may be finished and in the lake: those keys
    /// come back first.
    async fn absorb_waiting(&mut self) -> Result<()> {
        let waiting: Vec<(String, u32)> =
            self.states.iter().filter(|(_, s)| s.has_waiting()).map(|(name, _)| name.clone()).collect();
        for name in waiting {
            let state = &self.states[&name];
            let committed = self.committed_events(state, &state.waiting_keys()).await?;
            self.states.get_mut(&name).expect("just listed").absorb_waiting(committed)?;
        }
        Ok(())
    }

    /// Committed events of the keys.
    async fn committed_events(&self, state: &GroupState, keys: &BTreeSet<i64>) -> Result<Vec<RecordBatch>> {
        let ctx = self.session();
        let schema = state.raw().spec.full_schema();
        ctx.register_table("raw", self.stores[&state.raw().spec.name].provider().await?)?;
        // A join, not a list of literals: the scan turns a list into nested ORs, and thousands of
        // them overflow the stack.
        let wanted: ArrayRef = Arc::new(keys.iter().copied().collect::<Int64Array>());
        let wanted = ctx.read_batch(RecordBatch::try_from_iter([("wanted", wanted)])?)?;
        let committed = ident(PARTITION)
            .eq(lit(state.partition as i32))
            .and(ident(OFFSET).lt(lit(state.committed as i64)));
        let rows = ctx
            .table("raw")
            .await?
            .filter(committed)?
            .join(wanted, JoinType::LeftSemi, &[KEY], &["wanted"], None)?
            .collect()
            .await?;
        rows.iter().map(|batch| Ok(crate::batch::conform(batch, &schema)?)).collect()
    }

    /// Folds what was taken in, recomputes the windows it touches, and shows the result to queries.
    pub async fn refresh(&mut self) -> Result<()> {
        self.absorb_waiting().await?;
        let ctx = self.session();
        let dirty: Vec<(String, u32)> =
            self.states.iter().filter(|(_, s)| s.changed).map(|(k, _)| k.clone()).collect();
        let started = std::time::Instant::now();
        for name in &dirty {
            self.states.get_mut(name).expect("just listed").fold(&ctx).await?;
        }
        let folded = started.elapsed();
        for name in &dirty {
            self.recompute_windows(name).await?;
        }
        let recomputed = started.elapsed();
        self.publish().await?;
        tracing::debug!(?folded, windows = ?(recomputed - folded), publish = ?(started.elapsed() - recomputed), "refreshed");
        Ok(())
    }

    /// For tests of restarts: the next flush stops after this many commits, as if the process had
    /// died there. The lake must then be dropped and opened again.
    pub fn interrupt_flush_after(&mut self, commits: u64) {
        self.interrupt_after = Some(commits);
    }

    fn store_mut(&mut self, table: &str) -> &mut DeltaStore {
        self.stores.get_mut(table).expect("every table of the plan has a store")
    }

    /// Tables with their stores and the log partitions that this process keeps of them, for
    /// maintenance.
    pub(crate) fn stores_mut(&mut self) -> impl Iterator<Item = (&mut DeltaStore, Vec<u32>)> {
        let states = &self.states;
        let joined: BTreeSet<String> =
            self.plan.stored_joined().map(|planned| planned.spec.name.clone()).collect();
        let keeper =
            states.get(&(joined::KEEPER.0.to_owned(), joined::KEEPER.1)).map(|state| state.partition);
        let kept = move |table: &str| {
            let keeps = |s: &&GroupState| s.group.commit_order().iter().any(|spec| spec.name == table);
            if joined.contains(table) {
                keeper.into_iter().collect()
            } else {
                states.values().filter(keeps).map(|s| s.partition).collect()
            }
        };
        self.stores.iter_mut().map(move |(table, store)| (store, kept(table)))
    }

    /// Shows what maintenance changed.
    pub(crate) async fn republish(&mut self) -> Result<()> {
        self.publish().await
    }
}
