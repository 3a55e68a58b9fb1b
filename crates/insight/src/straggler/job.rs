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

/// In the order they are looked at: a node before its ranks.
const KINDS: [Kind; 5] = [Kind::Node, Kind::Compute, Kind::Data, Kind::Drift, Kind::Transfer];

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
    /// Median of each node's ranks: a host that slows all of them shows long before any one of them does in noise.
    pub nodes: Tracks,
    pub drift: Tracks,
    pub transfer: Tracks,
    pub events: Vec<Event>,
    /// Begins of the open events that are not about the transfer, as of the last step.
    others: Vec<(Kind, u64)>,
    /// Median duration of the last steps, µs.
    pub step_us: f64,
    /// Logarithms of the step's normalised computing times, by rank.
    logs: Vec<f32>,
    /// The same without what their roles differ by, and that difference by role.
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
            intake: Intake::new(ranks, settings.open_steps),
            workload: Workload::new(layout.roles.len()),
            history: History::new(ranks, layout.classes.len()),
            devices: Devices::new(ranks),
            compute: Tracks::new(ranks, ranks, of_ranks(0.5), settings),
            data: Tracks::new(ranks, ranks, of_data, settings),
            nodes: Tracks::new(nodes, ranks, Tuning { centred: true, ..of_ranks(0.5) }, settings),
            drift: Tracks::new(lone, lone, Tuning { cautious: true, ..of_ranks(0.85) }, settings),
            transfer: Tracks::new(1, 1, of_transfer, settings),
            events: Vec::new(),
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

    pub fn tracks(&mut self, kind: Kind) -> &mut Tracks {
        match kind {
            Kind::Compute => &mut self.compute,
            Kind::Data => &mut self.data,
            Kind::Node => &mut self.nodes,
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
        self.freeze();
        for kind in KINDS {
            self.tracks(kind).advance(seq);
        }
        self.move_events(seq, out);
        for kind in KINDS {
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
        self.level_roles(seq);
        for class in 0..self.layout.classes.len() {
            let across = self.layout.everyone == Some(class as u32);
            let logs = if across { &self.levelled } else { &self.logs };
            self.history.reference.row_mut(seq)[class] =
                reference(&self.layout.classes[class], logs, &mut self.scratch);
        }
        let references = self.history.reference.row(seq);
        let row = self.compute.values.row_mut(seq);
        for (rank, (value, &class)) in row.iter_mut().zip(&self.layout.class_of).enumerate() {
            let across = self.layout.everyone == Some(class);
            let log = if across { self.levelled[rank] } else { self.logs[rank] };
            *value = log - references[class as usize];
        }
        // As reported: what tokens explain is a change of the work too.
        let every = slot.compute.len().div_ceil(64).max(1);
        self.scratch.clear();
        self.scratch.extend(slot.compute.iter().step_by(every).filter(|time| time.is_finite()));
        let level = order::median(&mut self.scratch).ln();
        self.history.set_level(seq, level);
        self.measure_nodes(seq);
        self.measure_data(seq, slot);
        self.measure_drift(seq);
        let least = slot.communication.iter().copied().fold(f32::NAN, f32::min);
        self.transfer.values.row_mut(seq)[0] = if self.is_pause(seq) { f32::NAN } else { least.ln() };
    }

    /// Takes from each rank's logarithm how much its role differs from the others, so that a rank may be held against the whole
    /// job. Roles differ by construction: what the first steps show stands.
    fn level_roles(&mut self, seq: u64) {
        if self.layout.everyone.is_none() {
            return;
        }
        if seq < u64::from(self.settings.warm_steps) {
            let levels: Vec<f32> = self
                .layout
                .roles
                .iter()
                .map(|ranks| {
                    self.scratch.clear();
                    let logs = ranks.iter().map(|&rank| self.logs[rank as usize]);
                    self.scratch.extend(logs.filter(|log| log.is_finite()));
                    order::median(&mut self.scratch)
                })
                .collect();
            let mean = levels.iter().sum::<f32>() / levels.len() as f32;
            if mean.is_finite() {
                for (offset, level) in self.offsets.iter_mut().zip(&levels) {
                    *offset += (level - mean - *offset) / (seq + 1) as f32;
                }
            }
        }
        for (rank, level) in self.levelled.iter_mut().enumerate() {
            *level = self.logs[rank] - self.offsets[self.layout.role_of[rank] as usize];
        }
    }

    /// What the role of a rank differs by.
    pub fn offset_of(&self, rank: usize) -> f32 {
        self.offsets[self.layout.role_of[rank] as usize]
    }

    /// One step several times as long as usual: a checkpoint, an evaluation. It says nothing of the transfer. The second in a row is
    /// no pause.
    fn is_pause(&self, seq: u64) -> bool {
        const TIMES: f64 = 4.0;
        let long = |seq: u64| f64::from(self.history.step(seq).duration) * 1e6 > TIMES * self.step_us;
        self.step_us > 0.0 && long(seq) && !(seq > 0 && long(seq - 1))
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

    /// Median deviation of each node's ranks from their own baselines; not known of a node with few ranks.
    pub fn measure_nodes(&mut self, seq: u64) {
        let values = self.compute.values.row(seq);
        let row = self.nodes.values.row_mut(seq);
        for (value, ranks) in row.iter_mut().zip(&self.layout.nodes) {
            self.scratch.clear();
            if ranks.len() >= self.settings.node_ranks {
                let deviations =
                    ranks.iter().map(|&rank| values[rank as usize] - self.compute.base(rank as usize));
                self.scratch.extend(deviations.filter(|deviation| deviation.is_finite()));
            }
            let known = self.scratch.len() * 2 >= ranks.len();
            *value = if known { order::median(&mut self.scratch) } else { f32::NAN };
        }
    }

    /// Holds the baselines of ranks whose peers are slow themselves: else they would look slow when those recover.
    fn freeze(&mut self) {
        let slow = self.events.iter().any(|event| !event.closed && event.kind != Kind::Transfer);
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
        let open = |event: &Event| event.kind != Kind::Transfer && !event.closed;
        self.others.clear();
        self.others
            .extend(self.events.iter().filter(|event| open(event)).map(|event| (event.kind, event.since)));
        let mut events = std::mem::take(&mut self.events);
        for event in events.iter_mut().filter(|event| !event.closed) {
            event.lost_gpu_ms += self.loss(event, seq);
            let (settings, step_us) = (self.settings, self.step_us);
            let steps = match event.kind {
                Kind::Transfer => settings.transfer_hold_steps,
                _ => settings.hold_steps,
            };
            let steps = u64::from(steps.max(1));
            let hold_us = match event.subject {
                Subject::Node(_) => settings.node_hold_us,
                _ => settings.hold_us,
            };
            let held = self.history.window(event.since, seq, steps, hold_us, step_us);
            let fast = settings.fast_hold(step_us) as u64;
            // Bursts strike one rank or the network; nothing harmless slows a whole node, or makes it wait for input.
            let burst = match (event.kind, event.subject) {
                (Kind::Compute, Subject::Rank(_)) | (Kind::Transfer, _) => settings.burst(step_us),
                _ => 0,
            };
            match event.judge(self.tracks(event.kind), &settings, held, (fast, burst), seq + 1) {
                Move::Stay => {}
                Move::Confirm(decision) => {
                    event.decision = Some(decision);
                    let excess = decision.excess;
                    self.weigh(event, seq, excess);
                    if event.class == Class::Structural || self.is_trifling(event, excess) {
                        self.release(event);
                        self.settle(event, excess);
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
        events
            .retain(|event| !event.closed || event.decision.is_some_and(|decision| decision.to + KEPT > seq));
        self.events = events;
    }

    fn release(&mut self, event: &mut Event) {
        event.closed = true;
        self.hold(event, false);
    }

    /// A transfer that grew with the work of the whole job stays so: what it is now is what it is held against.
    fn settle(&mut self, event: &Event, excess: f32) {
        if event.evidence.iter().any(|evidence| evidence.rule == "job_wide_change") {
            let base = self.transfer.base(0);
            self.transfer.rebase(0, base + excess);
        }
    }

    /// Holds or releases the series of an event, and with a node its ranks.
    pub fn hold(&mut self, event: &Event, held: bool) {
        let tracks = self.tracks(event.kind);
        event.series.iter().for_each(|&series| tracks.hold(series as usize, held));
        if event.kind == Kind::Node {
            let ranks = &self.layout.nodes[event.series[0] as usize];
            ranks.iter().for_each(|&rank| self.compute.hold(rank as usize, held));
        }
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
            let (kind, subject, members) = self.subject(kind, series, since, seq + 1);
            if let Subject::Node(node) = subject {
                self.absorb(kind, node, seq, out);
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
            self.hold(&event, true);
            let excess = self.tracks(kind).window(&event.series, since, seq + 1).median;
            event.lost_gpu_ms = (since..=seq).map(|seq| self.loss(&event, seq)).sum();
            self.weigh(&mut event, seq, excess);
            out.push(self.say(&event, Stage::Suspect, seq, excess));
            self.events.push(event);
        }
        self.tracks(kind).over = over;
    }

    /// Whom a suspicion is about: the node, where enough of its ranks are slow since then (rule 7), else the rank. Waiting for
    /// input is the node's where its ranks of the same role wait.
    fn subject(&mut self, kind: Kind, series: u32, from: u64, to: u64) -> (Kind, Subject, Vec<u32>) {
        match kind {
            Kind::Transfer => return (kind, Subject::Job, vec![0]),
            Kind::Drift => {
                return (kind, Subject::Role(self.layout.lone_roles[series as usize]), vec![series]);
            }
            Kind::Node => return (kind, Subject::Node(series), vec![series]),
            Kind::Compute | Kind::Data => {}
        }
        let node = self.layout.node_of[series as usize];
        let mates = self.layout.nodes[node as usize].clone();
        let role = self.layout.role_of[series as usize];
        let alike = mates.iter().filter(|&&mate| self.layout.role_of[mate as usize] == role).count();
        // Input is read by some roles only: those of the rank's own role tell whether it is the node.
        let (asked, least) = match kind {
            Kind::Data if alike < mates.len() => (alike, 1),
            _ => (mates.len(), 2),
        };
        let needed = self.settings.node_ranks.min(asked.div_ceil(2)).max(least);
        let tracks = self.tracks(kind);
        let half = 0.5 * tracks.effect();
        let slow: Vec<u32> =
            mates.into_iter().filter(|mate| tracks.window(&[*mate], from, to).median >= half).collect();
        if slow.len() < needed {
            return (kind, Subject::Rank(series), vec![series]);
        }
        if kind == Kind::Compute && !self.nodes.base(node as usize).is_nan() {
            return (Kind::Node, Subject::Node(node), vec![node]);
        }
        (kind, Subject::Node(node), slow)
    }

    /// Events of single ranks end where their node's begins.
    fn absorb(&mut self, kind: Kind, node: u32, seq: u64, out: &mut Vec<Signal>) {
        let single = if kind == Kind::Data { Kind::Data } else { Kind::Compute };
        let mut events = std::mem::take(&mut self.events);
        for event in events.iter_mut().filter(|event| event.kind == single && !event.closed) {
            let Subject::Rank(rank) = event.subject else { continue };
            if self.layout.node_of[rank as usize] != node {
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
        let companion = event.kind == Kind::Transfer && self.has_companion(event);
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
            companion,
        };
        (event.class, event.posterior, event.evidence, event.blame) = facts.weigh();
    }

    /// Another event is open that began within ten steps of this one, or ranks wait for input: who waits comes late to collectives.
    fn has_companion(&self, event: &Event) -> bool {
        self.others.iter().any(|(kind, since)| *kind == Kind::Data || since.abs_diff(event.since) <= 10)
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
                Kind::Node if Subject::Node(self.layout.node_of[rank as usize]) == event.subject => {
                    time * (1.0 - f64::from(-self.nodes.deviation(seq, event.series[0] as usize)).exp())
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

    /// Takes over from an earlier run what does not depend on which node a rank is on.
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
