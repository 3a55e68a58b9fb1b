//! Facts about a cluster that decide why its jobs wait. Times are µs since 1970.

/// A stretch of a wait in which the scheduler reported one reason.
#[derive(Debug, Clone, Copy)]
pub struct Wait<'a> {
    /// Index of its row among the facts.
    pub row: usize,
    pub job: &'a str,
    /// Empty if the job names none, and may run on every node.
    pub pool: &'a str,
    pub team: Option<&'a str>,
    pub qos: Option<&'a str>,
    pub reason: Option<&'a str>,
    /// What the reason stands for.
    pub reason_constraint: Option<&'a str>,
    /// The scheduler leaves open what the job waits for.
    pub is_open: bool,
    /// The reason lets the job compete for GPUs.
    pub in_line: bool,
    /// Thousandths of a GPU requested.
    pub gpus: i64,
    /// Nodes requested, if the shape is known.
    pub nodes: Option<i64>,
    /// Thousandths of a GPU requested on each.
    pub per_node: Option<i64>,
    pub priority: Option<i64>,
    /// Start of the whole wait.
    pub waited_from: i64,
    pub eligible_from: Option<i64>,
    pub from: i64,
    /// `None` while it lasts.
    pub to: Option<i64>,
    /// End of the stretch, or the time up to which it was observed.
    pub known_to: i64,
}

/// State of a node.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Comma separated; empty if it serves all pools.
    pub pools: &'a str,
    /// Thousandths of a GPU, as the next two.
    pub gpus: i64,
    pub free: i64,
    /// Assumed held by jobs whose nodes are not known.
    pub assumed: i64,
    /// Jobs may start on it.
    pub is_usable: bool,
    pub from: i64,
    pub to: Option<i64>,
}

/// State of a quota or limit.
#[derive(Debug, Clone, Copy)]
pub struct Quota<'a> {
    /// Team, or `qos/NAME`.
    pub owner: &'a str,
    /// `None` if it applies to all pools.
    pub pool: Option<&'a str>,
    /// Thousandths of a GPU, as `held`.
    pub gpus: i64,
    pub held: i64,
    pub from: i64,
    pub to: Option<i64>,
}

/// All facts of a cluster in some time.
#[derive(Debug, Default)]
pub struct Facts<'a> {
    pub waits: Vec<Wait<'a>>,
    pub nodes: Vec<Node<'a>>,
    pub quotas: Vec<Quota<'a>>,
    /// Pools of a node, comma separated, and since when there was such a node.
    pub known: Vec<(&'a str, i64)>,
}

impl Wait<'_> {
    /// Start of the time in which it stands in line; `None` if it never does.
    pub fn in_line_from(&self) -> Option<i64> {
        let from = self.from.max(self.eligible_from.unwrap_or(self.from));
        (self.in_line && self.gpus > 0 && self.to.is_none_or(|to| from < to)).then_some(from)
    }

    /// Whether pools and quotas decide its constraint.
    pub fn is_compared(&self) -> bool {
        self.is_open && self.gpus > 0
    }
}
