//! The lake as a whole, against real Delta tables in a temporary folder.

mod histories;
mod same_bytes;
