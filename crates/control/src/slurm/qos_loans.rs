//! Loans of a number of GPUs, as the description of the borrower's QOS holds them.
//!
//! `GrpTRES` of the QOS is the borrower's own limit plus what is lent to it. The description says
//! how much is which, behind what others wrote there: `tidegate:base:16
//! tidegate:lend-1:8:8:1795379790:4` (GPUs that stay lent, GPUs lent, end in seconds since 1970,
//! generation). Description and limit are written in one message, and only if the description is
//! still the one that was read: sacctmgr changes what matches all of `where`. Lowering a limit
//! stops no job, so GPUs called back count as lent until the borrower is within its limit.

use std::collections::BTreeMap;

use tidegate_autopilot::state::LoanId;

use super::inventory::QosLimit;
use super::snapshot::Snapshot;

/// The loans in the description of a QOS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QosLoans {
    /// The text that others wrote.
    pub text: String,
    /// The limit without loans, GPUs.
    pub base: u32,
    pub loans: BTreeMap<LoanId, QosLoan>,
}

/// One loan in a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QosLoan {
    /// GPUs that are not called back.
    pub to_gpus: u32,
    pub gpus: u32,
    pub end_s: i64,
    pub generation: u64,
}

impl QosLoans {
    /// Parses a description; `None`: it has no loans that can be read.
    pub(super) fn parse(description: &str) -> Option<Self> {
        let (mut lent, mut others, mut base) = (Self::default(), Vec::new(), None);
        for word in description.split_whitespace() {
            let parts: Vec<&str> = word.split(':').collect();
            match parts[..] {
                ["tidegate", "base", gpus] => base = Some(gpus.parse().ok()?),
                ["tidegate", id, to_gpus, gpus, end_s, generation] => {
                    let word = QosLoan {
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

    /// The description that holds these loans.
    pub(super) fn description(&self) -> String {
        let mut words: Vec<String> =
            Some(self.text.clone()).filter(|text| !text.is_empty()).into_iter().collect();
        if !self.loans.is_empty() {
            words.push(format!("tidegate:base:{}", self.base));
        }
        for (id, QosLoan { to_gpus, gpus, end_s, generation }) in &self.loans {
            words.push(format!("tidegate:{id}:{to_gpus}:{gpus}:{end_s}:{generation}"));
        }
        words.join(" ")
    }

    /// GPUs that are lent and not called back.
    pub(super) fn lent_gpus(&self) -> u32 {
        // Anyone who may write a description may write any number.
        self.loans.values().fold(0, |sum, word| sum.saturating_add(word.to_gpus))
    }

    /// The limit with what is lent, GPUs.
    pub(super) fn limit(&self) -> u32 {
        self.base.saturating_add(self.lent_gpus())
    }
}

/// The limit of a QOS without what is lent to it; `None`: it has none.
pub(super) fn own_limit(limit: &QosLimit) -> Option<u32> {
    let lent = QosLoans::parse(&limit.description).map_or(0, |lent| lent.lent_gpus());
    limit.gpus.map(|gpus| gpus.saturating_sub(lent))
}

/// The QOS that carries a loan, with its limit and loans.
pub(super) fn of_loan<'a>(
    snapshot: &'a Snapshot,
    loan: &str,
) -> Option<(&'a String, &'a QosLimit, QosLoans)> {
    snapshot.limits.qos.iter().find_map(|(qos, limit)| {
        let lent = QosLoans::parse(&limit.description)?;
        lent.loans.contains_key(loan).then_some((qos, limit, lent))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_say_what_is_lent_behind_what_others_wrote() {
        let word = QosLoan { to_gpus: 8, gpus: 8, end_s: 1_795_379_790, generation: 4 };
        let lent = QosLoans { text: "night owls".into(), base: 16, loans: [("lend-1".into(), word)].into() };
        let text = lent.description();
        assert_eq!(text, "night owls tidegate:base:16 tidegate:lend-1:8:8:1795379790:4");
        assert_eq!((QosLoans::parse(&text).as_ref(), lent.limit()), (Some(&lent), 24));
        let back = QosLoan { to_gpus: 0, ..word };
        let both =
            QosLoans { loans: [("lend-1".into(), back), ("lend-2".into(), word)].into(), ..lent.clone() };
        assert_eq!((QosLoans::parse(&both.description()).unwrap(), both.limit()), (both.clone(), 24));
        let over = QosLoans { loans: BTreeMap::new(), ..lent };
        assert_eq!(over.description(), "night owls", "a person's own again");
        for nothing in [
            "",
            "night owls",
            "tidegate:lend-1:8:8:1:4",
            "tidegate:base:x",
            "tidegate:base:1 tidegate:l:a:8:1:4",
        ] {
            assert_eq!(QosLoans::parse(nothing), None, "{nothing}");
        }
        let limit = QosLimit { gpus: Some(24), description: both.description() };
        assert_eq!(own_limit(&limit), Some(16));
    }
}
