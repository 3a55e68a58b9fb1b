//! Source of a backtest: synthetic jobs and demand, a bundled trace, a folder of traces, or the
//! site's own log.

use std::ops::Range;
use std::path::Path;

use clap::{Args, ValueEnum};
use tidegate_evaluation::trace::site::{Site, SiteOptions};
use tidegate_evaluation::trace::{
    Demand, DemandTrace, Jobs, Pairing, QuotaReport, Shape, curves, lend_quotas,
};
use tidegate_sim::generate::{Arrivals, Load};
use tidegate_sim::scenario::Scenario;
use tidegate_sim::{DAY_US, MINUTE_US};

use super::report::Provenance;
use super::site::SiteHistory;
use crate::commands::CommandError;
use crate::commands::up::demo;

const GPUS_PER_NODE: u32 = 8;
const MADE_UP: &str = "made-up";
/// Nodes of a synthetic cluster, for jobs and for the service.
const TRAIN: u16 = 25;
const SERVE: u16 = 15;
/// Largest size of scaling curves, GPUs.
const MOST_GPUS: u32 = 1_024;

/// Arguments that choose jobs and demand.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// made-up, the name of a bundled trace, or a DIR of public traces
    #[arg(long, value_name = "NAME|DIR", default_value = MADE_UP, conflicts_with = "from")]
    trace: String,
    /// Jobs of a DIR
    #[arg(long, value_name = "NAME", default_value = "itp", conflicts_with = "from", value_parser = Jobs::NAMED.map(|(name, _)| name))]
    jobs: String,
    /// Online demand of a DIR
    #[arg(long, value_name = "NAME", default_value = "servegen", conflicts_with = "from", value_parser = Demand::NAMED.map(|(name, _)| name))]
    serving: String,
    /// Scaling of elastic jobs of a DIR: measured in sia_scaling_profiles, or by Amdahl's law with
    /// a serial part of 2 %
    #[arg(long, value_name = "NAME", default_value = "measured", conflicts_with = "from", value_parser = ["measured", "amdahl"])]
    curves: String,
    /// Nodes of 8 GPUs for jobs [default: 25 for made-up jobs, those of the log, or as the trace's
    /// load or quotas need]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    train: Option<u16>,
    /// Nodes of 8 GPUs for the service [default: 15 for made-up demand, else as many GPUs as for
    /// jobs]
    #[arg(long, conflicts_with = "from", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    serve: Option<u16>,
    /// Mean arriving work, percent of the GPUs for jobs; 100 for made-up jobs
    #[arg(long, value_name = "PERCENT", default_value_t = 90, conflicts_with = "from", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    load: u16,
    /// Peak demand of the service, percent of its GPUs; 85 if made up
    #[arg(long, value_name = "PERCENT", default_value_t = 90, conflicts_with = "from", value_parser = clap::value_parser!(u16).range(1..=100))]
    peak: u16,
    /// Days in which jobs arrive
    #[arg(long, default_value_t = 7, conflicts_with = "from", value_parser = clap::value_parser!(u16).range(1..=365))]
    days: u16,
    /// Days of earlier demand that the autopilot's forecast has learnt. On a log it is up to 28
    /// days before --from
    #[arg(long, value_name = "DAYS", default_value_t = 0, conflicts_with = "from", value_parser = clap::value_parser!(u16).range(0..=365))]
    history: u16,
    /// Price of a GPU-hour [default: the log's price book, if one price holds for all]; without a
    /// price no costs are reported
    #[arg(long, value_name = "PRICE", value_parser = micros)]
    price: Option<i64>,
}

/// Millionths of a price.
fn micros(text: &str) -> Result<i64, String> {
    let price = text.parse::<f64>().ok().filter(|price| (0.0..1e6).contains(price));
    price.map(|price| (price * 1e6).round() as i64).ok_or_else(|| "give a price of an hour, e.g. 2.5".into())
}

/// Source of scenarios.
#[derive(Debug)]
pub enum Source {
    /// Drawn anew for each seed.
    MadeUp { train: u16, serve: u16, days: u16, history: u16, price_micros: Option<i64> },
    /// Traces.
    Traced(Box<Pairing>),
    /// The site's own log.
    Site(Box<Site>),
}

impl Source {
    /// Opens the chosen source.
    pub fn open(args: &SourceArgs) -> Result<Self, CommandError> {
        if args.trace == MADE_UP {
            let (train, serve) = (args.train.unwrap_or(TRAIN), args.serve.unwrap_or(SERVE));
            let SourceArgs { days, history, price, .. } = *args;
            return Ok(Self::MadeUp { train, serve, days, history, price_micros: price });
        }
        if let Ok(shipped) = demo::Trace::from_str(&args.trace, false) {
            let folder = tempfile::tempdir()?;
            let file = folder.path().join(format!("{}.parquet", shipped.name()));
            std::fs::write(&file, shipped.parquet())?;
            let jobs = match shipped {
                demo::Trace::PhillyMultigpuAttempts => Jobs::PhillyAttempts,
                demo::Trace::MsItpJobs => Jobs::Itp,
            };
            let demand = DemandTrace::made_up();
            let pairing = Pairing::new(jobs.read(folder.path())?, Some(demand), Vec::new(), args.shape())?;
            return Ok(Self::Traced(Box::new(pairing)));
        }
        let folder = args.folder()?;
        let demand = named(&Demand::NAMED, &args.serving)?.read(folder)?;
        let curves = match args.curves.as_str() {
            "measured" => curves(folder, MOST_GPUS)?.into_iter().map(|(_, curve)| curve).collect(),
            _ => Vec::new(),
        };
        let pairing = Pairing::new(args.jobs()?.read(folder)?, Some(demand), curves, args.shape())?;
        Ok(Self::Traced(Box::new(pairing)))
    }

    /// The scenario of a seed.
    pub fn scenario(&self, seed: u64) -> Scenario {
        match self {
            Self::Traced(pairing) => pairing.setting(seed),
            Self::Site(site) => site.setting(seed),
            Self::MadeUp { train, serve, days, history, price_micros } => {
                let (span_us, past_us) = (i64::from(*days) * DAY_US, i64::from(*history) * DAY_US);
                let gpus = |nodes: u16| u32::from(nodes) * GPUS_PER_NODE;
                let arrivals = Arrivals { span_us, load_gpus: gpus(*train), ..Arrivals::default() };
                let load = Load {
                    span_us: past_us + span_us,
                    peak_gpus: gpus(*serve) * 85 / 100,
                    ..Load::default()
                };
                let made = Scenario::synthetic((*train).into(), (*serve).into(), &arrivals, &load, seed);
                Scenario { price_micros: *price_micros, ..made.after(past_us) }
            }
        }
    }

    /// Provenance; `None` if all is synthetic.
    pub fn about(&self) -> Option<Provenance> {
        match self {
            Self::Traced(pairing) => Some(Provenance::Traces(pairing.about())),
            Self::Site(site) => Some(Provenance::Log(site.about().clone())),
            Self::MadeUp { .. } => None,
        }
    }
}

impl SourceArgs {
    /// The site's history as a source.
    pub fn site(&self, site: &SiteHistory) -> Result<Source, CommandError> {
        let train = self.train.map(usize::from);
        let wanted = SiteOptions { serves: site.serves.clone(), train, price_micros: self.price };
        Ok(Source::Site(Box::new(Site::new(&site.history, &wanted)?)))
    }

    /// Measures lending of idle quota in a trace.
    pub fn quotas(&self, seeds: Range<u64>, reclaim_within: u16) -> Result<QuotaReport, CommandError> {
        let promise_us = i64::from(reclaim_within) * MINUTE_US;
        Ok(lend_quotas(self.folder()?, self.jobs()?, self.shape(), seeds, promise_us)?)
    }

    fn folder(&self) -> Result<&Path, CommandError> {
        let folder = Path::new(&self.trace);
        if !folder.is_dir() {
            let shipped: Vec<&str> = demo::Trace::value_variants().iter().map(|t| t.name()).collect();
            let names = shipped.join(", ");
            return Err(format!(
                "{} is no trace and no folder: name {MADE_UP}, {names}, or a folder of traces",
                self.trace
            )
            .into());
        }
        Ok(folder)
    }

    fn jobs(&self) -> Result<Jobs, CommandError> {
        named(&Jobs::NAMED, &self.jobs)
    }

    fn shape(&self) -> Shape {
        Shape {
            days: self.days.into(),
            history_days: self.history.into(),
            train: self.train.map(usize::from),
            serve: self.serve.map(usize::from),
            load_ppm: u32::from(self.load) * 10_000,
            peak_ppm: u32::from(self.peak) * 10_000,
            price_micros: self.price,
        }
    }
}

fn named<T: Copy>(of: &[(&str, T)], name: &str) -> Result<T, CommandError> {
    let found = of.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| format!("{name} is no name of a trace").into())
}
