//! Names and ids of cluster objects, spelled as the scheduler spells them.

/// Name of a node.
pub type NodeName = String;
/// Name of a pool: nodes for one kind of work, such as a partition.
pub type PoolName = String;
/// Name of a team or service that owns capacity: an account, a QOS or a virtual cluster.
pub type OwnerName = String;
/// Id of a job.
pub type JobId = String;
/// Id of a loan: the id of the action that opened it.
pub type LoanId = String;
/// Name of a scheduler reservation.
pub type ReservationName = String;
