//! What is told of a cluster, and for how long it holds.

/// What a fact says; the columns of `occupancy_facts` that it uses stand behind each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A node is there: `node`, `pool` (comma separated), `word` (`schedulable`, `unhealthy` or
    /// `drained`), `gpus`, `gpu` (its model).
    Node,
    /// A reservation names nodes: `node` (comma separated), `team` (accounts), `user`, `word`
    /// (`MAINT` or nothing).
    Reserved,
    /// A device is lost: `node`, `gpu`.
    Lost,
    /// An attempt of a job holds GPUs: `job`, `pool`, `node` (comma separated; nothing: nobody said
    /// where), `gpus`.
    Share,
    /// A job holds a device: `job`, `node`, `gpu` (or `#` and its number), `mig`, `gpus`
    /// (thousandths of it), `word` (`seen`: a process), `team` (`#` and its number, where that is
    /// known).
    Device,
    /// A job waits: `job`, `pool`, `team`, `user`, `gpus` asked, `a` nodes with `b` thousandths
    /// each (-1: unknown), `c` (ms) since when, `word` (`limited`, `open` or `own`).
    Wait,
    /// A job's priority: `job`, `a`.
    Priority,
    /// What a device did in a minute: `node`, `gpu`, `mig`, `word` (`#` and its number), `gpus`
    /// (sevenths), ms `a` active, `b` idle, `c` empty, `d` sampled.
    Sample,
    /// What a job reported of its steps on a node in a minute: `job`, `node`, `gpus` (ms in steps),
    /// ms `a` restore, `b` redone, `c` checkpoint, `d` waiting for data, `e` communication.
    Steps,
    /// An attempt before its first step: `job`, `a` the number of its run.
    Starting,
}

impl Kind {
    /// As `occupancy_facts` names it.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "node" => Self::Node,
            "reserved" => Self::Reserved,
            "lost" => Self::Lost,
            "share" => Self::Share,
            "device" => Self::Device,
            "wait" => Self::Wait,
            "priority" => Self::Priority,
            "sample" => Self::Sample,
            "steps" => Self::Steps,
            "starting" => Self::Starting,
            _ => return None,
        })
    }
}

/// Text that nobody gave is empty. Facts have an order, so that the one in which they arrive does
/// not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact<'a> {
    pub kind: Kind,
    pub node: &'a str,
    pub job: &'a str,
    pub pool: &'a str,
    pub team: &'a str,
    pub user: &'a str,
    pub gpu: &'a str,
    pub mig: &'a str,
    pub word: &'a str,
    pub gpus: i64,
    pub a: i64,
    pub b: i64,
    pub c: i64,
    pub d: i64,
    pub e: i64,
    /// From when on it holds, and when no longer, ms since 1970.
    pub from: i64,
    pub to: i64,
}

impl<'a> Fact<'a> {
    /// Its nodes; none where nobody said which.
    pub fn nodes(&self) -> impl Iterator<Item = &'a str> {
        listed(self.node)
    }

    /// Of a node.
    pub fn gpu_model(&self) -> &'a str {
        self.gpu
    }
}

/// The names of a comma-separated list.
pub fn listed(names: &str) -> impl Iterator<Item = &str> {
    names.split(',').filter(|name| !name.is_empty())
}
