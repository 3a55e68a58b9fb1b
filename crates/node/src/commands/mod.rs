//! One module per command.

pub mod agent;
mod collector;
pub mod doctor;
pub mod event;
pub mod watch;
