//! The lake: absorbs events, keeps every table up to date, commits, and publishes a consistent
//! catalog.
//!
//! Progress and state live in the tables themselves. One flush commits the tables of a group one
//! after the other, the anchor last, each with the log offset it reaches. If the process dies in
//! between, the tables committed so far are ahead of the anchor. The restart then absorbs exactly
//! that stretch of the log again and commits only the tables that are behind. Nothing else is
//! stored anywhere, so nothing can disagree.

mod flush;
mod intake;
mod joined;
mod late_nodes;
mod maintained;
mod partials;
mod publish;
mod restore;
mod revision;
mod saved_keys;
mod segments;
mod watermarks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::JoinType;
use datafusion::prelude::{SessionContext, ident, lit};
use url::Url;

use self::intake::{Intake, NewRows};
use crate::catalog::{Catalog, CatalogSource};
use crate::delta::DeltaStore;
use crate::engine::{self, Limits};
use crate::error::{LakeError, Result};
use crate::pipeline::plan::{Group, Plan};
use crate::raw::table::RawTable;
use crate::state::{GroupState, KeyedState};
use crate::table::{KEY, Layout, OFFSET, PARTITION};

/// A group without new events commits its progress once it is this many records behind.
const IDLE_PROGRESS: u64 = 1_000;

/// Property of the table of samples: see [`RawTable::ratio_step_ppm`].
const RATIO_STEP: &str = "tidegate.ratioStepPpm";

/// What a flush committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// Commits to Delta tables.
    pub commits: u64,
    /// Data files added.
    pub files_added: u64,
    /// Bytes of these files.
    pub bytes_added: u64,
}

impl std::ops::AddAssign for CommitStats {
    fn add_assign(&mut self, other: Self) {
        self.commits += other.commits;
        self.files_added += other.files_added;
        self.bytes_added += other.bytes_added;
    }
}

/// Whether a lake has one writer or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// This process is the only writer.
    Exclusive,
    /// Other processes write too, each for its own log partitions. This one claims the partitions
    /// it attaches, see `delta/claims.rs`.
    Shared,
}

/// The lake, opened for writing by one process for all log partitions, or by several for some of
/// them each.
pub struct Lake {
    plan: Plan,
    limits: Limits,
    sharing: Sharing,
    runtime: Arc<RuntimeEnv>,
    stores: BTreeMap<String, DeltaStore>,
    /// By raw table and log partition.
    states: BTreeMap<(String, u32), GroupState>,
    /// Windows recomputed and not committed: (windowed table, partition) → segment → rows, public
    /// columns. Partial aggregates are in parts, which readers merge.
    windows: BTreeMap<(String, u32), BTreeMap<i64, Vec<RecordBatch>>>,
    /// Watermark when joined tables were last up to date, µs.
    joined_watermark: Option<i64>,
    watermarks: watermarks::CommittedWatermarks,
    opening: joined::Opening,
    /// Joined tables of no more jobs than this are recomputed together.
    jobs_at_once: usize,
    too_long: joined::TooLong,
    saved_keys: saved_keys::SavedKeys,
    published: Arc<RwLock<Arc<Catalog>>>,
    /// Catalogs that queries may still read.
    in_use: maintained::CatalogsInUse,
    /// For tests: number of commits until the next flush fails as if the process had died.
    interrupt_after: Option<u64>,
}

impl std::fmt::Debug for Lake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lake").field("tables", &self.stores.keys()).finish()
    }
}

/// Opens the tables of a group, creating all of them in a new lake. If only some are missing, their
/// pipelines were added later. Created now they would see only new events, so that is refused.
async fn open_group(root: &Url, group: &Group) -> Result<Vec<(String, DeltaStore)>> {
    let mut found = Vec::new();
    for spec in group.commit_order() {
        found.push((Arc::clone(&spec), DeltaStore::open(root, spec).await?));
    }
    // Another process may be creating them now. It creates all of them before it writes to one.
    for (spec, store) in &mut found {
        if store.is_none() {
            *store = DeltaStore::open(root, Arc::clone(spec)).await?;
        }
    }
    // Processes that create and claim tables at the same time commit to them, but add no file. Only
    // files are history.
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
            None => {
                let step = group.raw.ratio_step_ppm;
                let rounded = spec.layout == Layout::Samples && step > 1;
                let properties = rounded.then(|| (RATIO_STEP, step.to_string())).into_iter().collect();
                DeltaStore::open_or_create_with(root, Arc::clone(&spec), properties).await?
            }
        };
        stores.push((spec.name.clone(), store));
    }
    Ok(stores)
}

/// The step to which the lake rounds ratios of samples. It was chosen when the lake was created,
/// and all its rows have it.
fn ratio_step(raw: &RawTable, stores: &BTreeMap<String, DeltaStore>) -> Result<u32> {
    let step = stores[&raw.spec.name].property(RATIO_STEP)?.map_or(Some(1), |step| step.parse().ok());
    match step {
        Some(step) if raw.ratio_step_ppm == 1 || raw.ratio_step_ppm == step => Ok(step),
        _ => Err(LakeError::Refused(format!(
            "{} holds ratios in steps of {} millionths, not {}; `tidegate pipeline backfill --ratio-step` rebuilds it",
            raw.spec.name,
            step.map_or("unknown".into(), |step| step.to_string()),
            raw.ratio_step_ppm
        ))),
    }
}

impl Lake {
    /// Opens every table below `root`, creating those that are missing.
    pub async fn open(root: &Url, mut plan: Plan, limits: Limits, sharing: Sharing) -> Result<Self> {
        let mut stores = BTreeMap::new();
        for group in &mut plan.groups {
            stores.extend(open_group(root, group).await?);
            group.raw.ratio_step_ppm = ratio_step(&group.raw, &stores)?;
        }
        // These are computed from the other tables, so they can be added at any time.
        for planned in plan.stored_joined() {
            let store = DeltaStore::open_or_create(root, Arc::clone(&planned.spec)).await?;
            stores.insert(planned.spec.name.clone(), store);
        }
        let runtime = engine::runtime(limits)?;
        let mut lake = Self {
            plan,
            limits,
            sharing,
            runtime,
            stores,
            states: BTreeMap::new(),
            windows: BTreeMap::new(),
            joined_watermark: None,
            watermarks: watermarks::CommittedWatermarks::default(),
            opening: joined::Opening::default(),
            jobs_at_once: joined::JOBS_AT_ONCE,
            too_long: joined::TooLong::default(),
            saved_keys: saved_keys::SavedKeys::default(),
            published: Arc::default(),
            in_use: maintained::CatalogsInUse::default(),
            interrupt_after: None,
        };
        lake.publish().await?;
        Ok(lake)
    }

    /// For tests: joined tables of more jobs than this are recomputed a span of days at a time.
    pub fn set_jobs_at_once(&mut self, jobs: usize) {
        self.jobs_at_once = jobs;
    }

    /// Whether other processes write to this lake too.
    pub fn is_shared(&self) -> bool {
        self.sharing == Sharing::Shared
    }

    /// The plan whose tables the lake holds.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Source of the catalogs that queries use.
    pub fn catalog(&self) -> CatalogSource {
        CatalogSource { published: Arc::clone(&self.published) }
    }

    /// State of the groups, for status displays.
    pub fn states(&self) -> impl Iterator<Item = &GroupState> {
        self.states.values()
    }

    /// The lake's own queries run on one thread each: that costs the least CPU, which the jobs on
    /// this machine need.
    fn session(&self) -> SessionContext {
        engine::session(&self.runtime, Limits { threads: 1, ..self.limits })
    }

    /// Prepares to absorb partitions of a topic. Returns the offset to read each from.
    ///
    /// In a shared lake this process claims them first, so their former owner can no longer commit
    /// for them.
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
        let (of, keeper) = Self::joined_owner();
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
        self.restore(&mut state).await?;
        self.states.insert((state.raw().spec.name.clone(), partition), state);
        Ok(anchor)
    }

    /// Gives up partitions of a topic. What was absorbed of them and not committed is dropped.
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

    /// In a shared lake: reads what other processes have committed. Queries see it after
    /// [`Self::refresh`].
    pub async fn refresh_snapshots(&mut self) -> Result<()> {
        if self.sharing == Sharing::Exclusive {
            return Ok(());
        }
        // A group commits its anchor last. Read first, it never claims more than the other tables
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

    /// An intake for decoded events of a log partition, to be passed to [`Self::absorb`].
    pub fn intake(&self, topic: &str, partition: u32) -> Intake {
        let here =
            self.states.values().filter(|s| s.partition == partition && s.raw().schema.topic() == topic);
        Intake::new(partition, here)
    }

    /// Absorbs the records of a log partition up to `end`. Queries see them after
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

    /// Absorbs events that waited because their keys may be sealed in the lake. Those keys are read
    /// back first.
    async fn absorb_waiting(&mut self) -> Result<()> {
        let waiting: Vec<(String, u32)> =
            self.states.iter().filter(|(_, s)| s.has_waiting()).map(|(name, _)| name.clone()).collect();
        for name in waiting {
            let state = &self.states[&name];
            let keys = state.keyed().map(KeyedState::waiting_keys).unwrap_or_default();
            let committed = self.committed_events(state, &keys).await?;
            self.states.get_mut(&name).expect("just listed").absorb_waiting(committed)?;
        }
        Ok(())
    }

    /// Committed events of the keys.
    async fn committed_events(&self, state: &GroupState, keys: &BTreeSet<i64>) -> Result<Vec<RecordBatch>> {
        let ctx = self.session();
        let schema = state.raw().spec.full_schema();
        ctx.register_table("raw", self.stores[&state.raw().spec.name].provider().await?)?;
        // This is a join and not a list of literals: the scan turns a list into nested ORs, and
        // thousands of them overflow the stack.
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

    /// Folds what was absorbed, recomputes dirty windows, and publishes the result.
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
}
