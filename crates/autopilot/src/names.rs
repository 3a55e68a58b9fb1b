//! Names and ids of a cluster's objects, spelled as the scheduler spells them.

/// Name of a node as the scheduler spells it.
pub type NodeName = String;
/// Name of a pool: nodes that one kind of work may use, e.g. a partition.
pub type PoolName = String;
/// Name of a team or service that owns capacity: an account, a QOS, a virtual cluster.
pub type OwnerName = String;
/// Id of a job as the scheduler spells it.
pub type JobId = String;
/// Id of a loan: the id of the action that opened it.
pub type LoanId = String;
/// Name of a reservation as the scheduler spells it.
pub type ReservationName = String;
