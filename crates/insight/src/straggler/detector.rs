//! Detector of one job: takes reports in any order, decides as the watermark advances, and hands
//! over signals.

use serde::{Deserialize, Serialize};

use super::input::{DeviceWindow, Fault, JobShape, StepReport};
use super::job::{EvidenceHorizon, Job};
use super::late_reports;
use super::layout::Layout;
use super::settings::Settings;
use super::signal::Signal;
use super::step_buffer::Admission;
use super::structure;
use super::throttle::Throttle;

/// Inputs by outcome. None is dropped without being counted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Step reports received.
    pub reports: u64,
    /// Reports of closed steps, inserted afterwards.
    pub late: u64,
    /// Reports seen before, or of steps no longer kept.
    pub repeated: u64,
    /// Reports of another attempt.
    pub other_attempt: u64,
    /// Reports of ranks that the shape lacks.
    pub unknown_rank: u64,
    /// Reports with a step number far from all others.
    pub far: u64,
    /// Device windows and faults not used: repeated, of unknown ranks, or empty.
    pub devices_unused: u64,
}

/// Watches one job.
///
/// Reports may come late, twice, or not at all. Nothing is decided before [`Detector::advance`]
/// passes it, so any order of arrival before that gives the same signals, byte for byte.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Detector {
    settings: Settings,
    attempt: u32,
    job: Job,
    throttle: Throttle,
    devices: Vec<DeviceWindow>,
    faults: Vec<Fault>,
    watermark_us: i64,
    next_episode: u64,
    counts: Counts,
    ends: Vec<i64>,
    out: Vec<Signal>,
}

impl Detector {
    /// A detector of a job with layout `shape`.
    pub fn new(shape: JobShape, settings: Settings) -> Self {
        let (job, throttle) = new_run(&shape, &settings);
        Self {
            settings,
            attempt: shape.attempt,
            job,
            throttle,
            devices: Vec::new(),
            faults: Vec::new(),
            watermark_us: i64::MIN,
            next_episode: 1,
            counts: Counts::default(),
            ends: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Restarts the job with another shape. Open episodes of the last attempt are closed first, and
    /// baselines are learnt anew, because ranks may be on other nodes. An attempt not greater than
    /// the current one is ignored.
    pub fn restart(&mut self, shape: JobShape) {
        if shape.attempt <= self.attempt {
            return;
        }
        self.close_steps(i64::MAX, Ready::Passed);
        self.job.end(&mut self.out);
        self.throttle.end(self.watermark_us, &mut self.out);
        self.attempt = shape.attempt;
        self.devices.clear();
        self.faults.clear();
        let (mut job, throttle) = new_run(&shape, &self.settings);
        job.inherit(&self.job);
        (self.job, self.throttle) = (job, throttle);
    }

    /// Takes one rank's report of one step.
    pub fn step(&mut self, report: &StepReport) {
        self.counts.reports += 1;
        if report.attempt != self.attempt {
            self.counts.other_attempt += 1;
            return;
        }
        if report.rank as usize >= self.job.layout.ranks() {
            self.counts.unknown_rank += 1;
            return;
        }
        match self.job.step_buffer.take(report) {
            Admission::Stored => {}
            Admission::Duplicate => self.counts.repeated += 1,
            Admission::Late if late_reports::take(&mut self.job, report, &mut self.out) => {
                self.counts.late += 1
            }
            Admission::Late => self.counts.repeated += 1,
            Admission::OutOfRange => {
                self.counts.far += 1;
                if self.job.step_buffer.left_behind() {
                    self.close_steps(i64::MAX, Ready::Passed);
                    self.job.step_buffer.jump();
                }
            }
        }
    }

    /// Takes a window of a rank's device.
    pub fn device(&mut self, window: &DeviceWindow) {
        if (window.rank as usize) < self.job.layout.ranks() {
            self.devices.push(*window);
        } else {
            self.counts.devices_unused += 1;
        }
    }

    /// Takes a fault of a rank's device.
    pub fn fault(&mut self, fault: &Fault) {
        if (fault.rank as usize) < self.job.layout.ranks() {
            self.faults.push(*fault);
        } else {
            self.counts.devices_unused += 1;
        }
    }

    /// Moves the watermark to an event time up to which reports are complete. Steps, windows and
    /// faults that ended by then are used. A watermark below the last one changes nothing.
    pub fn advance(&mut self, watermark_us: i64) {
        if watermark_us <= self.watermark_us {
            return;
        }
        self.watermark_us = watermark_us;
        self.close_steps(watermark_us, Ready::Passed);
        // Evidence that no step has used: there may be no step reports at all.
        self.use_devices(watermark_us);
    }

    /// Decides steps that ended by `until_us` and that every rank has reported, in order, up to the
    /// first incomplete one. The watermark stays. The signals equal those that
    /// [`advance`](Self::advance) would give later, provided that all windows and faults up to
    /// [`Settings::evidence_lag_us`] before `until_us` are known.
    pub fn advance_whole(&mut self, until_us: i64) {
        self.close_steps(until_us, Ready::Whole);
    }

    /// As [`advance_whole`](Self::advance_whole), and also decides incomplete steps that will stay
    /// so: every missing rank has reported a later step, or nothing for long. Looks at each rank,
    /// so it is too expensive to call per report. Each rank's own reports must come in order.
    pub fn advance_settled(&mut self, until_us: i64) {
        self.close_steps(until_us, Ready::Settled);
    }

    /// Ranks of the job.
    pub fn ranks(&self) -> usize {
        self.job.layout.ranks()
    }

    /// Memory of the detector, bytes: its open steps, and its ranks with full series and device
    /// windows. Estimated from the layout in constant time.
    pub fn bytes(&self) -> usize {
        const PENDING_BYTES: usize = size_of::<DeviceWindow>();
        let pending = self.devices.len() * PENDING_BYTES + self.faults.len() * size_of::<Fault>();
        size_of::<Self>() + self.job.bytes() + pending
    }

    /// Hands over the signals since the last call, in the order they were decided.
    pub fn take(&mut self) -> Vec<Signal> {
        std::mem::take(&mut self.out)
    }

    /// Inputs by outcome so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Closes, in order, the steps that ended by `until_us` and are `ready`. Steps passed by the
    /// watermark must be so by the largest clock skew.
    fn close_steps(&mut self, until_us: i64, ready: Ready) {
        let ranks = self.job.layout.ranks();
        let lag_us = self.settings.evidence_lag_us.max(0);
        let skew_us = if until_us == i64::MAX { 0 } else { self.settings.skew_us.max(0) };
        let ends = &mut self.ends;
        while let Some(mut slot) = self.job.step_buffer.close(|slot, tracker| {
            let is_whole = slot.count == ranks;
            let slack_us = if is_whole || ready != Ready::Passed { 0 } else { skew_us };
            let is_ready = match ready {
                Ready::Passed => true,
                Ready::Whole => is_whole,
                Ready::Settled => is_whole || tracker.expects_no_more_of(slot),
            };
            is_ready && slot.end(ends).saturating_add(slack_us) <= until_us
        }) {
            let end_us = slot.end(ends);
            let known_us = end_us.saturating_sub(lag_us);
            self.job.evidence = EvidenceHorizon { until_us: known_us, has_new: false };
            if !self.devices.is_empty() || !self.faults.is_empty() {
                self.job.evidence.has_new = apply_device_evidence(
                    (&mut self.devices, &mut self.faults),
                    known_us,
                    (&mut self.job, None),
                    (&mut self.next_episode, &mut self.counts, &mut self.out),
                );
            }
            self.throttle.end(end_us, &mut self.out);
            let seq = self.job.close(&slot, end_us, &mut self.next_episode, &mut self.out);
            structure::analyze(&mut self.job, seq, &mut self.next_episode, &mut self.out);
            self.job.step_buffer.recycle(slot);
        }
    }

    fn use_devices(&mut self, until_us: i64) {
        if self.devices.is_empty() && self.faults.is_empty() {
            return;
        }
        // While steps are reported, they decide when evidence is used, and counters alone blame
        // nobody.
        let alone = self.job.history.closed == 0 && self.job.step_buffer.is_empty();
        if alone {
            apply_device_evidence(
                (&mut self.devices, &mut self.faults),
                until_us,
                (&mut self.job, Some(&mut self.throttle)),
                (&mut self.next_episode, &mut self.counts, &mut self.out),
            );
        }
    }
}

fn new_run(shape: &JobShape, settings: &Settings) -> (Job, Throttle) {
    let layout = Layout::new(shape, settings.peers, settings.ranks);
    let throttle = Throttle::new(layout.ranks());
    (Job::new(layout, settings), throttle)
}

/// Which steps to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    /// All that the watermark passed.
    Passed,
    /// Those that every rank has reported.
    Whole,
    /// Those, and others that no rank will report more of.
    Settled,
}

/// Uses the windows and faults that ended by `until_us`, in an order independent of arrival.
/// Returns whether there were any.
fn apply_device_evidence(
    (devices, faults): (&mut Vec<DeviceWindow>, &mut Vec<Fault>),
    until_us: i64,
    (job, mut throttle): (&mut Job, Option<&mut Throttle>),
    (next_episode, counts, out): (&mut u64, &mut Counts, &mut Vec<Signal>),
) -> bool {
    let mut has_new = false;
    let mut due: Vec<Fault> = faults.extract_if(.., |fault| fault.time_us <= until_us).collect();
    due.sort_unstable_by_key(|fault| (fault.time_us, fault.rank, fault.xid));
    for fault in &due {
        let is_new = job.devices.fault(fault);
        has_new |= is_new;
        counts.devices_unused += u64::from(!is_new);
    }
    let mut due: Vec<DeviceWindow> = devices.extract_if(.., |window| window.end_us <= until_us).collect();
    due.sort_by(|a, b| {
        let key = |window: &DeviceWindow| (window.end_us, window.rank, window.start_us);
        key(a).cmp(&key(b)).then_with(|| bits(a).cmp(&bits(b)))
    });
    for window in &due {
        if !job.devices.take(window) {
            counts.devices_unused += 1;
            continue;
        }
        has_new = true;
        if let Some(throttle) = throttle.as_deref_mut() {
            let known = (&job.layout, &job.devices, &job.settings);
            throttle.update(window.rank, window.end_us, known, next_episode, out);
        }
    }
    has_new
}

/// Distinguishes contradictory windows of the same rank and time.
fn bits(window: &DeviceWindow) -> [Option<u64>; 7] {
    [
        window.sm_clock_mhz.map(f64::to_bits),
        window.slowdown_share.map(f64::to_bits),
        window.power_cap_share.map(f64::to_bits),
        window.power_w.map(f64::to_bits),
        window.link_width_ratio.map(f64::to_bits),
        window.link_retries,
        window.network_marks,
    ]
}
