//! The 16 job-demand series of the protocol: time-weighted mean of GPUs asked for, hour by hour, with 24 decisions each.

use std::{collections::BTreeMap, path::Path};

use super::{Case, SizingTrialError, columns::Columns};

/// A job's claim: GPUs, begin and end in hours of the trace.
type Claim = (f64, f64, f64);

/// Hours a series covers, from and to, with its first decision and hours between decisions.
struct Protocol {
    set: &'static str,
    hours: std::ops::Range<usize>,
    first: usize,
    step: usize,
}

/// Reads the series of sets itp, philly, helios and openb from `folder`.
///
/// # Errors
/// A file or column that is missing.
pub fn demand_cases(folder: &Path) -> Result<Vec<Case>, SizingTrialError> {
    let mut cases = itp(folder)?;
    cases.extend(philly(folder)?);
    cases.extend(helios(folder)?);
    cases.extend(openb(folder)?);
    Ok(cases)
}

fn itp(folder: &Path) -> Result<Vec<Case>, SizingTrialError> {
    let file = Columns::read(folder, "ms_itp_jobs")?;
    let (begin, length) = (file.numbers("submission_time")?, file.numbers("duration")?);
    let claims = claims(&file.numbers("num_gpu")?, &begin, |job| begin[job] + length[job]);
    let protocol = Protocol { set: "itp", hours: 0..1416, first: 672, step: 25 };
    Ok(protocol.cases(&claims, &file.texts("cluster")?, &["04", "02", "08", "01"]))
}

fn philly(folder: &Path) -> Result<Vec<Case>, SizingTrialError> {
    /// Monday 2017-09-04 00:00, seconds since 1970.
    const MONDAY: f64 = 1_504_483_200.0;
    let file = Columns::read(folder, "philly_jobs")?;
    let begin: Vec<f64> = file.seconds("timestamp")?.iter().map(|second| second - MONDAY).collect();
    let length = file.numbers("duration")?;
    let claims = claims(&file.numbers("num_gpus")?, &begin, |job| begin[job] + length[job]);
    let protocol = Protocol { set: "philly", hours: 504..2352, first: 672, step: 43 };
    Ok(protocol.cases(&claims, &file.texts("cluster")?, &["ee9e8c", "7f04ca", "6214e9", "2869ce"]))
}

fn openb(folder: &Path) -> Result<Vec<Case>, SizingTrialError> {
    let file = Columns::read(folder, "alibaba_openb_pods")?;
    let (whole, milli) = (file.numbers("num_gpu")?, file.numbers("gpu_milli")?);
    let gpus: Vec<f64> = whole
        .iter()
        .zip(&milli)
        .map(|(&gpus, milli)| if gpus == 1.0 { milli / 1000.0 } else { gpus })
        .collect();
    let end = file.numbers("deletion_time")?;
    let claims = claims(&gpus, &file.numbers("creation_time")?, |job| end[job]);
    let protocol = Protocol { set: "openb", hours: 56 * 24..140 * 24, first: 672, step: 49 };
    Ok(protocol.cases(&claims, &vec![String::new(); claims.len()], &[]))
}

fn helios(folder: &Path) -> Result<Vec<Case>, SizingTrialError> {
    let file = Columns::read(folder, "helios_earth_vc_1min")?;
    let (minute, team) = (file.seconds("time")?, file.texts("vc")?);
    let (running, pending) = (file.numbers("running_gpu_num")?, file.numbers("pending_gpu_num")?);
    let first = minute.iter().copied().fold(f64::INFINITY, f64::min);
    let mut by_team: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (row, minute) in minute.iter().enumerate() {
        let hour = ((minute - first) / 3600.0) as usize;
        for name in ["total", &team[row]] {
            let hours = by_team.entry(name).or_insert_with(|| vec![0.0; 744]);
            if let Some(sum) = hours.get_mut(hour) {
                *sum += (running[row] + pending[row]) / 60.0;
            }
        }
    }
    let case = |name: &str| Case {
        name: format!("helios/{name}"),
        demand: by_team.get(name).cloned().unwrap_or_default(),
        first: 408,
        step: 7,
        outside: Vec::new(),
    };
    Ok(["total", "vc6YE", "vcvlY", "vc3sl", "vcTJs"].map(case).into())
}

fn claims(gpus: &[f64], begin_s: &[f64], end_s: impl Fn(usize) -> f64) -> Vec<Claim> {
    (0..gpus.len()).map(|job| (gpus[job], begin_s[job] / 3600.0, end_s(job) / 3600.0)).collect()
}

impl Protocol {
    /// The total, and the teams whose names hold those given.
    fn cases(&self, claims: &[Claim], team: &[String], teams: &[&str]) -> Vec<Case> {
        let case = |name: &str, claims: &[Claim]| Case {
            name: format!("{}/{name}", self.set),
            demand: hourly(claims, self.hours.clone()),
            first: self.first,
            step: self.step,
            outside: Vec::new(),
        };
        let mut cases = vec![case("total", claims)];
        for name in teams {
            let own =
                claims.iter().zip(team).filter(|(_, team)| team.contains(name)).map(|(claim, _)| *claim);
            cases.push(case(name, &own.collect::<Vec<_>>()));
        }
        cases
    }
}

/// Exact mean of each hour: a claim adds its GPUs times the share of the hour it covers.
fn hourly(claims: &[Claim], hours: std::ops::Range<usize>) -> Vec<f64> {
    let mut demand = vec![0.0; hours.len()];
    let first = hours.start as f64;
    for &(gpus, begin, end) in claims.iter().filter(|(gpus, ..)| *gpus > 0.0) {
        let (begin, end) = ((begin - first).max(0.0), (end - first).min(hours.len() as f64));
        if begin >= end {
            continue;
        }
        for (hour, sum) in demand.iter_mut().enumerate().take(end.ceil() as usize).skip(begin as usize) {
            *sum += gpus * (end.min(hour as f64 + 1.0) - begin.max(hour as f64));
        }
    }
    demand
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_counts_by_its_share_of_each_hour() {
        let claims = [(8.0, 0.5, 3.25), (2.0, -5.0, 99.0), (1.0, 2.0, 2.0), (4.0, 7.0, 9.0)];
        assert_eq!(hourly(&claims, 0..4), [6.0, 10.0, 10.0, 4.0]);
        assert_eq!(hourly(&claims, 3..5), [4.0, 2.0]);
    }
}
