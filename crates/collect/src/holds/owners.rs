//! Which Slurm jobs are on the node, and whose they are.

use std::collections::BTreeMap;

use super::NodeHolds;
use crate::receiver::{Reporter, Standing};

/// A job on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownJob {
    /// As its first report named it: a number, if that was a prolog or a cgroup.
    pub number: String,
    /// Job id as accounting writes it, once known.
    pub full_id: Option<String>,
    /// Its user, if the prolog named it.
    pub uid: Option<u32>,
}

/// Jobs on the node by prologs and by cgroups.
#[derive(Debug, Default)]
pub(super) struct KnownJobs {
    pub by_hold: Vec<KnownJob>,
    /// Owners by number.
    pub by_cgroup: BTreeMap<String, u32>,
}

impl NodeHolds {
    /// How a process stands to a Slurm job.
    pub fn standing(&self, reporter: &Reporter, job: &str) -> Standing {
        self.known().standing(reporter, job)
    }
}

impl KnownJobs {
    fn standing(&self, reporter: &Reporter, job: &str) -> Standing {
        let number = component(job);
        let number = number.as_deref().unwrap_or(job);
        let held = || self.by_hold.iter().filter(|known| known.is(job, number));
        let owner = self.by_cgroup.get(number);
        let uid = reporter.uid;
        let by_user = uid.is_some() && (held().any(|known| known.uid == uid) || owner == uid.as_ref());
        if by_user || self.runs_in(reporter, job, number) {
            return Standing::Own;
        }
        match owner.is_some() || held().next().is_some() {
            true => Standing::Others,
            false => Standing::Unknown,
        }
    }

    /// Whether the process is one of the job's. Its environment gives the index of an array task,
    /// and its user may write there what he likes: an id that another job here has is not his.
    fn runs_in(&self, reporter: &Reporter, job: &str, number: &str) -> bool {
        let Some(own) = reporter.job_number.as_deref() else { return false };
        let taken = || {
            self.by_hold.iter().any(|known| {
                known.number != own && (known.number == job || known.full_id.as_deref() == Some(job))
            }) || (job != own && self.by_cgroup.contains_key(job))
        };
        own == number || (reporter.full_id.as_deref() == Some(job) && !taken())
    }
}

impl KnownJob {
    fn is(&self, job: &str, number: &str) -> bool {
        self.number == job || self.number == number || self.full_id.as_deref() == Some(job)
    }
}

/// Number of a component of a heterogeneous job: Slurm numbers them one after the other, so `123+2`
/// is 125.
fn component(job: &str) -> Option<String> {
    let (first, offset) = job.split_once('+')?;
    let (first, offset) = (first.parse::<u64>().ok()?, offset.parse::<u64>().ok()?);
    Some(first.checked_add(offset)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> KnownJobs {
        let job = |number: &str, full_id: Option<&str>, uid| KnownJob {
            number: number.into(),
            full_id: full_id.map(str::to_owned),
            uid,
        };
        KnownJobs {
            by_hold: vec![
                job("7", Some("7"), Some(1001)),
                job("12", Some("10_2"), None),
                job("31", None, Some(1002)),
            ],
            by_cgroup: BTreeMap::from([("7".to_owned(), 1001), ("20".to_owned(), 1002)]),
        }
    }

    fn user(uid: u32) -> Reporter {
        Reporter { uid: Some(uid), ..Reporter::default() }
    }

    fn inside(number: &str, full_id: Option<&str>) -> Reporter {
        let full_id = full_id.map(str::to_owned);
        Reporter { uid: Some(1005), job_number: Some(number.into()), full_id, ..Reporter::default() }
    }

    #[test]
    fn a_user_owns_what_the_prolog_or_a_cgroup_says() {
        let known = known();
        for (uid, job, expected) in [
            (1001, "7", Standing::Own),
            (1002, "7", Standing::Others),
            (1002, "20", Standing::Own),
            // The third component of job 29.
            (1002, "29+2", Standing::Own),
            (1001, "29+2", Standing::Others),
            (1001, "10_2", Standing::Others),
            (1001, "12", Standing::Others),
            (1001, "4711", Standing::Unknown),
        ] {
            assert_eq!(known.standing(&user(uid), job), expected, "{uid} {job}");
        }
        assert_eq!(known.standing(&Reporter::default(), "12"), Standing::Others, "over TCP");
    }

    #[test]
    fn a_process_reports_for_the_job_of_its_cgroup() {
        let known = known();
        for (number, full_id, job, expected) in [
            ("50", None, "50", Standing::Own),
            ("50", Some("44_6"), "44_6", Standing::Own),
            ("50", Some("44_6"), "44_7", Standing::Unknown),
            ("50", Some("44_6"), "48+2", Standing::Own),
            // What it wrote into its environment is another job's id.
            ("50", Some("10_2"), "10_2", Standing::Others),
            ("50", Some("7"), "7", Standing::Others),
            ("50", Some("20"), "20", Standing::Others),
            ("12", Some("10_2"), "10_2", Standing::Own),
        ] {
            assert_eq!(known.standing(&inside(number, full_id), job), expected, "{number} {full_id:?} {job}");
        }
    }
}
