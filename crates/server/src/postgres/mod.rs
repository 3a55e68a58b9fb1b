//! Postgres' wire protocol: for psql, drivers and tools that speak it.
//!
//! A statement is a [`crate::question::Question`] like any other: its text and values go to a
//! worker, which writes Postgres' messages (`rows.rs`), and the session passes them on
//! (`running.rs`). There is no session beside what the client has prepared: each statement sees the
//! newest tables, in a transaction block too.

pub(crate) mod catalog;
mod constant;
mod extended;
mod failure;
mod keys;
mod message;
mod outbox;
pub(crate) mod parameters;
mod portal;
pub(crate) mod rows;
mod running;
mod served;
mod session;
pub(crate) mod sessions;
mod setting;
mod startup;
mod statement;
pub(crate) mod template;
mod wire;
