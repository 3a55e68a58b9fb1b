//! Equivalence harness: delivers the same events in five ways, which must all give the same bytes.
//!
//! `tidegate pipeline test` and the lake's own tests use it. Streaming, backfill, restarts and
//! disorder must not show in a pipeline's result.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::Event;
use url::Url;

use crate::batch::concat;
use crate::batch::sort::sorted;
use crate::catalog::{Catalog, committed_catalog};
use crate::engine::{self, Limits};
use crate::error::{LakeError, Result};
use crate::lake::{Lake, Sharing};
use crate::maintenance::{self, Maintenance};
use crate::pipeline::plan::Plan;
use crate::table::{table_lag, window_revisions};

/// How events are delivered to the lake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delivery {
    /// All at once with one commit, as in a backfill.
    OneShot,
    /// In order of event time, with a commit after each hour that has events.
    WindowByWindow,
    /// Cut at random places, with random commits and refreshes.
    RandomCuts,
    /// Like random cuts, while the process repeatedly dies inside a commit and restarts, with known
    /// keys saved after some of the commits.
    KilledAndResumed,
    /// Every event is delayed at random by up to an hour, one in ten by up to three days, and one
    /// in five is delivered twice.
    ShuffledWithDuplicates,
    /// In order, with a commit and all updates after each time that has events. Not among
    /// [`Self::ALL`]: it is for short histories.
    OneByOne,
}

impl Delivery {
    /// The five deliveries of any history.
    pub const ALL: [Self; 5] = [
        Self::OneShot,
        Self::WindowByWindow,
        Self::RandomCuts,
        Self::KilledAndResumed,
        Self::ShuffledWithDuplicates,
    ];
}

/// Which views are read beside the stored tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewSelection<'a> {
    /// All views.
    All,
    /// The view with this name.
    Only(&'a str),
}

/// Rows of every table, sorted by all columns.
pub type TableContents = BTreeMap<String, RecordBatch>;

const HOUR_MS: i64 = 3_600_000;
const LATEST_MS: i64 = 72 * HOUR_MS;

/// Delivers `events` to a new lake below `root` and reads every table back.
///
/// All events go to one log partition, numbered in order of arrival. Only the views in `views` are
/// read: planning all of them takes longer than everything else.
pub async fn tables_after(
    plan: &Plan,
    root: &Url,
    events: &[Event],
    delivery: Delivery,
    seed: u64,
    views: ViewSelection<'_>,
) -> Result<TableContents> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut arrivals = events.to_vec();
    match delivery {
        Delivery::OneShot | Delivery::RandomCuts | Delivery::KilledAndResumed | Delivery::OneByOne => {}
        Delivery::WindowByWindow => arrivals.sort_by_key(Event::event_time_ms),
        Delivery::ShuffledWithDuplicates => {
            let repeated: Vec<Event> = arrivals.iter().filter(|_| rng.random_ratio(1, 5)).cloned().collect();
            arrivals.extend(repeated);
            arrivals.shuffle(&mut rng);
            arrivals.sort_by_cached_key(|event| {
                let longest = if rng.random_ratio(1, 10) { LATEST_MS } else { HOUR_MS };
                event.event_time_ms() + rng.random_range(0..=longest)
            });
        }
    }
    let cuts = cuts(&arrivals, delivery, &mut rng);
    let mut feed = Feed { plan, root, arrivals, rng };
    let lake = feed.run(&cuts, delivery).await?;
    let catalog = lake.catalog().current();
    let committed = committed_catalog(root, plan, Limits::default()).await?;
    let mut shown = read(&catalog, |name| !catalog.views.contains(name)).await?;
    // Views are computed from these tables, so this compares everything that queries see.
    if shown != read(&committed, |name| !committed.views.contains(name)).await? {
        return Err(LakeError::Refused(format!(
            "{delivery:?}: what queries see differs from what is committed"
        )));
    }
    let is_wanted = |name: &str| match views {
        ViewSelection::All => true,
        ViewSelection::Only(view) => name == view,
    };
    shown.extend(read(&catalog, |name| catalog.views.contains(name) && is_wanted(name)).await?);
    Ok(shown)
}

/// Where the events are cut: something is committed after each cut.
fn cuts(arrivals: &[Event], delivery: Delivery, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut cuts = match delivery {
        Delivery::OneShot => Vec::new(),
        Delivery::OneByOne => {
            let time = |i: usize| arrivals[i].event_time_ms();
            (1..arrivals.len()).filter(|i| time(*i) != time(i - 1)).collect()
        }
        Delivery::WindowByWindow => {
            let hour = |i: usize| arrivals[i].event_time_ms().div_euclid(HOUR_MS);
            (1..arrivals.len()).filter(|i| hour(*i) != hour(i - 1)).collect()
        }
        _ => {
            let most = arrivals.len().max(1);
            let mut cuts: Vec<usize> =
                (0..rng.random_range(1..12)).map(|_| rng.random_range(0..most)).collect();
            cuts.sort_unstable();
            cuts
        }
    };
    cuts.push(arrivals.len());
    cuts.dedup();
    cuts
}

struct Feed<'a> {
    plan: &'a Plan,
    root: &'a Url,
    arrivals: Vec<Event>,
    rng: ChaCha8Rng,
}

impl Feed<'_> {
    async fn run(&mut self, cuts: &[usize], delivery: Delivery) -> Result<Lake> {
        let (mut lake, mut next) = self.open(delivery).await?;
        let mut cuts = cuts.iter().copied().peekable();
        while let Some(&cut) = cuts.peek() {
            let recovery = lake.states().filter_map(|s| s.recover_to).min();
            let end = recovery.map_or(cut, |limit| limit as usize);
            self.absorb(&mut lake, next..end).await?;
            next = next.max(end);
            if recovery.is_none() && delivery == Delivery::KilledAndResumed && self.rng.random_bool(0.7) {
                // Die after some commits of this flush, then restart and find out how far it got.
                let most = self.plan.tables().len() as u64;
                lake.interrupt_flush_after(self.rng.random_range(0..most));
                let interrupted = match self.rng.random_bool(0.5) {
                    true => self.flush_in_lanes(&mut lake).await.is_err(),
                    false => flush(&mut lake).await.is_err(),
                };
                drop(lake);
                (lake, next) = self.open(delivery).await?;
                if interrupted {
                    continue;
                }
            } else if delivery == Delivery::RandomCuts && recovery.is_none() && self.rng.random_bool(0.3) {
                lake.refresh().await?;
            } else if delivery == Delivery::WindowByWindow && self.rng.random_bool(0.9) {
                // Joined tables are updated less often than tables are committed.
                lake.flush().await?;
            } else if !matches!(delivery, Delivery::OneShot | Delivery::OneByOne) && self.rng.random_bool(0.7)
            {
                self.flush_in_lanes(&mut lake).await?;
                maintenance::run_due(&mut lake, &Maintenance::default()).await?;
            } else {
                flush(&mut lake).await?;
            }
            if delivery == Delivery::KilledAndResumed && cut % 2 == 0 {
                lake.save_keys().await;
            }
            if recovery.is_none_or(|limit| limit as usize >= cut) {
                cuts.next();
            }
        }
        flush(&mut lake).await?;
        Ok(lake)
    }

    /// Commits, and updates the newest windows of joined tables before some of the others.
    async fn flush_in_lanes(&mut self, lake: &mut Lake) -> Result<()> {
        lake.flush().await?;
        lake.update_live().await?;
        for _ in 0..self.rng.random_range(0..4) {
            lake.repair_joined(self.rng.random_range(0..24 * HOUR_MS) * 1_000).await?;
        }
        Ok(())
    }

    async fn open(&self, delivery: Delivery) -> Result<(Lake, usize)> {
        let mut lake =
            Lake::open(self.root, self.plan.clone(), Limits::default(), Sharing::Exclusive).await?;
        if matches!(delivery, Delivery::KilledAndResumed | Delivery::ShuffledWithDuplicates) {
            // Past windows are recomputed from the jobs of a few days.
            lake.set_jobs_at_once(2);
        }
        let mut start = u64::MAX;
        let topics: std::collections::BTreeSet<&str> =
            self.plan.groups.iter().map(|g| g.raw.schema.topic()).collect();
        for topic in topics {
            start = start.min(lake.attach(topic, &[0]).await?[0]);
        }
        Ok((lake, start as usize))
    }

    /// All topics share one numbering here; a real log numbers each topic on its own.
    async fn absorb(&self, lake: &mut Lake, range: std::ops::Range<usize>) -> Result<()> {
        let topics: std::collections::BTreeSet<&str> =
            self.plan.groups.iter().map(|g| g.raw.schema.topic()).collect();
        for topic in topics {
            let mut intake = lake.intake(topic, 0);
            range.clone().for_each(|i| intake.push(i as u64, &self.arrivals[i]));
            lake.absorb(intake, range.end as u64)?;
        }
        Ok(())
    }
}

async fn flush(lake: &mut Lake) -> Result<()> {
    lake.flush().await?;
    lake.update_joined().await?;
    Ok(())
}

/// Reads every table of a catalog.
pub async fn read_tables(catalog: &Catalog) -> Result<TableContents> {
    read(catalog, |_| true).await
}

async fn read(catalog: &Catalog, is_wanted: impl Fn(&str) -> bool) -> Result<TableContents> {
    let limits = Limits::default();
    let ctx = engine::session(&engine::runtime(limits)?, limits);
    catalog.register(&ctx)?;
    let mut contents = TableContents::new();
    for (name, spec) in &catalog.specs {
        // The number of revisions, and what was pending at the end, depend on the delivery.
        let is_bookkeeping = *name == window_revisions().name || *name == table_lag().name;
        if is_bookkeeping || !is_wanted(name) {
            continue;
        }
        let schema = spec.public_schema();
        let columns: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let rows = concat(&schema, &ctx.table(name.as_str()).await?.collect().await?)?;
        contents.insert(name.clone(), sorted(&rows, &columns)?);
    }
    Ok(contents)
}
