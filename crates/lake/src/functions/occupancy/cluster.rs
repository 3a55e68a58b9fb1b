//! A cluster from instant to instant: facts begin and end, and only the nodes they concern are
//! updated.

use std::collections::{BTreeMap, BTreeSet};

use super::fact::{Fact, Kind};
use super::node::{Devices, Node};

/// State of a cluster at one instant.
pub struct Cluster<'a> {
    facts: &'a [Fact<'a>],
    /// Changes to come, the next one last: time, fact, and whether it begins.
    changes: Vec<(i64, usize, bool)>,
    /// Node names, sorted, and the nodes as they are now.
    pub names: Vec<&'a str>,
    pub nodes: Vec<Node<'a>>,
    /// Facts in force, per node.
    of_node: Vec<BTreeSet<usize>>,
    /// Shares and devices in force, per job.
    of_job: BTreeMap<&'a str, BTreeSet<usize>>,
    /// Attempts whose nodes are not known.
    nowhere: BTreeSet<usize>,
    pub waits: BTreeSet<usize>,
    /// Facts of attempts before their first step.
    pub starting: BTreeSet<usize>,
    pub priorities: BTreeMap<&'a str, i64>,
    pub devices: Devices<'a>,
}

impl<'a> Cluster<'a> {
    /// `facts` must be sorted. Nothing is in force before the first [`Self::advance`].
    pub fn new(facts: &'a [Fact<'a>]) -> Self {
        // Samples show the devices of a node that was never registered.
        let names_nodes = |fact: &&Fact| concerns_nodes(fact.kind) || fact.kind == Kind::Sample;
        let mut names: Vec<&str> = facts.iter().filter(names_nodes).flat_map(Fact::nodes).collect();
        names.sort_unstable();
        names.dedup();
        let mut changes: Vec<(i64, usize, bool)> = Vec::new();
        let mut devices = Devices::default();
        for (index, fact) in facts.iter().enumerate() {
            match (fact.kind, fact.mig.is_empty()) {
                // Samples come last in the order of facts, and are the best source.
                (Kind::Device, true) if !fact.team.is_empty() && fact.team != fact.gpu => {
                    devices.by_number.insert((fact.node, fact.team), fact.gpu);
                }
                (Kind::Sample, true) => drop(devices.by_number.insert((fact.node, fact.word), fact.gpu)),
                (Kind::Sample, false) => {
                    devices.slices.insert((fact.node, fact.mig), (fact.gpu, fact.gpus));
                }
                _ => {}
            }
            if fact.from < fact.to {
                changes.extend([(fact.from, index, true), (fact.to, index, false)]);
            }
        }
        // What ends at an instant ends before anything begins there.
        changes.sort_unstable_by_key(|(at, index, begins)| std::cmp::Reverse((*at, *begins, *index)));
        let of_node = vec![BTreeSet::new(); names.len()];
        let nodes = names.iter().map(|_| Node::default()).collect();
        let (of_job, nowhere, waits, starting, priorities) = Default::default();
        Self { facts, changes, names, nodes, of_node, of_job, nowhere, waits, starting, priorities, devices }
    }

    /// Time of the next change.
    pub fn next_change(&self) -> Option<i64> {
        self.changes.last().map(|(at, ..)| *at)
    }

    /// The nodes that changes up to `now` may concern.
    pub fn affected_at(&self, now: i64) -> BTreeSet<usize> {
        let changing = self.changes.iter().rev().take_while(|(at, ..)| *at <= now);
        let mut affected = BTreeSet::new();
        for fact in changing.map(|(_, index, _)| &self.facts[*index]) {
            // Where one device or share of a job goes depends on the others.
            let of_job = match fact.kind {
                Kind::Share | Kind::Device | Kind::Starting => self.of_job.get(fact.job),
                _ => None,
            };
            let of_job = of_job.into_iter().flatten().map(|index| &self.facts[*index]);
            let itself = Some(fact).filter(|fact| concerns_nodes(fact.kind));
            for name in of_job.chain(itself).flat_map(Fact::nodes) {
                affected.insert(self.names.binary_search(&name).expect("all names of facts are known"));
            }
        }
        affected
    }

    /// Advances to `now`, including all changes at that instant.
    pub fn advance(&mut self, now: i64) {
        let (mut affected, mut jobs) = (BTreeSet::new(), BTreeSet::new());
        while let Some((_, index, begins)) = self.changes.pop_if(|(at, ..)| *at <= now) {
            self.apply(index, begins, &mut affected, &mut jobs);
        }
        for node in &affected {
            let facts = self.of_node[*node].iter().map(|index| &self.facts[*index]);
            let now = Node::now(facts, self.names[*node], &self.devices);
            let before = std::mem::replace(&mut self.nodes[*node], now);
            self.nodes[*node].unnamed = before.unnamed;
            self.nodes[*node].unnamed.retain(|job, _| !jobs.contains(job));
        }
        for job in jobs {
            self.place_rest(job, &mut affected);
        }
        for node in affected {
            self.nodes[node].add_up(self.names[node], &self.devices);
        }
    }

    /// Assigns a job's GPUs without a known device to its nodes, in the order in which the attempt
    /// names them. Each node takes at most its share less the devices known there.
    fn place_rest(&mut self, job: &'a str, affected: &mut BTreeSet<usize>) {
        let Some(facts) = self.of_job.get(job) else { return };
        let facts: Vec<&Fact> = facts.iter().map(|index| &self.facts[*index]).collect();
        let place = |name: &&str| self.names.binary_search(name).expect("all names of facts are known");
        let known: BTreeSet<usize> =
            facts.iter().flat_map(|fact| fact.nodes()).map(|name| place(&name)).collect();
        let devices: i64 =
            known.iter().filter_map(|node| self.nodes[*node].parts.get(job)).map(|part| part.devices).sum();
        let shares: Vec<&&Fact> = facts.iter().filter(|fact| fact.kind == Kind::Share).collect();
        let nodes: Vec<usize> =
            shares.iter().flat_map(|fact| fact.nodes()).map(|name| place(&name)).collect();
        let mut rest = (shares.iter().map(|fact| fact.gpus).sum::<i64>() - devices).max(0);
        let mut seen = BTreeSet::new();
        for node in nodes.into_iter().filter(|node| seen.insert(*node)) {
            rest = self.nodes[node].take_unnamed(job, rest);
            affected.insert(node);
        }
    }

    fn apply(
        &mut self,
        index: usize,
        begins: bool,
        affected: &mut BTreeSet<usize>,
        jobs: &mut BTreeSet<&'a str>,
    ) {
        let fact = &self.facts[index];
        let put = |set: &mut BTreeSet<usize>| if begins { set.insert(index) } else { set.remove(&index) };
        match fact.kind {
            Kind::Wait => drop(put(&mut self.waits)),
            Kind::Starting => drop(put(&mut self.starting)),
            Kind::Priority if begins => drop(self.priorities.insert(fact.job, fact.a)),
            Kind::Priority => drop(self.priorities.remove(fact.job)),
            Kind::Share if fact.nodes().next().is_none() => drop(put(&mut self.nowhere)),
            kind if concerns_nodes(kind) => {
                for name in fact.nodes() {
                    let node = self.names.binary_search(&name).expect("all names of facts are known");
                    put(&mut self.of_node[node]);
                    affected.insert(node);
                }
                if matches!(kind, Kind::Share | Kind::Device) {
                    let of_job = self.of_job.entry(fact.job).or_default();
                    put(of_job);
                    if of_job.is_empty() {
                        self.of_job.remove(fact.job);
                    }
                    jobs.insert(fact.job);
                }
            }
            _ => {}
        }
    }

    pub fn fact(&self, index: usize) -> &'a Fact<'a> {
        &self.facts[index]
    }

    /// GPUs that jobs hold somewhere in their pool, less the devices they are known to hold: (pool,
    /// job) and units. Jobs without a pool come last.
    pub fn held_in_pools(&self) -> Vec<((&'a str, &'a str), i64)> {
        let mut held: BTreeMap<(bool, &str, &str), i64> = BTreeMap::new();
        for index in &self.nowhere {
            let fact = &self.facts[*index];
            *held.entry((fact.pool.is_empty(), fact.pool, fact.job)).or_default() +=
                fact.gpus * super::SEVENTHS;
        }
        let less_known = |((_, pool, job), units): ((bool, &'a str, &'a str), i64)| {
            let on = |node: &Node<'a>| -> i64 { node.named.values().filter_map(|jobs| jobs.get(job)).sum() };
            ((pool, job), (units - self.nodes.iter().map(on).sum::<i64>()).max(0))
        };
        held.into_iter().map(less_known).filter(|(_, units)| *units > 0).collect()
    }
}

fn concerns_nodes(kind: Kind) -> bool {
    matches!(kind, Kind::Node | Kind::Reserved | Kind::Lost | Kind::Share | Kind::Device)
}
