//! Throttling detection for jobs without step reports: devices with lowered clocks while the others
//! of their node have none. Only clocks and throttling accuse a device, because in a synchronous
//! job all devices idle when one is slow.
//!
//! A lower clock at no less power than the peers', or throttling that the peers lack, is a
//! suspicion. Both together, throughout the hold, are a confirmation. A lower clock alone is
//! neither, because the device may have less to do.

use serde::{Deserialize, Serialize};

use super::device::{DeviceComparison, Devices};
use super::fusion::ClassScores;
use super::layout::Layout;
use super::settings::Settings;
use super::signal::{Blame, Class, Evidence, Signal, Stage};

/// A device that draws less than this share of its peers' power does less work.
const LESS_POWER: f64 = 0.9;

/// An open episode of a device.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ThrottleEpisode {
    episode: u64,
    since_us: i64,
    excess: f64,
    posterior: f64,
    evidence: Vec<Evidence>,
    is_confirmed: bool,
}

/// Open episodes by rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Throttle {
    slowed: Vec<Option<ThrottleEpisode>>,
}

/// Findings on a device against its peers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct CounterFindings {
    slow_clock: bool,
    throttled: bool,
    /// One finding exceeds what less work explains.
    is_suspect: bool,
}

impl CounterFindings {
    fn from_comparison(shown: &DeviceComparison, settings: &Settings) -> Self {
        let slow_clock = shown.clock_ratio.is_some_and(|ratio| ratio < settings.clock_ratio);
        let throttled = shown.slowdown.is_some_and(|share| share > settings.slowdown_share);
        let alone = shown.slowdown_alone.is_some_and(|share| share > settings.slowdown_share);
        let works = shown.power_ratio.is_some_and(|ratio| ratio >= LESS_POWER);
        Self { slow_clock, throttled, is_suspect: alone || slow_clock && works }
    }

    fn is_sure(self) -> bool {
        self.slow_clock && self.throttled
    }
}

impl Throttle {
    pub fn new(ranks: usize) -> Self {
        Self { slowed: vec![None; ranks] }
    }

    /// Evaluates a rank's device after a window of it that ended at `now_us`.
    pub fn update(
        &mut self,
        rank: u32,
        now_us: i64,
        (layout, devices, settings): (&Layout, &Devices, &Settings),
        next_episode: &mut u64,
        out: &mut Vec<Signal>,
    ) {
        let since_us = now_us.saturating_sub(settings.hold_us);
        let shown = devices.compare(layout, rank, since_us, now_us);
        let found = CounterFindings::from_comparison(&shown, settings);
        let open = &mut self.slowed[rank as usize];
        // Throughout the hold: a short spike of heat does not count.
        let covered = devices.covers(rank, since_us, now_us);
        match open {
            None if covered && (found.is_sure() || found.is_suspect) => {
                let (posterior, evidence) = weigh(&shown, found);
                let excess = shown.clock_ratio.map_or(0.0, |ratio| (1.0 / ratio.max(0.05) - 1.0).max(0.0));
                let is_confirmed = found.is_sure();
                let episode = ThrottleEpisode {
                    episode: *next_episode,
                    since_us,
                    excess,
                    posterior,
                    evidence,
                    is_confirmed,
                };
                *next_episode += 1;
                out.push(episode.signal(
                    rank,
                    if is_confirmed { Stage::Confirmed } else { Stage::Suspect },
                    now_us,
                ));
                *open = Some(episode);
            }
            Some(episode) if !episode.is_confirmed && covered && found.is_sure() => {
                (episode.posterior, episode.evidence) = weigh(&shown, found);
                episode.is_confirmed = true;
                out.push(episode.signal(rank, Stage::Confirmed, now_us));
            }
            Some(episode)
                if !found.is_sure() && !found.is_suspect && (!episode.is_confirmed || !found.throttled) =>
            {
                out.push(episode.signal(rank, Stage::Closed, now_us));
                *open = None;
            }
            _ => {}
        }
    }

    /// Closes open episodes: from now on steps are reported, which say more than counters, or the
    /// run is over.
    pub fn end(&mut self, now_us: i64, out: &mut Vec<Signal>) {
        for (rank, open) in (0..).zip(&mut self.slowed) {
            if let Some(episode) = open.take() {
                out.push(episode.signal(rank, Stage::Closed, now_us));
            }
        }
    }
}

/// Probability of the class and its evidence; weights as with steps.
fn weigh(shown: &DeviceComparison, found: CounterFindings) -> (f64, Vec<Evidence>) {
    let mut scores = ClassScores::new();
    let mut add = |rule, value: Option<f64>, weight| {
        if let Some(value) = value {
            scores.add(rule, value, weight, &[Class::ComputeThermal]);
        }
    };
    if found.slow_clock {
        add("clock_below_peers", shown.clock_ratio, 3.0);
    }
    if found.throttled {
        add("slowed_down", shown.slowdown, 3.0);
    }
    add("power_as_peers", shown.power_ratio.filter(|ratio| *ratio >= LESS_POWER), 1.0);
    add("power_cap_alone", shown.power_cap.filter(|share| *share > 0.5), 1.0);
    add("no_step_reports", Some(1.0), 0.0);
    let (_, posterior, evidence) = scores.close();
    (posterior, evidence)
}

impl ThrottleEpisode {
    fn signal(&self, rank: u32, stage: Stage, said_us: i64) -> Signal {
        Signal {
            episode: self.episode,
            stage,
            class: Class::ComputeThermal,
            posterior: self.posterior,
            blame: Blame::Rank(rank),
            // Stages are unknown without step reports.
            pipeline_stage: None,
            since_us: self.since_us,
            said_us,
            excess: self.excess,
            // Without step times the loss is unknown.
            lost_gpu_ms: 0,
            evidence: self.evidence.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::{DeviceWindow, JobShape};
    use super::*;

    /// Windows of ten seconds of eight devices from 0 to `until`; device 5 is changed from 300 s
    /// on.
    fn watch(until: i64, change: impl Fn(i64, &mut DeviceWindow)) -> Vec<Signal> {
        let shape = JobShape { attempt: 0, node: vec![0; 8], role: vec![0; 8], stages: 1, micro_batches: 1 };
        let layout = Layout::new(&shape, 4, 99);
        let (mut devices, settings) = (Devices::new(8), Settings::default());
        let (mut throttle, mut next_episode, mut out) = (Throttle::new(8), 1, Vec::new());
        for second in (0..until).step_by(10) {
            for rank in 0..8 {
                let mut window = DeviceWindow {
                    rank,
                    start_us: second * 1_000_000,
                    end_us: (second + 10) * 1_000_000,
                    sm_clock_mhz: Some(1_500.0),
                    slowdown_share: Some(0.0),
                    power_w: Some(600.0),
                    ..DeviceWindow::default()
                };
                if rank == 5 && second >= 300 {
                    change(second, &mut window);
                }
                devices.take(&window);
                let known = (&layout, &devices, &settings);
                throttle.update(rank, window.end_us, known, &mut next_episode, &mut out);
            }
        }
        out
    }

    fn stages(episode: &[Signal]) -> Vec<(Stage, Blame)> {
        episode.iter().map(|signal| (signal.stage, signal.blame.clone())).collect()
    }

    #[test]
    fn a_low_clock_accuses_only_at_full_power() {
        let works = watch(600, |_, window| window.sm_clock_mhz = Some(1_200.0));
        assert_eq!(stages(&works), vec![(Stage::Suspect, Blame::Rank(5))]);
        let rules: Vec<&str> = works[0].evidence.iter().map(|evidence| &*evidence.rule).collect();
        assert_eq!(rules, ["clock_below_peers", "power_as_peers", "no_step_reports"]);
        // 0.24 e^4 / (0.24 e^4 + 0.76)
        let odds = 0.24 * 4.0_f64.exp();
        assert!((works[0].posterior - odds / (odds + 0.76)).abs() < 1e-9);
        let idles = watch(600, |_, window| {
            (window.sm_clock_mhz, window.power_w) = (Some(1_200.0), Some(200.0));
        });
        assert_eq!(idles, vec![]);
        let unread = watch(600, |_, window| {
            (window.sm_clock_mhz, window.power_w) = (Some(1_200.0), None);
        });
        assert_eq!(unread, vec![]);
    }

    #[test]
    fn throttling_alone_is_a_suspicion_and_with_the_clock_a_confirmation() {
        let episode = watch(900, |second, window| {
            if second < 700 {
                window.slowdown_share = Some(0.9);
            }
            if (450..700).contains(&second) {
                (window.sm_clock_mhz, window.power_w) = (Some(1_200.0), Some(400.0));
            }
        });
        let of = |stage| (stage, Blame::Rank(5));
        assert_eq!(stages(&episode), vec![of(Stage::Suspect), of(Stage::Confirmed), of(Stage::Closed)]);
        assert!(episode.iter().all(|signal| signal.episode == 1 && signal.lost_gpu_ms == 0));
        // Means over 90 s: throttling exceeds 0.3 after 40 s (0.9 * 4 / 9), the clock falls below
        // 0.95 after 30 s (1 - 0.2 * 3 / 9).
        assert_eq!(episode[0].said_us, 340_000_000);
        assert_eq!(episode[1].said_us, 480_000_000);
    }
}
