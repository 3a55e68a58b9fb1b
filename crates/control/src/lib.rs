//! The autopilot's edge to the world: where decisions reach a real cluster.
//!
//! `tidegate-autopilot` decides and does no I/O; this crate gives it what it needs:
//!
//! | module | gives |
//! |---|---|
//! | [`slurm`] | Slurm as a target: observe, apply, read back |
//! | [`EnrichedTarget`] | what the log says of jobs and nodes, added to a target's state |
//! | [`ForecastReader`] | published forecasts of demand, and whether their bounds hold |
//! | [`LogJournal`] | the executor's journal on the log, whose order decides who holds the lease |
//! | [`PlanArchive`] | inputs of plans, kept beside the journal to explain them |
//! | [`ControlFolder`] | the kill switch, approvals and rejections, as files |
//! | [`authority`] | whose SSH signatures on policies and approvals count |
//! | [`Pager`] | alerts to Alertmanager |
//! | [`policy_file`] | policies and rollout candidates from files |
//! | [`spans`] | spans of steps and actions, for whoever traces the program |
//! | [`service`] | the loop that puts all of it together |
//!
//! ```no_run
//! use tidegate_control::service::{Hooks, Service, ServiceConfig};
//!
//! # fn run(
//! #     log: std::sync::Arc<dyn tidegate_log::EventLog>,
//! # ) -> Result<(), tidegate_control::service::ServiceError> {
//! let config = ServiceConfig::read("slurm.toml".as_ref())?;
//! let (data, deaths) = ("tidegate-data".as_ref(), "tidegate-data/deaths".as_ref());
//! let service = Service::open(config, data, deaths, &log, "tidegate-autopilot")?;
//! service.describe().iter().for_each(|line| println!("{line}"));
//! let hooks = Hooks {
//!     stopped: &|| false,
//!     line: &|line| println!("{line}"),
//!     status: &|status| println!("leads: {}", status.leads),
//! };
//! service.run(true, &hooks)
//! # }
//! ```

#![warn(missing_docs)]

pub mod authority;
mod control_folder;
mod eligibility;
mod enriched_target;
mod error;
mod event;
mod forecast_reader;
mod journal;
mod newest_plan;
mod pager;
mod plan_archive;
pub mod policy_file;
pub mod service;
pub mod slurm;
pub mod spans;
mod tail;

pub use control_folder::{Approval, ControlFolder, Rejection, SwitchText};
pub use eligibility::{Eligibility, Standing, eligibility};
pub use enriched_target::EnrichedTarget;
pub use forecast_reader::ForecastReader;
pub use journal::{Chains, JournalKey, JournalKeys, LogJournal, TableEntry, TableProofs};
pub use newest_plan::{NewestPlan, newest_plan};
pub use pager::{Pager, PagerConfig};
pub use plan_archive::PlanArchive;
