//! Without step reports: which devices are slowed down while the others of their node are not. Nobody is blamed for anything
//! that clocks and throttling do not show, because in a synchronous job all devices idle when one is slow.

use super::device::Devices;
use super::layout::Layout;
use super::settings::Settings;
use super::signal::{Blame, Class, Evidence, Signal, Stage};

/// A device that is slowed down.
#[derive(Debug, Clone)]
struct Slowed {
    event: u64,
    since_us: i64,
    excess: f64,
    posterior: f64,
    evidence: Vec<Evidence>,
}

/// What is being said of each rank's device.
#[derive(Debug, Clone)]
pub(super) struct Throttle {
    slowed: Vec<Option<Slowed>>,
}

impl Throttle {
    pub fn new(ranks: usize) -> Self {
        Self { slowed: vec![None; ranks] }
    }

    /// Looks at a rank's device after a window of it that ended at `now_us`.
    pub fn look(
        &mut self,
        rank: u32,
        now_us: i64,
        (layout, devices, settings): (&Layout, &Devices, &Settings),
        next_event: &mut u64,
        out: &mut Vec<Signal>,
    ) {
        let since_us = now_us.saturating_sub(settings.hold_us);
        let shown = devices.showing(layout, rank, since_us, now_us);
        let gpus_excess = shown.clock_ratio.map_or(0.0, |ratio| 1.0 / ratio.max(0.05) - 1.0);
        let slow_clock = shown.clock_ratio.is_some_and(|ratio| ratio < settings.clock_ratio);
        let throttled = shown.slowdown.is_some_and(|share| share > settings.slowdown_share);
        let open = &mut self.slowed[rank as usize];
        // Both, all through the hold: a clock alone may be low because the device idles.
        let covered = devices.covers(rank, since_us, now_us);
        match open {
            None if slow_clock && throttled && covered => {
                let evidence = vec![
                    Evidence {
                        rule: "clock_below_peers",
                        value: shown.clock_ratio.unwrap_or(1.0),
                        weight: 3.0,
                    },
                    Evidence { rule: "slowed_down", value: shown.slowdown.unwrap_or(0.0), weight: 3.0 },
                ];
                // Prior odds of a slow device in any minute and a half: 0.0038 a node-hour, lasting ten minutes.
                let odds = (6.0_f64 - 4.0).exp();
                let said = Slowed {
                    event: *next_event,
                    since_us,
                    excess: gpus_excess,
                    posterior: odds / (1.0 + odds),
                    evidence,
                };
                *next_event += 1;
                out.push(said.say(rank, Stage::Confirmed, now_us));
                *open = Some(said);
            }
            Some(said) if !slow_clock && !throttled => {
                out.push(said.say(rank, Stage::Closed, now_us));
                *open = None;
            }
            _ => {}
        }
    }
}

impl Slowed {
    fn say(&self, rank: u32, stage: Stage, said_us: i64) -> Signal {
        Signal {
            event: self.event,
            stage,
            class: Class::ComputeThermal,
            posterior: self.posterior,
            blame: Blame::Rank(rank),
            since_us: self.since_us,
            said_us,
            excess: self.excess,
            // Without step times nobody knows what the job lost.
            lost_gpu_ms: 0,
            evidence: self.evidence.clone(),
        }
    }
}
