//! Demand from the job table: what runs and waits now, how long such jobs last, and what will
//! arrive.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::survival::{Life, Survival};

/// Upper bounds of the size classes, GPUs; the last is unbounded.
const SIZES: [f64; 4] = [1.0, 4.0, 8.0, 32.0];
const CLASSES: usize = SIZES.len() + 1;
/// Names of the size classes, by rising size, as used in series names. `1` includes fractions of a
/// GPU.
pub const SIZE_CLASSES: [&str; CLASSES] = ["1", "2-4", "5-8", "9-32", "33+"];
const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;
/// History of lifetimes and arrivals to learn from.
const WINDOW: i64 = 42 * DAY;
/// A class with fewer jobs uses the survival of all classes.
const MIN_JOBS: usize = 30;
/// A larger request is a broken record, and would dominate every sum.
pub const MAX_GPUS: f64 = 1e7;

/// Job event; times in µs since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum JobEvent {
    /// Submitted, asking for `gpus` (may be fractional).
    Submitted {
        /// Job.
        id: u64,
        /// Time.
        at_us: i64,
        /// GPUs asked for.
        gpus: f64,
    },
    /// Started running.
    Started {
        /// Job.
        id: u64,
        /// Time.
        at_us: i64,
    },
    /// Ended, whether it ran or not.
    Ended {
        /// Job.
        id: u64,
        /// Time.
        at_us: i64,
    },
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Open {
    gpus: f64,
    submitted: i64,
    started: Option<i64>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Done {
    job: Open,
    ended: i64,
}

/// Jobs of one series and what is learnt from them. An event costs one map operation; learning
/// happens once a day.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobTable {
    open: BTreeMap<u64, Open>,
    done: VecDeque<Done>,
    /// GPUs that arrived by hour since 1970 and class.
    arrived: BTreeMap<i64, [f64; CLASSES]>,
    first: Option<i64>,
    learned: Option<Learned>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Learned {
    day: i64,
    /// From start, by class.
    run: Vec<Survival>,
    /// From submission, by class.
    sojourn: Vec<Survival>,
}

impl Default for JobTable {
    fn default() -> Self {
        Self::new()
    }
}

impl JobTable {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            open: BTreeMap::new(),
            done: VecDeque::new(),
            arrived: BTreeMap::new(),
            first: None,
            learned: None,
        }
    }

    /// Applies an event. Unknown jobs, repeated submissions, and sizes that are not positive or
    /// above [`MAX_GPUS`] are ignored. An end before the submission counts as an immediate end.
    pub fn apply(&mut self, event: JobEvent) {
        match event {
            JobEvent::Submitted { id, at_us, gpus } => {
                if !(gpus > 0.0 && gpus <= MAX_GPUS) || self.open.contains_key(&id) {
                    return;
                }
                self.open.insert(id, Open { gpus, submitted: at_us, started: None });
                self.arrived.entry(at_us.div_euclid(HOUR)).or_default()[class(gpus)] += gpus;
                self.first = Some(self.first.map_or(at_us, |f| f.min(at_us)));
            }
            JobEvent::Started { id, at_us } => {
                if let Some(job) = self.open.get_mut(&id) {
                    job.started = Some(job.started.unwrap_or(at_us).max(job.submitted));
                }
            }
            JobEvent::Ended { id, at_us } => {
                if let Some(job) = self.open.remove(&id) {
                    self.done.push_back(Done { job, ended: at_us.max(job.submitted) });
                }
            }
        }
    }

    /// GPUs of running and queued jobs now.
    pub fn demand(&self) -> f64 {
        self.open.values().map(|j| j.gpus).sum()
    }

    /// Learns survival, and forgets what is older than the window, once a day of event time.
    pub fn learn(&mut self, now_us: i64) {
        let day = now_us.div_euclid(DAY);
        if self.learned.as_ref().is_some_and(|l| l.day >= day) {
            return;
        }
        let start = now_us.saturating_sub(WINDOW);
        self.done.retain(|d| d.ended >= start);
        self.arrived = self.arrived.split_off(&start.div_euclid(HOUR));
        let of = |from: fn(&Open) -> Option<i64>| {
            let mut lives: [Vec<Life>; CLASSES] = Default::default();
            let finished = self.done.iter().map(|d| (d.job, Some(d.ended)));
            let going = self.open.values().map(|job| (*job, None));
            for (job, ended) in finished.chain(going) {
                let Some(began) = from(&job) else { continue };
                let exit = ended.unwrap_or(now_us);
                lives[class(job.gpus)].push(Life {
                    entry: seconds(start.saturating_sub(began)),
                    exit: seconds(exit.saturating_sub(began)),
                    ended: ended.is_some(),
                    weight: job.gpus,
                });
            }
            let all = Survival::fit(lives.iter().flatten().copied());
            lives
                .iter()
                .map(
                    |own| if own.len() < MIN_JOBS { all.clone() } else { Survival::fit(own.iter().copied()) },
                )
                .collect()
        };
        self.learned =
            Some(Learned { day, run: of(|job| job.started), sojourn: of(|job| Some(job.submitted)) });
    }

    /// Expected GPUs of running and queued jobs at `now + (h - ½) step` for each of `horizons`
    /// (steps of `step_us`): the middle of the step forecast. `None` before [`Self::learn`] was
    /// called or without a day of arrivals.
    ///
    /// `F(h) = Σ_running g S_run(a+h)/S_run(a) + Σ_queued g S_soj(a+h)/S_soj(a) + Σ_s λ(s)
    /// S_soj(h−s)`.
    pub fn outlook(&self, now_us: i64, step_us: i64, horizons: &[usize]) -> Option<Vec<f64>> {
        let learned = self.learned.as_ref()?;
        if now_us.saturating_sub(self.first?) < DAY || step_us <= 0 {
            return None;
        }
        let ahead: Vec<f64> = horizons.iter().map(|h| (*h as f64 - 0.5) * seconds(step_us)).collect();
        let mut out = vec![0.0; horizons.len()];
        for job in self.open.values() {
            let class = class(job.gpus);
            let (survival, from) = match job.started {
                Some(started) => (&learned.run[class], started),
                None => (&learned.sojourn[class], job.submitted),
            };
            let age = seconds(now_us.saturating_sub(from));
            let before = survival.log_at(age);
            for (value, more) in out.iter_mut().zip(&ahead) {
                *value += job.gpus * (survival.log_at(age + more) - before).exp();
            }
        }
        self.add_arrivals(learned, now_us, &ahead, &mut out);
        Some(out)
    }

    /// Adds arrivals of the coming hours that are still present.
    fn add_arrivals(&self, learned: &Learned, now_us: i64, ahead: &[f64], out: &mut [f64]) {
        let last = ahead.last().copied().unwrap_or(0.0);
        let hours = (last / 3600.0).ceil() as usize;
        let rates = self.rates(now_us, hours);
        for class in 0..CLASSES {
            // Share still present k half-hours after arrival.
            let keeps: Vec<f64> =
                (0..=2 * hours + 1).map(|k| learned.sojourn[class].log_at(k as f64 * 1800.0).exp()).collect();
            for (value, more) in out.iter_mut().zip(ahead) {
                let more = more / 3600.0;
                for (s, rate) in rates.iter().enumerate().take_while(|(s, _)| (*s as f64) < more) {
                    // Arrivals of the hour up to the target time, taken at their middle.
                    let share = (more - s as f64).min(1.0);
                    let age = more - s as f64 - share / 2.0;
                    let place = 2.0 * age;
                    let k = place as usize;
                    let keep = keeps[k] + (place - k as f64) * (keeps[k + 1] - keeps[k]);
                    *value += rate[class] * share * keep;
                }
            }
        }
    }

    /// Arriving GPUs per hour and class for each of the next `hours`: half the mean of that hour of
    /// the week, half that of the hour of the day.
    fn rates(&self, now_us: i64, hours: usize) -> Vec<[f64; CLASSES]> {
        let now = now_us.div_euclid(HOUR);
        let from = now_us.saturating_sub(WINDOW).max(self.first.unwrap_or(now_us)).div_euclid(HOUR);
        let (mut week, mut day) = (vec![[0.0; CLASSES]; 168], vec![[0.0; CLASSES]; 24]);
        let (mut week_hours, mut day_hours) = ([0.0f64; 168], [0.0f64; 24]);
        for hour in from..now {
            week_hours[hour.rem_euclid(168) as usize] += 1.0;
            day_hours[hour.rem_euclid(24) as usize] += 1.0;
        }
        for (hour, gpus) in self.arrived.range(from..now) {
            let (w, d) = (hour.rem_euclid(168) as usize, hour.rem_euclid(24) as usize);
            for class in 0..CLASSES {
                week[w][class] += gpus[class];
                day[d][class] += gpus[class];
            }
        }
        (0..hours as i64)
            .map(|s| {
                let (w, d) = ((now + s).rem_euclid(168) as usize, (now + s).rem_euclid(24) as usize);
                let mut rate = [0.0; CLASSES];
                for (class, rate) in rate.iter_mut().enumerate() {
                    let daily = day[d][class] / day_hours[d].max(1.0);
                    // An hour of the week never seen says nothing.
                    let weekly = if week_hours[w] > 0.0 { week[w][class] / week_hours[w] } else { daily };
                    *rate = (daily + weekly) / 2.0;
                }
                rate
            })
            .collect()
    }
}

/// Size class of a job that asks for `gpus`; `None` for an invalid size. A job keeps the class it
/// was submitted with; otherwise its old class would lose it without an end.
pub fn size_class(gpus: f64) -> Option<&'static str> {
    (gpus > 0.0 && gpus <= MAX_GPUS).then(|| SIZE_CLASSES[class(gpus)])
}

fn class(gpus: f64) -> usize {
    SIZES.partition_point(|bound| *bound < gpus)
}

fn seconds(us: i64) -> f64 {
    (us.max(0)) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event() -> impl Strategy<Value = JobEvent> {
        let time = prop_oneof![3 => 0..90 * DAY, 1 => any::<i64>()];
        let gpus = prop_oneof![4 => 0.1..2048.0f64, 1 => any::<f64>()];
        (0u64..40, time, gpus, 0..3).prop_map(|(id, at_us, gpus, kind)| match kind {
            0 => JobEvent::Submitted { id, at_us, gpus },
            1 => JobEvent::Started { id, at_us },
            _ => JobEvent::Ended { id, at_us },
        })
    }

    proptest! {
        #[test]
        fn any_events_give_the_same_outlook_twice_and_none_below_zero(
            events in prop::collection::vec(event(), 0..120),
            now in prop_oneof![3 => 0..120 * DAY, 1 => any::<i64>()],
        ) {
            let make = || {
                let mut table = JobTable::new();
                events.iter().for_each(|event| table.apply(*event));
                table.learn(now);
                table.outlook(now, HOUR, &[1, 24, 168])
            };
            let outlook = make();
            prop_assert!(outlook.iter().flatten().all(|v| *v >= 0.0), "{outlook:?}");
            prop_assert_eq!(format!("{outlook:?}"), format!("{:?}", make()));
        }
    }

    /// One 8-GPU job an hour that runs `hours`, for 30 days.
    fn steady(hours: i64) -> (JobTable, i64) {
        let mut table = JobTable::new();
        let mut events = Vec::new();
        for i in 0..720 {
            events.push((i * HOUR, JobEvent::Submitted { id: i as u64, at_us: i * HOUR, gpus: 8.0 }));
            events.push((i * HOUR, JobEvent::Started { id: i as u64, at_us: i * HOUR }));
            events.push(((i + hours) * HOUR, JobEvent::Ended { id: i as u64, at_us: (i + hours) * HOUR }));
        }
        events.retain(|(at, _)| *at < 720 * HOUR);
        events.sort_by_key(|(at, _)| *at);
        events.into_iter().for_each(|(_, event)| table.apply(event));
        table.learn(720 * HOUR);
        (table, 720 * HOUR)
    }

    #[test]
    fn steady_arrivals_of_equal_jobs_are_forecast_as_they_are() {
        let (table, now) = steady(10);
        for value in table.outlook(now, HOUR, &[1, 5, 24, 168]).unwrap() {
            assert!((value - 80.0).abs() < 16.0, "{value}");
        }
    }

    #[test]
    fn nonsense_changes_nothing() {
        let mut table = JobTable::new();
        assert_eq!(table.outlook(0, HOUR, &[1]), None);
        table.apply(JobEvent::Ended { id: 1, at_us: 5 });
        table.apply(JobEvent::Started { id: 1, at_us: 5 });
        for gpus in [f64::NAN, -1.0, 0.0, f64::INFINITY] {
            table.apply(JobEvent::Submitted { id: 1, at_us: 5, gpus });
        }
        assert_eq!(table.demand(), 0.0);
        table.apply(JobEvent::Submitted { id: 1, at_us: 5, gpus: 4.0 });
        table.apply(JobEvent::Submitted { id: 1, at_us: 6, gpus: 64.0 });
        table.apply(JobEvent::Ended { id: 1, at_us: -7 });
        assert_eq!(table.demand(), 0.0);
    }

    #[test]
    fn classes_are_by_size() {
        assert_eq!([0.5, 3.0, 8.0, 9.0, 512.0].map(size_class), ["1", "2-4", "5-8", "9-32", "33+"].map(Some));
        assert_eq!([0.0, -1.0, f64::NAN, f64::INFINITY].map(size_class), [None; 4]);
        assert_eq!([0.5, 1.0, 2.0, 4.0, 5.0, 8.0, 9.0, 32.0, 33.0].map(class), [0, 0, 1, 1, 2, 2, 3, 3, 4]);
    }
}
