//! Client and parsers for Slurm: runs its programs and turns their answers into typed records.
//!
//! Both the watcher, which records what happens on a cluster, and the autopilot's target, which
//! changes it, ask Slurm through this crate. No other crate knows how Slurm spells states, times,
//! TRES, GRES, job ids and host lists. The crate keeps no state and draws no conclusions.
//!
//! Modules are named for the program whose answer they read; [`SlurmClient`] has a method for each
//! query. An answer counts as a whole or not at all: one that is cut short, or that Slurm's
//! programs print with status 0 while slurmctld is away, is a [`CommandError`] and never an empty
//! cluster.
//!
//! ```
//! use tidegate_slurm::squeue::parse_jobs;
//! use tidegate_slurm::{GresGpus, JobPhase, expand_hosts};
//!
//! let answer = r#"{"meta": {}, "errors": [], "jobs": [{"job_id": 7, "job_state": ["RUNNING"],
//!     "nodes": "gpu[01-02]", "gres_detail": ["gpu:h200:8(IDX:0-7)", "gpu:h200:4(IDX:0-3)"]}]}"#;
//! let jobs = parse_jobs(answer.as_bytes())?;
//! assert_eq!((jobs[0].id.as_str(), jobs[0].phase), ("7", JobPhase::Running));
//! assert_eq!(jobs[0].gres_by_node[1].indices, [0, 1, 2, 3]);
//!
//! let mut names = String::new();
//! assert_eq!(expand_hosts("gpu[01-02]", &mut names), Ok(2));
//! assert_eq!(names, "gpu01,gpu02");
//! assert_eq!(GresGpus::parse("gpu:h200:8(S:0-1)").count, 8);
//! # Ok::<(), tidegate_slurm::CommandError>(())
//! ```

#![warn(missing_docs)]

mod client;
mod error;
mod hostlist;
mod job_id;
mod job_state;
mod json;
mod node_state;
pub mod sacct;
pub mod sacctmgr;
pub mod scontrol;
pub mod sinfo;
mod spelling;
pub mod squeue;
mod tres;

pub use client::{CommandError, SlurmClient, submitted_job};
pub use error::{ParseError, ParseErrorKind};
pub use hostlist::{HostList, expand_hosts};
pub use job_id::{ArrayTask, JobId, array_tasks};
pub use job_state::JobPhase;
pub use node_state::{Availability, NodeState};
pub use spelling::{exit_code, time_limit_ms};
pub use tres::{Gpus, GresGpus, TresGpus};
