//! Scaling curves as the product fits them to windows of reported steps.

use std::collections::BTreeMap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::Normal;
use tidegate_events::{Event, JobFamily, v1};
use tidegate_insight::advice::scaling::{FamilyCurve, FamilyPoint, Size, StepWindow};

use crate::{PPM, SECOND_US, Sim, observe};

/// Steps of a window, as the signals count them.
const WINDOW_STEPS: u64 = 100;
/// Standard deviation of a window's median step, relative.
const NOISE: f64 = 0.02;

/// Fits of the families of elastic jobs.
#[derive(Debug, Clone, Default)]
pub(super) struct FamilyCurves {
    families: BTreeMap<String, FamilyCurve>,
    /// Time of steps at one size that is not in a window yet, µs, by job.
    open: BTreeMap<u32, (u32, i64)>,
}

impl FamilyCurves {
    /// A job ended; what it did not fill a window with is lost.
    pub fn forget(&mut self, job: u32) {
        self.open.remove(&job);
    }

    /// Adds the windows that elastic jobs filled since `seen_us`, and publishes new curves.
    pub fn follow(
        &mut self,
        sim: &Sim,
        jobs: &[u32],
        seen_us: i64,
        rng: &mut ChaCha8Rng,
        events: &mut Vec<(i64, Event)>,
    ) {
        let noise = Normal::new(0.0, NOISE).expect("a positive deviation");
        for number in jobs {
            let job = &sim.jobs()[*number as usize];
            let Some(elastic) = job.spec.elastic else { continue };
            let gpus = job.gpus();
            let ran_us = sim.now_us() - seen_us.max(job.segment.from_us);
            if ran_us <= 0 || gpus == 0 {
                continue;
            }
            let (size, open_us) = self.open.get(number).copied().unwrap_or((gpus, 0));
            let open_us = if size == gpus { open_us + ran_us } else { ran_us };
            // Each GPU takes a second for its part of a step when it is alone.
            let curve = &sim.spec().curves[elastic.curve];
            let speed = job.held.iter().map(|held| sim.nodes()[held.0 as usize].speed_ppm).min();
            let speed = f64::from(speed.unwrap_or(PPM)) / f64::from(PPM);
            let rate = curve.rate_ppm(gpus).max(1) as f64 / f64::from(PPM);
            let step_s = f64::from(gpus) / rate / speed;
            let steps = (open_us as f64 / SECOND_US as f64 / step_s) as u64;
            let windows = steps / WINDOW_STEPS;
            let used_us = (windows * WINDOW_STEPS) as f64 * step_s * SECOND_US as f64;
            self.open.insert(*number, (gpus, open_us - used_us as i64));
            if windows == 0 {
                continue;
            }
            let window = StepWindow {
                size: Size { gpus, nodes: job.held.len() as u32, local_batch: 1 },
                median_s: step_s * rng.sample(noise).exp(),
                steps: windows * WINDOW_STEPS,
                newest_us: sim.now_us(),
            };
            events.extend(self.learn(sim, *number, &window));
        }
    }

    fn learn(&mut self, sim: &Sim, job: u32, window: &StepWindow) -> Vec<(i64, Event)> {
        let model = sim.jobs()[job as usize].held.first().map(|held| sim.nodes()[held.0 as usize].model);
        let gpu_model = model.map(|model| sim.spec().models[usize::from(model)].clone());
        let of = JobFamily { gpu_model, ..observe::family(sim, job) };
        let name = of.name(&sim.spec().job_id(job));
        let family = self.families.entry(name.clone()).or_insert_with(|| FamilyCurve::new(sim.now_us()));
        let Some((_, points)) = family.learn(window, sim.now_us()) else { return Vec::new() };
        let count = points.len() as u32;
        let event = |point: FamilyPoint| {
            let curve = v1::ScalingCurve {
                family: name.clone(),
                unit: "STEPS".into(),
                gpus: point.size.gpus,
                nodes: point.size.nodes,
                rate_milli: point.rate_milli,
                low_milli: point.low_milli,
                high_milli: point.high_milli,
                seen_steps: point.seen_steps,
                points: count,
                ..v1::ScalingCurve::default()
            };
            (sim.now_us(), Event::Scaling(curve))
        };
        points.into_iter().map(event).collect()
    }
}
