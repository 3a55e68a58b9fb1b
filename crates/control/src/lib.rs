//! Where the autopilot's decisions reach real clusters: input and output at its edge. Its journal
//! on the log, its switch and what people approved as files, whose signatures count, what the log
//! tells of nodes and of how jobs scale beside the scheduler's state, what it foresees of demand,
//! the way to whoever is on call, and the schedulers themselves.

pub mod authority;
mod control;
mod curves;
mod event;
mod foreseen;
mod informed;
mod journal;
mod pager;
pub mod policy_file;
pub mod service;
pub mod slurm;
mod tail;

pub use control::{Approval, Control};
pub use event::entry_of;
pub use foreseen::LogForecasts;
pub use informed::Informed;
pub use journal::LogJournal;
pub use pager::{Pager, PagerConfig};
