//! Replay of a step, operation by operation. It shows what the closed form of
//! [`whatif`](super::whatif) cannot, which knows only a worker's mean micro-batch: micro-batches of
//! uneven length leave gaps that a mean does not have.
//!
//! Order of a stage in one-forward-one-backward (PipeDream-flush, Megatron's default): `P - 1 - s`
//! forwards first, then a forward and a backward by turns, then the remaining backwards. A forward
//! waits for its micro-batch's forward on the stage before, a backward for that on the stage after.
//! Transfers take no time.

/// Forward and backward times of a step, seconds: of worker `w` and micro-batch `m` at `w *
/// micro_batches + m`.
#[derive(Debug, Clone, PartialEq)]
pub struct Operations {
    /// Forward times.
    pub forward: Vec<f64>,
    /// Backward times.
    pub backward: Vec<f64>,
}

impl Operations {
    /// Whether every operation of `workers` workers is known.
    pub(super) fn is_whole(&self, workers: usize, micro_batches: usize) -> bool {
        let known = |times: &[f64]| {
            times.len() == workers * micro_batches
                && times.iter().all(|time| time.is_finite() && *time >= 0.0)
        };
        known(&self.forward) && known(&self.backward)
    }

    /// Time of the step when worker `w` takes `scale[w]` times as long; workers are `replica *
    /// stages + stage`.
    pub(super) fn step_time(&self, scale: &[f64], stages: usize, micro_batches: usize) -> f64 {
        let size = stages * micro_batches;
        let replicas = self.forward.chunks_exact(size).zip(self.backward.chunks_exact(size));
        replicas
            .zip(scale.chunks_exact(stages))
            .map(|((forward, backward), scale)| replay(forward, backward, scale, micro_batches))
            .fold(f64::NAN, f64::max)
    }
}

/// Progress of a stage.
#[derive(Clone)]
struct Stage {
    /// When it is free, seconds from the start of the step.
    free_s: f64,
    /// Ends of its forwards and backwards, in order.
    forwards: Vec<f64>,
    backwards: Vec<f64>,
}

/// Time of one replica.
fn replay(forward: &[f64], backward: &[f64], scale: &[f64], micro_batches: usize) -> f64 {
    let stages = scale.len();
    let mut done = vec![Stage { free_s: 0.0, forwards: Vec::new(), backwards: Vec::new() }; stages];
    let mut left = 2 * stages * micro_batches;
    while left > 0 {
        let before = left;
        for stage in 0..stages {
            while let Some(ready_s) = next(&done, stage, micro_batches) {
                let is_forward = is_forward(&done[stage], stages - 1 - stage, micro_batches);
                let at = &mut done[stage];
                let (times, ends) =
                    if is_forward { (forward, &mut at.forwards) } else { (backward, &mut at.backwards) };
                let took_s = times[stage * micro_batches + ends.len()] * scale[stage];
                at.free_s = at.free_s.max(ready_s) + took_s;
                ends.push(at.free_s);
                left -= 1;
            }
        }
        if left == before {
            // The order has no cycle. If it ever had one, the result is NaN rather than an endless
            // loop.
            return f64::NAN;
        }
    }
    done.iter().map(|stage| stage.free_s).fold(f64::NAN, f64::max)
}

/// Whether the stage's next operation is a forward.
fn is_forward(stage: &Stage, ahead: usize, micro_batches: usize) -> bool {
    stage.forwards.len() < micro_batches && stage.forwards.len() <= stage.backwards.len() + ahead
}

/// When the input of the stage's next operation is ready; `None` while it is not, or when nothing
/// is left.
fn next(done: &[Stage], stage: usize, micro_batches: usize) -> Option<f64> {
    let at = &done[stage];
    let last = done.len() - 1;
    if is_forward(at, last - stage, micro_batches) {
        let batch = at.forwards.len();
        return if stage == 0 { Some(0.0) } else { done[stage - 1].forwards.get(batch).copied() };
    }
    let batch = at.backwards.len();
    if batch == micro_batches {
        None
    } else if stage == last {
        at.forwards.get(batch).copied()
    } else {
        done[stage + 1].backwards.get(batch).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_work_takes_the_ideal_time() {
        // Three stages, four micro-batches of 1 + 2 s: (3 + 4 - 1) * 3 s.
        let even = Operations { forward: vec![1.0; 12], backward: vec![2.0; 12] };
        assert_eq!(even.step_time(&[1.0; 3], 3, 4), 18.0);
        // Of two replicas the slower one counts.
        let two = Operations { forward: vec![1.0; 8], backward: vec![2.0; 8] };
        assert_eq!(two.step_time(&[1.0, 1.0, 2.0, 2.0], 2, 2), 18.0);
    }

    #[test]
    fn uneven_micro_batches_leave_gaps_as_drawn_by_hand() {
        // Stage 0: F 1, F 3, B 1, B 3. Stage 1: F 1, B 1, F 3, B 3. Stage 0: F0 0-1, F1 1-4. Stage
        // 1: F0 1-2, B0 2-3, F1 4-7, B1 7-10. Stage 0: B0 4-5, B1 10-13.
        let uneven = Operations { forward: vec![1.0, 3.0, 1.0, 3.0], backward: vec![1.0, 3.0, 1.0, 3.0] };
        assert_eq!(uneven.step_time(&[1.0, 1.0], 2, 2), 13.0);
        // The closed form has (8 + 8) / 2 + 1 * 4 = 12.
        assert_eq!(super::super::whatif::step_time(&[8.0, 8.0], 2, 2), 12.0);
    }

    #[test]
    fn what_is_missing_is_seen() {
        let odd = Operations { forward: vec![1.0, f64::NAN], backward: vec![1.0; 2] };
        assert!(!odd.is_whole(1, 2));
        assert!(!Operations { forward: vec![1.0; 2], backward: vec![1.0; 3] }.is_whole(1, 2));
        assert!(Operations { forward: vec![1.0; 2], backward: vec![0.0; 2] }.is_whole(1, 2));
    }
}
