//! Whose jobs are on this node: by Slurm's prolog and cgroups, and by the pods that the kubelet
//! started.
//!
//! A process proves its job by its cgroup, which it cannot choose, and its user by the socket. What
//! its environment says proves nothing.

mod pods;

use std::path::PathBuf;
use std::sync::Arc;

use crate::holds::{NodeHolds, ScanRoots};
use crate::process::Process;
use crate::receiver::{NodeJobs, Reporter, Standing};
use pods::Pods;

/// Folder in which the kubelet makes one for each pod.
pub const POD_LOGS: &str = "/var/log/pods";

/// The jobs on this node.
#[derive(Debug)]
pub struct JobsOfNode {
    holds: Arc<NodeHolds>,
    roots: ScanRoots,
    pods: Pods,
}

impl JobsOfNode {
    /// Jobs as `holds` knows them, and pods by their folders in `pod_logs`; processes are looked up
    /// in `roots`.
    pub fn new(holds: Arc<NodeHolds>, roots: ScanRoots, pod_logs: PathBuf) -> Self {
        Self { holds, roots, pods: Pods::new(pod_logs) }
    }
}

impl NodeJobs for JobsOfNode {
    fn reporter(&self, uid: u32, pid: Option<u32>) -> Reporter {
        let unseen = Reporter { uid: Some(uid), ..Reporter::default() };
        // The kernel gives 0 for a process in a namespace that the agent does not see.
        let Some(pid) = pid.filter(|pid| *pid > 0) else { return unseen };
        // The process may have ended, and its id be another user's by now.
        let Some(process) = Process::read(&self.roots.proc, pid).filter(|process| process.uid == uid) else {
            return unseen;
        };
        let (job_number, full_id) = self.roots.proven_job_of(pid).unzip();
        let pod = self.pods.of_process(&self.roots.proc, pid);
        Reporter {
            node_root: uid == 0 && !process.contained,
            contained: process.contained,
            job_number,
            full_id: full_id.flatten(),
            pod,
            ..unseen
        }
    }

    fn standing(&self, reporter: &Reporter, job: &str) -> Standing {
        if reporter.pod.as_deref() == Some(job) {
            return Standing::Own;
        }
        match self.holds.standing(reporter, job) {
            Standing::Unknown if self.pods.is_known(job) => Standing::Others,
            standing => standing,
        }
    }
}
