//! What changes for each team, compared with the first contender.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Interval, Run, bootstrap};
use crate::{HOUR_US, gpu_hours, outcome::TeamOutcome};

/// One team under one contender: means over seeds with 95 % intervals, changes paired by seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TeamRow {
    /// Name of the team.
    pub team: String,
    /// Its jobs, mean over seeds.
    pub jobs: f64,
    /// 95th percentile of the time in the queue, hours.
    pub queue_p95_hours: Interval,
    /// How much longer that is than with the first contender, hours.
    pub longer_hours: Interval,
    /// How much more work is done in the measured time, GPU-hours.
    pub more_gpu_hours: Interval,
    /// Preemptions, mean over seeds.
    pub preemptions: f64,
    /// How many more these are than with the first contender.
    pub more_preemptions: Interval,
}

/// One seed of a team: under this contender, and under the first.
#[derive(Default)]
struct Seeds {
    jobs: Vec<f64>,
    p95: Vec<f64>,
    longer: Vec<f64>,
    more: Vec<f64>,
    preemptions: Vec<f64>,
    more_preemptions: Vec<f64>,
}

/// Compares the teams of `runs` with those of `base`, seed by seed. Waits are those at the end,
/// work that of the measured time.
pub(super) fn compare(runs: &[Run], base: &[Run]) -> Vec<TeamRow> {
    let mut teams: BTreeMap<&str, Seeds> = BTreeMap::new();
    for (run, before) in runs.iter().zip(base) {
        for team in &run.at_end.teams {
            let seeds = teams.entry(&team.team).or_default();
            let hours = |team: Option<&TeamOutcome>| {
                team.map_or(0.0, |team| team.queue_p95_us as f64 / HOUR_US as f64)
            };
            let useful = |teams: &[TeamOutcome]| {
                find(teams, &team.team).map_or(0.0, |team| gpu_hours(team.useful_gpu_us))
            };
            seeds.jobs.push(team.jobs as f64);
            seeds.p95.push(hours(Some(team)));
            seeds.longer.push(hours(Some(team)) - hours(find(&before.at_end.teams, &team.team)));
            seeds.more.push(useful(&run.at_span.teams) - useful(&before.at_span.teams));
            seeds.preemptions.push(team.preemptions as f64);
            let preempted = find(&before.at_end.teams, &team.team).map_or(0, |team| team.preemptions);
            seeds.more_preemptions.push(team.preemptions as f64 - preempted as f64);
        }
    }
    let row = |(team, seeds): (&str, Seeds)| TeamRow {
        team: team.to_owned(),
        jobs: mean(&seeds.jobs),
        queue_p95_hours: bootstrap(&seeds.p95, None),
        longer_hours: bootstrap(&seeds.longer, None),
        more_gpu_hours: bootstrap(&seeds.more, None),
        preemptions: mean(&seeds.preemptions),
        more_preemptions: bootstrap(&seeds.more_preemptions, None),
    };
    teams.into_iter().map(row).collect()
}

fn find<'a>(teams: &'a [TeamOutcome], name: &str) -> Option<&'a TeamOutcome> {
    teams.iter().find(|team| team.team == name)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    fn run(teams: &[(&str, i64, i128)], preemptions: u64) -> Run {
        let team = |(name, p95_hours, useful_hours): &(&str, i64, i128)| TeamOutcome {
            team: (*name).to_owned(),
            jobs: 10,
            queue_p95_us: p95_hours * HOUR_US,
            useful_gpu_us: useful_hours * i128::from(HOUR_US),
            preemptions,
        };
        let outcome = Outcome { teams: teams.iter().map(team).collect(), ..Outcome::default() };
        Run { at_span: outcome.clone(), at_end: outcome, span_us: HOUR_US, price_micros: None }
    }

    #[test]
    fn changes_are_paired_by_seed() {
        // Team a waits an hour longer with either seed, though seeds differ by ten; b waits less.
        let base = [run(&[("a", 1, 5), ("b", 8, 5)], 2), run(&[("a", 11, 5), ("b", 8, 5)], 7)];
        let runs = [run(&[("a", 2, 9), ("b", 3, 5)], 5), run(&[("a", 12, 9), ("b", 5, 5)], 10)];
        let rows = compare(&runs, &base);
        let longer = rows[0].longer_hours;
        assert_eq!((rows[0].team.as_str(), longer.low, longer.value, longer.high), ("a", 1.0, 1.0, 1.0));
        assert_eq!((rows[0].more_gpu_hours.value, rows[0].queue_p95_hours.value), (4.0, 7.0));
        let more = rows[0].more_preemptions;
        assert_eq!((rows[0].preemptions, more.low, more.value, more.high), (7.5, 3.0, 3.0, 3.0));
        assert!(rows[1].longer_hours.high <= -3.0 && rows[1].longer_hours.low >= -5.0);
        assert!(compare(&base, &base).iter().all(|row| row.longer_hours.value == 0.0));
    }
}
