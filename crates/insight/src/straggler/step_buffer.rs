//! Buffer of open steps, in flat arrays: one slot per step, one place per rank.

use serde::{Deserialize, Serialize};

use super::input::StepReport;
use super::order_statistics;

/// Outcome of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Stored in its step's slot.
    Stored,
    /// The rank reported this step before.
    Duplicate,
    /// Its step is already closed.
    Late,
    /// Its step is too far from the open ones to be credible.
    OutOfRange,
}

/// Reports of one step; NaN means not reported. Times in seconds, tokens as counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StepSlot {
    pub step: u64,
    pub count: usize,
    pub seen: Vec<bool>,
    pub end_us: Vec<i64>,
    pub duration: Vec<f32>,
    pub compute: Vec<f32>,
    pub communication: Vec<f32>,
    pub data: Vec<f32>,
    pub tokens: Vec<f32>,
    pub squared: Vec<f32>,
    /// Median of the ends, and the number of reports it covers.
    end: Option<(usize, i64)>,
}

impl StepSlot {
    fn new(ranks: usize) -> Self {
        let empty = || vec![f32::NAN; ranks];
        Self {
            step: 0,
            count: 0,
            seen: vec![false; ranks],
            end_us: vec![0; ranks],
            duration: empty(),
            compute: empty(),
            communication: empty(),
            data: empty(),
            tokens: empty(),
            squared: empty(),
            end: None,
        }
    }

    fn clear(&mut self) {
        self.count = 0;
        self.end = None;
        self.seen.fill(false);
        for field in [
            &mut self.duration,
            &mut self.compute,
            &mut self.communication,
            &mut self.data,
            &mut self.tokens,
            &mut self.squared,
        ] {
            field.fill(f32::NAN);
        }
    }

    fn store(&mut self, report: &StepReport) {
        let rank = report.rank as usize;
        self.seen[rank] = true;
        self.count += 1;
        self.end_us[rank] = report.end_us;
        self.duration[rank] = seconds(Some(report.duration_us), false);
        self.compute[rank] = seconds(report.compute_us, false);
        self.communication[rank] = seconds(report.communication_us, false);
        self.data[rank] = seconds(report.data_us, true);
        self.tokens[rank] = report.tokens.map_or(f32::NAN, |tokens| tokens as f32);
        self.squared[rank] = report.squared_tokens.map_or(f32::NAN, |squared| squared as f32);
    }

    /// Median of the ends reported so far, so that one absurd clock does not move it.
    pub fn end(&mut self, scratch: &mut Vec<i64>) -> i64 {
        match self.end {
            Some((count, end)) if count == self.count => end,
            _ => {
                scratch.clear();
                scratch.extend(
                    self.end_us.iter().zip(&self.seen).filter(|(_, seen)| **seen).map(|(end, _)| *end),
                );
                let end = order_statistics::median_time(scratch).unwrap_or(i64::MIN);
                self.end = Some((self.count, end));
                end
            }
        }
    }
}

/// A reported time in seconds. More than ten days, or zero where that is impossible, gives NaN.
pub(super) fn seconds(time_us: Option<u64>, zero: bool) -> f32 {
    const MOST_US: u64 = 10 * 86_400 * 1_000_000;
    match time_us {
        Some(0) if !zero => f32::NAN,
        Some(time) if time <= MOST_US => (time as f64 * 1e-6) as f32,
        _ => f32::NAN,
    }
}

/// Steps after which a silent rank is no longer waited for; some launchers let one rank per node
/// report.
const SILENT_STEPS: u64 = 64;

/// Last step that each rank reported.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReportTracker {
    /// By rank: one more than its last reported step; 0: none.
    next: Vec<u64>,
    /// Steps closed.
    closed: u64,
}

impl ReportTracker {
    /// Whether every rank missing in the step has reported a later one, or nothing for long.
    pub fn expects_no_more_of(&self, slot: &StepSlot) -> bool {
        let missing = self.next.iter().zip(&slot.seen).filter(|(_, seen)| !**seen);
        missing.map(|(next, _)| *next).all(|next| match next {
            0 => self.closed >= SILENT_STEPS,
            next => next > slot.step || slot.step - next >= SILENT_STEPS,
        })
    }
}

/// Open steps, by number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StepBuffer {
    ranks: usize,
    /// Lowest step that may still be open.
    base: u64,
    /// A step was closed, so steps below `base` are late.
    closed: bool,
    /// Slot of each open step, at `step % len`.
    slot_of: Vec<Option<u32>>,
    slots: Vec<StepSlot>,
    /// Free slots; the last freed is used first, as it is warm in the cache.
    free: Vec<u32>,
    open: usize,
    tracker: ReportTracker,
    /// Last step that each rank reported far from the open ones.
    far: Vec<Option<u64>>,
    far_count: usize,
}

impl StepBuffer {
    pub fn new(ranks: usize, open_steps: usize) -> Self {
        Self {
            ranks,
            base: 0,
            closed: false,
            slot_of: vec![None; open_steps.max(2)],
            slots: Vec::new(),
            free: Vec::new(),
            open: 0,
            tracker: ReportTracker { next: vec![0; ranks], closed: 0 },
            far: vec![None; ranks],
            far_count: 0,
        }
    }

    /// Stores a report of a rank below `ranks`.
    pub fn take(&mut self, report: &StepReport) -> Admission {
        let width = self.slot_of.len() as u64;
        if self.open == 0 && !self.closed {
            self.base = report.step;
        }
        if report.step < self.base {
            // Nothing was closed yet: the first report was not of the first step.
            let last = self.last();
            if self.closed {
                let near = self.base - report.step <= super::history::DEPTH as u64;
                return if near { Admission::Late } else { self.note_out_of_range(report) };
            }
            if last - report.step >= width {
                return self.note_out_of_range(report);
            }
            self.base = report.step;
        }
        if report.step - self.base >= width {
            return self.note_out_of_range(report);
        }
        let slot = self.slot(report.step);
        if self.slots[slot].seen[report.rank as usize] {
            return Admission::Duplicate;
        }
        self.slots[slot].store(report);
        let next = &mut self.tracker.next[report.rank as usize];
        *next = (*next).max(report.step.saturating_add(1));
        Admission::Stored
    }

    fn slot(&mut self, step: u64) -> usize {
        let width = self.slot_of.len() as u64;
        let place = (step % width) as usize;
        if let Some(slot) = self.slot_of[place] {
            return slot as usize;
        }
        let slot = self.free.pop().map_or_else(
            || {
                self.slots.push(StepSlot::new(self.ranks));
                self.slots.len() - 1
            },
            |slot| slot as usize,
        );
        self.slots[slot].step = step;
        self.slot_of[place] = Some(slot as u32);
        self.open += 1;
        slot
    }

    /// Highest open step; `base` when none is.
    fn last(&self) -> u64 {
        let steps = self.slot_of.iter().flatten().map(|&slot| self.slots[slot as usize].step);
        steps.max().unwrap_or(self.base)
    }

    /// Notes a report far from the open steps without storing it. Alone it is garbage, and must not
    /// push the real steps out.
    fn note_out_of_range(&mut self, report: &StepReport) -> Admission {
        let seen = &mut self.far[report.rank as usize];
        self.far_count += usize::from(seen.is_none());
        *seen = Some(report.step);
        Admission::OutOfRange
    }

    /// Memory of the open steps, bytes.
    pub fn bytes(&self) -> usize {
        const RANK: usize = size_of::<bool>() + size_of::<i64>() + 6 * size_of::<f32>();
        self.slots.len() * (size_of::<StepSlot>() + self.ranks * RANK)
    }

    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Whether half of the ranks are far from the open steps. Then they are right, and the open
    /// steps are to be closed and left behind.
    pub fn left_behind(&self) -> bool {
        self.far_count * 2 >= self.ranks.max(1) && self.far_count > 0
    }

    /// Continues at the step most of the far ranks have reached. Every open slot must have been
    /// closed before.
    pub fn jump(&mut self) {
        let mut steps: Vec<u64> = self.far.iter().copied().flatten().collect();
        steps.sort_unstable();
        if let Some(&middle) = steps.get(steps.len() / 2) {
            self.base = middle.saturating_sub(1);
        }
        self.far.fill(None);
        self.far_count = 0;
        // Step numbers may have started again.
        self.tracker.next.fill(0);
        self.closed = self.base > 0;
    }

    /// Takes out the lowest open step, if it is `ready`.
    pub fn close(
        &mut self,
        mut ready: impl FnMut(&mut StepSlot, &ReportTracker) -> bool,
    ) -> Option<StepSlot> {
        if self.open == 0 {
            return None;
        }
        let width = self.slot_of.len() as u64;
        let step = (0..width).map(|ahead| self.base.saturating_add(ahead)).find(|step| {
            self.slot_of[(step % width) as usize].is_some_and(|slot| self.slots[slot as usize].step == *step)
        })?;
        let place = (step % width) as usize;
        let slot = self.slot_of[place]? as usize;
        if !ready(&mut self.slots[slot], &self.tracker) {
            return None;
        }
        self.slot_of[place] = None;
        self.free.push(slot as u32);
        self.open -= 1;
        self.tracker.closed += 1;
        self.base = step.saturating_add(1);
        self.closed = true;
        if self.far_count > 0 {
            self.far.fill(None);
            self.far_count = 0;
        }
        Some(std::mem::replace(&mut self.slots[slot], StepSlot::empty()))
    }

    /// Returns a slot for reuse.
    pub fn recycle(&mut self, mut slot: StepSlot) {
        slot.clear();
        if let Some(&place) = self.free.last() {
            self.slots[place as usize] = slot;
        }
    }
}

impl StepSlot {
    /// Placeholder for a slot that is taken out; allocates nothing.
    fn empty() -> Self {
        Self::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: u32, step: u64) -> StepReport {
        StepReport {
            attempt: 0,
            rank,
            step,
            end_us: step as i64 * 1_000_000,
            duration_us: 1_000_000,
            compute_us: Some(800_000),
            communication_us: None,
            data_us: Some(0),
            tokens: None,
            squared_tokens: None,
        }
    }

    fn next(step_buffer: &mut StepBuffer) -> Option<(u64, usize)> {
        let slot = step_buffer.close(|_, _| true)?;
        let seen = (slot.step, slot.count);
        step_buffer.recycle(slot);
        Some(seen)
    }

    #[test]
    fn steps_close_in_order_of_number() {
        let mut step_buffer = StepBuffer::new(2, 8);
        for (rank, step) in [(0, 5), (1, 4), (0, 4), (1, 5), (1, 7)] {
            assert_eq!(step_buffer.take(&report(rank, step)), Admission::Stored);
        }
        assert_eq!(step_buffer.take(&report(1, 7)), Admission::Duplicate);
        assert_eq!(next(&mut step_buffer), Some((4, 2)));
        assert_eq!(step_buffer.take(&report(1, 4)), Admission::Late);
        assert_eq!(next(&mut step_buffer), Some((5, 2)));
        assert_eq!(next(&mut step_buffer), Some((7, 1)));
        assert_eq!(next(&mut step_buffer), None);
    }

    #[test]
    fn one_absurd_step_number_moves_nothing_but_half_of_the_ranks_do() {
        let mut step_buffer = StepBuffer::new(4, 8);
        assert_eq!(step_buffer.take(&report(0, u64::MAX)), Admission::Stored);
        assert_eq!(step_buffer.take(&report(1, 3)), Admission::OutOfRange);
        assert!(!step_buffer.left_behind());
        assert_eq!(step_buffer.take(&report(2, 3)), Admission::OutOfRange);
        assert!(step_buffer.left_behind());
        while next(&mut step_buffer).is_some() {}
        step_buffer.take(&report(1, 3));
        step_buffer.take(&report(2, 3));
        step_buffer.jump();
        assert_eq!(step_buffer.take(&report(3, 3)), Admission::Stored);
    }

    #[test]
    fn a_step_that_no_rank_will_tell_more_of_is_settled() {
        let mut step_buffer = StepBuffer::new(3, 8);
        let settled = |step_buffer: &mut StepBuffer| {
            let slot = step_buffer.close(|slot, tracker| tracker.expects_no_more_of(slot))?;
            let seen = (slot.step, slot.count);
            step_buffer.recycle(slot);
            Some(seen)
        };
        for (rank, step) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            step_buffer.take(&report(rank, step));
        }
        assert_eq!(settled(&mut step_buffer), None, "rank 2 may tell the first step yet");
        step_buffer.take(&report(2, 1));
        assert_eq!((settled(&mut step_buffer), settled(&mut step_buffer)), (Some((0, 2)), Some((1, 3))));
        // Its last report was of step 1, so it is waited for up to step 65.
        for step in 2..66 {
            step_buffer.take(&report(0, step));
            step_buffer.take(&report(1, step));
            assert_eq!(settled(&mut step_buffer), None, "{step}");
            assert_eq!(next(&mut step_buffer), Some((step, 2)));
        }
        step_buffer.take(&report(0, 66));
        step_buffer.take(&report(1, 66));
        assert_eq!(settled(&mut step_buffer), Some((66, 2)));
    }

    #[test]
    fn zero_compute_is_unknown_and_zero_data_is_zero() {
        assert!(seconds(Some(0), false).is_nan());
        assert_eq!(seconds(Some(0), true), 0.0);
        assert!(seconds(Some(u64::MAX), true).is_nan());
        assert!(seconds(None, true).is_nan());
    }
}
