//! One minute of a cluster watched by agents: sums over the instants of [`super::cluster`], placed
//! on devices, and classified by what these did.

use std::collections::{BTreeMap, BTreeSet};

use super::claims::{CLAIMS, claims};
use super::class::{ClassName, NO_DEMAND, class_of};
use super::cluster::Cluster;
use super::fact::{Fact, Kind};
use super::job_minute::{JobMinute, job_classes};
use super::node::{Device, Health, Node};
use super::{SEVENTHS, gpu_ms};

/// GPU × ms of one class in the minute. Values that are not known or do not apply are empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row<'a> {
    pub node: &'a str,
    pub gpu: &'a str,
    pub mig: &'a str,
    pub job: &'a str,
    pub class: &'static str,
    pub formula: &'static str,
    pub gpu_ms: i64,
}

/// A node over the minute; sums in units × ms.
#[derive(Debug, Default)]
struct NodeMinute<'a> {
    /// ms in which the node existed; for a node that was never registered, in which it was held.
    present: i64,
    is_registered: bool,
    has: i64,
    unhealthy: i64,
    drained: i64,
    /// Usable for jobs, and what of it is held by jobs with only a number of GPUs.
    idle: i64,
    taken: i64,
    imbalance: i64,
    claimed: [i64; CLAIMS.len()],
    named: BTreeMap<Device<'a>, BTreeMap<&'a str, i64>>,
    /// Held of each device, at most the whole device.
    of_device: BTreeMap<Device<'a>, i64>,
    /// ms in which each device was held by name.
    wall: BTreeMap<Device<'a>, i64>,
    unnamed: BTreeMap<&'a str, i64>,
    seen: BTreeSet<(&'a str, &'a str)>,
    /// ms in which each device was not held by name and was unhealthy or lost, or drained.
    unusable: BTreeMap<Device<'a>, (i64, i64)>,
    /// Held by a job before the first step of its attempt, and the attempt's number.
    starting: BTreeMap<&'a str, (i64, i64)>,
}

/// A device in the minute, ms; a MIG slice counts by its sevenths.
#[derive(Debug)]
struct DeviceMinute<'a> {
    device: Device<'a>,
    capacity: i64,
    active: i64,
    idle: i64,
    empty: i64,
    wall: i64,
    unhealthy: i64,
    drained: i64,
    /// Unhealthy or drained. Not the sum of the two: each is rounded down to whole ms, and so is
    /// this.
    unusable: i64,
    held: BTreeMap<&'a str, i64>,
}

impl DeviceMinute<'_> {
    fn held_ms(&self) -> i64 {
        self.held.values().sum()
    }

    fn free(&self) -> i64 {
        (self.capacity - self.held_ms()).max(0)
    }
}

/// What agents and jobs reported of a node for the minute.
#[derive(Debug, Default)]
struct Reports<'a> {
    samples: Vec<&'a Fact<'a>>,
    /// By job; of several the first fact counts.
    steps: BTreeMap<&'a str, &'a Fact<'a>>,
}

/// The rows of `[begin, end)`, sorted. `facts` must be sorted and lie inside.
pub fn minute<'a>(facts: &'a [Fact<'a>], begin: i64, end: i64) -> Vec<Row<'a>> {
    let mut cluster = Cluster::new(facts);
    let mut nodes: Vec<NodeMinute<'a>> = cluster.names.iter().map(|_| NodeMinute::default()).collect();
    let mut somewhere: BTreeMap<&str, i64> = BTreeMap::new();
    let (mut beyond, mut now) = (0, begin);
    // Up to when each node's sums are complete. Most changes concern few nodes.
    let mut added_to = vec![begin; nodes.len()];
    let reports = reports_by_node(facts);
    let of_node = |name: &str| reports.get(name).unwrap_or(&NO_REPORTS);
    let mut add = |nodes: &mut [NodeMinute<'a>], cluster: &Cluster<'a>, index: usize, to: i64| {
        let ms = to - std::mem::replace(&mut added_to[index], to);
        if ms > 0 {
            nodes[index].add(cluster, index, ms, &of_node(cluster.names[index]).samples);
        }
    };
    while now < end {
        for index in cluster.affected_at(now) {
            add(&mut nodes, &cluster, index, now);
        }
        cluster.advance(now);
        let next = cluster.next_change().map_or(end, |next| next.min(end));
        let ms = next - now;
        let claimed = claims(&cluster);
        for ((_, job), units) in cluster.held_in_pools() {
            *somewhere.entry(job).or_default() += units * ms;
        }
        beyond += claimed.beyond * ms;
        for (index, node) in nodes.iter_mut().enumerate() {
            node.taken += claimed.taken[index] * ms;
            for (sum, units) in node.claimed.iter_mut().zip(claimed.claimed[index]) {
                *sum += units * ms;
            }
        }
        now = next;
    }
    (0..nodes.len()).for_each(|index| add(&mut nodes, &cluster, index, end));
    let mut rows: Vec<Row<'a>> = Vec::new();
    let nowhere =
        |job, class, formula, gpu_ms| Row { node: "", gpu: "", mig: "", job, class, formula, gpu_ms };
    rows.extend(somewhere.into_iter().map(|(job, units)| nowhere(job, "unknown", "hold", gpu_ms(units))));
    rows.push(nowhere("", "imbalance", "hold", -gpu_ms(beyond)));
    for (name, node) in cluster.names.iter().zip(&nodes) {
        node.rows(name, of_node(name), &cluster, &mut rows);
    }
    rows.retain(|row| row.gpu_ms != 0);
    rows.sort();
    rows
}

/// Of a node that nothing was reported of.
static NO_REPORTS: Reports<'static> = Reports { samples: Vec::new(), steps: BTreeMap::new() };

fn reports_by_node<'a>(facts: &'a [Fact<'a>]) -> BTreeMap<&'a str, Reports<'a>> {
    let mut reports: BTreeMap<&str, Reports<'a>> = BTreeMap::new();
    for fact in facts {
        match fact.kind {
            Kind::Sample => reports.entry(fact.node).or_default().samples.push(fact),
            Kind::Steps => {
                reports.entry(fact.node).or_default().steps.entry(fact.job).or_insert(fact);
            }
            _ => {}
        }
    }
    reports
}

impl<'a> NodeMinute<'a> {
    /// Adds a time of `ms` in which nothing about the node changed.
    fn add(&mut self, cluster: &Cluster<'a>, index: usize, ms: i64, samples: &[&Fact<'a>]) {
        let node = &cluster.nodes[index];
        self.is_registered |= node.is_registered;
        self.present += if node.is_registered || node.held > 0 { ms } else { 0 };
        self.has += node.has * ms;
        self.unhealthy += node.unhealthy() * ms;
        self.drained += node.drained() * ms;
        self.idle += node.idle() * ms;
        self.imbalance += node.imbalance() * ms;
        for (device, jobs) in &node.named {
            let whole = cluster.devices.sevenths(cluster.names[index], *device) * 1_000;
            *self.of_device.entry(*device).or_default() += jobs.values().sum::<i64>().min(whole) * ms;
            *self.wall.entry(*device).or_default() += ms;
            for (job, units) in jobs {
                *self.named.entry(*device).or_default().entry(job).or_default() += units * ms;
            }
        }
        for (job, units) in &node.unnamed {
            *self.unnamed.entry(job).or_default() += units * ms;
        }
        self.seen.extend(&node.seen);
        if node.is_registered || node.held > 0 {
            self.add_unusable(node, ms, samples);
        }
        self.add_starting(cluster, node, ms);
    }

    fn add_unusable(&mut self, node: &Node<'a>, ms: i64, samples: &[&Fact<'a>]) {
        let sampled = samples.iter().map(|sample| (sample.gpu, sample.mig));
        for device in sampled.filter(|device| !node.named.contains_key(device)) {
            let (unhealthy, drained) = self.unusable.entry(device).or_default();
            if node.lost.contains(device.0) || node.health == Health::Unhealthy {
                *unhealthy += ms;
            } else if node.health == Health::Drained {
                *drained += ms;
            }
        }
    }

    fn add_starting(&mut self, cluster: &Cluster<'a>, node: &Node<'a>, ms: i64) {
        for fact in cluster.starting.iter().map(|index| cluster.fact(*index)) {
            let named: i64 = node.named.values().filter_map(|jobs| jobs.get(fact.job)).sum();
            let held = named + node.unnamed.get(fact.job).copied().unwrap_or(0);
            if held > 0 {
                let (sum, attempt) = self.starting.entry(fact.job).or_default();
                *sum += held * ms;
                *attempt = fact.a.max(*attempt);
            }
        }
    }

    fn rows(&self, name: &'a str, reports: &Reports<'a>, cluster: &Cluster<'a>, rows: &mut Vec<Row<'a>>) {
        let mut devices = self.devices(name, &reports.samples, cluster);
        let beyond = self.place_unnamed(&mut devices);
        let (mut jobs, mut held) = (BTreeMap::<&str, JobMinute<'a>>::new(), 0);
        for device in &devices {
            held += device.held_ms();
            for (job, did) in activity_by_job(device) {
                jobs.entry(job).or_default().add(device.device, did);
            }
        }
        for (job, ms) in beyond {
            held += ms;
            jobs.entry(job).or_default().add(("", ""), [0, ms, 0, 0]);
        }
        for (job, did) in jobs {
            let steps = reports.steps.get(job).copied();
            let starting = self.starting.get(job).map(|(units, attempt)| (gpu_ms(*units), *attempt));
            for (device, (class, formula), gpu_ms) in job_classes(&did, steps, starting) {
                rows.push(Row { node: name, gpu: device.0, mig: device.1, job, class, formula, gpu_ms });
            }
        }
        self.rest(name, held, &devices, rows);
    }

    /// The devices that were sampled or are held by name. The activity of a GPU with MIG slices is
    /// that of its slices; the GPU itself has what they leave.
    fn devices(&self, name: &'a str, samples: &[&Fact<'a>], cluster: &Cluster<'a>) -> Vec<DeviceMinute<'a>> {
        let known = samples.iter().map(|sample| (sample.gpu, sample.mig)).chain(self.named.keys().copied());
        let mut keys: BTreeSet<Device<'a>> = known.collect();
        let cut: BTreeSet<Device<'a>> = keys.iter().filter(|(_, mig)| !mig.is_empty()).copied().collect();
        keys.extend(cut.iter().map(|(gpu, _)| (*gpu, "")));
        let of_device = |device: Device<'a>| {
            let is_cut = device.1.is_empty() && cut.iter().any(|(gpu, _)| *gpu == device.0);
            let sevenths = match is_cut {
                true => {
                    let slices = cut.iter().filter(|(gpu, _)| *gpu == device.0);
                    (SEVENTHS - slices.map(|slice| cluster.devices.sevenths(name, *slice)).sum::<i64>())
                        .max(0)
                }
                false => cluster.devices.sevenths(name, device),
            };
            let mut found = samples.iter().filter(|s| (s.gpu, s.mig) == device && !is_cut);
            let sums = found.by_ref().fold([0; 4], |[a, b, c, d], s| [a + s.a, b + s.b, c + s.c, d + s.d]);
            let [active, idle, empty, sampled] = sums.map(|ms| ms * sevenths / SEVENTHS);
            let held = gpu_ms(self.of_device.get(&device).copied().unwrap_or(0));
            let part = |ms: i64| part_of(ms, sevenths);
            // The rest of a GPU with slices also takes what rounding loses of them.
            let of_slices = || {
                let slices = cut.iter().filter(|(gpu, _)| *gpu == device.0);
                slices.map(|slice| part_of(self.present, cluster.devices.sevenths(name, *slice))).sum::<i64>()
            };
            let capacity =
                if is_cut && sevenths > 0 { self.present - of_slices() } else { part(self.present) };
            let (unhealthy, drained) = self.unusable.get(&device).copied().unwrap_or_default();
            DeviceMinute {
                device,
                capacity: if self.is_registered { capacity } else { held.max(sampled.min(part(60_000))) },
                active,
                idle,
                empty,
                wall: part(self.wall.get(&device).copied().unwrap_or(0)),
                unhealthy: part(unhealthy),
                drained: part(drained),
                unusable: part(unhealthy + drained),
                held: divided(
                    held,
                    self.named.get(&device).into_iter().flatten().map(|(job, units)| (*job, *units)),
                ),
            }
        };
        keys.into_iter().map(of_device).collect()
    }

    /// Places shares without a named device on devices that no named hold takes: first where a
    /// process of that job was seen, then on the busiest, then by UUID. Returns what is left of
    /// each.
    fn place_unnamed(&self, devices: &mut [DeviceMinute<'a>]) -> BTreeMap<&'a str, i64> {
        let all = gpu_ms(self.unnamed.values().sum());
        let mut open = divided(all, self.unnamed.iter().map(|(job, units)| (*job, *units)));
        let give = |device: &mut DeviceMinute<'a>,
                    shares: BTreeMap<&'a str, i64>,
                    open: &mut BTreeMap<&'a str, i64>| {
            let given = device.free().min(shares.values().sum());
            for (job, part) in divided(given, shares.into_iter()) {
                *device.held.entry(job).or_default() += part;
                *open.get_mut(job).expect("shares are of these") -= part;
                device.wall += part;
            }
        };
        for device in devices.iter_mut() {
            let of_it = |job: &str| self.seen.contains(&(job, device.device.0));
            let shares = open.iter().filter(|(job, _)| of_it(job)).map(|(job, ms)| (*job, *ms)).collect();
            give(device, shares, &mut open);
        }
        let mut order: Vec<usize> = (0..devices.len()).collect();
        order.sort_by_key(|index| {
            let device = &devices[*index];
            (std::cmp::Reverse((device.active, device.idle)), device.device)
        });
        for index in order {
            give(&mut devices[index], open.clone(), &mut open);
        }
        open.retain(|_, ms| *ms > 0);
        open
    }

    /// Places time that was not held on devices in order of their names. What does not fit is the
    /// node's.
    fn rest(&self, name: &'a str, held: i64, devices: &[DeviceMinute<'a>], rows: &mut Vec<Row<'a>>) {
        let mut push = |device: Device<'a>, (class, formula): ClassName, gpu_ms: i64| {
            rows.push(Row { node: name, gpu: device.0, mig: device.1, job: "", class, formula, gpu_ms });
        };
        let imbalance = gpu_ms(self.imbalance);
        push(("", ""), ("imbalance", "hold"), imbalance);
        // How many more GPUs an unregistered node has is not known.
        let has = match self.is_registered {
            true => gpu_ms(self.has),
            false => held + devices.iter().map(DeviceMinute::free).sum::<i64>(),
        };
        let (mut unhealthy, mut drained) = (gpu_ms(self.unhealthy), gpu_ms(self.drained));
        let mut idle = (has - imbalance - held - gpu_ms(self.taken) - unhealthy - drained).max(0);
        // Rounding leaves a few ms. If nothing was idle, they go to the class that the node is in.
        if self.is_registered && self.idle == 0 {
            let class = if self.drained > 0 { &mut drained } else { &mut unhealthy };
            *class += std::mem::take(&mut idle);
        }
        let mut room: Vec<(Device<'a>, i64)> = devices.iter().map(|d| (d.device, d.free())).collect();
        let mut place = |class: ClassName, mut ms: i64, most: &dyn Fn(usize) -> i64| {
            for (index, (device, left)) in room.iter_mut().enumerate() {
                let part = ms.min(*left).min(most(index));
                *left -= part;
                ms -= part;
                push(*device, class, part);
            }
            push(("", ""), class, ms);
        };
        place(("unhealthy", "capacity"), unhealthy, &|index| devices[index].unhealthy);
        place(("drained", "capacity"), drained, &|index| devices[index].drained);
        // On a shared GPU it is not known whether the part its holder leaves is busy.
        let busy = |index: usize| {
            let device: &DeviceMinute<'_> = &devices[index];
            // In a minute without a registration, samples are all that is known of the node.
            let unusable = if self.is_registered { device.unusable } else { 0 };
            let usable = (device.free() - unusable).max(0);
            (device.active - device.wall.max(device.held_ms())).clamp(0, usable)
        };
        let all_busy = idle.min((0..devices.len()).map(busy).sum());
        place(("unallocated_busy", "samples"), all_busy, &busy);
        idle -= all_busy;
        for claim in CLAIMS {
            let claimed = idle.min(gpu_ms(self.claimed[claim as usize]));
            place(class_of(claim), claimed, &|_| i64::MAX);
            idle -= claimed;
        }
        place(NO_DEMAND, idle, &|_| i64::MAX);
    }
}

fn part_of(ms: i64, sevenths: i64) -> i64 {
    ms * sevenths / SEVENTHS
}

/// Divides the activity of a device among its holders, ms: active, not sampled, idle, empty. Each
/// kind is divided in proportion to the time that the kinds before it left to each holder, so
/// rounding never changes a holder's total.
fn activity_by_job<'a>(device: &DeviceMinute<'a>) -> BTreeMap<&'a str, [i64; 4]> {
    let mut rest = device.held_ms();
    let mut take = |known: i64| {
        let part = rest.min(known);
        rest -= part;
        part
    };
    let [active, idle, empty] = [device.active, device.idle, device.empty].map(&mut take);
    let mut left = device.held.clone();
    let mut did: BTreeMap<&str, [i64; 4]> = BTreeMap::new();
    for (kind, amount) in [(0, active), (2, idle), (3, empty), (1, rest)] {
        for (job, part) in divided(amount, left.clone().into_iter()) {
            did.entry(job).or_default()[kind] = part;
            *left.entry(job).or_default() -= part;
        }
    }
    did
}

/// Divides a total in proportion to the weights, rounded down cumulatively, in order of the names.
fn divided<'a>(amount: i64, weights: impl Iterator<Item = (&'a str, i64)>) -> BTreeMap<&'a str, i64> {
    let weights: BTreeMap<&str, i64> = weights.filter(|(_, weight)| *weight > 0).collect();
    let total: i128 = weights.values().map(|weight| i128::from(*weight)).sum();
    let (mut before, mut reached) = (0_i128, 0_i64);
    let part = |(job, weight): (&'a str, i64)| {
        before += i128::from(weight);
        let up_to = (i128::from(amount) * before / total) as i64;
        (job, up_to - std::mem::replace(&mut reached, up_to))
    };
    weights.into_iter().map(part).collect()
}
