//! One run of a job: closes its steps one by one, and keeps its series and episodes.
//!
//! [`measure`] writes a step's values, [`episodes`] starts and moves episodes on them, [`loss`]
//! counts what they cost, [`classification`] turns them into signals.

mod classification;
mod episodes;
mod loss;
mod measure;

pub(super) use measure::reference;

use serde::{Deserialize, Serialize};

use super::cusum::{CusumBank, Tuning};
use super::device::Devices;
use super::episode::{Episode, Kind};
use super::history::{self, History, Step};
use super::layout::Layout;
use super::order_statistics;
use super::settings::Settings;
use super::signal::{Evidence, Signal, Stage};
use super::step_buffer::{StepBuffer, StepSlot};
use super::workload::Workload;

/// Order of processing: a node before its ranks.
const KINDS: [Kind; 5] = [Kind::Node, Kind::Compute, Kind::Data, Kind::Drift, Kind::Transfer];

/// Which device evidence is known.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct EvidenceHorizon {
    /// Evidence that ended by then, µs since 1970.
    pub until_us: i64,
    /// Some of it is new since the last step.
    pub has_new: bool,
}

/// State of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Job {
    pub settings: Settings,
    pub layout: Layout,
    pub step_buffer: StepBuffer,
    pub workload: Workload,
    pub history: History,
    pub devices: Devices,
    pub evidence: EvidenceHorizon,
    pub compute: CusumBank,
    pub data: CusumBank,
    /// Median over each node's ranks: a host that slows all of them shows long before a single rank
    /// does.
    pub nodes: CusumBank,
    pub drift: CusumBank,
    pub transfer: CusumBank,
    pub episodes: Vec<Episode>,
    /// Starts of the open episodes other than transfer, as of the last step.
    others: Vec<(Kind, u64)>,
    /// Median duration of the last steps, µs.
    pub step_us: f64,
    /// Logarithms of the step's normalised computing times, by rank.
    logs: Vec<f32>,
    /// The same without the difference of their roles, and that difference by role.
    levelled: Vec<f32>,
    offsets: Vec<f32>,
    scratch: Vec<f32>,
    workers: Vec<f64>,
}

impl Job {
    pub fn new(layout: Layout, settings: &Settings) -> Self {
        let ranks = layout.ranks();
        let of_ranks = |slack: f64| Tuning {
            noise_floor: settings.noise_floor,
            effect_floor: settings.effect_floor,
            effect_cap: settings.effect_cap,
            slack,
            cautious: false,
            centred: false,
        };
        let of_data = Tuning { effect_cap: settings.effect_floor, ..of_ranks(0.5) };
        let of_transfer = Tuning {
            noise_floor: settings.transfer_noise_floor,
            effect_floor: settings.transfer_effect,
            effect_cap: settings.transfer_effect_cap,
            ..of_ranks(0.5)
        };
        let (lone, nodes) = (layout.lone_roles.len(), layout.nodes.len());
        Self {
            settings: *settings,
            step_buffer: StepBuffer::new(ranks, settings.open_steps),
            workload: Workload::new(layout.roles.len()),
            history: History::new(ranks, layout.classes.len()),
            devices: Devices::new(ranks),
            evidence: EvidenceHorizon { until_us: i64::MIN, has_new: false },
            compute: CusumBank::new(ranks, ranks, of_ranks(0.5), settings),
            data: CusumBank::new(ranks, ranks, of_data, settings),
            nodes: CusumBank::new(nodes, ranks, Tuning { centred: true, ..of_ranks(0.5) }, settings),
            drift: CusumBank::new(lone, lone, Tuning { cautious: true, ..of_ranks(0.85) }, settings),
            transfer: CusumBank::new(1, 1, of_transfer, settings),
            episodes: Vec::new(),
            others: Vec::new(),
            step_us: 0.0,
            logs: vec![f32::NAN; ranks],
            levelled: vec![f32::NAN; ranks],
            offsets: vec![0.0; layout.roles.len()],
            scratch: Vec::with_capacity(ranks),
            workers: Vec::with_capacity(ranks),
            layout,
        }
    }

    /// Memory of the run, bytes: rows of 256 steps (computing time, and three banks), what else
    /// there is of each rank, device windows as if all were full, and the open steps.
    pub fn bytes(&self) -> usize {
        const SERIES: usize = 4;
        const OTHERS: usize = 640;
        let rank = SERIES * history::DEPTH * size_of::<f32>() + OTHERS + Devices::BYTES_PER_RANK;
        let classes = self.layout.classes.len() * history::DEPTH * size_of::<f32>();
        self.layout.ranks() * rank + classes + self.step_buffer.bytes()
    }

    pub fn bank(&mut self, kind: Kind) -> &mut CusumBank {
        match kind {
            Kind::Compute => &mut self.compute,
            Kind::Data => &mut self.data,
            Kind::Node => &mut self.nodes,
            Kind::Drift => &mut self.drift,
            Kind::Transfer => &mut self.transfer,
        }
    }

    /// Processes a closed step and appends signals. Returns its number.
    pub fn close(
        &mut self,
        slot: &StepSlot,
        end_us: i64,
        next_episode: &mut u64,
        out: &mut Vec<Signal>,
    ) -> u64 {
        let duration = median_of(&slot.duration, &mut self.scratch);
        let step = Step { number: slot.step, end_us, duration, level: f32::NAN };
        let seq = self.history.begin(step);
        self.measure(seq, slot);
        self.update_step_time(seq);
        self.workload.end_step();
        self.freeze();
        for kind in KINDS {
            self.bank(kind).advance(seq);
        }
        self.advance_episodes(seq, out);
        for kind in KINDS {
            if !self.bank(kind).alarms.is_empty() {
                self.suspect(kind, seq, next_episode, out);
            }
        }
        seq
    }

    /// Keeps the baselines of ranks whose peers are slow; otherwise they would seem slow when the
    /// peers recover.
    fn freeze(&mut self) {
        let slow = self.episodes.iter().any(|episode| !episode.closed && episode.kind != Kind::Transfer);
        if !slow && !self.compute.any_frozen() {
            return;
        }
        let spoiled: Vec<bool> = self
            .layout
            .classes
            .iter()
            .map(|members| {
                let held = members.iter().filter(|&&rank| self.compute.is_held(rank as usize)).count();
                held * 5 > members.len()
            })
            .collect();
        for rank in 0..self.layout.ranks() {
            self.compute.freeze(rank, spoiled[self.layout.class_of[rank] as usize]);
        }
        for (node, ranks) in self.layout.nodes.iter().enumerate() {
            let frozen = ranks.iter().any(|&rank| self.compute.is_frozen(rank as usize));
            self.nodes.freeze(node, frozen);
        }
    }

    /// Updates the median duration of the last 50 steps, every ten steps.
    fn update_step_time(&mut self, seq: u64) {
        if self.step_us > 0.0 && !seq.is_multiple_of(10) {
            return;
        }
        self.scratch.clear();
        let first = seq.saturating_sub(49).max(self.history.oldest());
        self.scratch.extend(
            (first..=seq).map(|seq| self.history.step(seq).duration).filter(|duration| duration.is_finite()),
        );
        let middle = order_statistics::median(&mut self.scratch);
        if middle.is_finite() {
            self.step_us = f64::from(middle) * 1e6;
        }
    }

    /// Takes over from an earlier run what does not depend on the nodes of ranks.
    pub fn inherit(&mut self, old: &Job) {
        let alike = self.layout.ranks() == old.layout.ranks() && self.layout.stages == old.layout.stages;
        if !alike {
            return;
        }
        self.compute.inherit(&old.compute);
        self.data.inherit(&old.data);
        self.nodes.inherit(&old.nodes);
        self.transfer.inherit(&old.transfer);
        self.step_us = old.step_us;
    }

    /// Ends the run, and with it its episodes.
    pub fn end(&mut self, out: &mut Vec<Signal>) {
        let Some(seq) = self.history.closed.checked_sub(1) else { return };
        let episodes = std::mem::take(&mut self.episodes);
        for mut episode in episodes.into_iter().filter(|episode| !episode.closed) {
            episode.evidence.push(Evidence { rule: "run_ended".into(), value: 1.0, weight: 0.0 });
            let excess = episode.decision.map_or(0.0, |decision| decision.excess);
            out.push(self.signal(&episode, Stage::Closed, seq, excess));
        }
    }
}

/// Median of the known values.
fn median_of(values: &[f32], scratch: &mut Vec<f32>) -> f32 {
    scratch.clear();
    scratch.extend(values.iter().filter(|value| value.is_finite()));
    order_statistics::median(scratch)
}
