//! Attempts of a site's history as jobs of the simulator.

use std::collections::BTreeMap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tidegate_sim::{HOUR_US, MINUTE_US, gpu_hours, scenario::Arrival, scenario::KnownTraits};

use super::super::RowCounts;
use super::rows::{Attempt, History};

/// Jobs of a size needed to draw lengths from; with fewer, jobs of any size are used.
const ENOUGH: usize = 10;
/// Assumed length of an unknown job where no job's length is known.
const NOTHING_KNOWN_US: i64 = HOUR_US;

/// A job as far as its history shows.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedJob {
    /// The job; if it has not ended, with the work seen so far.
    pub arrival: Arrival,
    /// If it has not ended: its run time so far, µs, including time before the period. The rest is
    /// drawn.
    pub open_us: Option<i64>,
}

/// What really happened to the jobs, to compare with simulated schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Recorded {
    /// Jobs submitted and started within the period.
    pub started: usize,
    /// Mean time from submission to first start, hours; `None` without starts.
    pub queue_hours: Option<f64>,
    /// GPU-hours held within the period.
    pub held_gpu_hours: f64,
    /// Most GPUs held at once; fractions of a GPU count as whole.
    pub most_gpus: u32,
}

/// The jobs of a history.
#[derive(Debug, Default)]
pub struct Jobs {
    /// By submission: first the jobs running at the start of the period, by start time, then the
    /// waiting ones.
    pub recorded_jobs: Vec<RecordedJob>,
    /// Jobs by outcome.
    pub rows: RowCounts,
    /// See [`Recorded`].
    pub recorded: Recorded,
    /// Usable jobs running at the start of the period, and waiting then.
    pub ran_before: usize,
    /// See `ran_before`.
    pub waited_before: usize,
    /// Most GPUs that each team held at once.
    pub most_of_teams: BTreeMap<String, u32>,
    lengths: Lengths,
}

/// Whole GPUs; a fraction counts as one.
pub fn whole(milli: i64) -> u32 {
    u32::try_from(milli.max(0)).unwrap_or(u32::MAX).div_ceil(1_000)
}

impl Jobs {
    /// Jobs of `history` that `is_taken` accepts by their first attempt. `model` finds a GPU model
    /// of the cluster with enough GPUs for a job; `rename` maps team names.
    pub fn from_history(
        history: &History,
        is_taken: &dyn Fn(&Attempt) -> bool,
        model: &dyn Fn(&str, u32) -> Option<u16>,
        rename: &dyn Fn(&str) -> String,
    ) -> Self {
        let mut by_job: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
        for attempt in &history.attempts {
            by_job.entry(&attempt.job_id).or_default().push(attempt);
        }
        let mut jobs = Self::default();
        let (mut held, mut of_teams) = (Level::default(), BTreeMap::<String, Level>::new());
        let mut waits: Vec<i64> = Vec::new();
        // Order within one moment: running jobs by start, then waiting jobs by submission.
        let mut placed: Vec<((i64, bool, i64), RecordedJob)> = Vec::new();
        for mut stretches in by_job.into_values() {
            stretches.sort_by_key(|s| (s.from_us.is_none(), s.from_us, s.queued_from_us));
            if !is_taken(stretches[0]) {
                continue;
            }
            let life = JobHistory::of(&stretches, history);
            let team = rename(stretches[0].team.as_deref().unwrap_or("unknown"));
            for (from_us, to_us, gpus) in &life.held {
                held.add((*from_us, *to_us), *gpus);
                of_teams.entry(team.clone()).or_default().add((*from_us, *to_us), *gpus);
            }
            let in_time = life.submit_us >= history.from_us;
            waits.extend(life.first_start_us.filter(|_| in_time).map(|start| start - life.submit_us));
            if let Some(why) = life.unusable() {
                jobs.rows.count(why);
                continue;
            }
            let at_start = life.first_start_us.filter(|start| *start < history.from_us);
            jobs.ran_before += usize::from(at_start.is_some());
            jobs.waited_before += usize::from(!in_time && at_start.is_none());
            let submit_us = (life.submit_us - history.from_us).max(0);
            if life.open_us.is_none() && at_start.is_none() {
                jobs.lengths.add(life.gpus, life.ran_us);
            }
            let arrival = Arrival {
                submit_us,
                work_us: life.work_us,
                gpus: life.gpus,
                team,
                terms: life.terms(&stretches, model),
            };
            let order = (submit_us, at_start.is_none(), at_start.unwrap_or(life.submit_us));
            placed.push((order, RecordedJob { arrival, open_us: life.open_us }));
        }
        jobs.rows.add("used", placed.len());
        placed.sort_by_key(|(order, _)| *order);
        jobs.recorded_jobs = placed.into_iter().map(|(_, entry)| entry).collect();
        jobs.lengths.sort();
        let mean = |waits: &[i64]| waits.iter().map(|us| *us as f64).sum::<f64>() / waits.len() as f64;
        jobs.recorded = Recorded {
            started: waits.len(),
            queue_hours: (!waits.is_empty()).then(|| mean(&waits) / HOUR_US as f64),
            held_gpu_hours: gpu_hours(held.gpu_us),
            most_gpus: held.most(),
        };
        jobs.most_of_teams = of_teams.into_iter().map(|(team, level)| (team, level.most())).collect();
        jobs
    }

    /// Arrivals for a seed: a job that has not ended runs as long as another job of the history
    /// that ran at least as long.
    pub fn arrivals(&self, rng: &mut ChaCha8Rng) -> Vec<Arrival> {
        let arrival = |entry: &RecordedJob| {
            let mut arrival = entry.arrival.clone();
            if let Some(ran_us) = entry.open_us {
                arrival.work_us += (self.lengths.draw(arrival.gpus, ran_us, rng) - ran_us).max(0);
            }
            if let Some(limit_us) = &mut arrival.terms.estimate_us {
                *limit_us = (*limit_us).max(arrival.work_us);
            }
            arrival
        };
        self.recorded_jobs.iter().map(arrival).collect()
    }

    /// Jobs that have not ended.
    pub fn open(&self) -> usize {
        self.recorded_jobs.iter().filter(|entry| entry.open_us.is_some()).count()
    }
}

/// One job, from its attempts.
struct JobHistory {
    submit_us: i64,
    first_start_us: Option<i64>,
    gpus: u32,
    /// Work within the period: GPU time held over the requested size.
    work_us: i64,
    /// Total time with GPUs.
    ran_us: i64,
    open_us: Option<i64>,
    /// GPUs held within the period.
    held: Vec<(i64, i64, u32)>,
}

impl JobHistory {
    fn of(stretches: &[&Attempt], history: &History) -> Self {
        let asked = stretches.iter().filter_map(|s| s.asked_gpus_milli.or(s.gpus_milli)).max();
        let gpus = whole(asked.unwrap_or(0));
        let known = stretches.iter().flat_map(|s| [s.submit_us, s.queued_from_us, s.from_us]);
        let submit_us = known.flatten().min().unwrap_or(history.from_us);
        let (mut work, mut ran_us, mut held) = (0i128, 0, Vec::new());
        for stretch in stretches {
            let Some(from_us) = stretch.from_us else { continue };
            let Some(to_us) = stretch.to_us.or(stretch.as_of_us) else { continue };
            let size = whole(stretch.gpus_milli.unwrap_or(0));
            let left_us = (to_us - from_us.max(history.from_us)).max(0);
            work += i128::from(left_us) * i128::from(size);
            ran_us += (to_us - from_us).max(0);
            let (from_us, to_us) = (from_us.max(history.from_us), to_us.min(history.to_us));
            if to_us > from_us {
                held.push((from_us, to_us, size));
            }
        }
        let is_open = |s: &&Attempt| match s.from_us {
            Some(_) => s.to_us.is_none(),
            None => s.queued_to_us.is_none(),
        };
        Self {
            submit_us,
            first_start_us: stretches.iter().filter_map(|s| s.from_us).min(),
            gpus,
            work_us: (work / i128::from(gpus.max(1))) as i64,
            ran_us,
            open_us: stretches.iter().any(is_open).then_some(ran_us),
            held,
        }
    }

    /// Reason why it cannot be used.
    fn unusable(&self) -> Option<&'static str> {
        match self {
            _ if self.gpus == 0 => Some("no GPUs"),
            _ if self.open_us.is_some() => None,
            _ if self.first_start_us.is_none() => {
                Some("left the queue before they started: how long they would run is unknown")
            }
            _ if self.work_us <= 0 => Some("no run time above 0"),
            _ => None,
        }
    }

    fn terms(&self, stretches: &[&Attempt], model: &dyn Fn(&str, u32) -> Option<u16>) -> KnownTraits {
        let ended = |how: &str| stretches.iter().any(|s| s.final_state.as_deref() == Some(how));
        let ran = stretches.iter().filter(|s| s.from_us.is_some());
        let sizes = ran.filter_map(|s| s.gpus_milli.map(whole)).filter(|gpus| *gpus > 0);
        let (least, most) = sizes.fold((self.gpus, self.gpus), |(l, m), gpus| (l.min(gpus), m.max(gpus)));
        let last = stretches.last();
        let named = last.and_then(|s| s.gpu_model.as_deref());
        let limit = last.and_then(|s| s.time_limit_ms).filter(|ms| *ms > 0);
        KnownTraits {
            estimate_us: limit.map(|ms| ms.saturating_mul(1_000)),
            // Slurm's are unsigned 32-bit; larger values are clamped to ours.
            priority: last.and_then(|s| s.priority).map(|p| i32::try_from(p).unwrap_or(i32::MAX)),
            model: named.and_then(|name| model(name, self.gpus)),
            sizes: (ended("RESIZED") && least < most).then_some((least, most)),
            was_preempted: ended("PREEMPTED"),
        }
    }
}

/// Run times of jobs by size.
#[derive(Debug, Default)]
struct Lengths {
    by_gpus: BTreeMap<u32, Vec<i64>>,
    all: Vec<i64>,
}

impl Lengths {
    fn add(&mut self, gpus: u32, ran_us: i64) {
        self.by_gpus.entry(gpus).or_default().push(ran_us);
        self.all.push(ran_us);
    }

    fn sort(&mut self) {
        self.by_gpus.values_mut().for_each(|lengths| lengths.sort_unstable());
        self.all.sort_unstable();
    }

    /// Length of a random job of the same size that ran longer than `ran_us`; of any size where
    /// those are few. If none ran longer, twice `ran_us`.
    fn draw(&self, gpus: u32, ran_us: i64, rng: &mut ChaCha8Rng) -> i64 {
        let longer = |of: &[i64]| of.partition_point(|length| *length <= ran_us);
        let alike = self.by_gpus.get(&gpus).map_or(&[][..], Vec::as_slice);
        let from = if alike.len() - longer(alike) >= ENOUGH { alike } else { &self.all };
        // Exactly one draw, so that the draws of the next job do not depend on this one.
        let draw: f64 = rng.random();
        let longer = &from[longer(from)..];
        match longer.len() {
            0 if ran_us == 0 => NOTHING_KNOWN_US,
            0 => ran_us.max(MINUTE_US) * 2,
            n => longer[((draw * n as f64) as usize).min(n - 1)],
        }
    }
}

/// A level of GPUs over time.
#[derive(Debug, Default)]
struct Level {
    changes: Vec<(i64, i64)>,
    gpu_us: i128,
}

impl Level {
    fn add(&mut self, (from_us, to_us): (i64, i64), gpus: u32) {
        self.changes.push((from_us, i64::from(gpus)));
        self.changes.push((to_us, -i64::from(gpus)));
        self.gpu_us += i128::from(to_us - from_us) * i128::from(gpus);
    }

    /// Maximum; an end and a start at one moment do not overlap.
    fn most(mut self) -> u32 {
        self.changes.sort_unstable();
        let (mut level, mut most) = (0i64, 0i64);
        for (_, change) in self.changes {
            level += change;
            most = most.max(level);
        }
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}
