//! Lends whole nodes of a service, and chooses which to call back.

use crate::{Place, Sim};

/// Cost of calling a node back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    /// One for each job that must stop.
    Jobs,
    /// GPU time lost: unsaved progress, unless saved on notice, and the restart.
    LostWork,
}

/// Nodes of a pool that are lent or on their way out.
pub(super) fn lent(sim: &Sim, pool: usize) -> Vec<u32> {
    let out = |p: Place| matches!(p, Place::Lent { .. } | Place::Leaving { .. });
    let nodes = sim.nodes().iter().enumerate();
    nodes.filter(|(_, n)| n.pool == pool && out(n.place)).map(|(i, _)| i as u32).collect()
}

/// GPUs of a pool's working nodes, wherever they are.
pub(super) fn working_gpus(sim: &Sim, pool: usize) -> u32 {
    sim.nodes().iter().filter(|n| n.pool == pool && n.up && !n.drained).map(|n| n.gpus).sum()
}

/// Lends nodes of `pool` to `to`, at most `chunk` at once, or calls them back, until `need_gpus`
/// remain with the owner. Never goes below the pool's floor.
pub(super) fn keep(sim: &mut Sim, pool: usize, to: usize, need_gpus: u32, chunk: usize, cost: Cost) {
    let need_gpus = need_gpus.max(sim.spec().pools[pool].floor_gpus);
    let mut spare = i64::from(working_gpus(sim, pool)) - i64::from(need_gpus);
    let mut out = lent(sim, pool);
    spare -= out
        .iter()
        .map(|n| &sim.nodes()[*n as usize])
        .filter(|n| n.up)
        .map(|n| i64::from(n.gpus))
        .sum::<i64>();
    while spare < 0 && !out.is_empty() {
        let cheapest = (0..out.len()).min_by_key(|i| (node_cost(sim, out[*i], cost), *i)).unwrap_or(0);
        let node = out.swap_remove(cheapest);
        out.sort_unstable();
        spare += i64::from(sim.nodes()[node as usize].gpus);
        sim.clear_and_call_back(node, true).expect("the node is lent");
    }
    let home: Vec<u32> = (0..sim.nodes().len() as u32)
        .filter(|n| sim.nodes()[*n as usize].pool == pool && sim.nodes()[*n as usize].place == Place::Home)
        .collect();
    let mut left = chunk;
    for node in home {
        let gpus = i64::from(sim.nodes()[node as usize].gpus);
        if left == 0 || gpus > spare {
            break;
        }
        if sim.lend(node, to).is_ok() {
            spare -= gpus;
            left -= 1;
        }
    }
}

/// Lyra's server preemption cost, in millionths: the cost of each job on the node, divided by the
/// number of its servers, since stopping it frees them all. An elastic job that can do without the
/// node costs nothing.
fn node_cost(sim: &Sim, node: u32, cost: Cost) -> i128 {
    let mut sum = 0;
    for job in &sim.nodes()[node as usize].jobs {
        let j = &sim.jobs()[*job as usize];
        let here: u32 = j.held.iter().filter(|h| h.0 == node).map(|h| h.1).sum();
        let yields = j.spec.elastic.is_some_and(|e| j.gpus() - here >= e.min_gpus);
        if yields || !sim.is_steady(*job) {
            continue;
        }
        let whole = match cost {
            Cost::Jobs => 1,
            Cost::LostWork => {
                let saves = j.spec.checkpoint.is_some_and(|c| c.on_notice);
                let risk = if saves { 0 } else { j.at_risk_gpu_us(sim.now_us()) };
                risk + i128::from(j.gpus()) * i128::from(j.spec.restart_us)
            }
        };
        sum += whole * 1_000_000 / j.held.len().max(1) as i128;
    }
    sum
}
