//! Rivals, re-implemented on step reports from their papers and code.
//!
//! Their additional data is missing (Minder's autoencoder over host counters, Greyhound's
//! validation that pauses the job), and they were not built for all the normal events of training
//! generated here, so these are not their published accuracies. Each alarms once when its condition
//! becomes true, and not again while it holds, which favours them.

mod bocpd;
mod frames;
mod minder;
mod nvrx;
mod spread;
mod window;

pub use bocpd::Bocpd;
pub use minder::Minder;
pub use nvrx::{Against, Nvrx};
pub use spread::Spread;
pub use window::Window;

use super::method::Method;

/// New instances of all rivals.
pub fn all() -> Vec<Box<dyn Method>> {
    vec![
        Box::new(Nvrx::new(Against::AllRanks)),
        Box::new(Nvrx::new(Against::Group)),
        Box::new(Nvrx::new(Against::OwnBest)),
        Box::new(Window::new()),
        Box::new(Bocpd::new(false)),
        Box::new(Bocpd::new(true)),
        Box::new(Minder::new()),
        Box::new(Spread::new()),
    ]
}

#[cfg(test)]
mod tests;
