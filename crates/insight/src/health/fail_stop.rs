//! Which fault ended a job: the fail-stop joined to what the job's devices reported around its end.

use serde::Serialize;

use super::xid::{XidClass, xid};
use crate::straggler::Fault;

/// How a job ended and where its ranks were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    /// When, µs since 1970.
    pub end_us: i64,
    /// It ended by itself, with success.
    pub succeeded: bool,
    /// Node of each rank.
    pub node: Vec<u32>,
}

/// What ended it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cause {
    /// The rank whose device reported it.
    pub rank: u32,
    /// Its node.
    pub node: u32,
    /// When, µs since 1970.
    pub time_us: i64,
    /// NVIDIA's code.
    pub xid: Option<u32>,
    /// Probability that this ended the job, against the other faults and against none of them.
    pub probability: f64,
}

/// Faults this long before the end can have caused it; collectives time out after ten minutes, by default.
const BEFORE_US: i64 = 660_000_000;
/// The driver may log after the job has ended.
const AFTER_US: i64 = 60_000_000;

/// Joins the end of a job to the most probable of its faults (`rank` is the job's). `None`: it succeeded, or none can have been it.
///
/// Each fault weighs by what its code says of the device and by how soon the end followed; "none of them" weighs one. Of faults that
/// all follow one another the first is the cause: later ones weigh half for each before it.
pub fn cause_of_end(end: &JobEnd, faults: &[Fault]) -> Option<Cause> {
    if end.succeeded {
        return None;
    }
    let from_us = end.end_us.saturating_sub(BEFORE_US);
    let to_us = end.end_us.saturating_add(AFTER_US);
    let mut near: Vec<&Fault> = faults
        .iter()
        .filter(|fault| (from_us..=to_us).contains(&fault.time_us) && (fault.rank as usize) < end.node.len())
        .collect();
    near.sort_unstable_by_key(|fault| (fault.time_us, fault.rank, fault.xid));
    near.dedup();
    let (mut best, mut total): (Option<(f64, &Fault)>, f64) = (None, 1.0);
    for (before, fault) in near.iter().enumerate() {
        let weight = fault.xid.map_or(2.0, |code| {
            let known = xid(code);
            // A program's own mistake ends a job as well, without the device being bad.
            if known.class == XidClass::Application {
                1.0
            } else {
                known.weight + if known.fatal { 1.0 } else { 0.0 }
            }
        });
        let ago_us = end.end_us.saturating_sub(fault.time_us).max(0);
        let nearness = (-(ago_us as f64) / 300e6).exp();
        let score = weight.exp() * nearness * 0.5_f64.powi(before.min(60) as i32);
        total += score;
        if best.is_none_or(|(most, _)| score > most) {
            best = Some((score, fault));
        }
    }
    let (score, fault) = best?;
    Some(Cause {
        rank: fault.rank,
        node: end.node[fault.rank as usize],
        time_us: fault.time_us,
        xid: fault.xid,
        probability: score / total,
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
    fn the_lost_device_and_not_the_mistakes_that_followed() {
        let faults = [fault(0, 960, 45), fault(2, 950, 79), fault(1, 961, 45), fault(3, 100, 79)];
        let cause = cause_of_end(&end(false), &faults).unwrap();
        assert_eq!((cause.rank, cause.node, cause.xid), (2, 9, Some(79)));
        assert!(cause.probability > 0.9);
    }

    #[test]
    fn success_and_far_faults_have_no_cause() {
        assert_eq!(cause_of_end(&end(true), &[fault(2, 950, 79)]), None);
        assert_eq!(cause_of_end(&end(false), &[fault(2, 100, 79), fault(77, 999, 79)]), None);
        let late = JobEnd { end_us: i64::MIN, ..end(false) };
        assert_eq!(cause_of_end(&late, &[fault(2, 100, 79)]), None);
    }
}
