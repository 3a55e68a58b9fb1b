//! Job logs as arrivals: Microsoft's ITP and Philly clusters, and pods of Alibaba's openb.

use std::{collections::BTreeMap, path::Path};

use tidegate_sim::{DAY_US, SECOND_US, scenario::Arrival};

use super::{JobTrace, RowCounts, TraceError, helios};
use crate::columns::Columns;

/// A trace of jobs, by its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jobs {
    /// `ms_itp_jobs`: the jobs of all clusters in the file; a cluster is a team.
    Itp,
    /// `philly_jobs`: October and November 2017, as its notes recommend; a virtual cluster is a
    /// team.
    Philly,
    /// `helios_earth_vc_1min`: no job log, but GPUs running and waiting per minute; jobs are
    /// reconstructed, see [`helios`](super::helios). A virtual cluster is a team with a quota.
    Helios,
    /// `alibaba_openb_pods`, days 112 to 140 (almost empty before), on nodes of the sizes in
    /// `alibaba_openb_nodes`. Fractions of a GPU count as one; the requested GPU model is ignored.
    Openb,
    /// `philly_multigpu_attempts`, jobs of four GPUs and more: each counts once, for the total time
    /// of its attempts.
    PhillyAttempts,
}

impl Jobs {
    /// All traces, with their names in commands.
    pub const NAMED: [(&str, Self); 5] = [
        ("itp", Self::Itp),
        ("philly", Self::Philly),
        ("helios", Self::Helios),
        ("openb", Self::Openb),
        ("philly-attempts", Self::PhillyAttempts),
    ];

    /// Reads the trace from a folder of files named as published.
    ///
    /// # Errors
    /// [`TraceError`] for a file that is missing or has another form, or without any job.
    pub fn read(self, folder: &Path) -> Result<JobTrace, TraceError> {
        let trace = match self {
            Self::Itp => itp(folder),
            Self::Philly => philly(folder),
            Self::Helios => helios::read(folder),
            Self::Openb => openb(folder),
            Self::PhillyAttempts => philly_attempts(folder),
        }?;
        match trace.arrivals.is_empty() {
            true => Err(TraceError::Empty { file: trace.file, rows: trace.rows }),
            false => Ok(trace),
        }
    }
}

/// A row of the file; null is NaN.
struct Row<'a> {
    submit_s: f64,
    work_s: f64,
    gpus: f64,
    team: &'a str,
}

/// Longest duration in a trace, seconds: 300 years.
const MOST_S: f64 = 1e10;
/// Most GPUs of one job.
const MOST_GPUS: f64 = 1e6;

/// Jobs submitted in `[from_s, from_s + days)`, by submission; other rows are counted.
fn arrivals<'a>(
    rows: impl Iterator<Item = Row<'a>>,
    from_s: f64,
    days: i64,
    counted: &mut RowCounts,
) -> Vec<Arrival> {
    let until_s = (days * DAY_US / SECOND_US) as f64;
    let mut taken: Vec<Arrival> = Vec::new();
    for row in rows {
        let submit_s = row.submit_s - from_s;
        let why = match &row {
            _ if !submit_s.is_finite() => "no time of submission",
            _ if !(0.0..until_s).contains(&submit_s) => "submitted outside the days that are used",
            r if !(r.gpus >= 1.0 && r.gpus <= MOST_GPUS && r.gpus.fract() == 0.0) => {
                "no whole number of GPUs"
            }
            r if !(r.work_s > 0.0 && r.work_s < MOST_S) => "no run time above 0",
            r => {
                taken.push(Arrival {
                    submit_us: (submit_s * SECOND_US as f64) as i64,
                    work_us: ((r.work_s * SECOND_US as f64) as i64).max(1),
                    gpus: r.gpus as u32,
                    team: r.team.to_owned(),
                    ..Arrival::default()
                });
                "used"
            }
        };
        counted.count(why);
    }
    // Stable: jobs of one moment keep the order of the file.
    taken.sort_by_key(|a| a.submit_us);
    taken
}

fn itp(folder: &Path) -> Result<JobTrace, TraceError> {
    const FILE: &str = "ms_itp_jobs";
    /// Whole weeks; the ninth is incomplete.
    const DAYS: i64 = 56;
    let file = Columns::read(folder, FILE)?;
    let (submit, work) = (file.numbers("submission_time")?, file.numbers("duration")?);
    let (gpus, team) = (file.numbers("num_gpu")?, file.texts("cluster")?);
    let row = |i: usize| Row { submit_s: submit[i], work_s: work[i], gpus: gpus[i], team: &team[i] };
    let mut rows = RowCounts::default();
    let arrivals = arrivals((0..submit.len()).map(row), 0.0, DAYS, &mut rows);
    Ok(JobTrace::of(FILE, arrivals, DAYS * DAY_US, rows))
}

fn philly(folder: &Path) -> Result<JobTrace, TraceError> {
    const FILE: &str = "philly_jobs";
    /// 2017-10-01 00:00.
    const FROM_S: f64 = 1_506_816_000.0;
    const DAYS: i64 = 61;
    let file = Columns::read(folder, FILE)?;
    let (submit, work) = (file.micros("timestamp")?, file.numbers("duration")?);
    let (gpus, team) = (file.numbers("num_gpus")?, file.texts("cluster")?);
    let row = |i: usize| Row { submit_s: seconds(submit[i]), work_s: work[i], gpus: gpus[i], team: &team[i] };
    let mut rows = RowCounts::default();
    let arrivals = arrivals((0..submit.len()).map(row), FROM_S, DAYS, &mut rows);
    Ok(JobTrace::of(FILE, arrivals, DAYS * DAY_US, rows))
}

fn seconds(micros: Option<i64>) -> f64 {
    micros.map_or(f64::NAN, |us| us as f64 / SECOND_US as f64)
}

fn philly_attempts(folder: &Path) -> Result<JobTrace, TraceError> {
    const FILE: &str = "philly_multigpu_attempts";
    let file = Columns::read(folder, FILE)?;
    let (submit, start, end) =
        (file.micros("submitted_time")?, file.micros("start_time")?, file.micros("end_time")?);
    let (id, gpus, team) = (file.texts("id")?, file.numbers("num_gpus")?, file.texts("cluster")?);
    let first_us = submit.iter().flatten().min().copied().unwrap_or(0);
    let last_us = submit.iter().flatten().max().copied().unwrap_or(0);
    let days = (last_us - first_us) / DAY_US + 1;
    // A job takes the place of its first row; an attempt without times adds none.
    let mut jobs: BTreeMap<&str, (usize, i64)> = BTreeMap::new();
    for i in 0..id.len() {
        let ran_us = start[i].zip(end[i]).map_or(0, |(start, end)| (end - start).max(0));
        jobs.entry(&id[i]).or_insert((i, 0)).1 += ran_us;
    }
    let mut jobs: Vec<(usize, i64)> = jobs.into_values().collect();
    jobs.sort_unstable();
    let row = |(i, work_us): (usize, i64)| Row {
        submit_s: seconds(submit[i]),
        work_s: work_us as f64 / SECOND_US as f64,
        gpus: gpus[i],
        team: &team[i],
    };
    let mut rows = RowCounts::default();
    rows.add("further attempts of a job, added to its first", id.len() - jobs.len());
    let arrivals = arrivals(jobs.into_iter().map(row), first_us as f64 / 1e6, days, &mut rows);
    Ok(JobTrace::of(FILE, arrivals, days * DAY_US, rows))
}

fn openb(folder: &Path) -> Result<JobTrace, TraceError> {
    const FILE: &str = "alibaba_openb_pods";
    const FROM_DAY: i64 = 112;
    const DAYS: i64 = 28;
    let file = Columns::read(folder, FILE)?;
    let (created, deleted) = (file.numbers("creation_time")?, file.numbers("deletion_time")?);
    let (started, gpus) = (file.numbers("scheduled_time")?, file.numbers("num_gpu")?);
    let qos = file.texts("qos")?;
    let row = |i: usize| Row {
        submit_s: created[i],
        work_s: deleted[i] - started[i],
        gpus: gpus[i],
        team: &qos[i],
    };
    let mut rows = RowCounts::default();
    let from_s = (FROM_DAY * DAY_US / SECOND_US) as f64;
    let arrivals = arrivals((0..created.len()).map(row), from_s, DAYS, &mut rows);
    let nodes = Columns::read(folder, "alibaba_openb_nodes")?;
    let sizes = nodes.numbers("gpu")?.into_iter().filter(|gpus| *gpus >= 1.0 && *gpus <= MOST_GPUS);
    let trace = JobTrace::of(FILE, arrivals, DAYS * DAY_US, rows);
    Ok(JobTrace { node_gpus: sizes.map(|gpus| gpus as u32).collect(), ..trace })
}
