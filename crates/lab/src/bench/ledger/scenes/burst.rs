//! Scene of the node that joins late: one job per bottleneck, training, and a memory leak.

use tidegate_events::FinalState;

use super::{PRODUCT, RESEARCH, Scene};
use crate::bench::ledger::bottleneck::Bottleneck;
use crate::bench::ledger::day::Activity;
use crate::bench::ledger::fleet::{GPUS_PER_NODE, Span};
use tidegate_demo::levels::Doing;

/// Growth of the leaking job, bytes per hour.
const GROWTH: i64 = 20 << 30;

pub fn play(scene: &mut Scene<'_>) {
    let first = scene.span(0.41, 0.49);
    for (bottleneck, gpus, straggler) in [
        (Bottleneck::Host, 0..2, None),
        (Bottleneck::Communication, 2..4, None),
        (Bottleneck::Imbalance, 4..8, Some(1)),
    ] {
        let units = scene.gpus(0, gpus);
        let job = scene.job(RESEARCH, "pretrain", &units, first.from_ms);
        scene.day.jobs[job].bottleneck = Some(bottleneck);
        scene.day.train(job, first, FinalState::Completed, &units, straggler);
    }
    let units = scene.gpus(0, 0..GPUS_PER_NODE);
    scene.training(RESEARCH, &units, scene.span(0.5, 0.8), None);
    let last = scene.span(0.81, 0.89);
    for (bottleneck, gpus) in [
        (Bottleneck::Compute, 0..1),
        (Bottleneck::Memory, 1..2),
        (Bottleneck::Pcie, 2..3),
        (Bottleneck::Nvlink, 3..5),
    ] {
        let job = busy(scene, "batch", gpus, last);
        scene.day.jobs[job].bottleneck = Some(bottleneck);
    }
    let leaking = busy(scene, "leak", 6..7, last);
    scene.day.jobs[leaking].growth = GROWTH;
}

/// Adds a job that is busy throughout; returns its index.
fn busy(scene: &mut Scene<'_>, name: &'static str, gpus: std::ops::Range<usize>, span: Span) -> usize {
    let units = scene.gpus(0, gpus);
    let job = scene.job(PRODUCT, name, &units, span.from_ms);
    let work = Activity::Phases(vec![(span.to_ms, Doing::Busy)]);
    scene.day.hold(job, span, FinalState::Completed, &units, work);
    job
}
