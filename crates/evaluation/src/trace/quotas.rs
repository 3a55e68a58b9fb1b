//! How much of the waiting demand idle quotas of other teams can serve: recorded, and simulated.

use std::{ops::Range, path::Path};

use serde::Serialize;
use tidegate_sim::{
    HOUR_US, MINUTE_US,
    backtest::{Interval, Metric, QuotaLender, QuotaRun, bootstrap, play_quotas},
    gpu_hours,
};

use super::{Jobs, Pairing, Provenance, Shape, TraceError, helios};

/// Recorded waiting demand and idle quotas.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Recorded {
    /// GPU-hours requested by waiting jobs.
    pub waited_gpu_hours: f64,
    /// Of those, GPU-hours for which a GPU of some quota was idle in the same minute: the sum over
    /// minutes of the smaller of waiting and idle, as if any job could use any part. An upper bound
    /// for any scheduler.
    pub servable_gpu_hours: f64,
}

/// One treatment of quotas, over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuotaRow {
    /// `quotas` or `quotas lent`.
    pub policy: String,
    /// Mean over seeds with its 95 % interval, by name.
    pub values: Vec<(&'static str, Interval)>,
    /// Result of each seed.
    pub runs: Vec<QuotaRun>,
}

/// Comparison of hard and lent quotas.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuotaReport {
    /// Provenance.
    pub about: Provenance,
    /// Recorded demand.
    pub recorded: Recorded,
    /// Hard quotas first, then lent.
    pub rows: Vec<QuotaRow>,
    /// Share of the GPU time waiting under hard quotas that does not wait under lent ones; seeds
    /// are paired. `None` where nothing waits.
    pub served_share: Option<Interval>,
    /// Time within which owners are promised their quota, µs.
    pub promise_us: i64,
}

/// Simulates a trace with hard and with lent quotas, for each seed.
///
/// # Errors
/// [`TraceError`] if a file cannot be used, or the trace has no quotas.
pub fn lend_quotas(
    folder: &Path,
    jobs: Jobs,
    shape: Shape,
    seeds: Range<u64>,
    promise_us: i64,
) -> Result<QuotaReport, TraceError> {
    let trace = jobs.read(folder)?;
    if trace.quotas.is_empty() {
        let what = format!("{} has no quotas; use the jobs of helios", trace.file);
        return Err(TraceError::Shape { what });
    }
    let recorded = recorded(folder)?;
    let pairing = Pairing::new(trace, None, Vec::new(), shape)?;
    let mut rows = Vec::new();
    for lends in [false, true] {
        let run = |seed| play_quotas(&pairing.setting(seed), QuotaLender::new(lends, promise_us));
        let runs = seeds.clone().map(run).collect::<Result<Vec<_>, _>>()?;
        let policy = if lends { "quotas lent" } else { "quotas" }.to_owned();
        rows.push(QuotaRow { policy, values: values(&runs), runs });
    }
    let waited = |row: &QuotaRow| row.runs.iter().map(|r| gpu_hours(r.waited_gpu_us)).collect::<Vec<_>>();
    let (walls, lent) = (waited(&rows[0]), waited(&rows[1]));
    let served: Vec<f64> = walls.iter().zip(&lent).map(|(walls, lent)| walls - lent).collect();
    let served_share = (walls.iter().sum::<f64>() > 0.0).then(|| bootstrap(&served, Some(&walls)));
    Ok(QuotaReport { about: pairing.about(), recorded, rows, served_share, promise_us })
}

fn values(runs: &[QuotaRun]) -> Vec<(&'static str, Interval)> {
    let mean = |of: &dyn Fn(&QuotaRun) -> f64| bootstrap(&runs.iter().map(of).collect::<Vec<_>>(), None);
    let metric = |metric: Metric| mean(&|r| metric.value(&r.run).unwrap_or(f64::NAN));
    vec![
        ("waited_gpu_hours", mean(&|r| gpu_hours(r.waited_gpu_us))),
        ("borrowed_gpu_hours", mean(&|r| gpu_hours(r.owners.borrowed_gpu_us))),
        ("queue_hours", metric(Metric::QueueHours)),
        ("completion_hours", metric(Metric::CompletionHours)),
        ("useful_gpu_hours", metric(Metric::UsefulGpuHours)),
        ("allocation", metric(Metric::Allocation)),
        ("lost_gpu_hours", metric(Metric::LostGpuHours)),
        ("reclaims", mean(&|r| r.owners.reclaims as f64)),
        ("owners_waits", mean(&|r| r.owners.waits as f64)),
        ("owners_waits_beyond_promise", mean(&|r| r.owners.late as f64)),
        ("owners_longest_wait_minutes", mean(&|r| r.owners.longest_us as f64 / MINUTE_US as f64)),
    ]
}

fn recorded(folder: &Path) -> Result<Recorded, TraceError> {
    let (by_vc, _) = helios::minutes(folder)?;
    let mut minutes = std::collections::BTreeMap::<i64, (u32, u32)>::new();
    for minute in by_vc.values().flatten() {
        let sum = minutes.entry(minute.at).or_default();
        sum.0 += minute.large.waiting + minute.small.waiting;
        sum.1 += minute.quota.saturating_sub(minute.large.running + minute.small.running);
    }
    let hours = |gpus: u64| gpus as f64 * MINUTE_US as f64 / HOUR_US as f64;
    Ok(Recorded {
        waited_gpu_hours: hours(minutes.values().map(|(waiting, _)| u64::from(*waiting)).sum()),
        servable_gpu_hours: hours(
            minutes.values().map(|(waiting, idle)| u64::from(*waiting.min(idle))).sum(),
        ),
    })
}
