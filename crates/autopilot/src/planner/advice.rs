//! Advice to people about their jobs: fewer GPUs by the job's own curve, fewer racks. It appears in
//! the report and is never carried out.
//!
//! Advice on checkpoint intervals, GPU sharing and purchases needs failures, usage and offers that
//! a state does not hold; tables and `tidegate_insight` give it.

use std::collections::{BTreeMap, BTreeSet};

use super::builder::PlanBuilder;
use super::plan::{Advice, Advised};
use crate::state::{Job, JobId, JobKind, Object, PoolName};

pub(super) fn advise(builder: &PlanBuilder<'_>) -> Vec<Advice> {
    let most = builder.policy.advice.most as usize;
    if most == 0 {
        return Vec::new();
    }
    let gangs = builder
        .state
        .jobs
        .iter()
        .filter(|(_, job)| matches!(job.kind, JobKind::Gang) && job.running_since_us().is_some());
    let racks = racks(builder);
    let (mut sizes, mut places) = (Vec::new(), Vec::new());
    for (id, job) in gangs {
        sizes.extend(right_size(builder, id, job).map(|advice| (advice.now - advice.better, advice)));
        places.extend(placement(builder, id, job, &racks).map(|advice| (job.held_gpus(), advice)));
    }
    let mut out = Vec::new();
    for mut of_kind in [sizes, places] {
        // Most GPUs first; ties go to the first job.
        of_kind.sort_by_key(|(gpus, _): &(u32, Advice)| std::cmp::Reverse(*gpus));
        out.extend(of_kind.into_iter().take(most).map(|(_, advice)| advice));
    }
    out
}

/// The smallest size on the job's curve that keeps the policy's share of its throughput.
fn right_size(builder: &PlanBuilder<'_>, id: &JobId, job: &Job) -> Option<Advice> {
    let (held, curve) = (job.held_gpus(), job.curve.as_ref()?);
    let rate = curve.rate_ppm(held);
    let keeps = |gpus: u32| curve.rate_ppm(gpus) as f64 / rate.max(1) as f64;
    let points = curve.points().iter().map(|point| point.gpus).take_while(|gpus| *gpus < held);
    let better = points.into_iter().find(|gpus| keeps(*gpus) >= builder.policy.advice.keeps_share)?;
    let reason =
        format!("{better} instead of {held} GPUs would do {:.0} % of the work", keeps(better) * 100.0);
    Some(Advice { what: Advised::RightSize, object: Object::Job(id.clone()), now: held, better, reason })
}

/// GPUs of each rack of a pool, largest first.
fn racks<'a>(builder: &PlanBuilder<'a>) -> BTreeMap<&'a PoolName, Vec<u32>> {
    let mut gpus: BTreeMap<(&PoolName, &str), u32> = BTreeMap::new();
    for node in builder.state.nodes.values() {
        if let Some(rack) = &node.rack {
            *gpus.entry((&node.pool, rack)).or_default() += node.gpus;
        }
    }
    let mut out: BTreeMap<&PoolName, Vec<u32>> = BTreeMap::new();
    for ((pool, _), gpus) in gpus {
        out.entry(pool).or_default().push(gpus);
    }
    out.values_mut().for_each(|racks| racks.sort_by_key(|gpus| std::cmp::Reverse(*gpus)));
    out
}

/// Advises a gang that spans more racks than its size needs. None if a node's rack is unknown.
fn placement(
    builder: &PlanBuilder<'_>,
    id: &JobId,
    job: &Job,
    racks: &BTreeMap<&PoolName, Vec<u32>>,
) -> Option<Advice> {
    let on: BTreeSet<&String> = job
        .placement
        .keys()
        .map(|name| builder.state.nodes.get(name).and_then(|node| node.rack.as_ref()))
        .collect::<Option<_>>()?;
    let held = job.held_gpus();
    let mut left = held;
    let fewest = racks.get(&job.pool)?.iter().take_while(|gpus| {
        let takes = left > 0;
        left = left.saturating_sub(**gpus);
        takes
    });
    let (now, better) = (u32::try_from(on.len()).ok()?, u32::try_from(fewest.count()).ok()?);
    let reason = format!("its {held} GPUs are spread over {now} racks; they would fit into {better}");
    let object = Object::Job(id.clone());
    (now > better && left == 0).then_some(Advice { what: Advised::Placement, object, now, better, reason })
}
