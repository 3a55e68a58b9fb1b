//! Report as a scale-free table: geometric means over series relative to SNaive24.

use super::{
    datasets::CLASSES,
    metrics::{ByBucket, Scores},
    rivals::RIVALS,
    run::{OURS, Report},
};

/// Filter of series by name.
pub type SeriesFilter = fn(&str) -> bool;

impl Report {
    /// Geometric mean, over the series that `of` accepts, of a score relative to SNaive24; `None`
    /// without such series.
    pub fn relative(
        &self,
        model: &str,
        bucket: usize,
        metric: fn(&Scores) -> f64,
        of: SeriesFilter,
    ) -> Option<f64> {
        let (rows, base) = (self.series.get(model)?, self.series.get(RIVALS[0])?);
        let logs: Vec<f64> = rows
            .iter()
            .filter(|(name, _)| of(name))
            .filter_map(|(name, own)| {
                Some((metric(own.get(&bucket)?) / metric(base.get(name)?.get(&bucket)?)).ln())
            })
            .collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }

    /// Mean over the series that `of` accepts.
    pub fn mean(
        &self,
        model: &str,
        bucket: usize,
        metric: fn(&Scores) -> f64,
        of: SeriesFilter,
    ) -> Option<f64> {
        let rows: Vec<f64> = self
            .series
            .get(model)?
            .iter()
            .filter(|(name, _)| of(name))
            .filter_map(|(_, own): (_, &ByBucket)| own.get(&bucket).map(metric))
            .collect();
        (!rows.is_empty()).then(|| rows.iter().sum::<f64>() / rows.len() as f64)
    }

    /// Summary of all sets, then each set, then times.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let wql: fn(&Scores) -> f64 = |s| s.wql;
        let mase: fn(&Scores) -> f64 = |s| s.mase;
        let groups: [(&str, SeriesFilter); 8] = [
            ("job demand", is_demand),
            ("with job events", has_jobs),
            ("itp", |n| n.starts_with("itp")),
            ("philly", |n| n.starts_with("philly")),
            ("helios", |n| n.starts_with("helios")),
            ("openb", |n| n.starts_with("openb")),
            ("serving", |n| n.starts_with("servegen")),
            ("by class of jobs", |n| n.starts_with(CLASSES)),
        ];
        for (title, of) in groups {
            if self.mean(OURS, 24, wql, of).is_none() {
                continue;
            }
            line(
                &mut out,
                title,
                &[
                    "rWQL 1h",
                    "24h",
                    "168h",
                    "rMASE 24h",
                    "168h",
                    "WQL 24h",
                    "168h",
                    "cov80 24h",
                    "168h",
                    "cov95 24h",
                    "168h",
                ]
                .map(str::to_owned),
            );
            for model in RIVALS.iter().chain([&OURS]) {
                let mut cells: Vec<Option<f64>> = Vec::new();
                cells.extend([1, 24, 168].map(|b| self.relative(model, b, wql, of)));
                cells.extend([24, 168].map(|b| self.relative(model, b, mase, of)));
                cells.extend([24, 168].map(|b| self.mean(model, b, wql, of)));
                cells.extend([24, 168].map(|b| self.mean(model, b, |s| s.cov80, of)));
                cells.extend([24, 168].map(|b| self.mean(model, b, |s| s.cov95, of)));
                let cells: Vec<String> =
                    cells.iter().map(|c| c.map_or("–".to_owned(), |v| format!("{v:.3}"))).collect();
                line(&mut out, model, &cells);
            }
            out.push('\n');
        }
        line(&mut out, "time", &["forecast ms", "worst ms", "event us"].map(str::to_owned));
        for (name, times) in &self.times {
            let cells = [times.forecast_ms, times.worst_ms, times.event_us].map(|v| format!("{v:.2}"));
            line(&mut out, name, &cells);
        }
        out
    }
}

fn line(out: &mut String, name: &str, cells: &[String]) {
    out.push_str(&format!("{name:<16}"));
    for cell in cells {
        out.push_str(&format!("{cell:>12}"));
    }
    out.push('\n');
}

fn is_demand(name: &str) -> bool {
    !name.starts_with("servegen") && !name.starts_with(CLASSES)
}

fn has_jobs(name: &str) -> bool {
    name.starts_with("itp") || name.starts_with("philly")
}
