//! Cause of a fail-stop: joins the end of a job to the faults of its devices around it.

use serde::{Deserialize, Serialize};

use super::xid::{XidClass, xid};
use crate::straggler::{Evidence, Fault};

/// End of a job, and the nodes of its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// When, µs since 1970.
    pub end_us: i64,
    /// The job ended successfully.
    pub succeeded: bool,
    /// Node of each rank.
    pub node: Vec<u32>,
}

/// The fault that ended a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cause {
    /// The rank whose device reported it.
    pub rank: u32,
    /// Its node.
    pub node: u32,
    /// When, µs since 1970.
    pub time_us: i64,
    /// NVIDIA's code.
    pub xid: Option<u32>,
    /// Probability that this fault ended the job, against the other faults and none.
    pub probability: f64,
    /// Basis of the probability: the fault, its time before the end (seconds), the number of faults
    /// before it, and the other candidates with their joint weight.
    pub evidence: Vec<Evidence>,
}

/// "Preemptive cleanup, due to previous errors": reports that a process was ended, never why.
const CLEARED_UP: u32 = 45;
/// How long before the end a fault may be its cause; collectives time out after ten minutes by
/// default.
const BEFORE_US: i64 = 660_000_000;
/// Drivers may log after the end.
const AFTER_US: i64 = 60_000_000;

/// The most probable cause of a job's end among its faults (`rank` is the job's). `None` if the job
/// succeeded, or no fault qualifies.
///
/// A fault's score grows with what its code says about the device and with how soon the end
/// followed; "no fault" has a weight of one. In a chain of faults the first is the cause: each
/// later one weighs half for every fault before it.
pub fn cause_of_end(end: &JobEnd, faults: &[Fault]) -> Option<Cause> {
    if end.succeeded {
        return None;
    }
    let from_us = end.end_us.saturating_sub(BEFORE_US);
    let to_us = end.end_us.saturating_add(AFTER_US);
    let mut near: Vec<&Fault> = faults
        .iter()
        .filter(|fault| (from_us..=to_us).contains(&fault.time_us) && (fault.rank as usize) < end.node.len())
        .filter(|fault| fault.xid != Some(CLEARED_UP))
        .collect();
    near.sort_unstable_by_key(|fault| (fault.time_us, fault.rank, fault.xid));
    near.dedup();
    let mut best: Option<(f64, &Fault, [f64; 3])> = None;
    let mut total = 1.0;
    for (before, fault) in near.iter().enumerate() {
        let weight = fault.xid.map_or(2.0, |code| {
            let known = xid(code);
            // A fault of the program also ends the job, without implicating the device.
            if known.class == XidClass::Application {
                1.0
            } else {
                known.weight + if known.fatal { 1.0 } else { 0.0 }
            }
        });
        let ago_us = end.end_us.saturating_sub(fault.time_us).max(0);
        let parts = [weight, -(ago_us as f64) / 300e6, 0.5_f64.ln() * before.min(60) as f64];
        let score = parts.iter().sum::<f64>().exp();
        total += score;
        if best.is_none_or(|(most, ..)| score > most) {
            best = Some((score, fault, parts));
        }
    }
    let (score, fault, [weight, nearness, follows]) = best?;
    let before = near.iter().take_while(|other| **other != fault).count() as f64;
    let ago_s = end.end_us.saturating_sub(fault.time_us) as f64 / 1e6;
    let rule = if fault.xid.is_some() { "xid" } else { "fault_without_code" };
    let others = near.len() as f64 - 1.0;
    let mut evidence = vec![
        Evidence { rule: rule.into(), value: fault.xid.map_or(1.0, f64::from), weight },
        Evidence { rule: "seconds_before_end".into(), value: ago_s, weight: nearness },
    ];
    if before > 0.0 {
        evidence.push(Evidence { rule: "faults_before_it".into(), value: before, weight: follows });
    }
    if others > 0.0 {
        let weight = -(total - score).ln();
        evidence.push(Evidence { rule: "other_faults_or_none".into(), value: others, weight });
    }
    Some(Cause {
        rank: fault.rank,
        node: end.node[fault.rank as usize],
        time_us: fault.time_us,
        xid: fault.xid,
        probability: score / total,
        evidence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(rank: u32, second: i64, xid: u32) -> Fault {
        Fault { rank, time_us: second * 1_000_000, xid: Some(xid) }
    }

    fn end(succeeded: bool) -> JobEnd {
        JobEnd { end_us: 1_000_000_000, succeeded, node: vec![4, 4, 9, 9] }
    }

    #[test]
    fn the_lost_device_is_the_cause_not_later_faults() {
        let faults = [fault(0, 960, 45), fault(2, 950, 79), fault(1, 961, 45), fault(3, 100, 79)];
        let cause = cause_of_end(&end(false), &faults).unwrap();
        assert_eq!((cause.rank, cause.node, cause.xid), (2, 9, Some(79)));
        // exp(4 + 1) at 50 s before the end, against 1 for no fault; code 45 is no cause.
        let score = (5.0_f64 - 50.0 / 300.0).exp();
        assert!((cause.probability - score / (score + 1.0)).abs() < 1e-12);
        assert_eq!(
            cause.evidence.iter().map(|item| &*item.rule).collect::<Vec<_>>(),
            ["xid", "seconds_before_end"]
        );
    }

    #[test]
    fn later_faults_weigh_half_and_are_listed() {
        // 48 (3 + 1) at 40 s, then 74 (2.5) at 10 s before the end.
        let cause = cause_of_end(&end(false), &[fault(0, 990, 74), fault(1, 960, 48)]).unwrap();
        assert_eq!((cause.rank, cause.xid), (1, Some(48)));
        let (first, second) = ((4.0_f64 - 40.0 / 300.0).exp(), (2.5_f64 - 10.0 / 300.0).exp() / 2.0);
        assert!((cause.probability - first / (1.0 + first + second)).abs() < 1e-12);
        let input: Vec<(&str, f64)> = cause.evidence.iter().map(|item| (&*item.rule, item.value)).collect();
        assert_eq!(input, [("xid", 48.0), ("seconds_before_end", 40.0), ("other_faults_or_none", 1.0)]);
    }

    #[test]
    fn success_and_far_faults_have_no_cause() {
        assert_eq!(cause_of_end(&end(true), &[fault(2, 950, 79)]), None);
        assert_eq!(cause_of_end(&end(false), &[fault(2, 100, 79), fault(77, 999, 79)]), None);
        let late = JobEnd { end_us: i64::MIN, ..end(false) };
        assert_eq!(cause_of_end(&late, &[fault(2, 100, 79)]), None);
    }
}
