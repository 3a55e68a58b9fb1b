//! How many jobs and ranks are reported within a minute. Whoever reads the reports keeps state for
//! each of them, so invented ones must not be many.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::reporter::PeerId;

const WINDOW: Duration = Duration::from_secs(60);
/// Most jobs of all peers together within a minute: more than a node runs.
const MAX_JOBS: usize = 1_024;

/// Jobs and ranks reported since the current minute began.
#[derive(Debug)]
pub(super) struct Spread {
    /// Jobs that a peer may report for.
    most_jobs: usize,
    /// Ranks of a job.
    most_ranks: usize,
    since: Instant,
    ranks: HashMap<String, HashSet<u32>>,
    jobs: HashMap<PeerId, HashSet<String>>,
}

impl Spread {
    pub fn new(most_jobs: usize, most_ranks: usize, now: Instant) -> Self {
        Self { most_jobs, most_ranks, since: now, ranks: HashMap::new(), jobs: HashMap::new() }
    }

    /// Counts a report, or says which limit it exceeds.
    pub fn count(&mut self, peer: PeerId, job: &str, rank: u32, now: Instant) -> Result<(), String> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            *self = Self::new(self.most_jobs, self.most_ranks, now);
        }
        let known = self.ranks.get(job);
        let new_rank = known.is_none_or(|ranks| !ranks.contains(&rank));
        if new_rank && known.is_some_and(|ranks| ranks.len() >= self.most_ranks) {
            return Err(excess(&format!("{} ranks of job {job}", self.most_ranks)));
        }
        if known.is_none() && self.ranks.len() >= MAX_JOBS {
            return Err(excess(&format!("{MAX_JOBS} jobs")));
        }
        let jobs = self.jobs.entry(peer).or_default();
        if !jobs.contains(job) {
            if jobs.len() >= self.most_jobs {
                return Err(excess(&format!("{} jobs of this user", self.most_jobs)));
            }
            jobs.insert(job.to_owned());
        }
        if new_rank {
            self.ranks.entry(job.to_owned()).or_default().insert(rank);
        }
        Ok(())
    }
}

fn excess(what: &str) -> String {
    format!("{what} were reported on this node within a minute, and more are refused until it ends")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_ranks_are_few_within_a_minute() {
        let now = Instant::now();
        let mut spread = Spread::new(2, 3, now);
        let mut count = |peer, job: &str, rank, seconds| {
            spread.count(Some(peer), job, rank, now + Duration::from_secs(seconds))
        };
        for rank in [0, 1, 2, 0] {
            count(1, "a", rank, 0).unwrap();
        }
        assert!(count(1, "a", 3, 1).unwrap_err().contains("3 ranks of job a"));
        // Another user's reports of the same job count together with these.
        assert!(count(2, "a", 4, 1).unwrap_err().contains("3 ranks of job a"));
        count(1, "b", 0, 2).unwrap();
        assert!(count(1, "c", 0, 3).unwrap_err().contains("2 jobs of this user"));
        count(2, "c", 0, 3).unwrap();
        // The limits begin anew.
        count(1, "c", 3, 60).unwrap();
    }

    #[test]
    fn many_users_do_not_report_many_jobs() {
        let now = Instant::now();
        let mut spread = Spread::new(64, 1_024, now);
        let taken = (0..10_000_u32)
            .filter(|number| spread.count(Some(*number), &number.to_string(), 0, now).is_ok())
            .count();
        assert_eq!(taken, MAX_JOBS);
        // The reports of a job that was heard before are still taken.
        spread.count(Some(0), "0", 0, now).unwrap();
    }
}
