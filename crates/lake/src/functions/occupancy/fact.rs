//! Facts about a cluster, each with the time in which it holds.

/// Kind of a fact, with the columns of `occupancy_facts` that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A node exists: `node`, `pool` (comma separated), `word` (`schedulable`, `unhealthy` or
    /// `drained`), `gpus`, `gpu` (its model).
    Node,
    /// A reservation names nodes: `node` (comma separated), `team` (accounts), `user`, `word`
    /// (`MAINT` or empty).
    Reserved,
    /// A device is lost: `node`, `gpu`.
    Lost,
    /// An attempt of a job holds GPUs: `job`, `pool`, `node` (comma separated; empty if not known),
    /// `gpus`.
    Share,
    /// A job holds a device: `job`, `node`, `gpu` (UUID, or `#` and its number), `mig`, `gpus`
    /// (thousandths of it), `word` (`seen` if a process was seen), `team` (`#` and its number, if
    /// known).
    Device,
    /// A job waits: `job`, `pool`, `team`, `user`, `gpus` asked, `a` nodes with `b` thousandths
    /// each (-1 if not known), `c` the time since when, ms, `word` (`limited`, `open` or `own`).
    Wait,
    /// Priority of a job: `job`, `a`.
    Priority,
    /// Activity of a device in a minute: `node`, `gpu`, `mig`, `word` (`#` and its number), `gpus`
    /// (sevenths), ms `a` active, `b` idle, `c` empty, `d` sampled.
    Sample,
    /// Steps a job reported on a node in a minute: `job`, `node`, `gpus` (ms in steps), ms `a`
    /// restore, `b` redone, `c` checkpoint, `d` waiting for data, `e` communication.
    Steps,
    /// An attempt before its first step: `job`, `a` the number of its run.
    Starting,
    /// Nodes with this `pool` and model (`gpu`) have been registered.
    Known,
}

impl Kind {
    /// Parses the name that `occupancy_facts` uses.
    pub fn parse(name: &str) -> Option<Self> {
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
            "known" => Self::Known,
            _ => return None,
        })
    }
}

/// A fact. Missing text is empty. Facts are ordered, so the order of arrival does not matter.
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
    /// Start and end of the time in which it holds, ms since 1970.
    pub from: i64,
    pub to: i64,
}

impl<'a> Fact<'a> {
    /// Its nodes; none if they are not known.
    pub fn nodes(&self) -> impl Iterator<Item = &'a str> {
        listed(self.node)
    }

    /// GPU model, for a node.
    pub fn gpu_model(&self) -> &'a str {
        self.gpu
    }
}

/// The names of a comma-separated list.
pub fn listed(names: &str) -> impl Iterator<Item = &str> {
    names.split(',').filter(|name| !name.is_empty())
}
