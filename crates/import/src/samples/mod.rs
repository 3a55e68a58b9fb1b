//! GPU samples of history: held by hour, written as the batches that an agent would have sent.

pub(crate) mod file;
pub(crate) mod held;
mod mapper;
pub(crate) mod readings;
pub(crate) mod writer;
