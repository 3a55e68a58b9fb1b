//! Jobs reconstructed from Helios. This cut of Earth has no job log, but GPUs and jobs running and
//! waiting in each minute, per virtual cluster, with jobs of eight GPUs and more apart.
//!
//! A rise of running GPUs is a start, a fall an end. The change of waiting GPUs plus the starts are
//! submissions; where that is negative, jobs gave up. The longest waiting job starts first, unless
//! another has exactly the size. The latest running job of exactly the size ends, or else the
//! latest; not one that began in the minute before, if there is another, because in a minute of
//! hand-over the trace counts both. So the total GPU time equals the trace's, and so does the
//! waiting in each minute. How jobs share it is unknown: starts and ends within one minute cancel
//! out, so there are fewer and longer jobs than in reality.

use std::{collections::BTreeMap, path::Path};

use tidegate_sim::{MINUTE_US, scenario::Arrival};

use super::{JobTrace, RowCounts, TraceError};
use crate::columns::Columns;

/// GPUs per node; jobs from this size on are counted apart.
const NODE_GPUS: u32 = 8;

/// GPUs and jobs running and waiting in one minute, as far as known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) running: u32,
    pub(super) waiting: u32,
    pub(super) jobs_running: u32,
    pub(super) jobs_waiting: u32,
}

/// One virtual cluster in one minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Minute {
    /// Minutes from the first of the trace.
    pub(super) at: i64,
    pub(super) quota: u32,
    /// Jobs of a whole node and more, and smaller ones.
    pub(super) large: Level,
    pub(super) small: Level,
}

/// All virtual clusters minute by minute, without outages (minutes in which nothing runs anywhere).
pub(super) fn minutes(folder: &Path) -> Result<(BTreeMap<String, Vec<Minute>>, RowCounts), TraceError> {
    let file = Columns::read(folder, FILE)?;
    let (time, vc) = (file.micros("time")?, file.texts("vc")?);
    let names = [
        "total_gpu_num",
        "running_gpu_num_noless_8",
        "pending_gpu_num_noless_8",
        "running_job_num_noless_8",
        "pending_job_num_noless_8",
        "running_gpu_num_less_8",
        "pending_gpu_num_less_8",
        "running_gpujob_num",
        "pending_gpujob_num",
    ];
    let columns = names.iter().map(|name| file.numbers(name)).collect::<Result<Vec<_>, _>>()?;
    let first_us = time.iter().flatten().min().copied().unwrap_or(0);
    let (mut by_vc, mut rows) = (BTreeMap::<String, Vec<Minute>>::new(), RowCounts::default());
    for i in 0..vc.len() {
        let numbers: Option<Vec<u32>> = columns.iter().map(|column| whole(column[i])).collect();
        let (Some(at_us), Some(n), false) = (time[i], numbers, vc[i].is_empty() || vc[i] == "total") else {
            rows.count("without time, virtual cluster or a number");
            continue;
        };
        let level = |running, waiting, jobs_running, jobs_waiting| Level {
            running,
            waiting,
            jobs_running,
            jobs_waiting,
        };
        let large = level(n[1], n[2], n[3], n[4]);
        let small = level(n[5], n[6], n[7].saturating_sub(n[3]), n[8].saturating_sub(n[4]));
        let at = (at_us - first_us).div_euclid(minutes_us(1));
        by_vc.entry(vc[i].clone()).or_default().push(Minute { at, quota: n[0], large, small });
    }
    let mut ran: BTreeMap<i64, u32> = BTreeMap::new();
    for minute in by_vc.values().flatten() {
        *ran.entry(minute.at).or_default() += minute.large.running + minute.small.running;
    }
    for own in by_vc.values_mut() {
        own.sort_by_key(|minute| minute.at);
        let all = own.len();
        own.dedup_by_key(|minute| minute.at);
        rows.add("minutes reported twice", all - own.len());
        let all = own.len();
        own.retain(|minute| ran.get(&minute.at).is_some_and(|gpus| *gpus > 0));
        rows.add("minutes of an outage, in which nothing ran anywhere", all - own.len());
        rows.add("used", own.len());
    }
    by_vc.retain(|_, own| !own.is_empty());
    Ok((by_vc, rows))
}

const FILE: &str = "helios_earth_vc_1min";

fn whole(number: f64) -> Option<u32> {
    ((0.0..=1e6).contains(&number) && number.fract() == 0.0).then_some(number as u32)
}

pub(super) fn read(folder: &Path) -> Result<JobTrace, TraceError> {
    let (by_vc, mut rows) = minutes(folder)?;
    let mut arrivals = Vec::new();
    let mut quotas = BTreeMap::new();
    let (mut cancelled, mut last) = (0, 0);
    for (vc, minutes) in &by_vc {
        for large in [true, false] {
            let level = |m: &Minute| (m.at, if large { m.large } else { m.small });
            let (jobs, gave_up) = explain(minutes.iter().map(level), large);
            cancelled += gave_up;
            arrivals.extend(jobs.into_iter().map(|job| Arrival { team: vc.clone(), ..job }));
        }
        quotas.insert(vc.clone(), minutes.iter().map(|m| m.quota).max().unwrap_or(0));
        last = last.max(minutes.last().map_or(0, |m| m.at));
    }
    rows.add("GPUs asked for and given up before a start", cancelled as usize);
    arrivals.sort_by(|a, b| (a.submit_us, &a.team).cmp(&(b.submit_us, &b.team)));
    let trace = JobTrace::of(FILE, arrivals, minutes_us(last + 1), rows);
    Ok(JobTrace { quotas, ..trace })
}

/// GPUs requested at one time and allocated at one time.
#[derive(Debug, Clone, Copy)]
struct JobGroup {
    gpus: u32,
    submit: i64,
    start: i64,
}

/// Jobs of one virtual cluster that explain its minutes, and GPUs requested but never allocated.
/// What runs in the last minute ends with it.
pub(super) fn explain(minutes: impl Iterator<Item = (i64, Level)>, large: bool) -> (Vec<Arrival>, u32) {
    let (mut waiting, mut running, mut jobs): (Vec<JobGroup>, Vec<JobGroup>, Vec<Arrival>) =
        Default::default();
    let (mut before, mut last, mut gave_up) = (Level::default(), 0, 0);
    for (at, level) in minutes {
        last = at;
        let started = level.running.saturating_sub(before.running);
        let ended = before.running.saturating_sub(level.running);
        // Jobs that just began are at the end of the list.
        let new = running.iter().rev().take_while(|lot| lot.start + 1 >= at).count();
        let mut just_begun = running.split_off(running.len() - new);
        let older: u32 = running.iter().map(|lot| lot.gpus).sum();
        take(&mut running, ended.min(older), true, |lot| jobs.extend(finished(lot, at)));
        take(&mut just_begun, ended.saturating_sub(older), true, |lot| jobs.extend(finished(lot, at)));
        running.append(&mut just_begun);
        // Waiting now = waiting before - started - given up + submitted.
        let submitted = (level.waiting + started).saturating_sub(before.waiting);
        let cancelled = before.waiting.saturating_sub(level.waiting + started);
        let new_jobs = level.jobs_running.saturating_sub(before.jobs_running) + level.jobs_waiting;
        let new_jobs = new_jobs.saturating_sub(before.jobs_waiting);
        let lot = |gpus| JobGroup { gpus, submit: at, start: at };
        waiting.extend(sizes(submitted, new_jobs, large).into_iter().map(lot));
        take(&mut waiting, cancelled, true, |lot| gave_up += lot.gpus);
        take(&mut waiting, started, false, |lot| running.push(JobGroup { start: at, ..lot }));
        before = level;
    }
    running.into_iter().for_each(|lot| jobs.extend(finished(lot, last + 1)));
    (jobs, gave_up)
}

fn finished(lot: JobGroup, end: i64) -> Option<Arrival> {
    let work_us = minutes_us(end - lot.start);
    (work_us > 0).then(|| Arrival {
        submit_us: minutes_us(lot.submit),
        work_us,
        gpus: lot.gpus,
        ..Arrival::default()
    })
}

/// Takes `gpus` out of groups: one of exactly that size, else from the latest or earliest on, the
/// last of them in part.
fn take(lots: &mut Vec<JobGroup>, gpus: u32, latest: bool, mut taken: impl FnMut(JobGroup)) {
    let exactly = |lot: &JobGroup| lot.gpus == gpus;
    let found = if latest { lots.iter().rposition(exactly) } else { lots.iter().position(exactly) };
    if let Some(at) = found {
        return taken(lots.remove(at));
    }
    let mut left = gpus;
    while left > 0 && !lots.is_empty() {
        let at = if latest { lots.len() - 1 } else { 0 };
        if lots[at].gpus <= left {
            left -= lots[at].gpus;
            taken(lots.remove(at));
        } else {
            lots[at].gpus -= left;
            taken(JobGroup { gpus: left, ..lots[at] });
            left = 0;
        }
    }
}

/// Splits `gpus` into `jobs` similar jobs: large ones of whole nodes except the first, small ones
/// below a node.
fn sizes(gpus: u32, jobs: u32, large: bool) -> Vec<u32> {
    if gpus == 0 {
        return Vec::new();
    }
    let unit = if large { NODE_GPUS } else { 1 };
    let least = if large { 1 } else { gpus.div_ceil(NODE_GPUS - 1) };
    let units = (gpus / unit).max(1);
    let jobs = jobs.clamp(least, units);
    let share = |i: u32| (units / jobs + u32::from(i < units % jobs)) * unit;
    let mut sizes: Vec<u32> = (0..jobs).map(share).collect();
    // The remainder of whole nodes, or less than one node.
    sizes[0] = sizes[0] + gpus - sizes.iter().sum::<u32>();
    sizes
}

/// A minute of a trace in µs.
fn minutes_us(minutes: i64) -> i64 {
    minutes * MINUTE_US
}
