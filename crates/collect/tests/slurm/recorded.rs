//! A watcher's events, put together as the tables do it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tidegate_events::{Event, v1};
use v1::JobEventKind as Kind;

/// One attempt, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    pub job_id: String,
    pub start_s: i64,
    pub end_s: i64,
    pub gpus: u64,
}

/// Events, each once by its id, however often it came.
#[derive(Debug, Default)]
pub struct Recorded {
    ids: HashSet<Vec<u8>>,
    pub jobs: Vec<v1::JobEvent>,
    pub nodes: Vec<v1::NodeEvent>,
    pub capacity: Vec<v1::CapacityEvent>,
    /// Events that came again.
    pub repeated: usize,
}

impl Recorded {
    pub fn add(&mut self, events: impl IntoIterator<Item = Event>) {
        for mut event in events {
            event.envelope_mut().source = "watch/slurm/tidegate".into();
            event.record().expect("the log would take it");
            if !self.ids.insert(event.envelope_mut().event_id.clone()) {
                self.repeated += 1;
                continue;
            }
            match event {
                Event::Job(job) => self.jobs.push(job),
                Event::Node(node) => self.nodes.push(node),
                Event::Capacity(capacity) => self.capacity.push(capacity),
                other => panic!("not of a scheduler: {other:?}"),
            }
        }
    }

    pub fn has(&self, id: &[u8]) -> bool {
        self.ids.contains(id)
    }

    /// Kinds of a job's events in the order of their time, without steps and devices.
    pub fn course(&self, job_id: &str) -> Vec<(Kind, i64, String)> {
        let own =
            |job: &&v1::JobEvent| job.job_id == job_id && job.step_id.is_none() && job.hold_id.is_none();
        let what = |job: &v1::JobEvent| job.final_state.clone().or(job.reason.clone()).unwrap_or_default();
        let mut events: Vec<_> =
            self.jobs.iter().filter(own).map(|job| (job.kind(), time_s(job), what(job))).collect();
        events.sort_by_key(|(kind, time_s, _)| (*time_s, *kind as i32));
        events
    }

    /// Ended attempts. Each has one start and one end, and none that started is open.
    pub fn attempts(&self) -> BTreeSet<Attempt> {
        let mut starts: BTreeMap<(String, i64), u64> = BTreeMap::new();
        let mut ends: BTreeMap<(String, i64), i64> = BTreeMap::new();
        for job in self.jobs.iter().filter(|job| job.step_id.is_none()) {
            let Some(attempt_id) = job.attempt_id else { continue };
            let key = (job.job_id.clone(), attempt_id);
            match job.kind() {
                Kind::Started => {
                    assert_eq!(time_s(job) * 1000, attempt_id);
                    let gpus = job.gpus_milli.expect("GPUs are known") / 1000;
                    assert_eq!(starts.insert(key.clone(), gpus), None, "started twice: {key:?}");
                }
                Kind::Ended => {
                    assert_eq!(ends.insert(key.clone(), time_s(job)), None, "ended twice: {key:?}")
                }
                _ => {}
            }
        }
        assert_eq!(starts.keys().collect::<Vec<_>>(), ends.keys().collect::<Vec<_>>(), "what started ended");
        let attempt = |((job_id, start_ms), gpus): ((String, i64), u64)| {
            let end_s = ends[&(job_id.clone(), start_ms)];
            Attempt { job_id, start_s: start_ms / 1000, end_s, gpus }
        };
        starts.into_iter().map(attempt).collect()
    }

    /// Attempts that ended, even if others are open.
    pub fn ended(&self) -> BTreeSet<Attempt> {
        let of = |kind: Kind| {
            let those = self.jobs.iter().filter(move |job| job.kind() == kind && job.step_id.is_none());
            those.filter_map(|job| Some(((job.job_id.clone(), job.attempt_id?), job)))
        };
        let ends: BTreeMap<_, _> = of(Kind::Ended).collect();
        let attempt = |((job_id, start_ms), start): ((String, i64), &v1::JobEvent)| {
            let end_s = time_s(ends.get(&(job_id.clone(), start_ms))?);
            Some(Attempt { job_id, start_s: start_ms / 1000, end_s, gpus: start.gpus_milli? / 1000 })
        };
        of(Kind::Started).filter_map(attempt).collect()
    }

    /// Device seconds by the device events of each attempt that has any.
    pub fn device_seconds(&self) -> BTreeMap<(String, i64), i64> {
        let mut holds: BTreeMap<&str, (Option<i64>, Option<i64>)> = BTreeMap::new();
        let mut sums = BTreeMap::new();
        for job in &self.jobs {
            let Some(hold_id) = job.hold_id.as_deref() else { continue };
            let hold = holds.entry(hold_id).or_default();
            let side = if job.kind() == Kind::DeviceHeld { &mut hold.0 } else { &mut hold.1 };
            assert_eq!(side.replace(time_s(job)), None, "reported twice: {hold_id}");
            if let (Some(from), Some(to)) = *hold {
                *sums.entry((job.job_id.clone(), job.attempt_id.unwrap() / 1000)).or_default() += to - from;
            }
        }
        assert!(
            holds.values().all(|(from, to)| from.is_some() && to.is_some()),
            "what was held was released"
        );
        sums
    }
}

pub fn time_s(job: &v1::JobEvent) -> i64 {
    let time_ms = job.envelope.as_ref().unwrap().event_time_ms;
    assert_eq!(time_ms % 1000, 0, "Slurm counts seconds");
    time_ms / 1000
}

/// GPU seconds of each job.
pub fn gpu_seconds(attempts: &BTreeSet<Attempt>) -> BTreeMap<String, i64> {
    let mut sums = BTreeMap::new();
    for attempt in attempts {
        *sums.entry(attempt.job_id.clone()).or_default() +=
            attempt.gpus as i64 * (attempt.end_s - attempt.start_s);
    }
    sums
}
