//! The node that comes late: jobs that each hit a wall of their own, training, and a job whose
//! memory grows.

use tidegate_events::FinalState;

use super::{PRODUCT, RESEARCH, Scene};
use crate::bench::ledger::class::Doing;
use crate::bench::ledger::day::Work;
use crate::bench::ledger::fleet::{GPUS_PER_NODE, Span};
use crate::bench::ledger::wall::Wall;

/// Bytes an hour.
const GROWTH: i64 = 20 << 30;

pub fn play(scene: &mut Scene<'_>) {
    let first = scene.span(0.41, 0.49);
    for (wall, gpus, straggler) in
        [(Wall::Host, 0..2, None), (Wall::Communication, 2..4, None), (Wall::Imbalance, 4..8, Some(1))]
    {
        let units = scene.gpus(0, gpus);
        let job = scene.job(RESEARCH, "pretrain", &units, first.from_ms);
        scene.day.jobs[job].wall = Some(wall);
        scene.day.train(job, first, FinalState::Completed, &units, straggler);
    }
    let units = scene.gpus(0, 0..GPUS_PER_NODE);
    scene.training(RESEARCH, &units, scene.span(0.5, 0.8), None);
    let last = scene.span(0.81, 0.89);
    for (wall, gpus) in
        [(Wall::Compute, 0..1), (Wall::Memory, 1..2), (Wall::Pcie, 2..3), (Wall::Nvlink, 3..5)]
    {
        let job = busy(scene, "batch", gpus, last);
        scene.day.jobs[job].wall = Some(wall);
    }
    let leaking = busy(scene, "leak", 6..7, last);
    scene.day.jobs[leaking].growth = GROWTH;
}

/// A job that is busy from its start to its end; its place.
fn busy(scene: &mut Scene<'_>, name: &'static str, gpus: std::ops::Range<usize>, span: Span) -> usize {
    let units = scene.gpus(0, gpus);
    let job = scene.job(PRODUCT, name, &units, span.from_ms);
    let work = Work::Phases(vec![(span.to_ms, Doing::Busy)]);
    scene.day.hold(job, span, FinalState::Completed, &units, work);
    job
}
