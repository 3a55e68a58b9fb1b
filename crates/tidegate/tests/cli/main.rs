//! The program and its HTTP service, tried from outside.

#![allow(clippy::unwrap_used)]

mod architecture;
mod backlog;
mod bad_input;
mod crash;
mod http;
mod mishaps;
mod pipelines;
mod program;
mod reference;
mod schema;
mod sql;
mod support;
mod up;
