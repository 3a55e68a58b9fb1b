//! Nodes: where each one is between owner and borrower, and where a gang fits.

use std::collections::BTreeSet;

use crate::{Class, ClusterSpec};

/// Where a node is between its owner and a borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At its owner, ready.
    Home,
    /// On its way to the borrowing pool.
    Leaving {
        /// Index of the borrowing pool.
        to: usize,
    },
    /// On loan to a pool.
    Lent {
        /// Index of the borrowing pool.
        to: usize,
    },
    /// Called back from a pool: takes no new jobs; its jobs must leave.
    Called {
        /// Index of the borrowing pool.
        to: usize,
    },
    /// Empty, on its way back to its owner.
    Handover,
    /// Back, loading a model before it can serve.
    Loading,
}

/// State of one node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Number of GPUs.
    pub gpus: u32,
    /// Index of the GPU model.
    pub model: u16,
    /// Its rack.
    pub rack: u32,
    /// Index of the owning pool.
    pub pool: usize,
    /// Free GPUs.
    pub free: u32,
    /// Whether it is up.
    pub up: bool,
    /// When the last of its overlapping failures will be repaired.
    pub(crate) down_until_us: i64,
    /// Whether it takes no new jobs.
    pub drained: bool,
    /// Whether it belongs to a reservation, which has begun or will.
    pub reserved: bool,
    /// Speed; 1,000,000 is full speed.
    pub speed_ppm: u32,
    /// Where it is between owner and borrower.
    pub place: Place,
    /// Jobs that hold some of its GPUs.
    pub jobs: Vec<u32>,
    /// Number of changes of `place`; a scheduled step with an older number is stale.
    pub(crate) epoch: u32,
}

/// All nodes, with indexes over those that can take jobs.
#[derive(Debug, Clone)]
pub(crate) struct Nodes {
    all: Vec<Node>,
    groups: Vec<Group>,
    models: usize,
    /// By pool: whether it belongs to a service.
    serves: Vec<bool>,
    /// GPUs in each class now. GPUs ready to serve all count as headroom.
    classes: [i64; 8],
    /// By pool: GPUs that can serve now.
    ready: Vec<i64>,
}

/// Nodes of one model that can take jobs of one pool: either its own or borrowed nodes.
#[derive(Debug, Clone, Default)]
struct Group {
    /// Nodes by number of free GPUs.
    by_free: Vec<BTreeSet<u32>>,
    free: u32,
    /// GPUs of the largest node that was ever in the group.
    size: u32,
}

/// A copy of a pool's free GPUs, for working out what would fit if some were taken or released.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    groups: Vec<Group>,
    /// Index of the pool's first group among those of all pools.
    first: usize,
}

/// GPUs that a job holds: node, and number of GPUs on it.
pub type Held = Vec<(u32, u32)>;

impl Nodes {
    pub(crate) fn new(spec: &ClusterSpec, serves: Vec<bool>) -> Self {
        let all = spec.nodes.iter().map(|n| Node {
            gpus: n.gpus,
            model: n.model,
            rack: n.rack,
            pool: n.pool,
            free: n.gpus,
            up: true,
            down_until_us: 0,
            drained: false,
            reserved: false,
            speed_ppm: crate::PPM,
            place: Place::Home,
            jobs: Vec::new(),
            epoch: 0,
        });
        let mut nodes = Self {
            all: all.collect(),
            groups: vec![Group::default(); spec.pools.len() * spec.models.len() * 2],
            models: spec.models.len(),
            ready: vec![0; serves.len()],
            serves,
            classes: [0; 8],
        };
        for n in 0..nodes.all.len() as u32 {
            nodes.count(n, 1);
        }
        nodes
    }

    pub(crate) fn get(&self, node: u32) -> &Node {
        &self.all[node as usize]
    }

    pub(crate) fn all(&self) -> &[Node] {
        &self.all
    }

    /// Changes a node and updates every count and index.
    pub(crate) fn change(&mut self, node: u32, with: impl FnOnce(&mut Node)) {
        self.count(node, -1);
        with(&mut self.all[node as usize]);
        self.count(node, 1);
    }

    /// GPUs that can serve in a pool.
    pub(crate) fn ready(&self, pool: usize) -> i64 {
        self.ready[pool]
    }

    /// GPUs by class; those ready to serve all count as [`Class::Headroom`].
    pub(crate) fn classes(&self) -> [i64; 8] {
        self.classes
    }

    /// Free GPUs for jobs of a pool: on its own nodes, and on borrowed ones.
    pub(crate) fn free(&self, pool: usize) -> (u32, u32) {
        let sum = |lent: usize| {
            (0..self.models).map(|m| self.groups[(pool * self.models + m) * 2 + lent].free).sum::<u32>()
        };
        (sum(0), sum(1))
    }

    fn group_of(&self, n: &Node) -> Option<usize> {
        if !n.up || n.drained || n.reserved {
            return None;
        }
        let (pool, lent) = match n.place {
            Place::Home if !self.serves[n.pool] => (n.pool, 0),
            Place::Lent { to } => (to, 1),
            _ => return None,
        };
        Some((pool * self.models + usize::from(n.model)) * 2 + lent)
    }

    /// Adds a node to all counts (`sign` 1) or removes it (-1).
    fn count(&mut self, node: u32, sign: i64) {
        let n = &self.all[node as usize];
        let (free, held) = (i64::from(n.free), i64::from(n.gpus - n.free));
        let class = match n.place {
            _ if !n.up => Class::Down,
            Place::Leaving { .. } | Place::Called { .. } | Place::Handover | Place::Loading => Class::Transit,
            _ if n.drained => Class::Drained,
            Place::Home if self.serves[n.pool] => Class::Headroom,
            Place::Home => Class::Idle,
            Place::Lent { .. } => Class::IdleLent,
        };
        self.classes[class as usize] += sign * free;
        self.classes[Class::Allocated as usize] += sign * held;
        if class == Class::Headroom {
            self.ready[n.pool] += sign * free;
        }
        let Some(g) = self.group_of(n) else { return };
        let group = &mut self.groups[g];
        if sign > 0 {
            group.insert(node, n);
        } else {
            group.by_free[n.free as usize].remove(&node);
            group.free -= n.free;
        }
    }

    /// As [`Nodes::fit`], on the nodes of a reservation alone.
    pub(crate) fn fit_among(&self, nodes: &BTreeSet<u32>, model: Option<u16>, gpus: u32) -> Option<Held> {
        let mut groups = vec![Group::default(); self.models];
        for node in nodes {
            let n = self.get(*node);
            if n.up && !n.drained && n.place == Place::Home && model.is_none_or(|model| model == n.model) {
                groups[usize::from(n.model)].insert(*node, n);
            }
        }
        groups.chunks(1).find_map(|group| fit_groups(group, gpus))
    }

    /// Finds room for a gang of `gpus` GPUs of one model; own nodes before borrowed ones.
    ///
    /// A gang smaller than a node goes to the node with the fewest free GPUs (best fit). A larger
    /// gang takes whole nodes in order of their numbers, and so of racks, and best fit for the
    /// rest.
    pub(crate) fn fit(&self, pool: usize, model: Option<u16>, gpus: u32, loan: bool) -> Option<Held> {
        fit_models(self.groups_of(pool), model, gpus, loan)
    }

    /// A copy of a pool's free GPUs.
    pub(crate) fn room(&self, pool: usize) -> Room {
        Room { groups: self.groups_of(pool).to_vec(), first: pool * self.models * 2 }
    }

    fn groups_of(&self, pool: usize) -> &[Group] {
        &self.groups[pool * self.models * 2..(pool + 1) * self.models * 2]
    }

    /// GPUs of the largest gang that fits an empty pool. A larger job would wait for ever.
    pub(crate) fn largest(&self, pool: usize, model: Option<u16>, loan: bool) -> u32 {
        let usable = |n: &&Node| {
            let lent = self.serves[n.pool];
            model.is_none_or(|m| m == n.model) && ((n.pool == pool && !lent) || (loan && lent))
        };
        let of = |m: u16| self.all.iter().filter(usable).filter(|n| n.model == m).map(|n| n.gpus).sum();
        (0..self.models as u16).map(of).max().unwrap_or(0)
    }
}

impl Room {
    /// As [`Nodes::fit`].
    pub(crate) fn fit(&self, model: Option<u16>, gpus: u32, loan: bool) -> Option<Held> {
        fit_models(&self.groups, model, gpus, loan)
    }

    /// Free GPUs of a node; `None` if it takes no jobs of the pool.
    pub(crate) fn free(&self, nodes: &Nodes, node: u32) -> Option<u32> {
        let group = &self.groups[self.group_of(nodes, node)?];
        group.by_free.iter().position(|free| free.contains(&node)).map(|free| free as u32)
    }

    /// Sets the free GPUs of a node, unless it takes no jobs of the pool.
    pub(crate) fn set_free(&mut self, nodes: &Nodes, node: u32, free: u32) {
        let (Some(group), Some(before)) = (self.group_of(nodes, node), self.free(nodes, node)) else {
            return;
        };
        let group = &mut self.groups[group];
        group.by_free[before as usize].remove(&node);
        group.by_free[free as usize].insert(node);
        group.free = group.free - before + free;
    }

    fn group_of(&self, nodes: &Nodes, node: u32) -> Option<usize> {
        let group = nodes.group_of(nodes.get(node))?.checked_sub(self.first)?;
        (group < self.groups.len()).then_some(group)
    }
}

impl Group {
    fn insert(&mut self, node: u32, n: &Node) {
        if self.by_free.len() <= n.gpus as usize {
            self.by_free.resize(n.gpus as usize + 1, BTreeSet::new());
            self.size = n.gpus;
        }
        self.by_free[n.free as usize].insert(node);
        self.free += n.free;
    }
}

/// Finds room for a gang in a pool. For each GPU model, `groups` holds the pool's own nodes and
/// then the borrowed ones.
fn fit_models(groups: &[Group], model: Option<u16>, gpus: u32, loan: bool) -> Option<Held> {
    let mut of_model = groups.chunks(2).enumerate();
    let is_wanted = |m: usize| model.is_none_or(|model| usize::from(model) == m);
    of_model.find_map(|(m, of)| is_wanted(m).then(|| fit_groups(&of[..1 + usize::from(loan)], gpus))?)
}

/// Room for a gang on nodes of one model: all of `groups`, the first of them first.
fn fit_groups(groups: &[Group], gpus: u32) -> Option<Held> {
    if groups.iter().map(|g| g.free).sum::<u32>() < gpus {
        return None;
    }
    let size = groups.iter().map(|g| g.size).max()?;
    if gpus < size {
        return best_fit(groups, gpus, &[]).map(|node| vec![(node, gpus)]);
    }
    let (whole, rest) = (gpus / size, gpus % size);
    let mut held: Held = Vec::with_capacity(whole as usize + 1);
    let free = groups.iter().filter_map(|g| g.by_free.get(size as usize)).flatten();
    held.extend(free.take(whole as usize).map(|node| (*node, size)));
    if held.len() < whole as usize {
        return None;
    }
    if rest > 0 {
        let node = best_fit(groups, rest, &held)?;
        held.push((node, rest));
    }
    Some(held)
}

/// The node with the fewest free GPUs, but at least `gpus`; own nodes first, none of `taken`.
fn best_fit(groups: &[Group], gpus: u32, taken: &[(u32, u32)]) -> Option<u32> {
    let fitting = |g: &Group| -> Option<u32> {
        let mut nodes = g.by_free.iter().skip(gpus as usize).flatten();
        nodes.find(|node| taken.iter().all(|t| t.0 != **node)).copied()
    };
    groups.iter().find_map(fitting)
}
