//! Datasets of the protocol, built from the published traces.

use std::{collections::BTreeMap, path::Path};

use tidegate_insight::forecast::{SIZE_CLASSES, size_class};

use super::{Claim, TraceError, demand::hourly};
use crate::columns::Columns;

/// One series of a trace, with its forecast origins.
#[derive(Debug, Clone)]
pub struct Series {
    /// Trace: itp, philly, helios, openb or servegen.
    pub set: &'static str,
    /// `total`, or the team, cluster or model.
    pub name: String,
    /// Mean of each hour: GPUs, or requests a second for servegen.
    pub values: Vec<f64>,
    /// First origin: hours known before the first forecast.
    pub first_origin: usize,
    /// Hours between origins.
    pub step: usize,
    /// Number of origins.
    pub origins: usize,
    /// Hours forecast.
    pub horizon: usize,
    /// Jobs behind the series, seconds from its first hour; empty where the trace has none.
    pub claims: Vec<Claim>,
    /// Rate by hour of each client behind a serving series, shape (clients, hours).
    pub clients: Vec<Vec<f64>>,
}

impl Series {
    /// Origins in order: index of the first hour forecast.
    pub fn origins(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.origins).map(|i| self.first_origin + i * self.step)
    }
}

const DAY: f64 = 86_400.0;
/// Name of the set of demand by size class. Not part of the protocol; runs only if named.
pub const CLASSES: &str = "classes";

/// Reads all sets of the protocol from `folder`, in the order itp, philly, helios, openb, servegen.
///
/// # Errors
/// [`TraceError`] names the file or series that is missing.
pub fn load(folder: &Path) -> Result<Vec<Series>, TraceError> {
    let mut all = itp(folder)?;
    all.extend(philly(folder)?);
    all.extend(helios(folder)?);
    all.extend(openb(folder)?);
    all.extend(servegen(folder)?);
    Ok(all)
}

/// Demand by size class: one series for each class with demand, named `SET-CLASS`, with the same
/// origins.
pub fn by_class(series: &Series) -> Vec<Series> {
    let of_class = |class: &&str| {
        let own = series.claims.iter().filter(|claim| size_class(claim.gpus) == Some(class));
        let claims: Vec<Claim> = own.copied().collect();
        Series {
            set: CLASSES,
            name: format!("{}-{class}", series.set),
            values: hourly(&claims, 0, series.values.len()),
            claims,
            clients: Vec::new(),
            ..series.clone()
        }
    };
    let has_demand = |series: &Series| series.values[..series.first_origin].iter().any(|gpus| *gpus > 0.0);
    SIZE_CLASSES.iter().map(of_class).filter(has_demand).collect()
}

struct Protocol {
    set: &'static str,
    first_hour: usize,
    hours: usize,
    first_origin: usize,
    step: usize,
}

impl Protocol {
    fn series(&self, name: &str, claims: &[Claim]) -> Series {
        let offset = self.first_hour as f64 * 3600.0;
        let shifted = |c: &Claim| Claim { start: c.start - offset, end: c.end - offset, ..*c };
        Series {
            set: self.set,
            name: name.to_owned(),
            values: hourly(claims, self.first_hour, self.hours),
            first_origin: self.first_origin,
            step: self.step,
            origins: 24,
            horizon: 168,
            claims: claims.iter().map(shifted).collect(),
            clients: Vec::new(),
        }
    }

    /// The total, and the teams with the given name prefixes.
    fn with_teams(
        &self,
        claims: &[Claim],
        team: &[String],
        teams: &[&str],
    ) -> Result<Vec<Series>, TraceError> {
        let mut all = vec![self.series("total", claims)];
        for name in teams {
            let own: Vec<Claim> =
                claims.iter().zip(team).filter(|(_, t)| t.contains(name)).map(|(c, _)| *c).collect();
            if own.is_empty() {
                return Err(TraceError::NoSeries { set: self.set, name: (*name).to_owned() });
            }
            all.push(self.series(name, &own));
        }
        Ok(all)
    }
}

fn itp(folder: &Path) -> Result<Vec<Series>, TraceError> {
    let file = Columns::read(folder, "ms_itp_jobs")?;
    let (start, length, gpus) =
        (file.numbers("submission_time")?, file.numbers("duration")?, file.numbers("num_gpu")?);
    let claims = claims(start.iter().zip(&length).map(|(s, d)| (*s, s + d)), &gpus);
    let protocol = Protocol { set: "itp", first_hour: 0, hours: 1416, first_origin: 672, step: 25 };
    protocol.with_teams(&claims, &file.texts("cluster")?, &["04", "02", "08", "01"])
}

fn philly(folder: &Path) -> Result<Vec<Series>, TraceError> {
    let file = Columns::read(folder, "philly_jobs")?;
    let monday = 1_504_483_200.0; // 2017-09-04 00:00
    let start = file.seconds("timestamp")?;
    let length = file.numbers("duration")?;
    let claims = claims(
        start.iter().zip(&length).map(|(s, d)| (s - monday, s - monday + d)),
        &file.numbers("num_gpus")?,
    );
    let protocol = Protocol { set: "philly", first_hour: 504, hours: 1848, first_origin: 672, step: 43 };
    protocol.with_teams(&claims, &file.texts("cluster")?, &["ee9e8c", "7f04ca", "6214e9", "2869ce"])
}

fn openb(folder: &Path) -> Result<Vec<Series>, TraceError> {
    let file = Columns::read(folder, "alibaba_openb_pods")?;
    let (whole, milli) = (file.numbers("num_gpu")?, file.numbers("gpu_milli")?);
    let gpus: Vec<f64> =
        whole.iter().zip(&milli).map(|(g, m)| if *g == 1.0 { m / 1000.0 } else { *g }).collect();
    let (start, end) = (file.numbers("creation_time")?, file.numbers("deletion_time")?);
    let claims = claims(start.iter().copied().zip(end.iter().copied()), &gpus);
    let protocol = Protocol { set: "openb", first_hour: 56 * 24, hours: 2016, first_origin: 672, step: 49 };
    Ok(vec![protocol.series("total", &claims)])
}

fn claims(spans: impl Iterator<Item = (f64, f64)>, gpus: &[f64]) -> Vec<Claim> {
    spans
        .zip(gpus)
        .map(|((start, end), gpus)| Claim { gpus: *gpus, start, end })
        .filter(|c| c.gpus > 0.0 && c.end > c.start)
        .collect()
}

fn helios(folder: &Path) -> Result<Vec<Series>, TraceError> {
    let file = Columns::read(folder, "helios_earth_vc_1min")?;
    let (time, vc) = (file.seconds("time")?, file.texts("vc")?);
    let (running, pending) = (file.numbers("running_gpu_num")?, file.numbers("pending_gpu_num")?);
    let first = time.iter().copied().fold(f64::INFINITY, f64::min);
    let mut minutes: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for i in 0..time.len() {
        let hours = minutes.entry("total").or_insert_with(|| vec![(0.0, 0.0); 744]);
        let hour = ((time[i] - first) / 3600.0) as usize;
        let Some(total) = hours.get_mut(hour) else { continue };
        total.0 += running[i] + pending[i];
        let own = minutes.entry(&vc[i]).or_insert_with(|| vec![(0.0, 0.0); 744]);
        own[hour].0 += running[i] + pending[i];
        own[hour].1 += 1.0;
    }
    ["total", "vc6YE", "vcvlY", "vc3sl", "vcTJs"]
        .into_iter()
        .map(|name| {
            let hours =
                minutes.get(name).ok_or(TraceError::NoSeries { set: "helios", name: name.to_owned() })?;
            Ok(Series {
                set: "helios",
                name: name.to_owned(),
                values: hours.iter().map(|(sum, _)| sum / 60.0).collect(),
                first_origin: 408,
                step: 7,
                origins: 24,
                horizon: 168,
                claims: Vec::new(),
                clients: Vec::new(),
            })
        })
        .collect()
}

fn servegen(folder: &Path) -> Result<Vec<Series>, TraceError> {
    let load = Columns::read(folder, "servegen_load_10min")?;
    let clients = Columns::read(folder, "servegen_client_rates")?;
    let total = hourly_rates(&load, None)?;
    let mut by_client = hourly_rates(&clients, Some("client_id"))?;
    ["m-large", "m-small"]
        .into_iter()
        .map(|name| {
            let missing = || TraceError::NoSeries { set: "servegen", name: name.to_owned() };
            let values = total.get(&(name.to_owned(), 0)).cloned().ok_or_else(missing)?;
            let mine: Vec<_> = by_client.keys().filter(|(model, _)| model == name).cloned().collect();
            Ok(Series {
                set: "servegen",
                name: name.to_owned(),
                values,
                first_origin: 168,
                step: 6,
                origins: 24,
                horizon: 24,
                claims: Vec::new(),
                clients: mine.iter().filter_map(|key| by_client.remove(key)).collect(),
            })
        })
        .collect()
}

/// Hourly mean rate over 14 days by model and optionally client: six windows of ten minutes per
/// hour; a missing one is zero.
fn hourly_rates(
    file: &Columns,
    client: Option<&str>,
) -> Result<BTreeMap<(String, i64), Vec<f64>>, TraceError> {
    let (model, time, rate) = (file.texts("model")?, file.numbers("timestamp_s")?, file.numbers("rate_rps")?);
    let client = client.map(|name| file.numbers(name)).transpose()?;
    let mut out: BTreeMap<(String, i64), Vec<f64>> = BTreeMap::new();
    for i in 0..time.len() {
        let hour = (time[i] / 3600.0) as usize;
        if hour >= 336 || !rate[i].is_finite() || DAY * 14.0 <= time[i] {
            continue;
        }
        let key = (model[i].clone(), client.as_ref().map_or(0, |c| c[i] as i64));
        out.entry(key).or_insert_with(|| vec![0.0; 336])[hour] += rate[i] / 6.0;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_share_out_the_whole() {
        let claim = |gpus, start: f64| Claim { gpus, start, end: start + 5_400.0 };
        let claims: Vec<Claim> = (0..40)
            .flat_map(|at| [claim(0.5, f64::from(at) * 3_000.0), claim(8.0, f64::from(at) * 2_000.0)])
            .collect();
        let protocol = Protocol { set: "itp", first_hour: 2, hours: 30, first_origin: 10, step: 5 };
        let whole = protocol.series("total", &claims);
        let parts = by_class(&whole);
        assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["itp-1", "itp-5-8"]);
        for (hour, gpus) in whole.values.iter().enumerate() {
            let sum: f64 = parts.iter().map(|part| part.values[hour]).sum();
            assert!((sum - gpus).abs() < 1e-9, "{hour}: {sum} {gpus}");
        }
    }
}
