//! Health without step reports: what XIDs, memory, links and throttling say of a node, which nodes
//! fail again and again, and which fault ended a job.

mod fail_stop;
mod hours;
mod lemon;
mod node;
mod xid;

pub use fail_stop::{Cause, JobEnd, cause_of_end};
pub use hours::NodeHours;
pub use lemon::{Lemon, NodeRecord, lemons};
pub use node::{DeviceHealth, HealthPrior, NodeHealth, State, node_health};
pub use xid::{Xid, XidClass, xid};
