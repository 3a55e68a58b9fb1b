//! What a simulated cluster tells beside its scheduler: records of jobs, step reports, and the
//! signals that the product would derive from them, at their delays.
//!
//! The simulation knows when each job will end, what it has saved and which node is slow. A site
//! does not, and neither may the planner: these events are all that [`Facts`] learns from, as on a
//! real cluster. [`Reports`] sets how much the jobs of the site report.

mod curves;
mod stragglers;

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tidegate_autopilot::state::ClusterState;
use tidegate_events::{Event, Micros, v1};
use tidegate_facts::Facts;

use crate::{AttemptEnd, JobState, PPM, Sim, SimEvent, observe};
use curves::FamilyCurves;
use stragglers::Stragglers;

/// Time of a step at full speed, µs.
const STEP_US: u64 = 10_000_000;
/// Steps that a job reports at each speed: as many as are needed to know their time.
const STEPS: u32 = 9;

/// What the jobs of a site report of their steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reports {
    /// Nothing: the scheduler's records are all there is.
    None,
    /// Durations: scaling curves, stragglers and restarts are measured; checkpoints are not known.
    Durations,
    /// Also the checkpoints in them.
    #[default]
    All,
}

/// Follows a simulation and learns from what it reports.
#[derive(Debug, Clone)]
pub(crate) struct Reporter {
    reports: Reports,
    facts: Facts,
    curves: FamilyCurves,
    stragglers: Stragglers,
    jobs: BTreeMap<u32, Reported>,
    rng: ChaCha8Rng,
    begun: bool,
    /// Where the last observation stood, µs.
    seen_us: i64,
}

/// What a running job has reported so far.
#[derive(Debug, Clone, Copy, Default)]
struct Reported {
    /// It made its first step since its last start or resize.
    stepped: bool,
    /// Beginning of the last save that it reported, µs.
    saved_us: i64,
    /// When it was last resized, µs.
    resized_us: Option<i64>,
    /// Speed at which its last steps ran, and how many of them it reported.
    step_rate_ppm: u32,
    steps: u32,
}

impl Reporter {
    pub fn new(reports: Reports, seed: u64) -> Self {
        Self {
            reports,
            facts: Facts::default(),
            curves: FamilyCurves::default(),
            stragglers: Stragglers::default(),
            jobs: BTreeMap::new(),
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x5e11),
            begun: false,
            seen_us: 0,
        }
    }

    /// Takes in events of the simulation, and reports of its jobs up to now.
    pub fn follow(&mut self, sim: &Sim, events: &[(i64, SimEvent)]) {
        if !self.begun {
            self.begun = true;
            observe::opening(sim).into_iter().for_each(|event| self.learn(sim, sim.now_us(), event));
        }
        for (at_us, what) in events {
            self.follow_job(*at_us, what);
            for event in observe::events_of(sim, what) {
                self.learn(sim, *at_us, event);
            }
        }
        if self.reports != Reports::None {
            let (jobs, mut events) = (sim.running().collect::<Vec<_>>(), Vec::new());
            for job in &jobs {
                self.steps(sim, *job, &mut events);
            }
            self.curves.follow(sim, &jobs, self.seen_us, &mut self.rng, &mut events);
            self.stragglers.follow(sim, &jobs, self.seen_us, &mut self.rng, &mut events);
            events.into_iter().for_each(|(at_us, event)| self.learn(sim, at_us, event));
        }
        self.seen_us = sim.now_us();
    }

    /// Adds what was learned to the scheduler's state.
    pub fn enrich(&self, sim: &Sim, state: &mut ClusterState) {
        for (number, reported) in &self.jobs {
            if let Some(job) = state.jobs.get_mut(&sim.spec().job_id(*number)) {
                job.resized_us = reported.resized_us.map(|us| sim.spec().epoch_us + us);
            }
        }
        self.facts.enrich(state);
    }

    fn learn(&mut self, sim: &Sim, at_us: i64, mut event: Event) {
        let envelope = event.envelope_mut();
        envelope.event_time_ms = Micros(sim.spec().epoch_us + at_us).floor_millis().0;
        self.facts.observe(&event);
    }

    fn follow_job(&mut self, at_us: i64, what: &SimEvent) {
        match what {
            SimEvent::Started { job, .. } => {
                let reported = self.jobs.entry(*job).or_default();
                (reported.stepped, reported.saved_us) = (false, at_us);
                reported.step_rate_ppm = 0;
            }
            SimEvent::Ended { job, how: AttemptEnd::Resized, .. } => {
                self.jobs.entry(*job).or_default().resized_us = Some(at_us);
            }
            SimEvent::Ended { job, .. } => {
                self.jobs.remove(job);
                self.curves.forget(*job);
            }
            _ => {}
        }
    }

    /// The first step of a job since it started, its last save, and a few steps at each speed.
    fn steps(&mut self, sim: &Sim, number: u32, events: &mut Vec<(i64, Event)>) {
        let (job, reported) = (&sim.jobs()[number as usize], self.jobs.entry(number).or_default());
        let from_us = job.segment.from_us;
        if job.state != JobState::Running || from_us > sim.now_us() {
            return;
        }
        let report = |at_us: i64, save_us: i64| {
            let step = v1::StepReport {
                job_id: sim.spec().job_id(number),
                duration_us: save_us.unsigned_abs(),
                checkpoint_us: (save_us > 0).then_some(save_us.unsigned_abs()),
                ..v1::StepReport::default()
            };
            (at_us, Event::Step(step))
        };
        if !reported.stepped {
            reported.stepped = true;
            events.push(report(from_us, 0));
        }
        let rate_ppm = job.segment.rate_ppm;
        if reported.step_rate_ppm != rate_ppm {
            (reported.step_rate_ppm, reported.steps) = (rate_ppm, 0);
        }
        if reported.steps < STEPS {
            reported.steps += 1;
            let duration_us = STEP_US * u64::from(PPM) / u64::from(rate_ppm.max(1));
            let step = v1::StepReport {
                job_id: sim.spec().job_id(number),
                duration_us,
                ..v1::StepReport::default()
            };
            events.push((sim.now_us(), Event::Step(step)));
        }
        let saved = job.last_save_us(sim.now_us()).filter(|saved_us| *saved_us > reported.saved_us);
        if let Some((saved_us, checkpoint)) = saved.zip(job.spec.checkpoint)
            && self.reports == Reports::All
        {
            reported.saved_us = saved_us;
            events.push(report(saved_us, checkpoint.cost_us));
        }
    }
}
