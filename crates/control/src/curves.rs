//! Scaling curves of jobs, from the log: a job's family, and the curve fitted to the family's
//! steps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::pairs;

use tidegate_autopilot::state::{ClusterState, CurvePoint, ScalingCurve};
use tidegate_events::v1::JobEventKind;
use tidegate_events::{Event, JobFamily, v1};

/// Families of jobs and curves of families.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Curves {
    /// Jobs that have not ended.
    #[serde(with = "families")]
    jobs: BTreeMap<String, JobFamily>,
    /// Latest curve of each family and unit.
    #[serde(with = "pairs")]
    latest: BTreeMap<(String, String), CurvePoints>,
}

/// Points of one published curve, by GPUs.
#[derive(Debug, Serialize, Deserialize)]
struct CurvePoints {
    at_ms: i64,
    #[serde(with = "points")]
    points: BTreeMap<u32, v1::ScalingCurve>,
}

impl Curves {
    /// Takes in an event of the cluster; only jobs and curves matter.
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Job(job) => self.job(job),
            Event::Scaling(point) => self.point(point, event.event_time_ms()),
            _ => {}
        }
    }

    /// Adds the family's curve to jobs that have none.
    pub fn enrich(&self, state: &mut ClusterState) {
        for (id, job) in &mut state.jobs {
            if job.curve.is_none() {
                job.curve = self.curve(id);
            }
        }
    }

    fn job(&mut self, job: &v1::JobEvent) {
        if job.step_id.is_some() || job.job_id.is_empty() {
            return;
        }
        let goes_on = matches!(job.final_state.as_deref(), Some("REQUEUED" | "RESIZED"));
        if job.kind() == JobEventKind::Ended && !goes_on {
            self.jobs.remove(&job.job_id);
        } else {
            self.jobs.entry(job.job_id.clone()).or_default().learn(job);
        }
    }

    fn point(&mut self, point: &v1::ScalingCurve, at_ms: i64) {
        let new = || CurvePoints { at_ms, points: BTreeMap::new() };
        let latest = self.latest.entry((point.family.clone(), point.unit.clone())).or_insert_with(new);
        if at_ms > latest.at_ms {
            *latest = new();
        }
        if at_ms == latest.at_ms {
            latest.points.insert(point.gpus, point.clone());
        }
    }

    /// Curve of a job, in tokens if there is one, else in steps. `None` if its family has none, or
    /// not all of its points were read.
    fn curve(&self, job_id: &str) -> Option<ScalingCurve> {
        let nameless = JobFamily::default();
        let family = self.jobs.get(job_id).unwrap_or(&nameless).name(job_id);
        let of =
            |unit: &str| self.latest.get(&(family.clone(), unit.to_owned())).and_then(CurvePoints::curve);
        of("TOKENS").or_else(|| of("STEPS"))
    }
}

impl CurvePoints {
    /// Rates relative to one GPU. Beyond the largest size observed the lower bound counts: growth
    /// into the unknown must pay off even there.
    fn curve(&self) -> Option<ScalingCurve> {
        let whole = self.points.values().all(|point| point.points as usize == self.points.len());
        let one = self.points.get(&1).map(|point| point.rate_milli).filter(|rate| whole && *rate > 0)?;
        let most_seen =
            self.points.values().filter(|point| point.seen_steps > 0).map(|point| point.gpus).max()?;
        let points = self.points.values().map(|point| {
            let rate = if point.gpus > most_seen { point.low_milli } else { point.rate_milli };
            let rate_ppm = u128::from(rate) * 1_000_000 / u128::from(one);
            CurvePoint { gpus: point.gpus, rate_ppm: u64::try_from(rate_ppm).unwrap_or(u64::MAX) }
        });
        ScalingCurve::new(points.collect()).ok()
    }
}

/// Families of jobs in a snapshot: team, user, name and model by job.
mod families {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};
    use tidegate_events::JobFamily;

    type Fields = (Option<String>, Option<String>, Option<String>, Option<String>);

    pub fn serialize<S: Serializer>(jobs: &BTreeMap<String, JobFamily>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(jobs.iter().map(|(job, family)| {
            let JobFamily { team, user_name, job_name, gpu_model } = family;
            (job, (team, user_name, job_name, gpu_model))
        }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, JobFamily>, D::Error> {
        let jobs = BTreeMap::<String, Fields>::deserialize(from)?;
        let family = |(job, (team, user_name, job_name, gpu_model))| {
            (job, JobFamily { team, user_name, job_name, gpu_model })
        };
        Ok(jobs.into_iter().map(family).collect())
    }
}

/// Points of a curve in a snapshot: Protobuf by GPUs.
mod points {
    use std::collections::BTreeMap;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tidegate_events::v1::ScalingCurve;
    use tidegate_events::{Event, SchemaId};

    pub fn serialize<S: Serializer>(points: &BTreeMap<u32, ScalingCurve>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(
            points.iter().map(|(gpus, point)| (gpus, Event::Scaling(point.clone()).encode_to_vec())),
        )
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, ScalingCurve>, D::Error> {
        let points = BTreeMap::<u32, Vec<u8>>::deserialize(from)?;
        let point = |(gpus, bytes): (u32, Vec<u8>)| match Event::decode_draft(
            SchemaId::ScalingCurve.number(),
            &bytes,
        ) {
            Ok(Event::Scaling(point)) => Ok((gpus, point)),
            _ => Err(D::Error::custom("a point of a scaling curve is not readable")),
        };
        points.into_iter().map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_autopilot::state::{Checkpoint, Job, JobKind, JobState};

    use super::*;

    fn point(family: &str, unit: &str, at_ms: i64, gpus: u32, rates: [u64; 2], seen: bool) -> Event {
        let envelope = v1::Envelope { cluster: "c".into(), event_time_ms: at_ms, ..v1::Envelope::default() };
        Event::Scaling(v1::ScalingCurve {
            envelope: Some(envelope),
            family: family.into(),
            unit: unit.into(),
            gpus,
            rate_milli: rates[0],
            low_milli: rates[1],
            seen_steps: if seen { 100 } else { 0 },
            points: 3,
            ..v1::ScalingCurve::default()
        })
    }

    fn started(job_id: &str, name: &str, kind: JobEventKind) -> Event {
        Event::Job(v1::JobEvent {
            kind: kind.into(),
            job_id: job_id.into(),
            team: Some("t".into()),
            job_name: Some(name.into()),
            ..v1::JobEvent::default()
        })
    }

    fn rates(curves: &Curves, job_id: &str) -> Option<Vec<(u32, u64)>> {
        let curve = curves.curve(job_id)?;
        Some(curve.points().iter().map(|point| (point.gpus, point.rate_ppm)).collect())
    }

    #[test]
    fn a_job_has_the_curve_of_its_family() {
        let mut curves = Curves::default();
        curves.observe(&started("7", "train", JobEventKind::Started));
        curves.observe(&started("8", "other", JobEventKind::Started));
        // Two of three points: the curve is not complete yet.
        curves.observe(&point("t/-/train/-", "STEPS", 5, 1, [1_000, 900], true));
        curves.observe(&point("t/-/train/-", "STEPS", 5, 4, [3_000, 2_800], true));
        assert_eq!(rates(&curves, "7"), None);
        curves.observe(&point("t/-/train/-", "STEPS", 5, 8, [5_000, 4_000], false));
        // No job ran on eight: the lower bound.
        assert_eq!(rates(&curves, "7"), Some(vec![(1, 1_000_000), (4, 3_000_000), (8, 4_000_000)]));
        assert_eq!(rates(&curves, "8"), None);
        // A later curve replaces an earlier one; tokens go before steps.
        for (at_ms, four) in [(9, 3_500), (4, 1)] {
            for (gpus, rate) in [(1, 1_000), (2, 1_900), (4, four)] {
                curves.observe(&point("t/-/train/-", "STEPS", at_ms, gpus, [rate, rate], true));
            }
        }
        assert_eq!(rates(&curves, "7"), Some(vec![(1, 1_000_000), (2, 1_900_000), (4, 3_500_000)]));
        for (gpus, rate) in [(1, 500), (2, 900), (4, 1_500)] {
            curves.observe(&point("t/-/train/-", "TOKENS", 1, gpus, [rate, rate], true));
        }
        assert_eq!(rates(&curves, "7").unwrap()[2], (4, 3_000_000));
        // An ended job is forgotten.
        curves.observe(&started("7", "train", JobEventKind::Ended));
        assert_eq!((rates(&curves, "7"), curves.jobs.len()), (None, 1));
    }

    #[test]
    fn a_curve_that_the_target_knows_stays_and_a_nameless_job_has_its_own() {
        let mut curves = Curves::default();
        for (gpus, rate) in [(1, 1_000), (2, 1_900), (4, 3_000)] {
            curves.observe(&point("job/9", "STEPS", 1, gpus, [rate, rate], true));
        }
        let mut state = ClusterState::default();
        let known = ScalingCurve::new(vec![CurvePoint { gpus: 1, rate_ppm: 1_000_000 }]).unwrap();
        state.jobs.insert("9".into(), job(None));
        state.jobs.insert("10".into(), job(Some(known.clone())));
        curves.enrich(&mut state);
        assert_eq!(state.jobs["9"].curve.as_ref().map(|curve| curve.rate_ppm(4)), Some(3_000_000));
        assert_eq!(state.jobs["10"].curve, Some(known));
    }

    #[test]
    fn without_one_gpu_or_with_nothing_seen_there_is_no_curve() {
        let mut curves = Curves::default();
        for gpus in [2, 4, 8] {
            curves.observe(&point("job/1", "STEPS", 1, gpus, [1_000, 900], true));
        }
        for gpus in [1, 2, 4] {
            curves.observe(&point("job/2", "STEPS", 1, gpus, [1_000, 900], false));
            curves.observe(&point("job/3", "STEPS", 1, gpus, [0, 0], true));
        }
        assert_eq!(["1", "2", "3"].map(|job| curves.curve(job)), [None, None, None]);
    }

    fn job(curve: Option<ScalingCurve>) -> Job {
        Job {
            owner: "t".into(),
            pool: "p".into(),
            queue: None,
            priority: 0,
            kind: JobKind::Gang,
            gpus: 1,
            state: JobState::Unknown,
            placement: BTreeMap::new(),
            anchor_node: None,
            restarts: 0,
            loan: None,
            preemptible: false,
            preemptions_24h: 0,
            checkpoint: Checkpoint::default(),
            curve,
            remaining_work_ms: None,
            expected_end_us: None,
            resized_us: None,
            opt_in: false,
            do_not_disrupt: false,
        }
    }
}
