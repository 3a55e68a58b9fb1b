//! Why jobs wait: which constraint bound each wait of a cluster, from when to when.
//!
//! A query collects *facts* (a job waits, a node has free GPUs, a quota is held), each with the
//! time in which it holds. [`sweep`] passes once through their changes in order. It keeps what
//! decides the constraint: free nodes by number of GPUs ([`pool`]), quotas ([`quota`]) and the line
//! of jobs ([`line`]). Waits of the same shape, team and QOS form a class with one outcome, so that
//! a change costs what it changes, however many jobs wait.

mod class;
mod fact;
pub mod function;
mod line;
mod pool;
mod quota;
mod sweep;
#[cfg(test)]
mod tests;
