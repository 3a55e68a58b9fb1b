//! One node at one instant: its GPUs, which jobs hold them, and what is free.

use std::collections::{BTreeMap, BTreeSet};

use super::fact::{Fact, Kind, listed};
use super::{GPU, SEVENTHS};

/// A device of a node: its UUID, or `#` and its number, and the MIG slice, or empty.
pub type Device<'a> = (&'a str, &'a str);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    #[default]
    Usable,
    Unhealthy,
    Drained,
}

/// Devices known in the minute, to resolve holds.
#[derive(Debug, Default)]
pub struct Devices<'a> {
    /// UUID by node and number (`#3`).
    pub by_number: BTreeMap<(&'a str, &'a str), &'a str>,
    /// By node and slice: the GPU it is cut from, and its sevenths of it.
    pub slices: BTreeMap<(&'a str, &'a str), (&'a str, i64)>,
}

/// A node at an instant; GPUs in units.
#[derive(Debug, Default)]
pub struct Node<'a> {
    /// A node that was never registered and only named by jobs has the GPUs they hold.
    pub is_registered: bool,
    pub pools: Vec<&'a str>,
    pub has: i64,
    pub health: Health,
    /// Accounts and users of each reservation of the node.
    pub reserved: Vec<(&'a str, &'a str)>,
    /// By device, what each job holds of it by name.
    pub named: BTreeMap<Device<'a>, BTreeMap<&'a str, i64>>,
    /// GPUs that each job holds here without a known device. `Cluster` sets them, because they
    /// depend on the job's other nodes.
    pub unnamed: BTreeMap<&'a str, i64>,
    /// Each job's share of the node and the devices known for it.
    pub parts: BTreeMap<&'a str, JobPart>,
    /// Devices on which a process of a job was seen that were not given to it.
    pub seen: BTreeSet<(&'a str, &'a str)>,
    pub lost: BTreeSet<&'a str>,
    /// All that is held, even beyond what the node has.
    pub held: i64,
    /// Lost, and not held by name.
    pub lost_free: i64,
}

/// GPUs of one job on one node, in thousandths. A MIG slice counts as a whole GPU here, as it does
/// for schedulers, although it is only some sevenths of one.
#[derive(Debug, Default, Clone, Copy)]
pub struct JobPart {
    /// The attempt's GPUs divided equally among its nodes.
    pub share: i64,
    /// Devices that the job is known to hold.
    pub devices: i64,
}

/// A job's holds on a node.
#[derive(Debug, Default)]
struct Holds<'a> {
    /// Thousandths of the attempt's share.
    own: i64,
    /// Thousandths of each device.
    given: BTreeMap<Device<'a>, i64>,
    seen: BTreeMap<Device<'a>, i64>,
}

impl<'a> Node<'a> {
    /// Builds the node from the facts in force. The caller must still set `unnamed` and call
    /// `add_up`.
    pub fn now<'f>(facts: impl Iterator<Item = &'f Fact<'a>>, name: &'a str, devices: &Devices<'a>) -> Self
    where
        'a: 'f,
    {
        let mut node = Self::default();
        let mut jobs: BTreeMap<&str, Holds<'a>> = BTreeMap::new();
        let mut in_maintenance = false;
        for fact in facts {
            match fact.kind {
                Kind::Node => node.register(fact),
                Kind::Reserved if fact.word == "MAINT" => in_maintenance = true,
                Kind::Reserved => node.reserved.push((fact.team, fact.user)),
                Kind::Lost => drop(node.lost.insert(fact.gpu)),
                Kind::Share => {
                    jobs.entry(fact.job).or_default().own += share(fact, name);
                }
                Kind::Device => {
                    let holds = jobs.entry(fact.job).or_default();
                    let of = if fact.word == "seen" { &mut holds.seen } else { &mut holds.given };
                    let share = of.entry(devices.of(name, fact)).or_default();
                    *share = fact.gpus.clamp(0, 1_000).max(*share);
                }
                Kind::Wait | Kind::Priority | Kind::Sample | Kind::Steps | Kind::Starting | Kind::Known => {}
            }
        }
        if in_maintenance && node.health == Health::Usable {
            node.health = Health::Drained;
        }
        for (job, holds) in jobs {
            node.place(job, holds, name, devices);
        }
        node
    }

    fn register(&mut self, fact: &Fact<'a>) {
        self.is_registered = true;
        self.pools = listed(fact.pool).collect();
        self.has = fact.gpus.max(0) * SEVENTHS;
        self.health = match fact.word {
            "unhealthy" => Health::Unhealthy,
            "drained" => Health::Drained,
            _ => Health::Usable,
        };
    }

    /// The best evidence of a job wins. A process proves that a job uses a device, not that it uses
    /// no other. So it counts as a hold only if the job has neither a share of the node nor a
    /// device given to it.
    fn place(&mut self, job: &'a str, holds: Holds<'a>, name: &'a str, devices: &Devices<'a>) {
        let processes_only = holds.given.is_empty() && holds.own == 0;
        let (named, seen) = match processes_only {
            true => (holds.seen, BTreeMap::new()),
            false => (holds.given, holds.seen),
        };
        self.parts.insert(job, JobPart { share: holds.own, devices: named.values().sum() });
        for ((gpu, _), _) in seen.into_iter().filter(|(device, _)| !named.contains_key(device)) {
            self.seen.insert((job, gpu));
        }
        for (device, share) in named {
            let units = share * devices.sevenths(name, device);
            self.named.entry(device).or_default().insert(job, units);
        }
    }

    /// Assigns up to `rest` thousandths of the job's GPUs to this node, but no more than its share
    /// exceeds the devices known here. Returns what is still unassigned.
    pub fn take_unnamed(&mut self, job: &'a str, rest: i64) -> i64 {
        let part = self.parts.get(job).copied().unwrap_or_default();
        let taken = (part.share - part.devices).clamp(0, rest);
        if taken > 0 {
            self.unnamed.insert(job, taken * SEVENTHS);
        } else {
            self.unnamed.remove(job);
        }
        rest - taken
    }

    pub fn add_up(&mut self, name: &'a str, devices: &Devices<'a>) {
        let of_device = |(device, jobs): (&Device<'a>, &BTreeMap<&str, i64>)| {
            (jobs.values().sum::<i64>()).min(devices.sevenths(name, *device) * 1_000)
        };
        self.held = self.named.iter().map(of_device).sum::<i64>() + self.unnamed.values().sum::<i64>();
        if !self.is_registered {
            self.has = self.held;
        }
        let lost = self.lost.iter().filter(|gpu| !self.named.keys().any(|(named, _)| named == *gpu)).count();
        self.lost_free = (lost as i64 * GPU).min((self.has - self.held).max(0));
    }

    /// Neither held nor lost.
    pub fn free(&self) -> i64 {
        (self.has - self.held - self.lost_free).max(0)
    }

    /// GPUs that jobs can start on.
    pub fn idle(&self) -> i64 {
        if self.health == Health::Usable { self.free() } else { 0 }
    }

    pub fn unhealthy(&self) -> i64 {
        self.lost_free + if self.health == Health::Unhealthy { self.free() } else { 0 }
    }

    pub fn drained(&self) -> i64 {
        if self.health == Health::Drained { self.free() } else { 0 }
    }

    /// Held beyond what the node has, as a negative number.
    pub fn imbalance(&self) -> i64 {
        (self.has - self.held).min(0)
    }

    /// A node without pools serves all of them, and a job without a pool may run anywhere.
    pub fn serves(&self, pool: &str) -> bool {
        pool.is_empty() || self.pools.is_empty() || self.pools.contains(&pool)
    }

    /// Whether the node's reservations admit this team or user.
    pub fn admits(&self, team: &str, user: &str) -> bool {
        let admitted = |user: &str, list| !user.is_empty() && listed(list).any(|name| name == user);
        self.reserved.is_empty()
            || self.reserved.iter().any(|(accounts, users)| admitted(team, accounts) || admitted(user, users))
    }
}

/// Share of an attempt's GPUs on a node, thousandths: equal on all its nodes, rounded down
/// cumulatively.
fn share(attempt: &Fact<'_>, node: &str) -> i64 {
    let count = attempt.nodes().count() as i64;
    let place = attempt.nodes().position(|name| name == node).map_or(0, |place| place as i64);
    attempt.gpus * (place + 1) / count - attempt.gpus * place / count
}

impl<'a> Devices<'a> {
    /// The device of a hold: by its UUID, or by its number if a sample of the minute resolves it.
    fn of(&self, node: &'a str, fact: &Fact<'a>) -> Device<'a> {
        if let Some((gpu, _)) = self.slices.get(&(node, fact.mig)) {
            return (gpu, fact.mig);
        }
        (self.by_number.get(&(node, fact.gpu)).copied().unwrap_or(fact.gpu), fact.mig)
    }

    /// Sevenths of a device. A slice of unknown size counts as the smallest one.
    pub fn sevenths(&self, node: &'a str, (_, mig): Device<'a>) -> i64 {
        if mig.is_empty() {
            return SEVENTHS;
        }
        self.slices.get(&(node, mig)).map_or(1, |(_, sevenths)| *sevenths)
    }
}
