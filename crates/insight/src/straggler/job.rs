//! One run of a job: closes its steps one by one and keeps its series and events.

use super::cause::Facts;
use super::device::Devices;
use super::event::{Event, Kind, Move, Subject};
use super::history::{History, Step};
use super::intake::{Intake, Slot};
use super::layout::Layout;
use super::order;
use super::settings::Settings;
use super::signal::{Blame, Class, Evidence, Signal, Stage};
use super::structure;
use super::tracks::{Tracks, Tuning};
use super::whatif::step_time;
use super::workload::Workload;

/// Everything known of the run.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub settings: Settings,
    pub layout: Layout,
    pub intake: Intake,
    pub workload: Workload,
    pub history: History,
    pub devices: Devices,
    pub compute: Tracks,
    pub data: Tracks,
    pub drift: Tracks,
    pub transfer: Tracks,
    pub events: Vec<Event>,
    /// Median duration of the last steps, µs.
    pub step_us: f64,
    /// Logarithms of the step's normalised computing times, by rank.
    logs: Vec<f32>,
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
        };
        let of_data = Tuning { effect_cap: settings.effect_floor, ..of_ranks(0.5) };
        let of_transfer = Tuning {
            noise_floor: settings.transfer_noise_floor,
            effect_floor: settings.transfer_effect,
            effect_cap: settings.transfer_effect,
            ..of_ranks(0.5)
        };
        let lone = layout.lone_roles.len();
        Self {
            settings: *settings,
            intake: Intake::new(ranks, settings.open_steps),
            workload: Workload::new(layout.roles.len()),
            history: History::new(ranks, layout.classes.len()),
            devices: Devices::new(ranks),
            compute: Tracks::new(ranks, ranks, of_ranks(0.5), settings),
            data: Tracks::new(ranks, ranks, of_data, settings),
            drift: Tracks::new(lone, lone, Tuning { cautious: true, ..of_ranks(0.85) }, settings),
            transfer: Tracks::new(1, 1, of_transfer, settings),
            events: Vec::new(),
            step_us: 0.0,
            logs: vec![f32::NAN; ranks],
            scratch: Vec::with_capacity(ranks),
            workers: Vec::with_capacity(ranks),
            layout,
        }
    }

    pub fn tracks(&mut self, kind: Kind) -> &mut Tracks {
        match kind {
            Kind::Compute => &mut self.compute,
            Kind::Data => &mut self.data,
            Kind::Drift => &mut self.drift,
            Kind::Transfer => &mut self.transfer,
        }
    }

    /// Takes a closed step in and appends what there is to say.
    pub fn close(&mut self, slot: &Slot, end_us: i64, next_event: &mut u64, out: &mut Vec<Signal>) {
        let duration = median_of(&slot.duration, &mut self.scratch);
        let step = Step { number: slot.step, end_us, duration, level: f32::NAN };
        let seq = self.history.begin(step);
        self.measure(seq, slot);
        self.pace(seq);
        self.workload.end_step();
        for tracks in [&mut self.compute, &mut self.data, &mut self.drift, &mut self.transfer] {
            tracks.advance(seq);
        }
        self.move_events(seq, out);
        for kind in [Kind::Compute, Kind::Data, Kind::Drift, Kind::Transfer] {
            if !self.tracks(kind).over.is_empty() {
                self.suspect(kind, seq, next_event, out);
            }
        }
        structure::look(self, seq, next_event, out);
    }

    /// Writes the step's rows: ratios to peers, data waits, drifts of lone roles, transfer time.
    fn measure(&mut self, seq: u64, slot: &Slot) {
        self.history.compute.row_mut(seq).copy_from_slice(&slot.compute);
        for (rank, log) in self.logs.iter_mut().enumerate() {
            let (role, time) = (self.layout.role_of[rank], slot.compute[rank]);
            let (tokens, squared) = (slot.tokens[rank], slot.squared[rank]);
            self.workload.row(role, tokens, squared, time);
            *log = (time / self.workload.expected(role, tokens, squared)).ln();
        }
        for class in 0..self.layout.classes.len() {
            self.history.reference.row_mut(seq)[class] =
                reference(&self.layout.classes[class], &self.logs, &mut self.scratch);
        }
        let references = self.history.reference.row(seq);
        let row = self.compute.values.row_mut(seq);
        for ((value, log), class) in row.iter_mut().zip(&self.logs).zip(&self.layout.class_of) {
            *value = log - references[*class as usize];
        }
        self.history.set_level(seq, median_of(references, &mut self.scratch));
        self.measure_data(seq, slot);
        self.measure_drift(seq);
        let least = slot.communication.iter().copied().fold(f32::NAN, f32::min);
        self.transfer.values.row_mut(seq)[0] = least.ln();
    }

    /// Waits beyond the job's lower quartile, as a share of the step: waits only add, and half the job may be one slow node.
    fn measure_data(&mut self, seq: u64, slot: &Slot) {
        let unit = self.history.step(seq).duration;
        self.scratch.clear();
        self.scratch.extend(slot.data.iter().filter(|value| value.is_finite()));
        let usual = order::quantile(&mut self.scratch, 0.25);
        self.history.data_reference.row_mut(seq)[0] = usual;
        let row = self.data.values.row_mut(seq);
        for (value, data) in row.iter_mut().zip(&slot.data) {
            *value = (data - usual) / unit;
        }
    }

    fn measure_drift(&mut self, seq: u64) {
        let references = self.history.reference.row(seq);
        let level = |role: usize| {
            let rank = self.layout.roles[role][0] as usize;
            references[self.layout.class_of[rank] as usize]
        };
        let row = self.drift.values.row_mut(seq);
        for (value, &role) in row.iter_mut().zip(&self.layout.lone_roles) {
            self.scratch.clear();
            let others = (0..self.layout.roles.len()).filter(|other| *other != role as usize);
            self.scratch.extend(others.map(level).filter(|level| level.is_finite()));
            *value = level(role as usize) - order::median(&mut self.scratch);
        }
    }

    /// Median duration of the last 50 steps, renewed every ten.
    fn pace(&mut self, seq: u64) {
        if self.step_us > 0.0 && !seq.is_multiple_of(10) {
            return;
        }
        self.scratch.clear();
        let first = seq.saturating_sub(49).max(self.history.oldest());
        self.scratch.extend(
            (first..=seq).map(|seq| self.history.step(seq).duration).filter(|duration| duration.is_finite()),
        );
        let middle = order::median(&mut self.scratch);
        if middle.is_finite() {
            self.step_us = f64::from(middle) * 1e6;
        }
    }

    /// Moves each open event on by one step.
    fn move_events(&mut self, seq: u64, out: &mut Vec<Signal>) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.iter_mut().filter(|event| !event.closed) {
            event.lost_gpu_ms += self.loss(event, seq);
            let (settings, step_us) = (self.settings, self.step_us);
            match event.judge(self.tracks(event.kind), &settings, step_us, seq + 1) {
                Move::Stay => {}
                Move::Confirm(decision) => {
                    event.decision = Some(decision);
                    let excess = decision.excess;
                    self.weigh(event, seq, excess);
                    if event.class == Class::Structural || self.is_trifling(event, excess) {
                        self.release(event);
                        event.decision = None;
                        out.push(self.say(event, Stage::Closed, seq, excess));
                    } else {
                        out.push(self.say(event, Stage::Confirmed, seq, excess));
                    }
                }
                Move::Close => {
                    let excess = event.decision.map_or_else(
                        || self.tracks(event.kind).window(&event.series, event.since, seq + 1).median,
                        |decision| decision.excess,
                    );
                    self.release(event);
                    out.push(self.say(event, Stage::Closed, seq, excess));
                }
            }
        }
        /// Ended events kept for corrections.
        const KEPT: u64 = super::history::DEPTH as u64;
        events.retain(|event| {
            !event.closed || event.decision.is_some_and(|decision| decision.to + KEPT > seq)
        });
        self.events = events;
    }

    fn release(&mut self, event: &mut Event) {
        event.closed = true;
        let tracks = self.tracks(event.kind);
        event.series.iter().for_each(|&series| tracks.hold(series as usize, false));
    }

    /// A transfer that is slower but costs the step next to nothing is no fail-slow.
    fn is_trifling(&self, event: &Event, excess: f32) -> bool {
        let share = f64::from(self.transfer.base(0).exp() * (excess.exp() - 1.0)) * 1e6 / self.step_us;
        event.kind == Kind::Transfer && share < self.settings.transfer_step_share
    }

    /// Series over their bound: suspicions, unless their median since the sum left zero is small.
    fn suspect(&mut self, kind: Kind, seq: u64, next_event: &mut u64, out: &mut Vec<Signal>) {
        let over = std::mem::take(&mut self.tracks(kind).over);
        for &series in &over {
            let tracks = self.tracks(kind);
            if tracks.is_held(series as usize) || !tracks.may_try(series as usize) {
                continue;
            }
            let since = tracks.left_zero(series as usize).max((seq + 1).saturating_sub(240));
            let window = tracks.window(&[series], since, seq + 1);
            if window.median < tracks.effect() {
                tracks.retry_after(series as usize, (window.count as u64 / 8).max(1));
                continue;
            }
            let (subject, members) = self.subject(kind, series, since, seq + 1);
            if let Subject::Node(_) = subject {
                self.absorb(kind, &members, seq, out);
            }
            let id = *next_event;
            *next_event += 1;
            let mut event = Event {
                id,
                kind,
                subject,
                series: members,
                since,
                since_us: self.history.begin_us(since.max(self.history.oldest())),
                decision: None,
                closed: false,
                lost_gpu_ms: 0.0,
                class: Class::Structural,
                posterior: 0.0,
                blame: Blame::Nobody,
                evidence: Vec::new(),
            };
            let tracks = self.tracks(kind);
            event.series.iter().for_each(|&series| tracks.hold(series as usize, true));
            let excess = tracks.window(&event.series, since, seq + 1).median;
            event.lost_gpu_ms = (since..=seq).map(|seq| self.loss(&event, seq)).sum();
            self.weigh(&mut event, seq, excess);
            out.push(self.say(&event, Stage::Suspect, seq, excess));
            self.events.push(event);
        }
        self.tracks(kind).over = over;
    }

    /// Whom a suspicion is about: the node, where enough of its ranks are slow since then (rule 7), else the rank.
    fn subject(&mut self, kind: Kind, series: u32, from: u64, to: u64) -> (Subject, Vec<u32>) {
        match kind {
            Kind::Transfer => return (Subject::Job, vec![0]),
            Kind::Drift => return (Subject::Role(self.layout.lone_roles[series as usize]), vec![series]),
            Kind::Compute | Kind::Data => {}
        }
        let node = self.layout.node_of[series as usize];
        let mates = self.layout.nodes[node as usize].clone();
        let needed = self.settings.node_ranks.min(mates.len().div_ceil(2)).max(2);
        let tracks = self.tracks(kind);
        let half = 0.5 * tracks.effect();
        let slow = mates.iter().filter(|mate| tracks.window(&[**mate], from, to).median >= half).count();
        if slow >= needed { (Subject::Node(node), mates) } else { (Subject::Rank(series), vec![series]) }
    }

    /// Events of single ranks end where their node's begins.
    fn absorb(&mut self, kind: Kind, members: &[u32], seq: u64, out: &mut Vec<Signal>) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.iter_mut().filter(|event| event.kind == kind && !event.closed) {
            if !event.series.iter().all(|series| members.contains(series)) {
                continue;
            }
            event.closed = true;
            event.evidence.push(Evidence { rule: "rolled_up_into_node", value: 1.0, weight: 0.0 });
            let excess = event.decision.map_or(0.0, |decision| decision.excess);
            out.push(self.say(event, Stage::Closed, seq, excess));
        }
        self.events = events;
    }

    /// Class, posterior, blame and evidence of an event as of step `seq`.
    pub fn weigh(&mut self, event: &mut Event, seq: u64, excess: f32) {
        let level_shift = if event.kind == Kind::Transfer { self.level_shift(event.since, seq) } else { 0.0 };
        let facts = Facts {
            layout: &self.layout,
            devices: &self.devices,
            settings: &self.settings,
            kind: event.kind,
            subject: event.subject,
            excess: f64::from(excess),
            since_us: event.since_us,
            now_us: self.history.step(seq).end_us,
            level_shift,
        };
        (event.class, event.posterior, event.evidence, event.blame) = facts.weigh();
    }

    /// How much the job's median computing time changed from the 50 steps before `since` to those from then on.
    fn level_shift(&mut self, since: u64, seq: u64) -> f64 {
        let mut middle = |from: u64, to: u64| {
            self.scratch.clear();
            let from = from.max(self.history.oldest());
            let levels = (from..to).map(|seq| self.history.step(seq).level);
            self.scratch.extend(levels.filter(|level| level.is_finite()));
            f64::from(order::median(&mut self.scratch))
        };
        let shift = middle(since, seq + 1) - middle(since.saturating_sub(50), since);
        if shift.is_finite() { shift } else { 0.0 }
    }

    /// GPU time that step `seq` lost to an event, ms: all of the job's GPUs for as long as the step took more than it would have
    /// without (rule 12).
    fn loss(&mut self, event: &Event, seq: u64) -> f64 {
        let gpus = self.layout.ranks() as f64;
        let lost_s = match event.kind {
            Kind::Transfer => {
                let slower = f64::from(self.transfer.values.get(seq, 0).exp() - self.transfer.base(0).exp());
                slower.max(0.0)
            }
            _ => self.loss_of_workers(event, seq),
        };
        if lost_s.is_finite() { lost_s * gpus * 1e3 } else { 0.0 }
    }

    fn loss_of_workers(&mut self, event: &Event, seq: u64) -> f64 {
        let unit = f64::from(self.history.step(seq).duration);
        let times = self.history.compute.row(seq);
        let waits = self.data.values.row(seq);
        let (stages, many) = (self.layout.stages, self.layout.micro_batches);
        self.workers.clear();
        for place in 0..times.len() {
            let rank = worker_rank(&self.layout, place);
            let wait = f64::from(waits[rank]) * unit;
            self.workers.push(f64::from(times[rank]) + if wait.is_finite() { wait } else { 0.0 });
        }
        let with = step_time(&self.workers, stages, many);
        for place in 0..times.len() {
            let rank = worker_rank(&self.layout, place) as u32;
            let time = f64::from(times[rank as usize]);
            let slower = match event.kind {
                Kind::Data if event.series.contains(&rank) => {
                    f64::from(self.data.deviation(seq, rank as usize)) * unit
                }
                Kind::Compute if event.series.contains(&rank) => {
                    time * (1.0 - f64::from(-self.compute.deviation(seq, rank as usize)).exp())
                }
                Kind::Drift if Subject::Role(self.layout.role_of[rank as usize]) == event.subject => {
                    time * (1.0 - f64::from(-self.drift.deviation(seq, event.series[0] as usize)).exp())
                }
                _ => 0.0,
            };
            if slower > 0.0 {
                self.workers[place] -= slower;
            }
        }
        with - step_time(&self.workers, stages, many)
    }

    /// Puts an event into words, as of step `seq`.
    pub fn say(&self, event: &Event, stage: Stage, seq: u64, excess: f32) -> Signal {
        let excess = f64::from(excess);
        let share = if event.kind == Kind::Data { excess } else { excess.exp_m1() };
        Signal {
            event: event.id,
            stage,
            class: event.class,
            posterior: event.posterior,
            blame: event.blame.clone(),
            since_us: event.since_us,
            said_us: self.history.step(seq).end_us,
            excess: if share.is_finite() { share } else { 0.0 },
            lost_gpu_ms: event.lost_gpu_ms.max(0.0) as u64,
            evidence: event.evidence.clone(),
        }
    }

    /// The run is over: so are its events.
    pub fn end(&mut self, out: &mut Vec<Signal>) {
        let Some(seq) = self.history.closed.checked_sub(1) else { return };
        let events = std::mem::take(&mut self.events);
        for mut event in events.into_iter().filter(|event| !event.closed) {
            event.evidence.push(Evidence { rule: "run_ended", value: 1.0, weight: 0.0 });
            let excess = event.decision.map_or(0.0, |decision| decision.excess);
            out.push(self.say(&event, Stage::Closed, seq, excess));
        }
    }
}

/// Rank at place `d * stages + s` of a worker table.
pub(super) fn worker_rank(layout: &Layout, place: usize) -> usize {
    if layout.stages == 1 {
        return place;
    }
    layout.roles[place % layout.stages][place / layout.stages] as usize
}

/// Median of the logarithms of a class; NaN where fewer than three or less than half are known.
pub(super) fn reference(members: &[u32], logs: &[f32], scratch: &mut Vec<f32>) -> f32 {
    scratch.clear();
    scratch.extend(members.iter().map(|&rank| logs[rank as usize]).filter(|log| log.is_finite()));
    if scratch.len() < 3 || scratch.len() * 2 < members.len() { f32::NAN } else { order::median(scratch) }
}

/// Median of what is known.
fn median_of(values: &[f32], scratch: &mut Vec<f32>) -> f32 {
    scratch.clear();
    scratch.extend(values.iter().filter(|value| value.is_finite()));
    order::median(scratch)
}
