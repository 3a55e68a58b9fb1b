//! How long each team's jobs waited for capacity, over the last thirty days.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_autopilot::state::{ClusterState, Waits};
use tidegate_events::v1::{JobEvent, JobEventKind as Kind};

use crate::bounded::drop_silent;

/// Time over which waits count, ms.
const WINDOW_MS: i64 = 30 * 86_400_000;
/// Teams kept; beyond it a quarter goes, those silent longest.
const MAX_TEAMS: usize = 2_000;
/// Newest waits kept of a team. The 95th percentile of so many has a standard error of 0.5 % of the
/// ranks.
const MAX_WAITS: usize = 2_000;
/// Jobs in the queue that are kept; beyond it a quarter goes, those silent longest.
const MAX_QUEUED: usize = 200_000;

/// A job in the queue.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Queued {
    team: String,
    /// Since when it waits for capacity. `None`: it cannot start yet.
    since_ms: Option<i64>,
    newest_ms: i64,
}

/// Waits of one cluster's jobs: from when a job could start until it started, and after each
/// requeue again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TeamWaits {
    queued: BTreeMap<String, Queued>,
    /// By team: when a wait ended and how long it was, ms, in the order of events.
    ended: BTreeMap<String, VecDeque<(i64, i64)>>,
}

impl TeamWaits {
    pub fn observe(&mut self, event: &JobEvent, at_ms: i64) {
        if event.step_id.is_some() || event.job_id.is_empty() {
            return;
        }
        match event.kind() {
            // Submitted jobs may have to wait for a time or another job first.
            Kind::Submitted => self.queue(event, None, at_ms),
            Kind::Eligible => self.queue(event, Some(at_ms), at_ms),
            Kind::Started => self.started(event, at_ms),
            Kind::Ended if crate::jobs::is_over(event) => {
                self.queued.remove(&event.job_id);
            }
            // It goes back into the queue; a job that was resized goes on.
            Kind::Ended if crate::jobs::is_requeued(event) => self.queue(event, Some(at_ms), at_ms),
            _ => {}
        }
    }

    fn queue(&mut self, event: &JobEvent, since_ms: Option<i64>, at_ms: i64) {
        drop_silent(&mut self.queued, &event.job_id, MAX_QUEUED, |job| job.newest_ms);
        let job = self.queued.entry(event.job_id.clone()).or_default();
        if let Some(team) = &event.team {
            job.team.clone_from(team);
        }
        job.since_ms = since_ms.or(job.since_ms);
        job.newest_ms = at_ms;
    }

    fn started(&mut self, event: &JobEvent, at_ms: i64) {
        let Some(job) = self.queued.get_mut(&event.job_id) else { return };
        job.newest_ms = at_ms;
        if let Some(team) = &event.team {
            job.team.clone_from(team);
        }
        let (Some(since_ms), team) = (job.since_ms.take(), job.team.clone()) else { return };
        if team.is_empty() {
            return;
        }
        let newest = |waits: &VecDeque<(i64, i64)>| waits.back().map_or(i64::MIN, |(ended_ms, _)| *ended_ms);
        drop_silent(&mut self.ended, &team, MAX_TEAMS, newest);
        let waits = self.ended.entry(team).or_default();
        waits.push_back((at_ms, at_ms.saturating_sub(since_ms).max(0)));
        if waits.len() > MAX_WAITS {
            waits.pop_front();
        }
    }

    /// Adds each owner's waits of the last thirty days. Jobs that still wait count with their wait
    /// so far where that is above the 95th percentile of the others: it can only become longer.
    pub fn enrich(&self, state: &mut ClusterState, at_ms: i64) {
        let mut waiting: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for job in self.queued.values() {
            if let Some(since_ms) = job.since_ms {
                waiting.entry(&job.team).or_default().push(at_ms.saturating_sub(since_ms).max(0));
            }
        }
        for (name, owner) in &mut state.owners {
            let own = [name.clone()].into();
            let teams = if owner.teams.is_empty() { &own } else { &owner.teams };
            let recent = |(ended_ms, _): &&(i64, i64)| at_ms.saturating_sub(*ended_ms) <= WINDOW_MS;
            let of = |team: &String| self.ended.get(team).into_iter().flatten().filter(recent);
            let ended: Vec<i64> = teams.iter().flat_map(of).map(|(_, wait_ms)| *wait_ms).collect();
            let open = teams.iter().filter_map(|team| waiting.get(team.as_str())).flatten().copied();
            owner.waits = summary(ended, open);
        }
    }
}

fn summary(mut waits: Vec<i64>, open: impl Iterator<Item = i64>) -> Option<Waits> {
    let before = p95(&mut waits);
    waits.extend(open.filter(|wait_ms| before.is_none_or(|p95_ms| *wait_ms > p95_ms)));
    let p95_ms = p95(&mut waits)?;
    Some(Waits { p95_ms, jobs: u32::try_from(waits.len()).unwrap_or(u32::MAX) })
}

/// The smallest wait that at least 95 % do not exceed.
fn p95(waits: &mut [i64]) -> Option<i64> {
    let rank = (waits.len() * 95).div_ceil(100).checked_sub(1)?;
    Some(*waits.select_nth_unstable(rank).1)
}

#[cfg(test)]
mod tests {
    use tidegate_autopilot::state::Owner;
    use tidegate_events::FinalState;

    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn event(kind: Kind, job: &str, team: &str) -> JobEvent {
        let team = Some(team.to_owned()).filter(|team| !team.is_empty());
        JobEvent { kind: kind.into(), job_id: job.into(), team, ..JobEvent::default() }
    }

    fn ended(job: &str, state: FinalState) -> JobEvent {
        let final_state = Some(state.to_string());
        JobEvent { attempt_id: Some(0), final_state, ..event(Kind::Ended, job, "") }
    }

    fn waits(of: &TeamWaits, owner: &str, teams: &[&str], at_ms: i64) -> Option<(i64, u32)> {
        let mut state = ClusterState::default();
        let teams = teams.iter().map(ToString::to_string).collect();
        state.owners.insert(owner.into(), Owner { teams, ..Owner::default() });
        of.enrich(&mut state, at_ms);
        state.owners[owner].waits.map(|waits| (waits.p95_ms, waits.jobs))
    }

    #[test]
    fn waits_count_from_when_a_job_can_start_and_after_each_requeue() {
        let mut found = TeamWaits::default();
        for (kind, at_ms) in [(Kind::Submitted, 0), (Kind::Eligible, 1_000), (Kind::Started, 5_000)] {
            found.observe(&event(kind, "a", "vision"), at_ms);
        }
        assert_eq!(waits(&found, "vision", &[], 6_000), Some((4_000, 1)));
        found.observe(&ended("a", FinalState::Preempted), 10_000);
        found.observe(&event(Kind::Started, "a", ""), 19_000);
        assert_eq!(waits(&found, "vision", &[], 20_000), Some((9_000, 2)));
        // A resize is no wait, nor is what a job that has ended does later.
        found.observe(&ended("a", FinalState::Resized), 20_000);
        found.observe(&event(Kind::Started, "a", ""), 30_000);
        found.observe(&ended("a", FinalState::Completed), 40_000);
        found.observe(&event(Kind::Started, "a", ""), 90_000);
        assert_eq!(waits(&found, "vision", &[], 99_000), Some((9_000, 2)));
        assert_eq!(waits(&found, "other", &[], 99_000), None, "nothing is known of it");
    }

    #[test]
    fn an_owner_has_the_waits_of_its_accounts_of_thirty_days_and_of_jobs_that_wait_still() {
        let mut found = TeamWaits::default();
        for n in 0..100_i64 {
            let job = format!("{n}");
            found.observe(&event(Kind::Eligible, &job, if n % 2 == 0 { "ml" } else { "ai" }), 0);
            found.observe(&event(Kind::Started, &job, ""), n * 1_000);
        }
        assert_eq!(waits(&found, "team", &["ml", "ai"], HOUR_MS), Some((94_000, 100)));
        assert_eq!(waits(&found, "team", &["ml"], HOUR_MS), Some((94_000, 50)));
        // Ten wait for an hour already; one that has only begun to says nothing yet.
        for n in 0..10 {
            found.observe(&event(Kind::Eligible, &format!("open-{n}"), "ml"), 0);
        }
        found.observe(&event(Kind::Eligible, "new", "ml"), HOUR_MS);
        assert_eq!(waits(&found, "team", &["ml", "ai"], HOUR_MS), Some((HOUR_MS, 110)));
        let later_ms = 31 * 24 * HOUR_MS;
        assert_eq!(waits(&found, "team", &["ai"], later_ms), None, "they are too old");
    }

    #[test]
    fn impossible_times_and_many_names_neither_overflow_nor_grow_without_end() {
        let mut found = TeamWaits::default();
        for (from_ms, to_ms) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN)] {
            found.observe(&event(Kind::Eligible, "a", "t"), from_ms);
            found.observe(&event(Kind::Started, "a", "t"), to_ms);
        }
        assert!(waits(&found, "t", &[], i64::MAX).is_some());
        for n in 0..MAX_TEAMS as i64 + 100 {
            found.observe(&event(Kind::Eligible, "b", &format!("t{n}")), n);
            found.observe(&event(Kind::Started, "b", ""), n);
        }
        assert!(found.ended.len() <= MAX_TEAMS);
        for n in 0..MAX_WAITS as i64 + 100 {
            found.observe(&event(Kind::Eligible, "c", "t"), n);
            found.observe(&event(Kind::Started, "c", ""), n);
        }
        assert_eq!(found.ended["t"].len(), MAX_WAITS);
    }
}
