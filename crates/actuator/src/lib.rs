//! Where the autopilot's decisions reach real clusters: input and output at its edge. Its journal on the log, its switch and what people
//! approved as files, what the log tells of nodes and of how jobs scale beside the scheduler's state, and the schedulers themselves.

mod control;
mod curves;
mod event;
mod informed;
mod journal;
pub mod slurm;

pub use control::Control;
pub use event::entry_of;
pub use informed::Informed;
pub use journal::LogJournal;
