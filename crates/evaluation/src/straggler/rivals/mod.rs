//! Rivals, re-implemented on step reports from their papers and code.
//!
//! Their own extra data is not there (Minder's autoencoder over host counters, Greyhound's
//! validation that pauses the job), and they were not built for every ordinary event of training
//! generated here: these are not their published accuracies. Each alarms once when its condition
//! becomes true, not again while it stays so, which is kinder than what they do.

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

/// All rivals, fresh.
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
