//! The line: which job is first among those that compete for the same nodes.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, HashSet};

use super::fact::Facts;

/// Jobs in line, by pool. Pools whose jobs compete for a node in this time have their jobs in each
/// other's line; a job counts as first in the line of its own pool only.
#[derive(Debug)]
pub struct Lines<'a> {
    /// Lines that the jobs of a pool stand in.
    of_pool: HashMap<&'a str, Vec<usize>>,
    /// Line of each pool in which a job of it can be first.
    own: HashMap<&'a str, usize>,
    /// Ranks that stand in each line.
    standing: Vec<BTreeSet<u32>>,
    /// By rank: its job.
    jobs: Vec<&'a str>,
    /// By wait.
    ranks: HashMap<usize, u32>,
    /// Lines that changed at this instant, with the job that was first.
    before: BTreeMap<usize, Option<&'a str>>,
}

impl<'a> Lines<'a> {
    pub fn new(facts: &Facts<'a>) -> Self {
        let mut order: Vec<usize> =
            (0..facts.waits.len()).filter(|wait| facts.waits[*wait].in_line_from().is_some()).collect();
        // Unknown priorities come last.
        order.sort_by_key(|wait| {
            let wait = &facts.waits[*wait];
            let priority = (wait.priority.is_none(), wait.priority.map(|priority| -i128::from(priority)));
            (priority, wait.waited_from, wait.job, wait.from)
        });
        let pools: BTreeSet<&str> = order.iter().map(|wait| facts.waits[*wait].pool).collect();
        let (mut of_pool, mut own) = (HashMap::new(), HashMap::new());
        // A node in no pool serves all of them: there is one line.
        let is_one = facts.nodes.iter().any(|node| node.pools.is_empty());
        let mut shared: HashSet<(&str, &str)> = HashSet::new();
        let lists: HashSet<&str> = facts.nodes.iter().map(|node| node.pools).collect();
        for list in lists {
            let names = || list.split(',');
            shared.extend(names().flat_map(|a| names().map(move |b| (a, b))));
        }
        for (line, pool) in pools.iter().enumerate() {
            let competes = |other: &str| {
                *pool == other || pool.is_empty() || other.is_empty() || shared.contains(&(*pool, other))
            };
            let lines = match is_one {
                true => vec![0],
                false => {
                    let others = pools.iter().enumerate();
                    others.filter(|(_, other)| competes(other)).map(|(line, _)| line).collect()
                }
            };
            of_pool.insert(*pool, lines);
            own.insert(*pool, if is_one { 0 } else { line });
        }
        Self {
            of_pool,
            own,
            standing: vec![BTreeSet::new(); pools.len()],
            jobs: order.iter().map(|wait| facts.waits[*wait].job).collect(),
            ranks: (0..).zip(order).map(|(rank, wait)| (wait, rank)).collect(),
            before: BTreeMap::new(),
        }
    }

    pub fn enter(&mut self, wait: usize, pool: &str) {
        let rank = self.ranks[&wait];
        self.change(pool, |line| _ = line.insert(rank));
    }

    pub fn leave(&mut self, wait: usize, pool: &str) {
        let rank = self.ranks[&wait];
        self.change(pool, |line| _ = line.remove(&rank));
    }

    fn change(&mut self, pool: &str, change: impl Fn(&mut BTreeSet<u32>)) {
        for line in self.of_pool.get(pool).into_iter().flatten() {
            let standing = &mut self.standing[*line];
            let first = standing.first().map(|rank| self.jobs[*rank as usize]);
            self.before.entry(*line).or_insert(first);
            change(standing);
        }
    }

    /// Whether the job is first in the line of its pool.
    pub fn is_first(&self, job: &str, pool: &str) -> bool {
        self.own.get(pool).and_then(|line| self.first(*line)) == Some(job)
    }

    fn first(&self, line: usize) -> Option<&'a str> {
        self.standing[line].first().map(|rank| self.jobs[*rank as usize])
    }

    /// Ends this instant. Returns the jobs that became first in a line, or were first.
    pub fn settle(&mut self) -> BTreeSet<&'a str> {
        let before = std::mem::take(&mut self.before);
        let moved = before.into_iter().map(|(line, first)| (first, self.first(line)));
        moved
            .filter(|(before, now)| before != now)
            .flat_map(|(before, now)| [before, now])
            .flatten()
            .collect()
    }
}
