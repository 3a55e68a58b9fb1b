//! One module per command.

pub mod agent;
pub mod doctor;
pub mod event;
pub mod watch;
