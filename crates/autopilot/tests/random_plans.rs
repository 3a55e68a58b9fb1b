//! Plans on random clusters against golden fingerprints. A change that must not change any plan
//! leaves the golden file untouched.
//!
//! A line of `golden/random_plans.txt` holds the seed, the size of its cluster, the number of
//! decisions in its plan and in the following plan, and a hash of both plans with their reports,
//! without the texts for people. `golden/reasons.txt` has these texts, so that a new wording
//! changes that file only. After an intended change run the test with `TIDEGATE_BLESS=1`.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tidegate_autopilot::forecast::{DemandForecast, Series};
use tidegate_autopilot::planner::plan;
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::state::{
    Checkpoint, ClusterState, CurvePoint, Drain, DrainedBy, GrowBy, Health, Job, JobKind, JobState, Loan,
    Node, NodeState, Owner, Pool, ScalingCurve, Share, Writer,
};

const NOW: i64 = 1_800_000_000_000_000;
const S: i64 = 1_000_000;
const SEEDS: u64 = 60;

/// Demand by owner and pool; bounds rise with level and horizon.
struct Random(BTreeMap<(String, String), f64>);

impl DemandForecast for Random {
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let mean = self.0.get(&(of.owner.to_owned(), of.pool.to_owned()))?;
        Some(mean * (0.6 + 0.5 * level + within_ms as f64 / 4e7))
    }

    fn typical_gpus(&self, of: Series<'_>, level: f64, _: i64) -> Option<f64> {
        Some(self.0.get(&(of.owner.to_owned(), of.pool.to_owned()))? * (0.5 + level))
    }

    fn coverage(&self, of: Series<'_>) -> Option<f64> {
        self.0.get(&(of.owner.to_owned(), of.pool.to_owned())).map(|_| 0.93)
    }

    fn as_of_us(&self, of: Series<'_>) -> Option<i64> {
        self.0.get(&(of.owner.to_owned(), of.pool.to_owned())).map(|_| NOW)
    }
}

/// A cluster under construction, with free GPUs by node.
struct Making {
    rng: ChaCha8Rng,
    state: ClusterState,
    free: BTreeMap<String, u32>,
}

impl Making {
    fn pools(&mut self, nodes: usize) -> Vec<String> {
        let pools: Vec<String> = (0..self.rng.random_range(1..=4)).map(|at| format!("p{at}")).collect();
        for pool in &pools {
            let price = self.rng.random_bool(0.5).then_some(2_000_000);
            let made = Pool { price_micros_per_gpu_hour: price, ..Pool::default() };
            self.state.pools.insert(pool.clone(), made);
            let size = [4, 8, 8, 16][self.rng.random_range(0..4)];
            for at in 0..nodes.div_ceil(pools.len()) {
                let node = self.node(pool, at, size);
                let name = format!("{pool}-{at:04}");
                if node.takes_jobs() {
                    self.free.insert(name.clone(), size);
                }
                self.state.nodes.insert(name, node);
            }
        }
        pools
    }

    fn node(&mut self, pool: &str, at: usize, gpus: u32) -> Node {
        let bad = self.rng.random_bool(0.04);
        let families = if bad { vec!["ecc".to_owned(), "xid".to_owned()] } else { Vec::new() };
        let drain = self.rng.random_bool(0.03).then(|| Drain {
            by: if at.is_multiple_of(2) {
                DrainedBy::Other
            } else {
                DrainedBy::Autopilot { action: format!("drain_node-{at}"), generation: 1 }
            },
            since_us: None,
            reason: "disk".to_owned(),
        });
        Node {
            pool: pool.to_owned(),
            rack: Some(format!("r{}", at / 8)),
            gpu_model: "H100".to_owned(),
            gpus,
            state: if self.rng.random_bool(0.02) { NodeState::Down } else { NodeState::Up },
            health: Health {
                bad_ppm: Some(if bad { 970_000 } else { 5_000 }),
                families,
                fatal: self.rng.random_bool(0.005),
                slowdown_ppm: self.rng.random_bool(0.03).then_some(120_000),
                checked_good_us: self.rng.random_bool(0.5).then_some(NOW - 900 * S),
            },
            drain,
            do_not_disrupt: self.rng.random_bool(0.03),
        }
    }

    /// Owners with shares of one or two pools; a pool has one or several owners.
    fn owners(&mut self, pools: &[String]) -> BTreeMap<(String, String), f64> {
        let mut demand = BTreeMap::new();
        for (at, pool) in pools.iter().enumerate() {
            let gpus: u32 = self.state.nodes.values().filter(|n| n.pool == *pool).map(|n| n.gpus).sum();
            let several = self.rng.random_range(1..=3);
            for nth in 0..several {
                let quota = gpus / several;
                let share = Share {
                    quota_gpus: quota,
                    limit_gpus: self.rng.random_bool(0.3).then_some(quota),
                    floor_gpus: self.rng.random_range(0..=quota / 4),
                    lendable: self.rng.random_bool(0.6),
                    demand_gpus: self.rng.random_bool(0.9).then(|| self.rng.random_range(0..=quota)),
                    reclaim_took_ms: self.rng.random_bool(0.3).then_some(240_000),
                };
                let name = format!("o{at}{nth}");
                if self.rng.random_bool(0.9) {
                    let mean = self.rng.random_range(0.0..1.0) * f64::from(quota);
                    demand.insert((name.clone(), pool.clone()), mean);
                }
                let owner = Owner { shares: [(pool.clone(), share)].into(), ..Owner::default() };
                self.state.owners.insert(name, owner);
            }
        }
        demand
    }

    /// Random loans of whole nodes.
    fn loans(&mut self) {
        let pools = |(name, o): (&String, &Owner)| {
            o.shares.keys().map(|pool| (name.clone(), pool.clone())).collect::<Vec<_>>()
        };
        let owners: Vec<(String, String)> = self.state.owners.iter().flat_map(pools).collect();
        for at in 0..self.rng.random_range(0..=owners.len()) {
            let (from, pool) = owners[self.rng.random_range(0..owners.len())].clone();
            let to = owners[self.rng.random_range(0..owners.len())].0.clone();
            let lent: BTreeSet<&String> = self.state.loans.values().flat_map(|loan| &loan.nodes).collect();
            let open = |(name, _): &(&String, &u32)| name.starts_with(&pool) && !lent.contains(name);
            let most = self.rng.random_range(1..20);
            let mut nodes: BTreeSet<String> =
                self.free.iter().filter(open).map(|(n, _)| n.clone()).take(most).collect();
            let mut gpus: u32 = nodes.iter().map(|name| self.free[name]).sum();
            if from == to || gpus == 0 {
                continue;
            }
            if self.rng.random_bool(0.2) {
                nodes.clear();
                gpus /= 2;
            }
            let back: BTreeSet<String> = if self.rng.random_bool(0.2) {
                nodes.iter().take(1).cloned().collect()
            } else {
                BTreeSet::new()
            };
            let loan = Loan {
                from,
                to,
                pool,
                gpus,
                reclaiming_gpus: back.iter().map(|name| self.free[name]).sum(),
                reclaiming_since_us: (!back.is_empty()).then_some(NOW - 60 * S),
                reclaiming_nodes: back,
                nodes,
                since_us: NOW - self.rng.random_range(60..3600) * S,
                expires_us: NOW + self.rng.random_range(300..3600) * S,
                reclaim_within_ms: 900_000,
                writer: if self.rng.random_bool(0.9) {
                    Writer::Autopilot { generation: 1 }
                } else {
                    Writer::Other
                },
                jobs: [].into(),
            };
            self.state.loans.insert(format!("lend-{at}"), loan);
        }
    }

    /// Places `gpus` on free nodes of its pool, or on its owner's loans.
    fn place(&mut self, owner: &str, pool: &str, gpus: u32) -> BTreeMap<String, u32> {
        let lent_to: BTreeMap<&String, &String> =
            self.state.loans.values().flat_map(|loan| loan.nodes.iter().map(|n| (n, &loan.to))).collect();
        let may = |name: &String| match lent_to.get(name) {
            Some(to) => *to == owner,
            None => name.starts_with(pool),
        };
        let (mut left, mut out) = (gpus, BTreeMap::new());
        for (name, free) in self.free.iter().filter(|(name, free)| **free > 0 && may(name)) {
            let here = left.min(*free);
            if here > 0 {
                out.insert(name.clone(), here);
                left -= here;
            }
        }
        if left > 0 {
            return BTreeMap::new();
        }
        for (name, free) in &mut self.free {
            *free -= out.get(name).copied().unwrap_or(0);
        }
        out
    }

    fn job(&mut self, owner: String, pool: String) -> Job {
        let gpus = [1, 2, 4, 8, 8, 16, 16, 24, 32, 64][self.rng.random_range(0..10)];
        let placement = self.place(&owner, &pool, gpus);
        let since_us = NOW - self.rng.random_range(10..20_000) * S;
        let state = match (placement.is_empty(), self.rng.random_range(0..30)) {
            (true, _) => JobState::Pending { since_us },
            (false, 0) => JobState::Changing { since_us },
            _ => JobState::Running { since_us },
        };
        let kind = match self.rng.random_range(0..10) {
            0 => JobKind::Service { needed_gpus: None },
            1..=4 => JobKind::Gang,
            _ => {
                let step = [1, 2, gpus][self.rng.random_range(0..3)];
                let sizes = if step == 1 { Vec::new() } else { (1..=8).map(|k| k * step).collect() };
                let grow = [GrowBy::Resize, GrowBy::Requeue, GrowBy::Satellites, GrowBy::Never];
                let max_gpus = gpus * self.rng.random_range(1..=6);
                JobKind::Elastic { min_gpus: 1, max_gpus, sizes, grow: grow[self.rng.random_range(0..4)] }
            }
        };
        let share = self.rng.random_range(0..1_000_000);
        let points =
            (0..7).map(|k: u64| CurvePoint { gpus: 1 << k, rate_ppm: 1_000_000 + ((1 << k) - 1) * share });
        Job {
            owner,
            pool,
            queue: None,
            priority: self.rng.random_range(0..4),
            kind,
            gpus,
            anchor_node: placement.keys().next().cloned(),
            placement,
            state,
            restarts: 0,
            loan: None,
            preemptible: self.rng.random_bool(0.7),
            preemptions_24h: u32::from(self.rng.random_bool(0.1)),
            checkpoint: Checkpoint {
                last_us: self.rng.random_bool(0.8).then(|| NOW - self.rng.random_range(0..7200) * S),
                save_ms: Some(30_000),
                restart_ms: self.rng.random_bool(0.5).then_some(120_000),
                requeue_ms: Some(0),
                resize_ms: self.rng.random_bool(0.5).then_some(20_000),
                on_notice: self.rng.random_bool(0.3),
                step_us: None,
                resumes: None,
            },
            curve: self.rng.random_bool(0.9).then(|| ScalingCurve::new(points.collect()).ok()).flatten(),
            remaining_work_ms: self
                .rng
                .random_bool(0.5)
                .then(|| self.rng.random_range(100_000..2_000_000_000)),
            expected_end_us: self.rng.random_bool(0.8).then(|| NOW + self.rng.random_range(60..90_000) * S),
            end_within_us: None,
            resized_us: self.rng.random_bool(0.1).then_some(NOW - 60 * S),
            opt_in: self.rng.random_bool(0.9),
            do_not_disrupt: self.rng.random_bool(0.05),
        }
    }
}

fn random(seed: u64) -> (ClusterState, Random) {
    let state = ClusterState { cluster: "random".to_owned(), at_us: NOW, ..ClusterState::default() };
    let mut making = Making { rng: ChaCha8Rng::seed_from_u64(seed), state, free: BTreeMap::new() };
    let nodes = [6, 20, 20, 60, 60, 200, 400][making.rng.random_range(0..7)];
    let pools = making.pools(nodes);
    let demand = making.owners(&pools);
    making.loans();
    let gpus: u32 = making.free.values().sum();
    let wanted = making.rng.random_range(0.1..1.4) * f64::from(gpus);
    let owners: Vec<(String, String)> = demand.keys().cloned().collect();
    let mut asked = 0;
    while f64::from(asked) < wanted && !owners.is_empty() {
        let (owner, pool) = owners[making.rng.random_range(0..owners.len())].clone();
        let job = making.job(owner, pool);
        asked += job.gpus;
        let id = format!("j{:04}", making.state.jobs.len() * 7919 % 10_000);
        making.state.jobs.insert(id, job);
    }
    (making.state, Random(demand))
}

/// Shapes of texts for people.
type Reasons = BTreeSet<String>;

/// Takes the texts for people out of a plan and its report, so that what is left changes only when
/// a decision does. The id of a drain hashes its reason, so its place in the order of appearance
/// replaces it.
struct Canonical<'a> {
    ids: BTreeMap<String, usize>,
    reasons: &'a mut Reasons,
}

impl Canonical<'_> {
    fn value(&mut self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => {
                for (name, field) in fields {
                    if let (true, Value::String(text)) = (name == "reason" || name == "why_not", &field) {
                        self.reasons.insert(shape(text));
                        *field = Value::Null;
                    }
                    self.value(field);
                }
            }
            Value::String(text) if text.starts_with("drain_node-") => {
                let next = self.ids.len();
                let nth = *self.ids.entry(text.clone()).or_insert(next);
                *text = format!("drain_node-{nth}");
            }
            _ => {}
        }
    }
}

/// A text with names of jobs, nodes, pools, owners and loans as `X` and numbers as `N`.
fn shape(text: &str) -> String {
    let word = |word: &str| {
        let core = word.trim_matches(|c: char| !c.is_alphanumeric());
        let has_digit = core.contains(|c: char| c.is_ascii_digit());
        let is_number = core.chars().all(|c| c.is_ascii_digit() || c == '.');
        if !has_digit { word.to_owned() } else { word.replacen(core, if is_number { "N" } else { "X" }, 1) }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ").replace("X, X", "X").replace("X, X", "X")
}

fn fingerprint(seed: u64, reasons: &mut Reasons) -> String {
    let (state, forecast) = random(seed);
    let text = if seed.is_multiple_of(3) {
        "[resize]\nspare_gpus = 8"
    } else {
        "[worth]\nleast_net_gpu_hours = 0.01"
    };
    let policy = if seed.is_multiple_of(2) { Policy::auto() } else { Policy::parse(text).unwrap() };
    let first = plan(&policy, &state, &forecast, None, NOW, seed);
    let second = plan(&policy, &state, &forecast, Some(&first.0), NOW + 10 * S, seed);
    let (made, again) = (first.0.decisions.len(), second.0.decisions.len());
    let mut both = serde_json::to_value((first, second)).unwrap();
    Canonical { ids: BTreeMap::new(), reasons }.value(&mut both);
    let hash = xxhash_rust::xxh3::xxh3_64(&serde_json::to_vec(&both).unwrap());
    format!("{seed} {} nodes {} jobs {made} {again} {hash:016x}\n", state.nodes.len(), state.jobs.len())
}

fn is_golden(name: &str, found: &str) {
    let golden = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&golden, found).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{name}");
}

#[test]
fn plans_on_random_clusters_are_the_golden_ones() {
    let mut reasons = Reasons::new();
    let found: String = (0..SEEDS).map(|seed| fingerprint(seed, &mut reasons)).collect();
    is_golden("random_plans.txt", &found);
    let reasons: String = reasons.into_iter().map(|reason| reason + "\n").collect();
    is_golden("reasons.txt", &reasons);
}
