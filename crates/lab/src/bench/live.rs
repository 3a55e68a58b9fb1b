//! Live: how many GPUs at one sample a second the pipelines keep up with on one core.

use clap::Args;
use serde::Serialize;

use super::Scratch;
use super::site::phases::{self, Lived, Phase};
use super::site::{Site, disk};
use tidegate_workspace::CommandError;

/// Jobs a day of a thousand GPUs.
const JOBS_OF_A_THOUSAND: u32 = 100;
const ROUNDS_A_MINUTE: u32 = 6;

/// GPUs at one sample a second that one core sustains
///
/// Doubles the fleet until the pipelines take more than a second of CPU time for a second of data,
/// then halves the gap. Every trial commits every ten seconds of data, shows new rows twice a
/// second and updates the ledger once a minute, in a process and a data folder of its own. Time is
/// the data's, so a trial takes as long as its work.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench live --json
  tidegate bench live --from 500 --minutes 1 --within 30")]
pub struct LiveArgs {
    /// Seed of the generated input
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// GPUs of the first trial
    #[arg(long, value_name = "GPUS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    from: u32,
    /// GPUs of the largest trial
    #[arg(long, value_name = "GPUS", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(8..=4_000_000))]
    most: u32,
    /// Minutes of data that are measured, after one that is not
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_440))]
    minutes: u32,
    /// Stop when the largest fleet that fits and the smallest that does not are this close, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    within: u32,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// What the bench reports.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    seed: u64,
    minutes: u32,
    /// GPUs of the largest trial that fits, and what the same CPU time per GPU makes of a whole
    /// core; 0 if not even the first trial fits.
    gpus: u32,
    gpus_per_core: f64,
    samples_per_core_s: f64,
    peak_rss_mib: f64,
    /// In the tables, before files are merged.
    bytes_per_sample: f64,
    trials: Vec<Trial>,
}

/// One fleet.
#[derive(Debug, Clone, Serialize)]
struct Trial {
    gpus: u32,
    /// CPU seconds for a second of data: up to 1 it fits on a core.
    load: f64,
    samples_per_core_s: f64,
    /// CPU seconds.
    flush_p99_s: f64,
    joined_p99_s: f64,
    commits_per_minute: f64,
    peak_rss_mib: f64,
    bytes_per_sample: f64,
}

/// Runs trials until the answer is known to the wanted precision.
pub fn run(args: &LiveArgs) -> Result<Report, CommandError> {
    if args.from > args.most {
        return Err(format!("--from {} is more than --most {}", args.from, args.most).into());
    }
    let mut trials = Vec::new();
    search(args.from, args.most, args.within, |gpus| {
        let trial = measure(args, gpus)?;
        tracing::info!(gpus, load = trial.load, "measured");
        let fits = trial.load <= 1.0;
        trials.push(trial);
        Ok(fits)
    })?;
    let best = trials.iter().filter(|trial| trial.load <= 1.0).max_by_key(|trial| trial.gpus).cloned();
    let of = |value: fn(&Trial) -> f64| best.as_ref().map_or(0.0, value);
    Ok(Report {
        bench: "live",
        seed: args.seed,
        minutes: args.minutes,
        gpus: best.as_ref().map_or(0, |trial| trial.gpus),
        gpus_per_core: of(|trial| f64::from(trial.gpus) / trial.load),
        samples_per_core_s: of(|trial| trial.samples_per_core_s),
        peak_rss_mib: of(|trial| trial.peak_rss_mib),
        bytes_per_sample: of(|trial| trial.bytes_per_sample),
        trials,
    })
}

/// Doubles from `from` while it fits, up to `most`, then halves the gap until it is at most
/// `within` percent wide.
fn search(
    from: u32,
    most: u32,
    within: u32,
    mut fits: impl FnMut(u32) -> Result<bool, CommandError>,
) -> Result<(), CommandError> {
    let mut good = None;
    let mut next = from;
    let mut bad = loop {
        if !fits(next)? {
            break next;
        }
        good = Some(next);
        if next >= most {
            return Ok(());
        }
        next = next.saturating_mul(2).min(most);
    };
    let Some(mut good) = good else { return Ok(()) };
    while u64::from(bad - good) * 100 > u64::from(good) * u64::from(within) && bad - good > 8 {
        let middle = good + (bad - good) / 2;
        match fits(middle)? {
            true => good = middle,
            false => bad = middle,
        }
    }
    Ok(())
}

fn measure(args: &LiveArgs, gpus: u32) -> Result<Trial, CommandError> {
    let scratch = Scratch::new("live")?;
    let nodes = gpus.div_ceil(8);
    let jobs_per_day = (gpus.saturating_mul(JOBS_OF_A_THOUSAND) / 1_000).max(1);
    let site = Site { seed: args.seed, nodes, jobs_per_day, days: 0, watched_hours: 0 };
    let rounds = [0, ROUNDS_A_MINUTE, args.minutes * ROUNDS_A_MINUTE];
    let lived: Lived = phases::start(Phase::Live, scratch.path(), &site, rounds, false)?;
    let disk = disk::measure(&phases::data(scratch.path()))?;
    let minutes = f64::from(args.minutes);
    // The warm minute is in the tables too.
    let stored = lived.samples as f64 * (minutes + 1.0) / minutes;
    Ok(Trial {
        gpus: site.gpus(),
        load: lived.cpu_s / lived.data_s,
        samples_per_core_s: lived.samples as f64 / lived.cpu_s,
        flush_p99_s: lived.flush_s.cpu.p99,
        joined_p99_s: lived.joined_s.cpu.p99,
        commits_per_minute: lived.commits as f64 / minutes,
        peak_rss_mib: lived.peak_rss_mib,
        bytes_per_sample: disk.live_bytes as f64 / stored,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(from: u32, most: u32, limit: u32) -> Vec<u32> {
        let mut asked = Vec::new();
        search(from, most, 10, |gpus| {
            asked.push(gpus);
            Ok(gpus <= limit)
        })
        .expect("no trial fails");
        asked
    }

    #[test]
    fn the_gap_between_what_fits_and_what_does_not_is_halved() {
        let trials = asked(1_000, 1_000_000, 5_300);
        assert_eq!(trials[..4], [1_000, 2_000, 4_000, 8_000]);
        let best = *trials.iter().filter(|gpus| **gpus <= 5_300).max().expect("some fit");
        assert!(best * 11 / 10 >= 5_300, "{trials:?}");
        assert!(trials.len() < 10);
    }

    #[test]
    fn a_first_trial_that_does_not_fit_is_the_only_one_and_the_largest_is_the_last() {
        assert_eq!(asked(1_000, 1_000_000, 10), [1_000]);
        assert_eq!(asked(1_000, 3_000, 9_000), [1_000, 2_000, 3_000]);
    }
}
