//! Whether a step report is taken: its reporter must own the job, and may name only so many jobs
//! and ranks.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_events::v1;

use super::limits::Peer;
use super::reporter::{Standing, StepReports};
use super::{Counts, Shared};

/// Time between two warnings about refused reports.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Refuses a report that its reporter may not make.
pub(super) fn admit(shared: &Shared, peer: &Peer, report: &v1::StepReport) -> Result<(), String> {
    if let Err(what) = check_owner(shared, peer, &report.job_id) {
        Counts::add(&shared.counts.refused_reporters, 1);
        shared.refusals.note(peer, &what);
        return Err(what);
    }
    shared.peers.spread(peer.id, &report.job_id, report.rank).inspect_err(|what| {
        Counts::add(&shared.counts.refused_excess, 1);
        shared.refusals.note(peer, what);
    })
}

fn check_owner(shared: &Shared, peer: &Peer, job: &str) -> Result<(), String> {
    let mode = shared.step_reports;
    if mode == StepReports::Any || peer.reporter.node_root {
        return Ok(());
    }
    let Some(uid) = peer.reporter.uid.map(|uid| format!("user {uid}")).or_else(|| {
        // Over TCP the sender is unknown.
        (mode == StepReports::Known).then(|| "the sender".to_owned())
    }) else {
        return Err("over TCP nobody knows who reports; send it to the Unix socket, or give the agent \
                    --step-reports known"
            .into());
    };
    let standing = shared.parts.jobs.as_ref().map(|jobs| jobs.standing(&peer.reporter, job));
    match standing.unwrap_or(Standing::Unknown) {
        Standing::Own => Ok(()),
        Standing::Others if mode == StepReports::Known => Ok(()),
        Standing::Others => Err(format!(
            "job {job} is not known to be {uid}'s; report from a process of the job, or as its user"
        )),
        Standing::Unknown => Err(format!(
            "job {job} is not known on this node, so {uid} may not report for it; \
             Slurm's prolog or its cgroups name jobs (deploy/slurm), and --step-reports any takes all"
        )),
    }
}

/// Warns of refused reports now and then: who causes them must not fill the node's journal.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Unsaid>);

#[derive(Debug, Default)]
struct Unsaid {
    refused: u64,
    said: Option<Instant>,
}

impl Refusals {
    fn note(&self, peer: &Peer, what: &str) {
        let mut unsaid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unsaid.refused += 1;
        if unsaid.said.is_some_and(|said| said.elapsed() < WARN_EVERY) {
            return;
        }
        tracing::warn!(
            uid = peer.id,
            refused = unsaid.refused,
            last = ?what,
            "step reports were refused; this is said once a minute"
        );
        *unsaid = Unsaid { refused: 0, said: Some(Instant::now()) };
    }
}
