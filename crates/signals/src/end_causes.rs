//! Attributes failed attempts to faults. Faults of a node are kept as long as a collective takes to
//! time out, and are joined to an end one minute after it, because drivers may log late.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, Micros, v1};
use tidegate_insight::health::{Cause, JobEnd, XidClass, cause_of_end, xid};
use tidegate_insight::straggler::Fault;

use crate::facts::HeldDevice;
use crate::publication::{Publication, envelope, evidence_lines, ppm, producer_name};
use crate::time::US_PER_S;

/// Version of the rules, part of the producer name.
const MODEL: &str = "job-end-1";
/// Delay between an end and its attribution, µs.
const SETTLE_US: i64 = 60 * US_PER_S;
/// Retention of faults: eleven minutes before an end ([`cause_of_end`]) and the minute after it.
const FAULT_RETENTION_US: i64 = 720 * US_PER_S;
/// Faults kept per node; in a chain of faults the first ones matter.
const MAX_FAULTS_PER_NODE: usize = 256;
/// Nodes whose faults are kept.
const MAX_NODES: usize = 1 << 16;
/// Final states that a fault can have caused. Ends by a person, a preemption or a resize need no
/// fault, although programs that are stopped log what looks like one.
const ATTRIBUTABLE_STATES: [&str; 6] =
    ["FAILED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "REQUEUED", "UNKNOWN"];
/// Above this probability the node is held to have ended the job.
const MIN_BLAME_PROBABILITY: f64 = 0.5;

/// A fault that a node or device reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedFault {
    at_us: i64,
    uuid: Option<String>,
    index: Option<u32>,
    xid: Option<u32>,
}

/// An attempt that ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndedAttempt {
    pub job_id: String,
    pub attempt: Option<i64>,
    pub end_us: i64,
    pub final_state: String,
    pub nodes: BTreeSet<String>,
    /// Devices of the attempt alone; if empty, all devices of its nodes.
    pub devices: Vec<HeldDevice>,
    pub gpus_milli: Option<u64>,
    pub checkpoint_us: Option<i64>,
}

/// An end with its cause.
#[derive(Debug, Clone)]
pub struct AttributedEnd {
    pub publication: Publication,
    /// The blamed node and the time of the end, where the cause is probable enough and not the
    /// program itself.
    pub blamed_node: Option<(String, i64)>,
}

/// Recent faults of one cluster, and ends that await attribution.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndCauses {
    cluster: String,
    faults: BTreeMap<String, VecDeque<ReportedFault>>,
    waiting: BTreeMap<(i64, String, Option<i64>), EndedAttempt>,
}

impl EndCauses {
    pub fn new(cluster: &str) -> Self {
        Self { cluster: cluster.into(), faults: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// Takes a fault of a node or device.
    pub fn observe_fault(&mut self, event: &v1::NodeEvent, at_us: i64) {
        let reported =
            ReportedFault { at_us, uuid: event.gpu_uuid.clone(), index: event.gpu_index, xid: event.xid };
        if self.faults.len() >= MAX_NODES && !self.faults.contains_key(&event.node) {
            return;
        }
        let faults = self.faults.entry(event.node.clone()).or_default();
        forget(faults, at_us);
        if faults.len() < MAX_FAULTS_PER_NODE && !faults.contains(&reported) {
            faults.push_back(reported);
        }
    }

    /// Takes an end, if a fault can have caused it.
    pub fn attempt_ended(&mut self, ended: EndedAttempt) {
        if ATTRIBUTABLE_STATES.contains(&ended.final_state.as_str()) && !ended.nodes.is_empty() {
            let due_us = ended.end_us.saturating_add(SETTLE_US);
            self.waiting.insert((due_us, ended.job_id.clone(), ended.attempt), ended);
        }
    }

    /// Attributes the ends that were due before `now_us`; all faults up to then are known.
    pub fn attribute_due(&mut self, now_us: i64) -> Vec<AttributedEnd> {
        let mut judged = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            if entry.key().0 >= now_us {
                break;
            }
            let ((due_us, ..), ended) = entry.remove_entry();
            judged.extend(self.attribute(&ended, due_us));
        }
        judged
    }

    /// Forgets faults too old to matter.
    pub fn forget(&mut self, now_us: i64) {
        self.faults.retain(|_, faults| {
            forget(faults, now_us);
            !faults.is_empty()
        });
    }

    fn attribute(&self, ended: &EndedAttempt, due_us: i64) -> Option<AttributedEnd> {
        // The model's ranks are devices here, or whole nodes.
        let mut units: BTreeMap<(&str, Option<&str>, Option<u32>), u32> = BTreeMap::new();
        let mut faults = Vec::new();
        let mut places = Vec::new();
        for (number, node) in (0..).zip(&ended.nodes) {
            let reported = self.faults.get(node).into_iter().flatten();
            for fault in reported.filter(|fault| can_affect(ended, node, fault)) {
                let unit = (node.as_str(), fault.uuid.as_deref(), fault.index);
                let next = units.len() as u32;
                let rank = *units.entry(unit).or_insert(next);
                if rank == next {
                    places.push((number, unit));
                }
                faults.push(Fault { rank, time_us: fault.at_us, xid: fault.xid });
            }
        }
        let node = places.iter().map(|(number, _)| *number).collect();
        let end = JobEnd { end_us: ended.end_us, succeeded: false, node };
        let cause = cause_of_end(&end, &faults)?;
        let (_, (node, uuid, index)) = places[cause.rank as usize];
        let class = class(&cause, uuid.is_some() || index.is_some());
        let is_bad = class != "APPLICATION" && cause.probability >= MIN_BLAME_PROBABILITY;
        let signal = self.signal(ended, &cause, due_us, (node, uuid, index, class));
        Some(AttributedEnd {
            publication: signal,
            blamed_node: is_bad.then(|| (node.to_owned(), ended.end_us)),
        })
    }

    fn signal(
        &self,
        ended: &EndedAttempt,
        cause: &Cause,
        due_us: i64,
        (node, uuid, index, class): (&str, Option<&str>, Option<u32>, &str),
    ) -> Publication {
        let attempt = ended.attempt.map_or_else(|| "-".to_owned(), |attempt| attempt.to_string());
        let about = [MODEL, &self.cluster, &ended.job_id, &attempt, &ended.end_us.to_string()];
        let source = producer_name(&about);
        let lost = ended.gpus_milli.zip(ended.checkpoint_us).map(|(gpus_milli, saved_us)| {
            let us = i128::from(ended.end_us.saturating_sub(saved_us).max(0));
            // Thousandths of a GPU × µs are millionths of a GPU × ms; rounded down.
            u64::try_from(i128::from(gpus_milli) * us / 1_000_000).unwrap_or(u64::MAX)
        });
        let signal = v1::JobEndSignal {
            envelope: envelope(&self.cluster, &source, due_us, 0),
            job_id: ended.job_id.clone(),
            attempt_id: ended.attempt,
            end_ms: Micros(ended.end_us).floor_millis().0,
            final_state: ended.final_state.clone(),
            cause: class.into(),
            node: node.into(),
            gpu_uuid: uuid.map(str::to_owned),
            gpu_index: index,
            xid: cause.xid,
            fault_ms: Micros(cause.time_us).floor_millis().0,
            probability_ppm: ppm(cause.probability),
            lost_gpu_ms: lost,
            evidence: evidence_lines(&cause.evidence),
            model: MODEL.into(),
        };
        Publication { source, events: vec![Event::JobEnd(signal)] }
    }
}

fn forget(faults: &mut VecDeque<ReportedFault>, now_us: i64) {
    faults.retain(|fault| now_us.saturating_sub(fault.at_us) <= FAULT_RETENTION_US);
}

/// A fault of the node itself, or of a device that the attempt held.
fn can_affect(ended: &EndedAttempt, node: &str, fault: &ReportedFault) -> bool {
    let is_of_node = fault.uuid.is_none() && fault.index.is_none();
    is_of_node
        || ended.devices.is_empty()
        || ended.devices.iter().any(|device| {
            device.node == node
                && match (&device.uuid, &fault.uuid) {
                    (Some(own), Some(uuid)) => own == uuid,
                    _ => device.index.is_some() && device.index == fault.index,
                }
        })
}

fn class(cause: &Cause, is_device: bool) -> &'static str {
    match cause.xid.map(|code| xid(code).class) {
        Some(XidClass::Application) => "APPLICATION",
        Some(XidClass::Memory) => "MEMORY",
        Some(XidClass::Link) => "LINK",
        Some(XidClass::Lost) => "DEVICE_LOST",
        Some(XidClass::Firmware) => "FIRMWARE",
        Some(XidClass::Host) => "HOST",
        Some(XidClass::Unknown) => "UNKNOWN",
        None if is_device => "DEVICE_LOST",
        None => "NODE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid_of(node: &str, index: u32, code: u32) -> v1::NodeEvent {
        v1::NodeEvent {
            kind: v1::NodeEventKind::Xid.into(),
            node: node.into(),
            gpu_index: Some(index),
            xid: Some(code),
            ..v1::NodeEvent::default()
        }
    }

    fn ended(final_state: &str, devices: Vec<HeldDevice>) -> EndedAttempt {
        EndedAttempt {
            job_id: "j".into(),
            attempt: Some(3),
            end_us: 1_000_000_000,
            final_state: final_state.into(),
            nodes: ["a", "b"].map(str::to_owned).into(),
            devices,
            gpus_milli: Some(16_000),
            checkpoint_us: Some(400_000_000),
        }
    }

    fn signals(judged: Vec<AttributedEnd>) -> Vec<(v1::JobEndSignal, Option<(String, i64)>)> {
        let signal = |judged: AttributedEnd| match judged.publication.events.into_iter().next() {
            Some(Event::JobEnd(signal)) => (signal, judged.blamed_node),
            other => panic!("{other:?}"),
        };
        judged.into_iter().map(signal).collect()
    }

    #[test]
    fn the_lost_device_is_named_a_minute_after_the_end() {
        let mut ends = EndCauses::new("c");
        ends.observe_fault(&xid_of("b", 5, 79), 990_000_000);
        ends.attempt_ended(ended("FAILED", Vec::new()));
        assert!(ends.attribute_due(1_060_000_000).is_empty(), "the minute is not over");
        // Another device's fault, logged after the end: the first one remains the cause.
        ends.observe_fault(&xid_of("a", 1, 74), 1_059_000_000);
        let found = signals(ends.attribute_due(1_060_000_001));
        let (signal, bad) = &found[0];
        assert_eq!(
            (signal.cause.as_str(), signal.node.as_str(), signal.gpu_index),
            ("DEVICE_LOST", "b", Some(5))
        );
        assert_eq!((signal.xid, signal.fault_ms, signal.end_ms), (Some(79), 990_000, 1_000_000));
        // 16 GPUs for 600 s.
        assert_eq!(signal.lost_gpu_ms, Some(16 * 600_000));
        // exp(5 - 10 / 300), exp(2.5) / 2 for the other fault, 1 for none.
        let (first, second) = ((5.0_f64 - 10.0 / 300.0).exp(), 2.5_f64.exp() / 2.0);
        assert_eq!(signal.probability_ppm, ppm(first / (1.0 + first + second)));
        assert_eq!(bad, &Some(("b".to_owned(), 1_000_000_000)));
        assert!(ends.attribute_due(i64::MAX).is_empty(), "published once");
    }

    #[test]
    fn faults_of_neighbours_and_old_faults_do_not_count() {
        let own = HeldDevice { node: "a".into(), uuid: None, index: Some(0), is_exclusive: true };
        let mut ends = EndCauses::new("c");
        ends.observe_fault(&xid_of("b", 5, 79), 999_000_000);
        ends.observe_fault(&xid_of("c", 0, 79), 999_000_000);
        ends.attempt_ended(ended("FAILED", vec![own.clone()]));
        ends.attempt_ended(EndedAttempt { job_id: "k".into(), ..ended("CANCELLED", Vec::new()) });
        assert!(signals(ends.attribute_due(i64::MAX)).is_empty());
        // A fault of the program is reported, and not held against the node.
        ends.observe_fault(&xid_of("a", 0, 31), 999_000_000);
        ends.attempt_ended(ended("FAILED", vec![own]));
        let (signal, bad) = signals(ends.attribute_due(i64::MAX)).remove(0);
        assert_eq!((signal.cause.as_str(), bad), ("APPLICATION", None));
        ends.observe_fault(&xid_of("b", 5, 79), 999_000_000 + FAULT_RETENTION_US + 1);
        assert_eq!(ends.faults["b"].len(), 1, "the first is forgotten");
        ends.forget(i64::MAX);
        assert!(ends.faults.is_empty());
    }

    #[test]
    fn a_node_that_went_down_is_a_cause_without_a_code() {
        let mut ends = EndCauses::new("c");
        let down = v1::NodeEvent { node: "a".into(), ..v1::NodeEvent::default() };
        ends.observe_fault(&down, 1_001_000_000);
        ends.attempt_ended(EndedAttempt { checkpoint_us: None, ..ended("NODE_FAIL", Vec::new()) });
        let (signal, bad) = signals(ends.attribute_due(i64::MAX)).remove(0);
        assert_eq!((signal.cause.as_str(), signal.node.as_str(), signal.xid), ("NODE", "a", None));
        assert_eq!(signal.lost_gpu_ms, None, "no checkpoint was reported");
        // exp(2) against 1 for no fault at all.
        assert_eq!(signal.probability_ppm, ppm(2.0_f64.exp() / (1.0 + 2.0_f64.exp())));
        assert!(bad.is_some());
    }
}
