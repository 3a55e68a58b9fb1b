//! Report of a backtest, as a table and as JSON.

use std::ops::Range;

use chrono::DateTime;
use serde::Serialize;
use tidegate_evaluation::trace::{self, QuotaReport, site};
use tidegate_sim::backtest::{Interval, Metric, Row};
use tidegate_sim::gpu_hours;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::schedulers::fluid_bound_gpu_us;

/// Provenance of jobs and demand.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Provenance {
    /// Public traces.
    Traces(trace::Provenance),
    /// The site's own log.
    Log(site::Provenance),
}

/// A comparison of policies.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The traces or the log; `None` if all was synthetic.
    pub about: Option<Provenance>,
    /// Upper bound of useful GPU-hours, mean over seeds.
    pub bound_gpu_hours: f64,
    /// One for each policy.
    pub rows: Vec<Row>,
}

/// Upper bound of useful GPU-hours, mean over seeds.
pub fn bounds(seeds: Range<u64>, setting: &dyn Fn(u64) -> Scenario) -> f64 {
    let bound = |seed| {
        let s = setting(seed);
        gpu_hours(fluid_bound_gpu_us(&s.spec, &s.jobs, &s.services, s.span_us))
    };
    let count = (seeds.end - seeds.start).max(1);
    seeds.map(bound).sum::<f64>() / count as f64
}

/// Prints a table: for each metric and policy the mean over seeds with half its 95 % interval, and
/// the ratio to the first policy.
pub fn print(report: &Report) {
    match &report.about {
        Some(Provenance::Traces(about)) => print_traces(about),
        Some(Provenance::Log(about)) => print_log(about),
        None => {}
    }
    let rows = &report.rows;
    let names: String = rows.iter().map(|row| format!("{:>29}", row.policy)).collect();
    say!("{:28}{names}", "");
    for (place, metric) in Metric::ALL.into_iter().enumerate() {
        if rows.iter().all(|row| row.values[place].is_none()) {
            continue;
        }
        let name = serde_json::to_value(metric).ok().and_then(|name| name.as_str().map(str::to_owned));
        let cells: String = rows.iter().map(|row| shown(row.values[place], row.ratios[place])).collect();
        say!("{:28}{cells}", name.unwrap_or_default());
    }
    let gains: String = rows.iter().map(|row| shown(row.gain, None)).collect();
    say!("{:28}{gains}", "share_of_best_gain");
    let bound = report.bound_gpu_hours;
    say!("were work a fluid, {bound:.0} useful GPU-hours could be done by jobs at the sizes they ask for");
}

fn shown(value: Option<Interval>, ratio: Option<Interval>) -> String {
    let Some(value) = value else { return format!("{:>29}", "-") };
    let ratio = ratio.map_or_else(|| "-".into(), |ratio| format!("{:.2}x", ratio.value));
    format!("{:>13.2} {:<9}{ratio:>6}", value.value, format!("±{:.2}", (value.high - value.low) / 2.0))
}

/// Prints where the jobs come from.
pub fn print_log(about: &site::Provenance) {
    let time = |us: i64| DateTime::from_timestamp_micros(us).unwrap_or_default().format("%F %R");
    say!("{} from {} to {} UTC", about.cluster, time(about.from_us), time(about.to_us));
    say!(
        "jobs: {}; {} ran and {} waited when it began, {} are not over where the log ends",
        about.job_rows,
        about.ran_before,
        about.waited_before,
        about.open
    );
    let from = |sized: site::CapacitySource| match sized {
        site::CapacitySource::Log => "as the log knows them",
        site::CapacitySource::Peak => "as many as were needed at once: the log knows no nodes",
        site::CapacitySource::Asked => "as asked for",
    };
    say!("{} nodes with {} GPUs for jobs, {}", about.train_nodes, about.train_gpus, from(about.nodes_from));
    for service in &about.services {
        let site::Service { pool, nodes, gpus, peak_gpus, .. } = service;
        say!(
            "{pool} serves with {nodes} nodes of {gpus} GPUs, {}; it needs {peak_gpus} at most",
            from(service.nodes_from)
        );
    }
    if about.quotas + about.exceeded_quotas > 0 {
        say!("{} quotas hold, {} do not: the log shows them exceeded", about.quotas, about.exceeded_quotas);
    }
    let seen = &about.recorded;
    let waited = seen.queue_hours.map_or_else(|| "-".into(), |hours| format!("{hours:.2} h"));
    say!(
        "recorded: of the jobs submitted then {} started, after {waited} in the mean; jobs held {:.0} GPU-hours, {} GPUs at most",
        seen.started,
        seen.held_gpu_hours,
        seen.most_gpus
    );
}

fn print_traces(about: &trace::Provenance) {
    let trace::Provenance { jobs, train_nodes, train_gpus, serve_nodes, serve_gpus, peak_gpus, days, .. } =
        about;
    say!("jobs of {jobs} ({}), {days} days at a time", about.job_rows);
    if let (Some(demand), Some(rows)) = (about.demand, &about.demand_rows) {
        say!("demand of {demand} ({rows}), at most {peak_gpus} GPUs");
    }
    say!(
        "{train_nodes} nodes with {train_gpus} GPUs for jobs, {serve_nodes} with {serve_gpus} for the service"
    );
}

/// Prints the report on lending idle quota.
pub fn print_quotas(report: &QuotaReport) {
    print_traces(&report.about);
    let seen = &report.recorded;
    say!(
        "recorded: {:.0} GPU-hours waited, {:.0} of them while as many GPUs of quotas were idle",
        seen.waited_gpu_hours,
        seen.servable_gpu_hours
    );
    let names: String = report.rows.iter().map(|row| format!("{:>29}", row.policy)).collect();
    say!("{:28}{names}", "");
    let places = report.rows.first().map_or(0, |row| row.values.len());
    for place in 0..places {
        let cells: String = report.rows.iter().map(|row| shown(Some(row.values[place].1), None)).collect();
        say!("{:28}{cells}", report.rows[0].values[place].0);
    }
    match report.served_share {
        Some(Interval { value, low, high }) => {
            let percent = |share: f64| share * 100.0;
            let (value, low, high) = (percent(value), percent(low), percent(high));
            say!("of the demand that waits, lending serves {value:.1} % [{low:.1} {high:.1}]");
        }
        None => say!("nothing waits"),
    }
}
