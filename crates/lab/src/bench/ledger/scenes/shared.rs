//! Scenes of the pool for small jobs. Its first node has sliced GPUs and a time-shared one.

use tidegate_events::FinalState;

use super::{PRODUCT, RESEARCH, Scene, SceneFn};
use crate::bench::ledger::day::Incident;
use crate::bench::ledger::fleet::{GPUS_PER_NODE, Span, TIME_SLICED};
use crate::bench::ledger::training::Habits;

pub const ALL: &[SceneFn] = &[serving, silence, loss, stranger];

/// Longest silence of an agent, ms.
const SILENCE_MS: i64 = 1_200_000;
/// Slowdown of steps on a shared GPU.
const SLOWER: f64 = 1.6;

/// Inference on all nodes but the first.
fn others(scene: &mut Scene<'_>) {
    for place in 1..scene.nodes.len() {
        for gpu in 0..GPUS_PER_NODE {
            let from = scene.draw.of(10 * place as u64).of(gpu as u64).between(0.0, 0.4);
            scene.serving(PRODUCT, &scene.gpus(place, [gpu]), scene.span(from, from + 0.5));
        }
    }
}

/// Inference on whole GPUs and on slices.
fn served(scene: &mut Scene<'_>) {
    others(scene);
    for gpu in 0..4 {
        let from = scene.draw.of(gpu).between(0.05, 0.3);
        scene.serving(PRODUCT, &scene.gpus(0, [gpu as usize]), scene.span(from, from + 0.65));
    }
    scene.notebook(&scene.gpus(0, [4]), scene.span(0.1, 0.9));
    let slices = scene.gpus(0, [6, 7]);
    scene.serving(PRODUCT, &slices[..1], scene.span(0.1, 0.8));
    scene.notebook(&slices[1..2], scene.span(0.2, 0.9));
    scene.serving(RESEARCH, &slices[2..3], scene.span(0.0, 0.35));
    scene.empty(&slices[3..4], scene.span(0.3, 0.95));
}

/// Inference, and one GPU shared by two jobs.
fn serving(scene: &mut Scene<'_>) {
    served(scene);
    let halves = scene.gpus(0, [TIME_SLICED]);
    let (alone, arrives) = (scene.span(0.02, 0.7), scene.at(0.4));
    let trained = scene.job(PRODUCT, "finetune", &halves[..1], alone.from_ms);
    // The second job slows the first one down.
    let habits = Habits { slower: Some((arrives, SLOWER)), ..Habits::default() };
    scene.day.train_as(trained, alone, FinalState::Completed, &halves[..1], habits);
    scene.serving(RESEARCH, &halves[1..], Span { from_ms: arrives, to_ms: scene.at(0.9) });
}

/// The first node's agent is silent for a while. Step reports go through the agent, so the scene
/// has none.
fn silence(scene: &mut Scene<'_>) {
    served(scene);
    let halves = scene.gpus(0, [TIME_SLICED]);
    scene.serving(PRODUCT, &halves[..1], scene.span(0.05, 0.7));
    scene.serving(RESEARCH, &halves[1..], scene.span(0.3, 0.9));
    let mut silent = scene.span(0.4, 0.7);
    silent.to_ms = silent.to_ms.min(silent.from_ms + SILENCE_MS);
    scene.condition(silent, Incident::Silent(scene.nodes[0]));
}

/// A GPU falls off the bus under a job, which continues on another.
fn loss(scene: &mut Scene<'_>) {
    others(scene);
    scene.failing([&scene.gpus(0, [2]), &scene.gpus(0, [3])], [0.05, 0.4, 0.9], FinalState::Requeued);
    scene.condition(scene.span(0.4, 0.75), Incident::Lost(scene.nodes[0], 2));
    scene.serving(PRODUCT, &scene.gpus(0, [0]), scene.span(0.1, 0.95));
}

/// A process outside the scheduler uses a GPU.
fn stranger(scene: &mut Scene<'_>) {
    others(scene);
    scene.serving(PRODUCT, &scene.gpus(0, [1]), scene.span(0.0, 0.8));
    scene.condition(scene.span(0.2, 0.6), Incident::Stranger(scene.nodes[0], 0));
}
