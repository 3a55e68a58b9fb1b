//! Gives free GPUs to elastic jobs by their gain.

use crate::{Sim, nodes::Held};

/// One option to grow a job: GPUs it takes, and its gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Additional GPUs.
    pub gpus: u32,
    /// Gain, in any unit.
    pub value: i64,
}

/// For each group the index of the chosen item, or none.
pub type Choice = Vec<Option<usize>>;

/// Multiple-choice knapsack: at most one item of each group, at most `room` GPUs in total, maximum
/// value. Exact, by dynamic programming in O(items × room). Among equal values the one that takes
/// fewer GPUs for earlier groups wins.
pub fn knapsack(groups: &[Vec<Item>], room: u32) -> Choice {
    let room = room as usize;
    let mut best = vec![0i64; room + 1];
    let mut taken: Vec<Vec<u8>> = Vec::with_capacity(groups.len());
    for items in groups {
        let mut next = best.clone();
        let mut took = vec![u8::MAX; room + 1];
        for (i, item) in items.iter().enumerate().take(usize::from(u8::MAX)) {
            let weight = item.gpus as usize;
            for at in weight..=room {
                let value = best[at - weight] + item.value;
                if value > next[at] {
                    (next[at], took[at]) = (value, i as u8);
                }
            }
        }
        best = next;
        taken.push(took);
    }
    let mut left = room;
    let mut choice: Choice = taken
        .iter()
        .zip(groups)
        .rev()
        .map(|(took, items)| {
            let item = usize::from(took[left]);
            let item = (item < items.len()).then_some(item)?;
            left -= items[item].gpus as usize;
            Some(item)
        })
        .collect();
    choice.reverse();
    choice
}

/// Gives free GPUs of a pool to its elastic jobs by the knapsack, if no job waits for them. The
/// value of a larger size is the time saved, less that of the change itself, s.
pub(super) fn grow(sim: &mut Sim, pool: usize) {
    let (own, lent) = sim.free_gpus(pool);
    if own + lent == 0 || waits(sim, pool).is_some() {
        return;
    }
    let elastic = |job: &u32| {
        let j = &sim.jobs()[*job as usize];
        let larger = j.spec.elastic.is_some_and(|e| j.gpus() < e.max_gpus) && j.spec.checkpoint.is_some();
        larger && sim.is_steady(*job) && sim.pool_of(*job) == pool
    };
    let jobs: Vec<u32> = sim.running().filter(elastic).collect();
    let sizes: Vec<Vec<u32>> = jobs.iter().map(|job| larger_sizes(sim, *job)).collect();
    let groups: Vec<Vec<Item>> =
        jobs.iter().zip(&sizes).map(|(job, sizes)| items(sim, *job, sizes)).collect();
    let choice = knapsack(&groups, own + lent);
    for ((job, sizes), item) in jobs.iter().zip(&sizes).zip(choice) {
        // If the nodes have no room for all of it, the job stays as it is.
        if let Some(item) = item.filter(|item| groups_value(sim, *job, sizes[*item])) {
            let _refused = sim.grow(*job, sizes[item]).is_err();
        }
    }
}

fn larger_sizes(sim: &Sim, job: u32) -> Vec<u32> {
    let j = &sim.jobs()[job as usize];
    let most = j.spec.elastic.map_or(0, |e| e.max_gpus);
    let step = (j.spec.gpus / 2).max(1);
    (1..).map(|k| j.gpus() + k * step).take_while(|gpus| *gpus <= most).collect()
}

fn items(sim: &Sim, job: u32, sizes: &[u32]) -> Vec<Item> {
    let now = sim.jobs()[job as usize].gpus();
    let value = |gpus: u32| gain_us(sim, job, gpus) / 1_000_000;
    sizes.iter().map(|gpus| Item { gpus: gpus - now, value: value(*gpus) }).collect()
}

fn groups_value(sim: &Sim, job: u32, gpus: u32) -> bool {
    gain_us(sim, job, gpus) > 0
}

fn gain_us(sim: &Sim, job: u32, gpus: u32) -> i64 {
    let j = &sim.jobs()[job as usize];
    let pause_us = sim.spec().latency.checkpoint_us + j.spec.restart_us;
    sim.remaining_us(job, j.gpus()) - sim.remaining_us(job, gpus) - pause_us
}

/// The first job of a pool that waits for room, not for its team's quota.
pub(super) fn waits(sim: &Sim, pool: usize) -> Option<u32> {
    sim.waiting().find(|job| {
        let spec = &sim.jobs()[*job as usize].spec;
        let room = sim.limit_gpus(spec.team).is_none_or(|l| sim.held_gpus(spec.team) + spec.sizes().0 <= l);
        room && sim.pool_of(*job) == pool
    })
}

/// Shrinks elastic jobs by whole nodes until the first waiting job would have room; those that lose
/// least speed first. Does nothing while an earlier change is under way.
pub(super) fn shrink(sim: &mut Sim, pool: usize) {
    let Some(head) = waits(sim, pool) else { return };
    let spec = &sim.jobs()[head as usize].spec;
    let (own, lent) = sim.free_gpus(pool);
    let free = own + if spec.loan { lent } else { 0 };
    let need = spec.sizes().0;
    let mut offers: Vec<(i64, u32, Held)> = Vec::new();
    for job in sim.running() {
        let j = &sim.jobs()[job as usize];
        if sim.pool_of(job) != pool || j.spec.elastic.is_none() {
            continue;
        }
        if !sim.is_steady(job) {
            return;
        }
        if j.gpus() <= j.spec.gpus {
            continue;
        }
        let mut keep = j.held.clone();
        while keep.len() > 1 && keep.iter().map(|h| h.1).sum::<u32>() > j.spec.gpus {
            keep.pop();
        }
        let left: u32 = keep.iter().map(|h| h.1).sum();
        if left >= j.spec.gpus && left < j.gpus() {
            let loss = sim.remaining_us(job, left) - sim.remaining_us(job, j.gpus());
            offers.push((loss / i64::from(j.gpus() - left), job, keep));
        }
    }
    offers.sort_unstable();
    let mut room = free;
    for (_, job, keep) in offers {
        if room >= need {
            return;
        }
        let had = sim.jobs()[job as usize].gpus();
        let left: u32 = keep.iter().map(|h| h.1).sum();
        if sim.shrink(job, keep, true).is_ok() {
            room += had - left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(of: &[(u32, i64)]) -> Vec<Item> {
        of.iter().map(|(gpus, value)| Item { gpus: *gpus, value: *value }).collect()
    }

    #[test]
    fn the_knapsack_is_as_good_as_trying_everything() {
        let groups = [
            items(&[(1, 5), (2, 9)]),
            items(&[(2, 7), (3, 14)]),
            items(&[(1, 4), (4, 18)]),
            items(&[(2, -3)]),
        ];
        for room in 0..12 {
            let choice = knapsack(&groups, room);
            let value_of = |choice: &[Option<usize>]| {
                let picked = choice.iter().zip(&groups).filter_map(|(c, g)| c.map(|c| g[c]));
                picked.fold((0, 0), |sum, item| (sum.0 + item.gpus, sum.1 + item.value))
            };
            let mut best = 0;
            for code in 0..81 {
                let pick = |g: usize| [None, Some(0), Some(1)][code / 3_usize.pow(g as u32) % 3];
                let all: Vec<_> = (0..4).map(pick).collect();
                if all.iter().zip(&groups).all(|(c, g)| c.is_none_or(|c| c < g.len())) {
                    let (gpus, value) = value_of(&all);
                    if gpus <= room {
                        best = best.max(value);
                    }
                }
            }
            assert!(value_of(&choice).0 <= room);
            assert_eq!(value_of(&choice).1, best, "room {room}");
        }
    }
}
