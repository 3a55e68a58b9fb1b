//! Loans of a number of GPUs, by the limit of the borrower's QOS: what stands in Slurm of them.
//!
//! `GrpTRES` of the QOS is what the borrower has without loans, and what is lent to it. How much of
//! it is which stands in the QOS' description, behind what others wrote there: `tidegate:base:16
//! tidegate:lend-1:8:8:1795379790:4`, in order GPUs that stay lent, GPUs lent, end (seconds since
//! 1970), generation. Description and limit are written in one message, and only where the
//! description is still the one that was read: sacctmgr changes what fits all of `where`. Lowering
//! a limit stops nobody, so what is taken back counts as lent until the borrower is within what it
//! has.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::action::Change;
use tidegate_autopilot::state::{Loan, LoanId, Writer};

use super::config::{LendBy, SlurmConfig};
use super::inventory::QosLimit;
use super::loans::Noted;
use super::observe::Look;
use super::queue::QueueJob;

/// What the description of a QOS says of loans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lent {
    /// What others wrote.
    pub text: String,
    /// GPUs of the limit without loans.
    pub base: u32,
    pub loans: BTreeMap<LoanId, Word>,
}

/// One loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word {
    /// What of it is not called back.
    pub to_gpus: u32,
    pub gpus: u32,
    pub end_s: i64,
    pub generation: u64,
}

impl Lent {
    /// What a description says; `None`: nothing of loans that could be read.
    pub(super) fn read(description: &str) -> Option<Self> {
        let (mut lent, mut others, mut base) = (Self::default(), Vec::new(), None);
        for word in description.split_whitespace() {
            let parts: Vec<&str> = word.split(':').collect();
            match parts[..] {
                ["tidegate", "base", gpus] => base = Some(gpus.parse().ok()?),
                ["tidegate", id, to_gpus, gpus, end_s, generation] => {
                    let word = Word {
                        to_gpus: to_gpus.parse().ok()?,
                        gpus: gpus.parse().ok()?,
                        end_s: end_s.parse().ok()?,
                        generation: generation.parse().ok()?,
                    };
                    lent.loans.insert(id.to_owned(), word);
                }
                _ => others.push(word),
            }
        }
        lent.base = base?;
        lent.text = others.join(" ");
        Some(lent)
    }

    /// The description that says it.
    pub(super) fn description(&self) -> String {
        let mut words: Vec<String> =
            Some(self.text.clone()).filter(|text| !text.is_empty()).into_iter().collect();
        if !self.loans.is_empty() {
            words.push(format!("tidegate:base:{}", self.base));
        }
        for (id, Word { to_gpus, gpus, end_s, generation }) in &self.loans {
            words.push(format!("tidegate:{id}:{to_gpus}:{gpus}:{end_s}:{generation}"));
        }
        words.join(" ")
    }

    /// GPUs that are lent and not called back.
    pub(super) fn lent_gpus(&self) -> u32 {
        // Whoever may write a description may write any number.
        self.loans.values().fold(0, |sum, word| sum.saturating_add(word.to_gpus))
    }

    /// The limit that goes with it.
    pub(super) fn limit(&self) -> u32 {
        self.base.saturating_add(self.lent_gpus())
    }
}

/// The limit of a QOS without what is lent to it; `None`: it has none.
pub(super) fn own_limit(told: &QosLimit) -> Option<u32> {
    let lent = Lent::read(&told.description).map_or(0, |lent| lent.lent_gpus());
    told.gpus.map(|gpus| gpus.saturating_sub(lent))
}

/// The QOS on which a loan stands, and what stands there.
pub(super) fn of_loan<'a>(look: &'a Look, loan: &str) -> Option<(&'a String, &'a QosLimit, Lent)> {
    look.limits.qos.iter().find_map(|(qos, told)| {
        let lent = Lent::read(&told.description)?;
        lent.loans.contains_key(loan).then_some((qos, told, lent))
    })
}

/// Jobs of a QOS that hold GPUs, with how many, the last started first.
fn holding<'a>(look: &'a Look, qos: &str) -> Vec<(&'a QueueJob, u32)> {
    let of_qos = look.jobs.iter().filter(|job| job.qos == qos && job.is_open());
    let held = |job: &QueueJob| match &job.placement {
        Some(held) => held.values().sum(),
        // Nobody knows what it holds; what it asked for is.
        None => job.asked_gpus.unwrap_or(0),
    };
    let mut jobs: Vec<_> = of_qos.map(|job| (job, held(job))).filter(|(_, held)| *held > 0).collect();
    jobs.sort_by(|a, b| b.0.start_ms.cmp(&a.0.start_ms).then(b.0.id.cmp(&a.0.id)));
    jobs
}

/// Loans that are open by limits.
pub(super) fn open(config: &SlurmConfig, look: &Look) -> BTreeMap<LoanId, Loan> {
    let mut loans = BTreeMap::new();
    for (qos, told) in &look.limits.qos {
        let Some(lent) = Lent::read(&told.description) else { continue };
        let mut jobs = holding(look, qos).into_iter().peekable();
        let held: u32 = holding(look, qos).iter().map(|(_, gpus)| gpus).sum();
        let (mut over, mut beyond) = (held.saturating_sub(lent.limit()), held.saturating_sub(lent.base));
        // Those that are called back are first to have the jobs that started last.
        let mut order: Vec<(&LoanId, &Word)> = lent.loans.iter().collect();
        order.sort_by_key(|(id, word)| (word.to_gpus == word.gpus, *id));
        for (id, word) in order {
            let reclaiming_gpus = word.gpus.saturating_sub(word.to_gpus).min(over);
            over -= reclaiming_gpus;
            let gpus = word.to_gpus.saturating_add(reclaiming_gpus);
            let mut used = BTreeSet::new();
            let mut left = beyond.min(gpus);
            beyond -= left;
            while let Some((job, held)) = jobs.next_if(|_| left > 0) {
                used.insert(job.id.clone());
                left = left.saturating_sub(held);
            }
            if gpus > 0 {
                let is_ours = told.gpus == Some(lent.limit());
                loans.insert(id.clone(), loan(config, look, qos, (id, word), is_ours, reclaiming_gpus, used));
            }
        }
    }
    loans
}

fn loan(
    config: &SlurmConfig,
    look: &Look,
    qos: &str,
    (id, word): (&LoanId, &Word),
    is_ours: bool,
    reclaiming_gpus: u32,
    jobs: BTreeSet<String>,
) -> Loan {
    let noted = Noted::of(look, id);
    let (from, to, pool, reclaim_within_ms) = match noted.lend.map(|entry| &entry.change) {
        Some(Change::Lend { from, to, pool, reclaim_within_ms, .. }) => {
            (from.clone(), to.clone(), pool.clone(), *reclaim_within_ms)
        }
        // Our notes are lost: it stands as its words say.
        _ => {
            let (to, pool) =
                config.of_qos(qos).map(|(to, pool)| (to.clone(), pool.clone())).unwrap_or_default();
            let lends = |share: &super::config::ShareConfig| share.lendable && share.lend_by == LendBy::Qos;
            let from = config.owners.iter().find(|(_, of)| of.shares.get(&pool).is_some_and(lends));
            (from.map(|(from, _)| from.clone()).unwrap_or_default(), to, pool, 0)
        }
    };
    let is_ours = is_ours && (noted.lend.is_none() || noted.may_end(word.end_s));
    Loan {
        from,
        to,
        pool,
        gpus: word.to_gpus.saturating_add(reclaiming_gpus),
        nodes: BTreeSet::new(),
        since_us: noted.lend.and_then(|entry| entry.begun_us).unwrap_or(look.at_us),
        expires_us: word.end_s * 1_000_000,
        reclaim_within_ms,
        reclaiming_since_us: noted.called_since_us.filter(|_| reclaiming_gpus > 0),
        reclaiming_gpus,
        reclaiming_nodes: BTreeSet::new(),
        writer: if is_ours { Writer::Autopilot { generation: word.generation } } else { Writer::Other },
        jobs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_say_what_is_lent_behind_what_others_wrote() {
        let word = Word { to_gpus: 8, gpus: 8, end_s: 1_795_379_790, generation: 4 };
        let lent = Lent { text: "night owls".into(), base: 16, loans: [("lend-1".into(), word)].into() };
        let text = lent.description();
        assert_eq!(text, "night owls tidegate:base:16 tidegate:lend-1:8:8:1795379790:4");
        assert_eq!((Lent::read(&text).as_ref(), lent.limit()), (Some(&lent), 24));
        let back = Word { to_gpus: 0, ..word };
        let both = Lent { loans: [("lend-1".into(), back), ("lend-2".into(), word)].into(), ..lent.clone() };
        assert_eq!((Lent::read(&both.description()).unwrap(), both.limit()), (both.clone(), 24));
        let over = Lent { loans: BTreeMap::new(), ..lent };
        assert_eq!(over.description(), "night owls", "a person's own again");
        for nothing in [
            "",
            "night owls",
            "tidegate:lend-1:8:8:1:4",
            "tidegate:base:x",
            "tidegate:base:1 tidegate:l:a:8:1:4",
        ] {
            assert_eq!(Lent::read(nothing), None, "{nothing}");
        }
        let told = QosLimit { gpus: Some(24), description: both.description() };
        assert_eq!(own_limit(&told), Some(16));
    }
}
