//! Straggler signals as the product's detector gives them: late, not always, and now and then of a
//! node that is well.
//!
//! Delays, recall and false alarms are those of the detector's own bench, mixed regimes
//! (docs/results/insight.md).

use std::collections::BTreeMap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::LogNormal;
use tidegate_events::{Event, v1};

use crate::{DAY_US, MINUTE_US, PPM, SECOND_US, Sim};

/// Median and 95th percentile of the delay until a straggler is confirmed, s.
const CONFIRMED_S: [f64; 2] = [84.0, 115.0];
/// Share of stragglers that are found at all.
const RECALL_PPM: u32 = 976_000;
/// False alarms per job and day, and how long one lasts.
const FALSE_ALARMS_PER_DAY: f64 = 0.02;
const FALSE_FOR_US: i64 = 10 * MINUTE_US;
/// Least slowdown that is noticed, and the one that a false alarm states, ppm.
const LEAST_PPM: u32 = 50_000;
const FALSE_PPM: i64 = 120_000;
/// Standard deviation of a measured slowdown, ppm.
const NOISE_PPM: f64 = 10_000.0;

/// Slow nodes under gangs that report steps, by job and node.
#[derive(Debug, Clone, Default)]
pub(super) struct Stragglers {
    seen: BTreeMap<(u32, u32), Episode>,
    episodes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Episode {
    number: u64,
    /// When it is confirmed; `None`: never.
    confirm_us: Option<i64>,
    confirmed: bool,
    /// End of a false alarm.
    until_us: Option<i64>,
    slowdown_ppm: i64,
}

impl Stragglers {
    /// Follows the gangs that run: episodes begin, are confirmed, and end.
    pub fn follow(
        &mut self,
        sim: &Sim,
        jobs: &[u32],
        seen_us: i64,
        rng: &mut ChaCha8Rng,
        events: &mut Vec<(i64, Event)>,
    ) {
        let now_us = sim.now_us();
        let days = (now_us - seen_us).max(0) as f64 / DAY_US as f64;
        for number in jobs {
            let held = &sim.jobs()[*number as usize].held;
            // A rank is slow only beside others.
            if held.len() < 2 {
                continue;
            }
            for (node, _) in held {
                let slow_ppm = PPM - sim.nodes()[*node as usize].speed_ppm.min(PPM);
                if slow_ppm >= LEAST_PPM && !self.seen.contains_key(&(*number, *node)) {
                    let episode = self.begin(now_us, i64::from(slow_ppm), rng);
                    self.seen.insert((*number, *node), episode);
                }
            }
            if rng.random_bool((FALSE_ALARMS_PER_DAY * days).min(1.0)) {
                let node = held[rng.random_range(0..held.len())].0;
                self.episodes += 1;
                let alarm = Episode {
                    number: self.episodes,
                    confirm_us: Some(now_us),
                    confirmed: false,
                    until_us: Some(now_us + FALSE_FOR_US),
                    slowdown_ppm: FALSE_PPM,
                };
                self.seen.entry((*number, node)).or_insert(alarm);
            }
        }
        self.publish(sim, events);
    }

    fn begin(&mut self, now_us: i64, slow_ppm: i64, rng: &mut ChaCha8Rng) -> Episode {
        let [median, p95] = CONFIRMED_S;
        let delay = LogNormal::new(median.ln(), (p95 / median).ln() / 1.645).expect("p95 above the median");
        let found = rng.random_range(0..PPM) < RECALL_PPM;
        let delay_us = (rng.sample(delay) * SECOND_US as f64) as i64;
        let noise = rng.sample::<f64, _>(rand_distr::StandardNormal) * NOISE_PPM;
        self.episodes += 1;
        Episode {
            number: self.episodes,
            confirm_us: found.then_some(now_us + delay_us),
            confirmed: false,
            until_us: None,
            slowdown_ppm: (slow_ppm + noise as i64).max(1),
        }
    }

    fn publish(&mut self, sim: &Sim, events: &mut Vec<(i64, Event)>) {
        let now_us = sim.now_us();
        self.seen.retain(|(job, node), episode| {
            let signal = |state: v1::SignalState| v1::StragglerSignal {
                state: state.into(),
                job_id: sim.spec().job_id(*job),
                episode: episode.number,
                blame: "RANK".into(),
                node: Some(sim.spec().nodes[*node as usize].name.clone()),
                slowdown_ppm: episode.slowdown_ppm,
                ..v1::StragglerSignal::default()
            };
            let holds = sim.jobs()[*job as usize].held.iter().any(|held| held.0 == *node);
            let is_slow = sim.nodes()[*node as usize].speed_ppm < PPM - LEAST_PPM;
            let goes_on = holds && episode.until_us.map_or(is_slow, |until_us| now_us < until_us);
            if goes_on && !episode.confirmed && episode.confirm_us.is_some_and(|at_us| at_us <= now_us) {
                events.push((now_us, Event::Straggler(signal(v1::SignalState::Confirmed))));
                episode.confirmed = true;
            }
            if !goes_on && episode.confirmed {
                events.push((now_us, Event::Straggler(signal(v1::SignalState::Cleared))));
            }
            goes_on
        });
    }
}
