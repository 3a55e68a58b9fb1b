//! Idle time where no agent watches: how many GPUs of a cluster were of one class, from when to
//! when.

use std::collections::{BTreeMap, BTreeSet};

use super::SEVENTHS;
use super::claims::{CLAIMS, claims};
use super::class::{ClassName, NO_DEMAND, class_of};
use super::cluster::Cluster;
use super::fact::{Fact, Kind};

/// A number of GPUs of one class, while it does not change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch<'a> {
    pub from: i64,
    pub to: i64,
    pub class: &'static str,
    pub formula: &'static str,
    /// Pool and model of all nodes so far; empty if there are several.
    pub pool: &'a str,
    pub gpu_model: &'a str,
    /// Thousandths of a GPU; negative for the class `imbalance`.
    pub gpus_milli: i64,
}

/// Pool, model and thousandths of a class.
type Amount<'a> = (&'a str, &'a str, i64);

/// Stretches of time that was not held, from `begin` on, but not before the first node: without
/// nodes nothing is idle. `facts` must be sorted; they are those that hold at `begin` or later.
pub fn stretches<'a>(facts: &'a [Fact<'a>], begin: i64) -> Vec<Stretch<'a>> {
    let registers = |fact: &&Fact<'_>| matches!(fact.kind, Kind::Node | Kind::Known);
    let first_node = facts.iter().filter(registers).map(|fact| fact.from).min();
    let Some(first_node) = first_node else { return Vec::new() };
    let begin = begin.max(first_node);
    let mut finished = Vec::new();
    let mut running: BTreeMap<ClassName, (i64, Amount<'a>)> = BTreeMap::new();
    let (mut pools, mut models) = (BTreeSet::new(), BTreeSet::new());
    let mut registered: Vec<&Fact<'_>> = facts.iter().filter(registers).collect();
    registered.sort_by_key(|fact| std::cmp::Reverse(fact.from));
    let mut cluster = Cluster::new(facts);
    while let Some(next) = cluster.next_change() {
        // What began before `begin` is in force there.
        let now = if next < begin { begin } else { next };
        cluster.advance(now);
        while let Some(node) = registered.pop_if(|node| node.from <= now) {
            pools.insert(node.pool);
            models.insert(node.gpu_model());
        }
        let only = |names: &BTreeSet<&'a str>| {
            if names.len() == 1 { names.first().copied().unwrap_or("") } else { "" }
        };
        let (pool, model) = (only(&pools), only(&models));
        for (name, gpus_milli) in amounts(&cluster) {
            // Holds beyond capacity belong to no pool.
            let amount = if name.0 == "imbalance" { ("", "", gpus_milli) } else { (pool, model, gpus_milli) };
            if running.get(&name).is_some_and(|(_, before)| *before == amount) {
                continue;
            }
            if let Some((from, before)) = running.insert(name, (now, amount)) {
                finished.extend(stretch(name, from, now, before));
            }
        }
    }
    finished.sort();
    finished
}

fn stretch<'a>(
    (class, formula): ClassName,
    from: i64,
    to: i64,
    (pool, gpu_model, gpus_milli): Amount<'a>,
) -> Option<Stretch<'a>> {
    (gpus_milli != 0).then_some(Stretch { from, to, class, formula, pool, gpu_model, gpus_milli })
}

/// Thousandths of each class now.
fn amounts(cluster: &Cluster<'_>) -> Vec<(ClassName, i64)> {
    let claimed = claims(cluster);
    let sum = |of: &dyn Fn(usize) -> i64| -> i64 { (0..cluster.nodes.len()).map(of).sum() };
    let mut amounts = vec![
        (("unhealthy", "capacity"), sum(&|n| cluster.nodes[n].unhealthy())),
        (("drained", "capacity"), sum(&|n| cluster.nodes[n].drained())),
        (NO_DEMAND, sum(&|n| claimed.left[n])),
        (("imbalance", "hold"), sum(&|n| cluster.nodes[n].imbalance()) - claimed.beyond),
    ];
    amounts.extend(CLAIMS.map(|claim| (class_of(claim), sum(&|n| claimed.claimed[n][claim as usize]))));
    amounts.into_iter().map(|(name, units)| (name, units / SEVENTHS)).collect()
}
