//! Health: node health from XIDs, memory, links and throttling; lemon nodes; causes of job ends.

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
