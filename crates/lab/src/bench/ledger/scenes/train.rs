//! Scenes of the pool for whole-node training, of at least two nodes.

use tidegate_events::FinalState;

use super::{PRODUCT, QUOTA, RESEARCH, RESOURCES, Scene, SceneFn};
use crate::bench::ledger::class::Class;
use crate::bench::ledger::day::{Incident, Quota};
use crate::bench::ledger::fleet::{GPUS_PER_NODE, TRAIN};

pub const ALL: &[SceneFn] = &[calm, full, fragmented, quota, gang, failure, drain];

/// Divides the pool's GPUs between the teams; no team uses more.
fn share(scene: &mut Scene<'_>, product: usize) {
    let (at_ms, all) = (scene.span.from_ms, scene.nodes.len() * GPUS_PER_NODE);
    let quota = |team, gpus| Quota { at_ms, pool: TRAIN, team, gpus };
    scene.day.quotas.extend([quota(RESEARCH, all - product), quota(PRODUCT, product)]);
}

/// Quotas that no team reaches: waiting jobs wait for GPUs.
fn ample(scene: &mut Scene<'_>) {
    let at_ms = scene.span.from_ms;
    let gpus = 2 * scene.nodes.len() * GPUS_PER_NODE;
    scene.day.quotas.push(Quota { at_ms, pool: TRAIN, team: RESEARCH, gpus });
    scene.day.quotas.push(Quota { at_ms, pool: TRAIN, team: PRODUCT, gpus: 0 });
}

fn node(scene: &Scene<'_>, node: usize) -> Vec<usize> {
    scene.gpus(node, 0..GPUS_PER_NODE)
}

/// Training with and without stragglers, a notebook, an unused hold, a stranger. No job waits.
fn calm(scene: &mut Scene<'_>) {
    share(scene, 8);
    scene.training(RESEARCH, &node(scene, 0), scene.span(0.02, 0.95), None);
    scene.training(PRODUCT, &scene.gpus(1, 0..4), scene.span(0.05, 0.6), Some(2));
    scene.notebook(&scene.gpus(1, [4]), scene.span(0.1, 0.9));
    scene.empty(&scene.gpus(1, [5]), scene.span(0.15, 0.8));
    scene.condition(scene.span(0.3, 0.5), Incident::Stranger(scene.nodes[1], 6));
    if scene.nodes.len() >= 4 {
        let gang = [node(scene, 2), node(scene, 3)].concat();
        scene.training(RESEARCH, &gang, scene.span(0.08, 0.9), Some(11));
    }
}

/// Everything is held, and a job waits until another ends.
fn full(scene: &mut Scene<'_>) {
    ample(scene);
    for place in 0..scene.nodes.len() {
        let to = if place == 0 { 0.5 } else { 0.95 };
        scene.training(RESEARCH, &node(scene, place), scene.span(0.0, to), None);
    }
    scene.waiting(RESEARCH, RESOURCES, &node(scene, 0), scene.at(0.25), scene.span(0.5, 0.95));
}

/// Three or four GPUs are free on each node, and a job within its quota waits for eight on one
/// node.
fn fragmented(scene: &mut Scene<'_>) {
    let nodes = scene.nodes.len();
    share(scene, nodes * 5 - 2);
    for place in 0..nodes {
        let to = if place == 0 { 0.7 } else { 0.9 };
        scene.training(PRODUCT, &scene.gpus(place, 0..4), scene.span(0.0, to), None);
        if place >= 2 {
            scene.serving(PRODUCT, &scene.gpus(place, [4]), scene.span(0.0, to));
        }
    }
    scene.condition(scene.span(0.2, 0.7), Incident::Waits(TRAIN, Class::Fragmented));
    scene.waiting(RESEARCH, RESOURCES, &node(scene, 0), scene.at(0.2), scene.span(0.7, 0.97));
}

/// One team is at its quota and waits, while the other's quota is idle.
fn quota(scene: &mut Scene<'_>) {
    let mine = scene.nodes.len() / 2;
    share(scene, (scene.nodes.len() - mine) * GPUS_PER_NODE);
    for place in 0..mine {
        let to = if place == 0 { 0.6 } else { 0.9 };
        scene.training(RESEARCH, &node(scene, place), scene.span(0.0, to), None);
    }
    scene.training(PRODUCT, &scene.gpus(mine, 0..4), scene.span(0.05, 0.95), None);
    scene.condition(scene.span(0.2, 0.6), Incident::Waits(TRAIN, Class::QuotaStranded));
    scene.waiting(RESEARCH, QUOTA, &scene.gpus(0, 0..4), scene.at(0.2), scene.span(0.6, 0.95));
}

/// Half of the nodes are free, and a gang waits for all nodes.
fn gang(scene: &mut Scene<'_>) {
    ample(scene);
    for place in 0..scene.nodes.len() / 2 {
        scene.training(RESEARCH, &node(scene, place), scene.span(0.0, 0.5), None);
    }
    let all: Vec<usize> = (0..scene.nodes.len()).flat_map(|place| node(scene, place)).collect();
    scene.condition(scene.span(0.2, 0.5), Incident::Waits(TRAIN, Class::GangWait));
    scene.waiting(RESEARCH, RESOURCES, &all, scene.at(0.2), scene.span(0.5, 0.95));
}

/// A node fails under a job, which continues elsewhere from its last checkpoint.
fn failure(scene: &mut Scene<'_>) {
    share(scene, 0);
    scene.failing([&node(scene, 0), &node(scene, 1)], [0.02, 0.45, 0.95], FinalState::NodeFail);
    scene.condition(scene.span(0.45, 0.7), Incident::Down(scene.nodes[0]));
}

/// A node is drained: its job runs to its end, the rest is unused.
fn drain(scene: &mut Scene<'_>) {
    share(scene, 4);
    scene.training(RESEARCH, &node(scene, 0), scene.span(0.0, 0.95), None);
    scene.training(PRODUCT, &scene.gpus(1, 0..4), scene.span(0.02, 0.55), None);
    scene.condition(scene.span(0.3, 0.8), Incident::Drained(scene.nodes[1]));
}
