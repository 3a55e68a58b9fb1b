//! What a job's GPUs on a node did in a minute: first by its step reports, then by samples.

use super::class::ClassName;
use super::fact::{Fact, Kind};
use super::node::Device;

/// Classes by samples, in the order in which steps are placed: a step ran rather where a GPU was
/// active than where it was empty.
const ACTIVITY_CLASSES: [ClassName; 4] =
    [("active", "samples"), ("unknown", "hold"), ("idle_held", "samples"), ("empty_held", "samples")];

/// What a job held on a node, ms by device: active, not sampled, idle, empty.
#[derive(Debug, Default)]
pub struct JobMinute<'a> {
    by_device: Vec<(Device<'a>, [i64; 4])>,
}

impl<'a> JobMinute<'a> {
    pub fn add(&mut self, device: Device<'a>, activity: [i64; 4]) {
        self.by_device.push((device, activity));
    }
}

/// Device, class and ms. `steps` is a fact of that kind. `starting` is the time held before the
/// first step, ms, and the number of the attempt.
pub fn job_classes<'a>(
    held: &JobMinute<'a>,
    steps: Option<&Fact<'_>>,
    starting: Option<(i64, i64)>,
) -> Vec<(Device<'a>, ClassName, i64)> {
    let pieces = (0..ACTIVITY_CLASSES.len())
        .flat_map(|kind| held.by_device.iter().map(move |(d, activity)| (*d, kind, activity[kind])));
    let mut pieces: Vec<(Device<'a>, usize, i64)> = pieces.filter(|(.., ms)| *ms > 0).collect();
    let mut rows = Vec::new();
    let mut first = 0;
    for (class, mut ms) in step_classes(steps, starting) {
        while let Some((device, _, left)) = pieces.get_mut(first).filter(|_| ms > 0) {
            let part = ms.min(*left);
            *left -= part;
            ms -= part;
            rows.push((*device, class, part));
            first += usize::from(*left == 0);
        }
    }
    rows.extend(pieces.into_iter().map(|(device, kind, ms)| (device, ACTIVITY_CLASSES[kind], ms)));
    rows
}

/// Classes by steps, in the order in which they are placed.
fn step_classes(steps: Option<&Fact<'_>>, starting: Option<(i64, i64)>) -> Vec<(ClassName, i64)> {
    let mut classes = Vec::new();
    if let Some(steps) = steps {
        debug_assert_eq!(steps.kind, Kind::Steps);
        let names = ["restore", "redone", "checkpoint", "data_stall", "communication_stall"];
        let parts = [steps.a, steps.b, steps.c, steps.d, steps.e];
        classes.extend(names.into_iter().zip(parts).map(|(name, ms)| ((name, "steps"), ms)));
        classes.push((("productive", "steps"), steps.gpus - parts.iter().sum::<i64>()));
    }
    if let Some((ms, attempt)) = starting {
        classes.push(((if attempt > 0 { "recovery" } else { "startup" }, "steps"), ms));
    }
    classes.retain(|(_, ms)| *ms > 0);
    classes
}
