//! Fault injection: classes, sizes and durations as published, at an accelerated rate.
//!
//! Sources: Greyhound's probe jobs (ATC'25) for the mix, the durations (computing 10 min, network
//! 22 min, 72 min at 512 GPUs and more) and the sizes (20 % of a GPU, at most 21.6 % of a host,
//! network throughput -28 to -85 %); Minder (NSDI'25) and Holmes for data and links.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tidegate_insight::straggler::Class;

use super::plan::{PER_NODE, Plan};
use crate::straggler::random::{child, lognormal};

/// Size of the injected slowdowns of single devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Noise {
    /// Median 14 %.
    #[default]
    Hard,
    /// Median 20 %, the published anchor.
    Easy,
}

/// Place of a fault. It stays there when a restart moves the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A device: node (index into the plan's) * 8 + slot.
    Device(usize),
    /// A node, by its index.
    Node(usize),
    /// The network as a whole.
    Fabric,
}

impl Place {
    fn node(self) -> Option<usize> {
        match self {
            Self::Device(device) => Some(device / PER_NODE),
            Self::Node(node) => Some(node),
            Self::Fabric => None,
        }
    }
}

/// One injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Injected {
    /// Cause.
    pub class: Class,
    /// Place.
    pub place: Place,
    /// Start, seconds into the job.
    pub start_s: f64,
    /// End.
    pub end_s: f64,
    /// Computing and transfer take 1 + this times as long; data adds this share of a nominal step.
    pub size: f64,
    /// Whether counters show it.
    pub evidence: bool,
}

impl Injected {
    /// Whether it acts at this time.
    pub fn active(&self, at_s: f64) -> bool {
        (self.start_s..self.end_s).contains(&at_s)
    }

    /// Whether it slows transfers rather than ranks.
    pub fn of_transfer(&self) -> bool {
        matches!(self.class, Class::Communication | Class::Link)
    }

    /// Whether both act at once on one node, or both on the transfer: then the subject of an alarm
    /// would be ambiguous.
    fn clashes(&self, other: &Self) -> bool {
        const APART_S: f64 = 180.0;
        let together = self.start_s < other.end_s + APART_S && other.start_s < self.end_s + APART_S;
        let same_node = self.place.node().is_some() && self.place.node() == other.place.node();
        together && (same_node || self.of_transfer() && other.of_transfer())
    }

    fn draw(plan: &Plan, noise: Noise, rng: &mut ChaCha8Rng) -> Self {
        const TEN_MINUTES: (f64, f64) = (300.0, 1.17);
        let slow = if noise == Noise::Hard { 0.14 } else { 0.20 };
        let at = rng.random_range(0..plan.ranks());
        let node = Place::Node(at / PER_NODE);
        let kind: f64 = rng.random();
        let (class, place, duration, size, evidence) = if kind < 0.25 {
            let duration = lognormal(rng, TEN_MINUTES.0, TEN_MINUTES.1);
            (
                Class::ComputeThermal,
                Place::Device(at),
                duration,
                lognormal(rng, slow, 0.6),
                rng.random_bool(0.9),
            )
        } else if kind < 0.45 {
            let duration = 3600.0 * rng.random_range(0.5..4.0);
            (Class::ComputeSilent, Place::Device(at), duration, lognormal(rng, slow, 0.6), false)
        } else if kind < 0.65 {
            let duration = lognormal(rng, TEN_MINUTES.0, TEN_MINUTES.1);
            (Class::Host, node, duration, lognormal(rng, 0.15, 0.5), false)
        } else if kind < 0.85 {
            let median = if plan.ranks() >= 512 { 2333.0 } else { 700.0 };
            let duration = lognormal(rng, median, 1.11).clamp(30.0, 4.0 * 3600.0);
            let place = if rng.random_bool(0.2) { Place::Fabric } else { node };
            let middle = rng.random_range(0.9..1.5);
            (Class::Communication, place, duration, lognormal(rng, middle, 0.7), plan.network_counters)
        } else if kind < 0.95 {
            let duration = lognormal(rng, TEN_MINUTES.0, TEN_MINUTES.1);
            // Only the first stage reads input, so the stall is on a node with ranks of it.
            let node = Place::Node(rng.random_range(0..plan.data_parallel().div_ceil(PER_NODE)));
            (Class::Data, node, duration, lognormal(rng, 0.25, 0.5), true)
        } else {
            let duration = lognormal(rng, TEN_MINUTES.0, TEN_MINUTES.1);
            (Class::Link, Place::Device(at), duration, 0.8, true)
        };
        // Not in the first ten minutes: a detector needs to have seen the healthy job.
        let start_s = rng.random_range(600.0..(plan.length_s - 120.0).max(601.0));
        Self { class, place, start_s, end_s: (start_s + duration).min(plan.length_s), size, evidence }
    }

    /// Faults of a job: none in every other job, otherwise one to four.
    pub fn draw_all(plan: &Plan, noise: Noise) -> Vec<Self> {
        let rng = &mut child(plan.seed, plan.regime.letter(), "faults");
        if rng.random_bool(0.5) {
            return Vec::new();
        }
        let wanted = rng.random_range(1..=4);
        let mut all: Vec<Self> = Vec::new();
        for _ in 0..wanted {
            let fault = Self::draw(plan, noise, rng);
            // A clashing fault is moved rather than dropped, because dropping would thin out long
            // faults.
            let moved = (0..40).find_map(|attempt| {
                let mut moved = fault;
                if attempt > 0 {
                    moved.start_s = rng.random_range(600.0..(plan.length_s - 120.0).max(601.0));
                    moved.end_s = (moved.start_s + fault.end_s - fault.start_s).min(plan.length_s);
                }
                all.iter().all(|other| !moved.clashes(other)).then_some(moved)
            });
            all.extend(moved);
        }
        all.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::scene::Regime;
    use crate::straggler::statistics::median;

    fn many() -> Vec<Injected> {
        let rng = &mut child(1, 'A', "test");
        (0..60)
            .flat_map(|seed| {
                let mut plan = Plan::draw(seed, Regime::A, Some(48.0));
                plan.nodes = plan.nodes.min(60);
                (0..200).map(|_| Injected::draw(&plan, Noise::Hard, rng)).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn shares_durations_and_sizes_are_the_published_ones() {
        let all = many();
        let of = |class| all.iter().filter(|fault| fault.class == class).collect::<Vec<_>>();
        for (class, share) in [
            (Class::ComputeThermal, 0.25),
            (Class::ComputeSilent, 0.20),
            (Class::Host, 0.20),
            (Class::Communication, 0.20),
            (Class::Data, 0.10),
            (Class::Link, 0.05),
        ] {
            let got = of(class).len() as f64 / all.len() as f64;
            assert!((got - share).abs() < 0.012, "{class:?} {got}");
        }
        let mid = |class, value: fn(&Injected) -> f64| {
            median(&mut of(class).into_iter().map(value).collect::<Vec<_>>()).unwrap()
        };
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 0.08, "{got} for {want}");
        near(mid(Class::ComputeThermal, |f| f.end_s - f.start_s), 300.0);
        near(mid(Class::Host, |f| f.end_s - f.start_s), 300.0);
        near(mid(Class::Communication, |f| f.end_s - f.start_s), 700.0);
        near(mid(Class::ComputeSilent, |f| f.end_s - f.start_s), 2.25 * 3600.0);
        near(mid(Class::ComputeThermal, |f| f.size), 0.14);
        near(mid(Class::Host, |f| f.size), 0.15);
        near(mid(Class::Communication, |f| f.size), 1.2);
        near(mid(Class::Data, |f| f.size), 0.25);
        let thermal = of(Class::ComputeThermal);
        let seen = thermal.iter().filter(|fault| fault.evidence).count() as f64 / thermal.len() as f64;
        assert!((seen - 0.9).abs() < 0.02, "{seen}");
    }

    #[test]
    fn half_of_the_jobs_are_clean_and_faults_do_not_clash() {
        let jobs: Vec<_> = (0..1000)
            .map(|seed| Injected::draw_all(&Plan::draw(seed, Regime::C, None), Noise::Hard))
            .collect();
        let clean = jobs.iter().filter(|job| job.is_empty()).count() as f64 / 1000.0;
        assert!((clean - 0.5).abs() < 0.05, "{clean}");
        assert!(jobs.iter().all(|job| job.len() <= 4));
        for job in &jobs {
            assert!((0..job.len()).all(|i| (0..i).all(|j| !job[i].clashes(&job[j]))));
        }
    }
}
