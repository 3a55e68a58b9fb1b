//! The engine: advances time from event to event and accounts for every GPU-µs.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    AttemptEnd, Backfill, Class, ClusterSpec, Job, JobSpec, JobState, Latency, Ledger, PPM, Place, Recording,
    Reservation, ServiceSpec, SimError, SimEvent,
    curve::relative_ppm,
    job::{Closing, Segment},
    nodes::{Held, Nodes},
    queue::Timeline,
};

/// State of a simulated cluster, and its future events.
#[derive(Debug, Clone)]
pub struct Sim {
    pub(crate) spec: ClusterSpec,
    pub(crate) now_us: i64,
    pub(crate) nodes: Nodes,
    pub(crate) jobs: Vec<Job>,
    pub(crate) services: Vec<ServiceSpec>,
    /// Demand of each service now, GPUs.
    pub(crate) demand: Vec<i64>,
    /// Waiting jobs by team: higher priority first, then in order of submission.
    pub(crate) queues: Vec<BTreeSet<(i32, u32)>>,
    /// Running jobs by the end their users stated; for backfill only.
    pub(crate) ends: BTreeSet<(i64, u32)>,
    pub(crate) running: BTreeSet<u32>,
    /// GPUs each team holds, and its limit.
    pub(crate) held_by_team: Vec<u32>,
    pub(crate) limits: Vec<Option<u32>>,
    /// By name: those that have not ended.
    pub(crate) reservations: BTreeMap<String, Reservation>,
    pub(crate) timeline: Timeline<Tick>,
    /// Index of the next job to submit.
    next_job: usize,
    pub(crate) ledger: Ledger,
    /// Whether something changed that may let a waiting job start.
    pub(crate) dirty: bool,
    pub(crate) recording: Recording,
    pub(crate) events: Vec<(i64, SimEvent)>,
    pub(crate) done: usize,
    pub(crate) ticks: u64,
    /// Changes made from outside.
    pub(crate) actions: u64,
    pub(crate) lent_nodes: u64,
}

/// A scheduled event. Those of an older version or epoch are stale and ignored.
#[derive(Debug, Clone)]
pub(crate) enum Tick {
    End { job: u32, version: u32 },
    Close { job: u32, epoch: u32, saved: bool },
    Saved { job: u32, epoch: u32 },
    Demand { service: usize, step: usize },
    Move { node: u32, epoch: u32 },
    Fail { node: u32, repair_us: i64 },
    Repair { node: u32 },
    Speed { node: u32, speed_ppm: u32 },
    Reservation,
}

/// What happens to unsaved progress when a segment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsaved {
    Saved,
    LostPreempted,
    LostFailed,
    /// Still unsaved: the job continues at another speed.
    Carried,
}

impl Sim {
    /// A cluster at time 0. Jobs must be sorted by submission.
    ///
    /// # Errors
    /// [`SimError::Spec`] if the description is inconsistent, or a job is larger than its pool.
    pub fn new(spec: ClusterSpec, jobs: Vec<JobSpec>, services: Vec<ServiceSpec>) -> Result<Self, SimError> {
        spec.check(&jobs, &services)?;
        let mut serves = vec![false; spec.pools.len()];
        services.iter().for_each(|s| serves[s.pool] = true);
        let nodes = Nodes::new(&spec, serves);
        let mut largest = BTreeMap::new();
        for (i, j) in jobs.iter().enumerate() {
            let kind = (spec.teams[j.team].pool, j.model, j.loan);
            let most = *largest.entry(kind).or_insert_with(|| nodes.largest(kind.0, kind.1, kind.2));
            if j.gpus > most {
                let what = format!(
                    "job {i} asks for {} GPUs where there are never more than {most}; leave it out",
                    j.gpus
                );
                return Err(SimError::Spec { what });
            }
        }
        let mut timeline = Timeline::default();
        for service in 0..services.len() {
            timeline.push(0, Tick::Demand { service, step: 0 });
        }
        let teams = spec.teams.len();
        Ok(Self {
            nodes,
            limits: spec.teams.iter().map(|t| t.quota_gpus).collect(),
            jobs: jobs.into_iter().map(Job::new).collect(),
            demand: vec![0; services.len()],
            services,
            queues: vec![BTreeSet::new(); teams],
            ends: BTreeSet::new(),
            running: BTreeSet::new(),
            held_by_team: vec![0; teams],
            reservations: BTreeMap::new(),
            now_us: 0,
            timeline,
            next_job: 0,
            ledger: Ledger::default(),
            dirty: false,
            recording: Recording::Off,
            events: Vec::new(),
            done: 0,
            ticks: 0,
            actions: 0,
            lent_nodes: 0,
            spec,
        })
    }

    /// Schedules a failure of a node, repaired `repair_us` later.
    pub fn plan_failure(&mut self, at_us: i64, node: u32, repair_us: i64) {
        self.timeline.push(at_us.max(self.now_us), Tick::Fail { node, repair_us });
    }

    /// Schedules a failure of all nodes of a rack (power, switch), repaired `repair_us` later.
    pub fn plan_rack_failure(&mut self, at_us: i64, rack: u32, repair_us: i64) {
        for node in 0..self.nodes.all().len() as u32 {
            if self.nodes.get(node).rack == rack {
                self.plan_failure(at_us, node, repair_us);
            }
        }
    }

    /// Schedules a change of a node's speed; 1,000,000 is full speed. A gang runs at the speed of
    /// its slowest node.
    pub fn plan_speed(&mut self, at_us: i64, node: u32, speed_ppm: u32) {
        self.timeline.push(at_us.max(self.now_us), Tick::Speed { node, speed_ppm });
    }

    pub(crate) fn latency(&self) -> Latency {
        self.spec.latency
    }

    pub(crate) fn emit(&mut self, what: impl FnOnce() -> SimEvent) {
        if self.recording == Recording::On {
            let what = what();
            self.events.push((self.now_us, what));
        }
    }

    /// Runs until `until_us`, events at that moment included.
    pub fn run_until(&mut self, until_us: i64) {
        // Changes from outside may have made room.
        self.schedule();
        while let Some(at_us) = self.next_us().filter(|at| *at <= until_us) {
            self.advance(at_us);
            while self.next_us() == Some(at_us) {
                self.tick();
            }
            self.schedule();
        }
        self.advance(until_us);
    }

    /// Runs until all jobs are finished or `limit_us` is reached; returns whether they are.
    pub fn run_to_end(&mut self, limit_us: i64) -> bool {
        while self.done < self.jobs.len() {
            let Some(at_us) = self.next_us().filter(|at| *at <= limit_us) else { break };
            self.run_until(at_us);
        }
        self.done == self.jobs.len()
    }

    /// Time of the next event.
    pub fn next_us(&self) -> Option<i64> {
        let submit = self.jobs.get(self.next_job).map(|j| j.spec.submit_us.max(self.now_us));
        match (submit, self.timeline.next_us()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Accounts for GPU time up to `to_us`.
    fn advance(&mut self, to_us: i64) {
        let span_us = to_us - self.now_us;
        if span_us <= 0 {
            return;
        }
        let mut classes = self.nodes.classes();
        for (s, service) in self.services.iter().enumerate() {
            let ready = self.nodes.ready(service.pool);
            let served = ready.min(self.demand[s]);
            classes[Class::Serving as usize] += served;
            classes[Class::Headroom as usize] -= served;
            let unmet = self.demand[s] - served;
            if unmet > 0 {
                self.ledger.unmet_gpu_us += i128::from(unmet) * i128::from(span_us);
                self.ledger.unmet_us += span_us;
            }
        }
        self.ledger.advance(&classes, span_us);
        self.now_us = to_us;
    }

    /// Processes one due event: submissions first, then in order of insertion.
    fn tick(&mut self) {
        self.ticks += 1;
        if self.jobs.get(self.next_job).is_some_and(|j| j.spec.submit_us <= self.now_us) {
            let job = self.next_job as u32;
            self.next_job += 1;
            self.emit(|| SimEvent::Submitted { job });
            return self.enqueue(job);
        }
        let Some((_, tick)) = self.timeline.pop() else { return };
        match tick {
            Tick::End { job, version } if self.jobs[job as usize].end_version == version => {
                self.complete(job)
            }
            Tick::Close { job, epoch, saved } if self.is_current(job, epoch) => self.close(job, saved),
            Tick::Saved { job, epoch } if self.is_current(job, epoch) => self.saved(job),
            Tick::End { .. } | Tick::Close { .. } | Tick::Saved { .. } => {}
            Tick::Demand { service, step } => {
                let s = &self.services[service];
                if let Some(gpus) = s.demand_gpus.get(step) {
                    self.demand[service] = i64::from(*gpus);
                    let next_us = (step as i64 + 1) * s.step_us;
                    self.timeline.push(next_us, Tick::Demand { service, step: step + 1 });
                }
            }
            Tick::Move { node, epoch } if self.nodes.get(node).epoch == epoch => self.advance_move(node),
            Tick::Move { .. } => {}
            Tick::Fail { node, repair_us } => self.fail(node, repair_us),
            // Failures of a node may overlap: the last repair brings it up.
            Tick::Repair { node } if self.nodes.get(node).down_until_us <= self.now_us => {
                self.set_up(node, true);
            }
            Tick::Repair { .. } => {}
            Tick::Speed { node, speed_ppm } => self.set_speed(node, speed_ppm),
            Tick::Reservation => self.settle_reservations(),
        }
    }

    fn is_current(&self, job: u32, epoch: u32) -> bool {
        let j = &self.jobs[job as usize];
        j.epoch == epoch && j.state == JobState::Running
    }

    /// Puts a job into the queue, ordered by priority and submission.
    pub(crate) fn enqueue(&mut self, job: u32) {
        let now_us = self.now_us;
        let j = &mut self.jobs[job as usize];
        j.state = JobState::Queued;
        j.queued_us = now_us;
        let (team, key) = (j.spec.team, (-j.spec.priority, job));
        let first = self.queues[team].first().is_none_or(|head| key < *head);
        self.queues[team].insert(key);
        // A job behind a head that does not fit cannot start, except by backfill.
        self.dirty |= first || self.spec.schedule.backfill != Backfill::Off;
    }

    /// Starts an attempt of a job on GPUs that are free.
    pub(crate) fn start(&mut self, job: u32, held: Held, pause_us: i64) {
        let gpus: u32 = held.iter().map(|h| h.1).sum();
        for (node, count) in &held {
            self.nodes.change(*node, |n| {
                n.free -= count;
                n.jobs.push(job);
            });
        }
        let rate_ppm = self.rate_ppm(job, &held, gpus);
        let now_us = self.now_us;
        let j = &mut self.jobs[job as usize];
        j.state = JobState::Running;
        j.held = held;
        j.attempts += 1;
        j.started_us = now_us;
        j.first_start_us.get_or_insert(now_us);
        j.segment =
            Segment { held_us: now_us, from_us: now_us + pause_us, gpus, rate_ppm, ..Segment::default() };
        self.held_by_team[j.spec.team] += gpus;
        self.running.insert(job);
        self.ends.insert((now_us + j.spec.estimate_us, job));
        self.schedule_end(job);
        if self.recording == Recording::On {
            let j = &self.jobs[job as usize];
            let (attempt, held) = (j.attempts - 1, j.held.clone());
            self.emit(|| SimEvent::Started { job, attempt, held });
        }
    }

    fn rate_ppm(&self, job: u32, held: &Held, gpus: u32) -> u32 {
        let spec = &self.jobs[job as usize].spec;
        let slowest = held.iter().map(|h| self.nodes.get(h.0).speed_ppm).min().unwrap_or(PPM);
        let scaled = match spec.elastic {
            Some(e) if gpus != spec.gpus => relative_ppm(&self.spec.curves[e.curve], gpus, spec.gpus),
            _ => PPM,
        };
        ((u64::from(scaled) * u64::from(slowest) / u64::from(PPM)) as u32).max(1)
    }

    fn schedule_end(&mut self, job: u32) {
        let j = &mut self.jobs[job as usize];
        j.end_version += 1;
        let (at_us, version) = (j.end_of_segment_us(), j.end_version);
        self.timeline.push(at_us.max(self.now_us), Tick::End { job, version });
    }

    /// Settles the segment of a job: books the GPU time it held.
    pub(crate) fn settle(&mut self, job: u32, idle_us: i64, risk: Unsaved) {
        let now_us = self.now_us;
        let j = &mut self.jobs[job as usize];
        let a = j.account(now_us, idle_us);
        self.ledger.overhead_gpu_us += a.overhead_gpu_us;
        self.ledger.kept_gpu_us += a.safe_gpu_us;
        j.done += a.safe;
        j.segment.risk = 0;
        j.segment.risk_gpu_us = 0;
        match risk {
            Unsaved::Saved => {
                self.ledger.kept_gpu_us += a.risk_gpu_us;
                j.done += a.risk;
                j.segment.phase_us = 0;
            }
            Unsaved::LostPreempted => self.ledger.lost_preempted_gpu_us += a.risk_gpu_us,
            Unsaved::LostFailed => self.ledger.lost_failed_gpu_us += a.risk_gpu_us,
            Unsaved::Carried => {
                (j.segment.risk, j.segment.risk_gpu_us) = (a.risk, a.risk_gpu_us);
                // Elapsed start-up time is booked as overhead; the rest of the pause lies ahead.
                j.segment.from_us = j.segment.from_us.max(now_us);
                j.segment.phase_us = a.phase_us;
            }
        }
        j.segment.held_us = now_us;
    }

    /// Releases all GPUs of a job and returns them.
    pub(crate) fn release(&mut self, job: u32) -> Held {
        let j = &mut self.jobs[job as usize];
        let held = std::mem::take(&mut j.held);
        j.epoch += 1;
        j.end_version += 1;
        j.closing = None;
        self.held_by_team[j.spec.team] -= j.segment.gpus;
        let key = (j.started_us + j.spec.estimate_us, job);
        self.ends.remove(&key);
        self.jobs[job as usize].segment.gpus = 0;
        self.running.remove(&job);
        for (node, count) in &held {
            self.nodes.change(*node, |n| {
                n.free += count;
                n.jobs.retain(|j| *j != job);
            });
        }
        self.dirty = true;
        held
    }

    fn complete(&mut self, job: u32) {
        self.settle(job, 0, Unsaved::Saved);
        let attempt = self.jobs[job as usize].attempts - 1;
        let held = self.release(job);
        let now_us = self.now_us;
        let j = &mut self.jobs[job as usize];
        j.state = JobState::Done;
        j.end_us = Some(now_us);
        self.done += 1;
        self.emit(|| SimEvent::Ended { job, attempt, how: AttemptEnd::Completed });
        self.hand_over_emptied(&held);
    }

    /// Ends an attempt and puts the job back into the queue.
    pub(crate) fn requeue(&mut self, job: u32, idle_us: i64, risk: Unsaved) {
        self.settle(job, idle_us, risk);
        let how = if risk == Unsaved::LostFailed { AttemptEnd::NodeFailed } else { AttemptEnd::Preempted };
        let j = &mut self.jobs[job as usize];
        j.preempted += u32::from(how == AttemptEnd::Preempted);
        let attempt = j.attempts - 1;
        let held = self.release(job);
        self.emit(|| SimEvent::Ended { job, attempt, how });
        self.enqueue(job);
        self.hand_over_emptied(&held);
    }

    /// Stops a job whose notice is over. It cannot keep nodes that were called back meanwhile.
    fn close(&mut self, job: u32, saved: bool) {
        let (risk, idle_us) = match saved {
            true => (Unsaved::Saved, self.latency().checkpoint_us + self.latency().kill_us),
            false => (Unsaved::LostPreempted, self.latency().kill_us),
        };
        let kept = match self.jobs[job as usize].closing.take() {
            Some(Closing::Keep(mut kept)) => {
                kept.retain(|h| !matches!(self.nodes.get(h.0).place, Place::Called { .. }));
                kept
            }
            _ => Held::new(),
        };
        let least = self.jobs[job as usize].spec.sizes().0;
        if kept.iter().map(|h| h.1).sum::<u32>() < least {
            return self.requeue(job, idle_us, risk);
        }
        self.settle(job, idle_us, risk);
        let attempt = self.jobs[job as usize].attempts - 1;
        let had = self.release(job);
        self.emit(|| SimEvent::Ended { job, attempt, how: AttemptEnd::Resized });
        let pause_us = self.jobs[job as usize].spec.restart_us;
        self.start(job, kept, pause_us);
        self.hand_over_emptied(&had);
    }

    /// Asks a job to write a checkpoint. Returns when it will be complete; `None` if the job
    /// cannot.
    pub fn ask_checkpoint(&mut self, job: u32) -> Option<i64> {
        let asks = self.jobs[job as usize].spec.checkpoint.is_some_and(|c| c.on_notice);
        if !asks || !self.is_steady(job) {
            return None;
        }
        let (at_us, epoch) = (self.now_us + self.latency().checkpoint_us, self.jobs[job as usize].epoch);
        self.timeline.push(at_us, Tick::Saved { job, epoch });
        Some(at_us)
    }

    /// A requested checkpoint is complete. The job paused while it was written.
    fn saved(&mut self, job: u32) {
        if self.is_steady(job) {
            let pause_us = self.latency().checkpoint_us;
            self.settle(job, pause_us, Unsaved::Saved);
            let segment = &mut self.jobs[job as usize].segment;
            segment.from_us = segment.from_us.max(segment.held_us);
            self.schedule_end(job);
        }
    }

    /// Schedules the stop of a job after `after_us`.
    pub(crate) fn schedule_close(&mut self, job: u32, after_us: i64, saved: bool) {
        let epoch = self.jobs[job as usize].epoch;
        self.timeline.push(self.now_us + after_us, Tick::Close { job, epoch, saved });
    }

    /// Schedules the next step of a node between owner and borrower.
    pub(crate) fn schedule_move(&mut self, node: u32, after_us: i64) {
        let epoch = self.nodes.get(node).epoch;
        self.timeline.push(self.now_us + after_us, Tick::Move { node, epoch });
    }

    fn fail(&mut self, node: u32, repair_us: i64) {
        let until_us = self.now_us + repair_us;
        self.timeline.push(until_us, Tick::Repair { node });
        self.nodes.change(node, |n| n.down_until_us = n.down_until_us.max(until_us));
        if !self.nodes.get(node).up {
            return;
        }
        let jobs = self.nodes.get(node).jobs.clone();
        self.set_up(node, false);
        for job in jobs {
            self.requeue(job, 0, Unsaved::LostFailed);
        }
    }

    fn set_up(&mut self, node: u32, up: bool) {
        self.nodes.change(node, |n| n.up = up);
        self.dirty = true;
        self.emit(|| SimEvent::NodeUp { node, up });
    }

    fn set_speed(&mut self, node: u32, speed_ppm: u32) {
        self.nodes.change(node, |n| n.speed_ppm = speed_ppm.max(1));
        for job in self.nodes.get(node).jobs.clone() {
            self.settle(job, 0, Unsaved::Carried);
            let held = self.jobs[job as usize].held.clone();
            let rate_ppm = self.rate_ppm(job, &held, self.jobs[job as usize].segment.gpus);
            self.jobs[job as usize].segment.rate_ppm = rate_ppm;
            self.schedule_end(job);
        }
    }
}
