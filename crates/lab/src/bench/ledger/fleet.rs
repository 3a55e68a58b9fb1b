//! The fleet of the day: nodes, GPUs, and the units that can be held.

use std::sync::Arc;

use tidegate_collect::Device;

use tidegate_demo::draw::Draw;

/// Pools: `train` for whole-node training, `shared` for small jobs, `burst` reserved and late.
pub const TRAIN: &str = "train";
pub const SHARED: &str = "shared";
pub const BURST: &str = "burst";

pub const GPUS_PER_NODE: usize = 8;
const NODES_PER_RACK: usize = 2;
pub const MODEL: &str = "NVIDIA H100 80GB HBM3";
/// GPUs of the first shared node: one time-shared, two sliced.
pub const TIME_SLICED: usize = 5;
const CUT: [(usize, &[u32]); 2] = [(6, &[4, 3]), (7, &[2, 2, 3])];

/// Device time is counted in fourteenths, so that halves and sevenths are integers.
pub const WHOLE: i64 = 14;
/// Compute slices of a sliced GPU.
const SLICES: i64 = 7;

/// A period, ms since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from_ms: i64,
    pub to_ms: i64,
}

impl Span {
    pub fn length_ms(self) -> i64 {
        self.to_ms - self.from_ms
    }

    pub fn contains(self, at_ms: i64) -> bool {
        (self.from_ms..self.to_ms).contains(&at_ms)
    }
}

#[derive(Debug)]
pub struct Node {
    pub name: String,
    pub pool: &'static str,
    pub rack: String,
    /// Offset of its ticks from full seconds.
    pub phase_ms: i64,
    /// Period in the cluster.
    pub registered: Span,
    pub gpus: Vec<Gpu>,
}

#[derive(Debug)]
pub struct Gpu {
    pub device: Arc<Device>,
    /// Its units, as indices in [`Fleet::units`].
    pub units: Vec<usize>,
}

/// Unit that one job holds: a GPU, half of its time, or a slice.
#[derive(Debug)]
pub struct Unit {
    pub node: usize,
    pub gpu: usize,
    pub part: Part,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Whole,
    Half,
    Slice { device: Arc<Device>, slices: u32 },
}

impl Unit {
    /// Fourteenths of a GPU.
    pub fn weight(&self) -> i64 {
        match &self.part {
            Part::Whole => WHOLE,
            Part::Half => WHOLE / 2,
            Part::Slice { slices, .. } => i64::from(*slices) * WHOLE / SLICES,
        }
    }
}

#[derive(Debug)]
pub struct Fleet {
    pub nodes: Vec<Node>,
    pub units: Vec<Unit>,
}

impl Fleet {
    /// `nodes` for the whole time, two thirds of them for training, and one late node in `burst`.
    pub fn new(draw: Draw, nodes: usize, whole: Span, burst: Span) -> Self {
        let shared = (nodes / 3).max(1);
        let mut fleet = Self { nodes: Vec::new(), units: Vec::new() };
        for place in 0..nodes - shared {
            fleet.add(draw, TRAIN, place, whole);
        }
        for place in 0..shared {
            fleet.add(draw, SHARED, place, whole);
        }
        fleet.add(draw, BURST, 0, burst);
        fleet
    }

    fn add(&mut self, draw: Draw, pool: &'static str, place: usize, registered: Span) {
        let node = self.nodes.len();
        let draw = draw.of(node as u64);
        let is_cut = pool == SHARED && place == 0;
        let gpus =
            (0..GPUS_PER_NODE).map(|index| self.gpu(draw.of(index as u64), node, index, is_cut)).collect();
        self.nodes.push(Node {
            name: format!("{pool}-{place:02}"),
            pool,
            rack: format!("{pool}-{}", place / NODES_PER_RACK),
            phase_ms: draw.of(100).whole(0, 999),
            registered,
            gpus,
        });
    }

    fn gpu(&mut self, draw: Draw, node: usize, index: usize, is_cut: bool) -> Gpu {
        let gpu_uuid = format!("GPU-{}", draw.uuid());
        let device =
            Arc::new(Device { uuid: gpu_uuid, index: index as u32, model: MODEL.into(), mig_uuid: None });
        let cut = CUT.iter().find(|(cut, _)| is_cut && *cut == index).map(|(_, slices)| *slices);
        let parts: Vec<Part> = match cut {
            Some(slices) => {
                let slice = |(place, slices): (usize, &u32)| {
                    let mig_uuid = Some(format!("MIG-{}", draw.of(place as u64 + 1).uuid()));
                    Part::Slice {
                        device: Arc::new(Device { mig_uuid, ..Device::clone(&device) }),
                        slices: *slices,
                    }
                };
                slices.iter().enumerate().map(slice).collect()
            }
            None if is_cut && index == TIME_SLICED => vec![Part::Half, Part::Half],
            None => vec![Part::Whole],
        };
        let first = self.units.len();
        self.units.extend(parts.into_iter().map(|part| Unit { node, gpu: index, part }));
        Gpu { device, units: (first..self.units.len()).collect() }
    }

    /// Nodes of a pool, as indices in `nodes`.
    pub fn of_pool(&self, pool: &str) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].pool == pool).collect()
    }

    /// Units of the given GPUs of a node.
    pub fn units_of(&self, node: usize, gpus: impl IntoIterator<Item = usize>) -> Vec<usize> {
        gpus.into_iter().flat_map(|gpu| self.nodes[node].gpus[gpu].units.clone()).collect()
    }

    /// GPU-ms of registered nodes, in fourteenths.
    pub fn provisioned(&self) -> i64 {
        self.nodes.iter().map(|node| node.registered.length_ms() * WHOLE * node.gpus.len() as i64).sum()
    }
}
