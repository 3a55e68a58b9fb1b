//! The watcher without Slurm's programs: for clusters whose answers a generator writes.

use tidegate_events::Event;
use tidegate_slurm::CommandError;
use tidegate_slurm::sacct::AttemptRecord;
use tidegate_slurm::sacctmgr::{AssociationRecord, QosRecord};
use tidegate_slurm::scontrol::{ConfiguredNode, PartitionRecord, ReservationRecord};
use tidegate_slurm::squeue::parse_jobs;

use super::inventory::{Answers, Limits};
use super::observed::ObservedJob;
use super::state::State;
use super::tracker::Tracker;

/// What `scontrol` and `sacctmgr` show of a cluster's capacity at one time.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "each field is what the type of its records says")]
pub struct Capacity {
    pub nodes: Vec<ConfiguredNode>,
    pub partitions: Vec<PartitionRecord>,
    pub reservations: Vec<ReservationRecord>,
    pub qos: Vec<QosRecord>,
    pub associations: Vec<AssociationRecord>,
}

/// Makes the events that a [`Watcher`](super::Watcher) would make of the same answers. It asks
/// nobody and saves nothing.
#[derive(Debug)]
pub struct AnswerWatcher {
    cluster: String,
    tracker: Tracker,
}

impl AnswerWatcher {
    /// A watcher of a cluster whose accounting names GPUs and confirms every end. It does not emit
    /// the devices of an attempt.
    pub fn new(cluster: impl Into<String>) -> Self {
        Self { cluster: cluster.into(), tracker: Tracker::new(State::default(), true, false) }
    }

    /// From now on it emits each device of an attempt, of those that run already too.
    pub fn emit_devices(&mut self) {
        self.tracker.set_devices(true);
    }

    /// Events since the answers before: `queue` is what `squeue --json` prints at `now_ms`, `ended`
    /// what accounting has of attempts that ended since. Capacity that is not given is unchanged.
    ///
    /// # Errors
    /// The queue cannot be read: then nothing of the answers counts.
    pub fn take_in(
        &mut self,
        now_ms: i64,
        queue: &[u8],
        ended: Vec<AttemptRecord>,
        capacity: Option<Capacity>,
    ) -> Result<Vec<Event>, CommandError> {
        let jobs = parse_jobs(queue)?.into_iter().map(|job| ObservedJob::from_queue(job, true));
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        self.tracker.queue(now_ms, &jobs);
        let ended: Vec<_> = ended.into_iter().map(ObservedJob::from_accounting).collect();
        self.tracker.accounting(now_ms, &ended);
        self.tracker.settle(now_ms, true);
        if let Some(capacity) = capacity {
            let Capacity { nodes, partitions, reservations, qos, associations } = capacity;
            let inventory = &mut self.tracker.state.inventory;
            let mut events = inventory.update(now_ms, Answers { nodes, partitions, reservations });
            let limits = Limits { qos: &qos, associations: &associations, complete: true };
            events.extend(inventory.limits(now_ms, &limits));
            self.tracker.emit(events);
        }
        self.tracker.observe();
        let mut events = self.tracker.take();
        for event in &mut events {
            event.envelope_mut().cluster.clone_from(&self.cluster);
            event.envelope_mut().observed_time_ms = now_ms;
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_events::v1::JobEventKind as Kind;

    use super::*;

    #[test]
    fn answers_become_the_watchers_events() {
        let mut watcher = AnswerWatcher::new("c");
        watcher.emit_devices();
        let queue = |state: &str, more: &str| {
            format!(
                r#"{{"meta": {{}}, "errors": [], "jobs": [{{"job_id": 8, "job_state": "{state}", "submit_time": 1795310010,
                    "node_count": 1, "tres_req_str": "node=1,gres/gpu=2"{more}}}]}}"#
            )
        };
        let kinds = |events: Vec<Event>| -> Vec<Kind> {
            let kind = |event| if let Event::Job(job) = event { Some(job.kind()) } else { None };
            events.into_iter().filter_map(kind).collect()
        };
        let waits = queue("PENDING", r#", "state_reason": "Resources""#);
        let seen = watcher.take_in(1_795_310_020_000, waits.as_bytes(), Vec::new(), None).unwrap();
        assert!(seen.iter().all(|event| event.envelope().is_some_and(|e| e.cluster == "c")));
        assert_eq!(kinds(seen), [Kind::Submitted, Kind::Waiting, Kind::Observed]);
        let runs = queue(
            "RUNNING",
            r#", "start_time": 1795310030, "nodes": "n1", "gres_detail": ["gpu:h100:2(IDX:0-1)"],
               "tres_alloc_str": "node=1,gres/gpu=2""#,
        );
        let seen = watcher.take_in(1_795_310_040_000, runs.as_bytes(), Vec::new(), None).unwrap();
        assert_eq!(kinds(seen), [Kind::Started, Kind::DeviceHeld, Kind::DeviceHeld, Kind::Observed]);
        assert!(watcher.take_in(1_795_310_050_000, b"{}", Vec::new(), None).is_err());
    }
}
