//! What a job's GPUs on a node did in a minute: first what its steps say, then what samples say of
//! the rest.

use super::fact::{Fact, Kind};
use super::minute::ClassName;
use super::node::Device;

/// Held time by what samples say, in the order in which steps take it: a step is rather where a GPU
/// was active than where it was empty.
const DID: [ClassName; 4] =
    [("active", "samples"), ("unknown", "hold"), ("idle_held", "samples"), ("empty_held", "samples")];

/// What a job held on a node, ms by device: active, unseen, idle, empty.
#[derive(Debug, Default)]
pub struct Held<'a> {
    by_device: Vec<(Device<'a>, [i64; 4])>,
}

impl<'a> Held<'a> {
    pub fn add(&mut self, device: Device<'a>, did: [i64; 4]) {
        self.by_device.push((device, did));
    }
}

/// Device, class and ms. `steps` is a fact of that kind; `starting` is what was held before the
/// first step, ms, and the number of the attempt.
pub fn held_classes<'a>(
    held: &Held<'a>,
    steps: Option<&Fact<'_>>,
    starting: Option<(i64, i64)>,
) -> Vec<(Device<'a>, ClassName, i64)> {
    let pieces =
        (0..DID.len()).flat_map(|kind| held.by_device.iter().map(move |(d, did)| (*d, kind, did[kind])));
    let mut pieces: Vec<(Device<'a>, usize, i64)> = pieces.filter(|(.., ms)| *ms > 0).collect();
    let mut made = Vec::new();
    let mut first = 0;
    for (class, mut ms) in of_steps(steps, starting) {
        while let Some((device, _, left)) = pieces.get_mut(first).filter(|_| ms > 0) {
            let part = ms.min(*left);
            *left -= part;
            ms -= part;
            made.push((*device, class, part));
            first += usize::from(*left == 0);
        }
    }
    made.extend(pieces.into_iter().map(|(device, kind, ms)| (device, DID[kind], ms)));
    made
}

/// What steps say, in the order in which it counts.
fn of_steps(steps: Option<&Fact<'_>>, starting: Option<(i64, i64)>) -> Vec<(ClassName, i64)> {
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
