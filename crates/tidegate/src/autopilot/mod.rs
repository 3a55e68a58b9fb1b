//! The autopilot on the log: its journal as events, its switch and what people approved as files, its loop on a real cluster, and a
//! demonstration on a simulated one.

mod control;
pub mod demo;
mod event;
mod informed;
mod journal;
pub mod live;
pub mod record;

pub use control::Control;
use informed::Informed;
use journal::LogJournal;
