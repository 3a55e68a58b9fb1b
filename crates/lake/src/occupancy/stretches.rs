//! Idle time where no agent watches: how many GPUs of a cluster were of one class, from when to
//! when.

use std::collections::{BTreeMap, BTreeSet};

use super::SEVENTHS;
use super::claims::{CLAIMS, claims};
use super::fact::{Fact, Kind};
use super::minute::{NO_DEMAND, class_of};
use super::site::Site;

/// So many GPUs of a class, as long as nothing changes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch<'a> {
    pub from: i64,
    pub to: i64,
    pub class: &'static str,
    pub formula: &'static str,
    /// Of all nodes so far; nothing if there are several.
    pub pool: &'a str,
    pub gpu_model: &'a str,
    /// Thousandths of a GPU; less than nothing of the class `imbalance`.
    pub gpus_milli: i64,
}

/// What a class has: pool, model and thousandths.
type Level<'a> = (&'a str, &'a str, i64);
type ClassName = (&'static str, &'static str);

/// Stretches of what nobody held, from the first node on; without nodes there is nothing to be
/// idle. `facts` are in order.
pub fn stretches<'a>(facts: &'a [Fact<'a>]) -> Vec<Stretch<'a>> {
    let first_node = facts.iter().filter(|fact| fact.kind == Kind::Node).map(|fact| fact.from).min();
    let Some(begin) = first_node else { return Vec::new() };
    let mut made = Vec::new();
    let mut running: BTreeMap<ClassName, (i64, Level<'a>)> = BTreeMap::new();
    let (mut pools, mut models) = (BTreeSet::new(), BTreeSet::new());
    let mut registered: Vec<&Fact<'_>> = facts.iter().filter(|fact| fact.kind == Kind::Node).collect();
    registered.sort_by_key(|fact| std::cmp::Reverse(fact.from));
    let mut site = Site::new(facts);
    while let Some(now) = site.next_change() {
        site.advance(now);
        while let Some(node) = registered.pop_if(|node| node.from <= now) {
            pools.insert(node.pool);
            models.insert(node.gpu_model());
        }
        if now < begin {
            continue;
        }
        let only = |names: &BTreeSet<&'a str>| {
            if names.len() == 1 { names.first().copied().unwrap_or("") } else { "" }
        };
        let (pool, model) = (only(&pools), only(&models));
        for (name, gpus_milli) in levels(&site) {
            // What is held too much is of no pool.
            let level = if name.0 == "imbalance" { ("", "", gpus_milli) } else { (pool, model, gpus_milli) };
            if running.get(&name).is_some_and(|(_, before)| *before == level) {
                continue;
            }
            if let Some((from, before)) = running.insert(name, (now, level)) {
                made.extend(stretch(name, from, now, before));
            }
        }
    }
    made.sort();
    made
}

fn stretch<'a>(
    (class, formula): ClassName,
    from: i64,
    to: i64,
    (pool, gpu_model, gpus_milli): Level<'a>,
) -> Option<Stretch<'a>> {
    (gpus_milli != 0).then_some(Stretch { from, to, class, formula, pool, gpu_model, gpus_milli })
}

/// What each class has now, thousandths.
fn levels(site: &Site<'_>) -> Vec<(ClassName, i64)> {
    let claimed = claims(site);
    let sum = |of: &dyn Fn(usize) -> i64| -> i64 { (0..site.nodes.len()).map(of).sum() };
    let mut levels = vec![
        (("unhealthy", "capacity"), sum(&|n| site.nodes[n].unhealthy())),
        (("drained", "capacity"), sum(&|n| site.nodes[n].drained())),
        (NO_DEMAND, sum(&|n| claimed.left[n])),
        (("imbalance", "hold"), sum(&|n| site.nodes[n].imbalance()) - claimed.beyond),
    ];
    levels.extend(CLAIMS.map(|claim| (class_of(claim), sum(&|n| claimed.claimed[n][claim as usize]))));
    levels.into_iter().map(|(name, units)| (name, units / SEVENTHS)).collect()
}
