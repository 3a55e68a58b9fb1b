//! Advice for people: checkpoint intervals, scaling, right-sizing, sharing. Nothing acts on it
//! automatically.

mod checkpoint;
mod error;
mod histogram;
mod rightsize;
pub mod scaling;
mod sharing;

pub use checkpoint::{
    CheckpointAdvice, CheckpointCost, FailurePosterior, Range, checkpoint_advice, daly_waste, young,
};
pub use error::AdviceError;
pub use histogram::Histogram;
pub use rightsize::{Refusal, RightSize, Slice, Usage, right_size};
pub use sharing::{Neighbour, Pair, sharing_pairs};
