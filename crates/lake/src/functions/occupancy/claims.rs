//! How waiting jobs claim idle GPUs: one after the other, each GPU once. See docs/ledger.md, "Idle
//! time: claims".

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::SEVENTHS;
use super::cluster::Cluster;
use super::fact::Fact;

/// Why a GPU is idle although a job waits, in the order in which a minute is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// A quota or limit keeps the job from using it.
    Quota,
    /// The number would do, but not the shape.
    Fragment,
    /// It fits a gang, which waits for more GPUs.
    Gang,
    /// It fits, and nothing tells what else is missing.
    Fit,
}

pub const CLAIMS: [Claim; 4] = [Claim::Quota, Claim::Fragment, Claim::Gang, Claim::Fit];

/// The idle GPUs of a cluster at an instant, in units; lists are by node.
#[derive(Debug)]
pub struct Claimed {
    /// Idle, and neither held in a pool nor claimed.
    pub left: Vec<i64>,
    /// Held by jobs whose node is not known.
    pub taken: Vec<i64>,
    /// By claim, in the order of [`CLAIMS`].
    pub claimed: Vec<[i64; CLAIMS.len()]>,
    /// Held by such jobs beyond what was idle.
    pub beyond: i64,
}

/// What makes requests equal: if one got nothing, an equal one after it gets nothing.
type Request<'a> = (&'a str, &'a str, &'a str, &'a str, i64, i64, i64);

pub fn claims(cluster: &Cluster<'_>) -> Claimed {
    let mut claimed = taken_by_number(cluster);
    let mut unused: i64 = claimed.left.iter().sum();
    if unused == 0 || cluster.waits.is_empty() {
        return claimed;
    }
    let mut waits: Vec<&Fact<'_>> = cluster.waits.iter().map(|index| cluster.fact(*index)).collect();
    waits.sort_by_cached_key(|wait| {
        let priority = cluster.priorities.get(wait.job);
        (priority.is_none(), Reverse(priority), wait.c, wait.job)
    });
    let mut in_vain: BTreeSet<Request<'_>> = BTreeSet::new();
    for wait in waits.into_iter().filter(|wait| wait.word != "own") {
        let request = (wait.word, wait.pool, wait.team, wait.user, wait.gpus, wait.a, wait.b);
        if in_vain.contains(&request) {
            continue;
        }
        let got = claimed.serve(cluster, wait);
        if got == 0 {
            in_vain.insert(request);
        }
        unused -= got;
        if unused == 0 {
            break;
        }
    }
    claimed
}

/// Jobs with only a number of GPUs take theirs first, from nodes in order of their names.
fn taken_by_number(cluster: &Cluster<'_>) -> Claimed {
    let left: Vec<i64> = cluster.nodes.iter().map(|node| node.idle()).collect();
    let nodes = left.len();
    let mut claimed =
        Claimed { left, taken: vec![0; nodes], claimed: vec![[0; CLAIMS.len()]; nodes], beyond: 0 };
    for ((pool, _), mut wanted) in cluster.held_in_pools() {
        for node in (0..nodes).filter(|node| cluster.nodes[*node].serves(pool)) {
            let part = wanted.min(claimed.left[node]);
            claimed.left[node] -= part;
            claimed.taken[node] += part;
            wanted -= part;
        }
        claimed.beyond += wanted;
    }
    claimed
}

impl Claimed {
    /// Serves a waiting job. Returns the units it claims.
    fn serve(&mut self, cluster: &Cluster<'_>, wait: &Fact<'_>) -> i64 {
        let may_use = |node: &usize| {
            self.left[*node] > 0
                && cluster.nodes[*node].serves(wait.pool)
                && cluster.nodes[*node].admits(wait.team, wait.user)
        };
        let mut usable: Vec<usize> = (0..self.left.len()).filter(may_use).collect();
        let total: i64 = usable.iter().map(|node| self.left[*node]).sum();
        let asked = wait.gpus * SEVENTHS;
        if wait.word == "limited" {
            return self.take(&usable, asked.min(total), Claim::Quota);
        }
        if wait.a < 1 || wait.b < 1 {
            return if total >= asked { self.take(&usable, asked, Claim::Fit) } else { 0 };
        }
        let (count, each) = (usize::try_from(wait.a).unwrap_or(usize::MAX), wait.b * SEVENTHS);
        let mut fitting: Vec<usize> =
            usable.iter().copied().filter(|node| self.left[*node] >= each).collect();
        fitting.sort_by_key(|node| (self.left[*node], *node));
        if fitting.len() >= count {
            fitting.truncate(count);
            self.take_each(&fitting, each, Claim::Fit)
        } else if total >= asked {
            usable.sort_by_key(|node| (Reverse(self.left[*node]), *node));
            self.take(&usable, asked, Claim::Fragment)
        } else if count > 1 {
            self.take_each(&fitting, each, Claim::Gang)
        } else {
            0
        }
    }

    fn take(&mut self, nodes: &[usize], asked: i64, claim: Claim) -> i64 {
        let mut open = asked;
        for node in nodes {
            let part = open.min(self.left[*node]);
            self.left[*node] -= part;
            self.claimed[*node][claim as usize] += part;
            open -= part;
        }
        asked - open
    }

    fn take_each(&mut self, nodes: &[usize], each: i64, claim: Claim) -> i64 {
        nodes.iter().map(|node| self.take(&[*node], each, claim)).sum()
    }
}
