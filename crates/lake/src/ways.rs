//! Runs the same events through the lake in five ways that must give the same bytes.
//!
//! `tidegate pipeline test` and the lake's own tests use it: whatever a pipeline is, streaming,
//! history, restarts and disorder must not show in its result.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::Event;
use url::Url;

use crate::batch::concat;
use crate::catalog;
use crate::error::{LakeError, Result};
use crate::exec::{self, Limits};
use crate::lake::{Catalog, Lake, Sharing};
use crate::plan::Plan;
use crate::sorted::sorted;

/// One way of getting events into the lake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// All at once, one commit: history.
    OneShot,
    /// In order of event time, a commit after each hour that has events.
    WindowByWindow,
    /// Cut at random places, with commits and refreshes at random.
    RandomCuts,
    /// Like random cuts, and the process dies inside a commit and starts again, over and over.
    KilledAndResumed,
    /// Every event delayed at random by up to an hour, one in ten by up to three days; one in five
    /// delivered twice.
    ShuffledWithDuplicates,
}

impl Way {
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
pub enum Views<'a> {
    All,
    Only(&'a str),
}

/// Contents of every table, rows in order of all columns.
pub type Contents = BTreeMap<String, RecordBatch>;

const HOUR_MS: i64 = 3_600_000;
const LATEST_MS: i64 = 72 * HOUR_MS;

/// Feeds `events` to a fresh lake below `root` in one of the ways and reads every table back.
///
/// The events stand for one log partition; they are numbered in the order in which they arrive.
/// Of the views only `views` are read: to plan all of them takes longer than everything else.
pub async fn contents(
    plan: &Plan,
    root: &Url,
    events: &[Event],
    way: Way,
    seed: u64,
    views: Views<'_>,
) -> Result<Contents> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut arrivals = events.to_vec();
    match way {
        Way::OneShot | Way::RandomCuts | Way::KilledAndResumed => {}
        Way::WindowByWindow => arrivals.sort_by_key(Event::event_time_ms),
        Way::ShuffledWithDuplicates => {
            let repeated: Vec<Event> = arrivals.iter().filter(|_| rng.random_ratio(1, 5)).cloned().collect();
            arrivals.extend(repeated);
            arrivals.shuffle(&mut rng);
            arrivals.sort_by_cached_key(|event| {
                let longest = if rng.random_ratio(1, 10) { LATEST_MS } else { HOUR_MS };
                event.event_time_ms() + rng.random_range(0..=longest)
            });
        }
    }
    let cuts = cuts(&arrivals, way, &mut rng);
    let mut feed = Feed { plan, root, arrivals, rng };
    let lake = feed.run(&cuts, way).await?;
    let catalog = lake.catalog().current();
    let committed = crate::lake::committed_catalog(root, plan, Limits::default()).await?;
    let mut shown = read(&catalog, |name| !catalog.views.contains(name)).await?;
    // Views follow from these, so this compares all that queries see.
    if shown != read(&committed, |name| !committed.views.contains(name)).await? {
        return Err(LakeError::Refused(format!("{way:?}: what queries see differs from what is committed")));
    }
    let is_wanted = |name: &str| match views {
        Views::All => true,
        Views::Only(view) => name == view,
    };
    shown.extend(read(&catalog, |name| catalog.views.contains(name) && is_wanted(name)).await?);
    Ok(shown)
}

/// Ends of the stretches after which something is committed.
fn cuts(arrivals: &[Event], way: Way, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut cuts = match way {
        Way::OneShot => Vec::new(),
        Way::WindowByWindow => {
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
    async fn run(&mut self, cuts: &[usize], way: Way) -> Result<Lake> {
        let (mut lake, mut next) = self.open().await?;
        let mut cuts = cuts.iter().copied().peekable();
        while let Some(&cut) = cuts.peek() {
            let recovery = lake.states().filter_map(|s| s.recover_to).min();
            let end = recovery.map_or(cut, |limit| limit as usize);
            self.absorb(&mut lake, next..end).await?;
            next = next.max(end);
            if recovery.is_none() && way == Way::KilledAndResumed && self.rng.random_bool(0.7) {
                // Die after some of the commits of this flush, then come back and find out how far
                // it got.
                let most = self.plan.tables().len() as u64;
                lake.interrupt_flush_after(self.rng.random_range(0..most));
                let interrupted = flush(&mut lake).await.is_err();
                drop(lake);
                (lake, next) = self.open().await?;
                if interrupted {
                    continue;
                }
            } else if way == Way::RandomCuts && recovery.is_none() && self.rng.random_bool(0.3) {
                lake.refresh().await?;
            } else if way == Way::WindowByWindow && self.rng.random_bool(0.9) {
                // Windows of several topics are put together less often than tables are committed.
                lake.flush().await?;
            } else {
                flush(&mut lake).await?;
            }
            if recovery.is_none_or(|limit| limit as usize >= cut) {
                cuts.next();
            }
        }
        flush(&mut lake).await?;
        Ok(lake)
    }

    async fn open(&self) -> Result<(Lake, usize)> {
        let mut lake = Lake::open(self.root, self.plan.clone(), Limits::default(), Sharing::Alone).await?;
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
    lake.assemble().await?;
    Ok(())
}

/// Contents of every table of a catalog.
pub async fn read_all(catalog: &Catalog) -> Result<Contents> {
    read(catalog, |_| true).await
}

async fn read(catalog: &Catalog, is_wanted: impl Fn(&str) -> bool) -> Result<Contents> {
    let limits = Limits::default();
    let ctx = exec::session(&exec::runtime(limits)?, limits);
    catalog.register(&ctx)?;
    let mut contents = Contents::new();
    for (name, spec) in &catalog.specs {
        // How often a window was revised is what the ways differ in.
        if *name == catalog::window_revisions().name || !is_wanted(name) {
            continue;
        }
        let schema = spec.public_schema();
        let columns: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let rows = concat(&schema, &ctx.table(name.as_str()).await?.collect().await?)?;
        contents.insert(name.clone(), sorted(&rows, &columns)?);
    }
    Ok(contents)
}
