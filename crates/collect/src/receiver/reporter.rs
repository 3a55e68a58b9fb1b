//! Who reports: what the kernel tells of the process at the other end, and for which jobs it may
//! report.

/// User id on the Unix socket; `None` for TCP.
pub(super) type PeerId = Option<u32>;

/// Whose step reports are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StepReports {
    /// Those of a job's own processes, of its owner, and of root. Over TCP nobody knows who
    /// reports, so nothing is taken there.
    #[default]
    Owned,
    /// Those of every job on this node, whoever reports.
    Known,
    /// All: for nodes where neither a scheduler nor the kubelet tells which jobs there are.
    Any,
}

/// The process at the other end of a connection. Over TCP nothing of it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reporter {
    /// Its user; `None` over TCP.
    pub uid: Option<u32>,
    /// Whether it is the node's root. The root of a container is not.
    pub node_root: bool,
    /// Whether it runs in a container with process ids of its own.
    pub contained: bool,
    /// Number of the Slurm job that its cgroup belongs to.
    pub job_number: Option<String>,
    /// Id of that job as accounting writes it, e.g. `123_4`, as the process's environment has it.
    pub full_id: Option<String>,
    /// Its pod, as `NAMESPACE/POD`.
    pub pod: Option<String>,
}

/// How a reporter stands to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It belongs to the job, or its user owns it.
    Own,
    /// The job is on this node, and another user's or of an unknown one.
    Others,
    /// No such job is known on this node.
    Unknown,
}

/// Knows the jobs on this node, and who owns them.
pub trait NodeJobs: Send + Sync {
    /// What can be known of the process at the other end of a Unix socket. Called once for each
    /// connection, right after it was made, because process ids are reused.
    fn reporter(&self, uid: u32, pid: Option<u32>) -> Reporter;

    /// How a reporter stands to a job.
    fn standing(&self, reporter: &Reporter, job: &str) -> Standing;
}
