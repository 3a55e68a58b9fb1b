//! Slurm as a target of the autopilot, observed and changed with Slurm's own programs, each within
//! a time limit.
//!
//! What each kind of action does, and the right it needs (verified on 22.05;
//! `deploy/autopilot/rights.md` quotes Slurm's refusals):
//!
//! | kind | what is done | rights |
//! |---|---|---|
//! | `resize_job`, smaller | `scontrol update JobId= NodeList=` with the nodes to keep; `scancel` of satellites | Operator |
//! | `resize_job`, larger | `requeuehold`, `NumNodes=N-N StartTime=now+3`, `release`; only if the job declares it | Operator |
//! | `resize_job`, larger | `sbatch` of satellites; only if the job declares it | root, for other users |
//! | `preempt` | `requeue`, then a `StartTime` of its own, see below | Operator |
//! | `lend`, `reclaim` | a reservation with an end; its nodes; see `loans` | Operator |
//! | `lend`, `reclaim` | `GrpTRES` of the borrower's QOS, and a job that begins at the end; see `qos_loans` | Administrator |
//! | `adjust_reservation` | a reservation; `GrpTRES` of an account, or of a QOS | Operator; Administrator for a QOS |
//! | `drain_node`, `return_node` | `State=DRAIN`, `State=UNDRAIN` | Administrator |
//!
//! Slurm restarts a requeued job two minutes later. `preempt` says three seconds instead; while
//! other jobs are still under notice it says 15 s after their deadline, or the job would take the
//! GPUs that it has just left.
//!
//! A marker beside each effect names the action: in the reason and `Extra` of a node, the
//! `AdminComment` of a job (of an Operator, the `Comment`), the name of a reservation or satellite,
//! the description of a QOS. What was begun and done, and the greatest generation seen, is kept in
//! notes inside Slurm (`notes`), where another process finds it after a crash.

mod act;
mod ask;
mod config;
mod declare;
mod effect;
#[cfg(test)]
mod fields;
mod inventory;
mod loans;
mod marker;
mod notes;
mod notice;
mod observe;
mod probe;
mod qos_loans;
mod queue;
mod racks;
mod satellites;
mod snapshot;
mod survey;
mod user_file;

use tidegate_autopilot::action::{Action, Change};
use tidegate_autopilot::state::ClusterState;
use tidegate_autopilot::target::{Capabilities, Effect, Notice, Receipt, Target, TargetError};

use act::Act;
use ask::{SLURM, Slurm, now_us, refused};
use notes::{Entry, Notes};
use probe::Setup;
use racks::Racks;
use snapshot::Snapshot;

pub use config::{LendBy, NotesConfig, NoticeConfig, OwnerConfig, PoolConfig, ShareConfig, SlurmConfig};
pub use declare::{Declaration, Elastic};
pub(crate) use survey::{Survey, SurveyedJob};

/// A Slurm cluster that the autopilot may change.
///
/// It keeps nothing between calls but its configuration and the racks, which hardly change: each
/// call observes anew, so any other process can go on.
#[derive(Debug)]
pub struct SlurmTarget {
    config: SlurmConfig,
    slurm: Slurm,
    setup: Setup,
    racks: Racks,
}

impl SlurmTarget {
    /// Probes this Slurm and our rights on it. Changes nothing.
    ///
    /// # Errors
    /// The configuration contradicts itself, or Slurm does not answer.
    pub fn open(config: SlurmConfig) -> Result<Self, TargetError> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(ask::unreachable(format!("its configuration: {}", problems.join("; "))));
        }
        let slurm = Slurm::new(&config);
        let mut setup = probe::probe(&slurm, &config)?;
        let racks = Racks::read(&slurm, &mut setup.lacking)?;
        Ok(Self { config, slurm, setup, racks })
    }

    fn snapshot(&self) -> Result<Snapshot, TargetError> {
        self.slurm.reach()?;
        let jobs = queue::jobs(&self.slurm)?;
        let notes = Notes::from_jobs(&jobs, &self.setup.notes_access)?;
        let in_slurm = |share: &ShareConfig| share.quota_account.is_some() || share.quota_qos.is_some();
        let asked = self.config.owners.values().flat_map(|owner| owner.shares.values()).any(in_slurm);
        let limits = if self.setup.accounting && asked {
            inventory::limits(&self.slurm, &self.setup.cluster)?
        } else {
            inventory::Limits::default()
        };
        Ok(Snapshot {
            jobs,
            notes,
            nodes: inventory::nodes(&self.slurm)?,
            reservations: inventory::reservations(&self.slurm)?,
            limits,
            // Taken last: nothing in the snapshot is newer than its time.
            at_us: now_us(),
        })
    }

    fn act<'a>(&'a self, action: &'a Action) -> Act<'a> {
        Act { slurm: &self.slurm, config: &self.config, setup: &self.setup, action }
    }

    /// Checks on the snapshot whether an action may begin; returns what is noted of it.
    fn begin(&self, snapshot: &Snapshot, action: &Action) -> Result<Entry, TargetError> {
        if snapshot.at_us > action.expires_us {
            return Err(refused(&action.id, "the action has expired"));
        }
        let state = observe::state(&self.config, &self.setup.cluster, snapshot);
        action
            .preconditions
            .iter()
            .try_for_each(|fact| fact.check(&state))
            .map_err(TargetError::Precondition)?;
        let before = self.act(action).check(snapshot)?;
        let notified = snapshot.notes.actions.get(&action.id);
        Ok(Entry {
            generation: action.generation,
            begun_us: Some(snapshot.at_us),
            done_us: None,
            expires_us: action.expires_us,
            change: action.change.clone(),
            restarts: before.restarts,
            nodes: before.nodes,
            notified_us: notified.and_then(|entry| entry.notified_us),
            ready_by_us: notified.and_then(|entry| entry.ready_by_us),
        })
    }

    /// Checks for a newer generation that appeared since the snapshot. One that appears later still
    /// sees what this one noted.
    fn still_newest(&self, snapshot: &mut Snapshot, action: &Action) -> Result<(), TargetError> {
        let seen = Notes::from_jobs(&queue::jobs(&self.slurm)?, &self.setup.notes_access)?.seen;
        if seen <= action.generation {
            return Ok(());
        }
        snapshot.notes.actions.remove(&action.id);
        snapshot.notes.write(&self.slurm, &self.config.notes, action)?;
        Err(TargetError::StaleGeneration { generation: action.generation, seen })
    }

    /// Refuses kinds for which we have no right, names that Slurm could misread, and generations
    /// older than the greatest seen.
    fn admit(&self, snapshot: &mut Snapshot, action: &Action) -> Result<(), TargetError> {
        let kind = action.change.kind();
        if !probe::capabilities(&self.setup, &self.config).kinds.contains(&kind) {
            let why = format!("{} has no rights for it in Slurm; see what is lacking", self.setup.user);
            return Err(TargetError::Unsupported { target: SLURM.to_owned(), kind, why });
        }
        let id_like = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+');
        let job = action.change.job().filter(|job| job.is_empty() || !job.chars().all(id_like));
        if !config::is_word(&action.id) || job.is_some() {
            return Err(refused(&action.id, "its id, or that of its job, is not a word that Slurm takes"));
        }
        snapshot.notes.fence(&self.slurm, &self.config.notes, action)
    }
}

impl Target for SlurmTarget {
    fn capabilities(&self) -> Capabilities {
        probe::capabilities(&self.setup, &self.config)
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        let mut state = observe::state(&self.config, &self.setup.cluster, &self.snapshot()?);
        self.racks.refresh(&self.slurm, state.at_us);
        self.racks.enrich(&mut state);
        Ok(state)
    }

    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError> {
        let mut snapshot = self.snapshot()?;
        self.admit(&mut snapshot, action)?;
        notice::notify(&self.slurm, &self.config, &mut snapshot, action)
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        let mut snapshot = self.snapshot()?;
        self.admit(&mut snapshot, action)?;
        let receipt =
            |at_us, already, done: String| Receipt { action: action.id.clone(), at_us, already, done };
        let known = snapshot.notes.actions.get(&action.id).filter(|entry| entry.begun_us.is_some()).cloned();
        let mut entry = match known {
            Some(Entry { done_us: Some(at_us), .. }) => {
                return Ok(receipt(at_us, true, "done before".to_owned()));
            }
            Some(begun) => begun,
            None => {
                let entry = self.begin(&snapshot, action)?;
                snapshot.notes.actions.insert(action.id.clone(), entry.clone());
                snapshot.notes.write(&self.slurm, &self.config.notes, action)?;
                self.still_newest(&mut snapshot, action)?;
                entry
            }
        };
        match self.act(action).carry_out(&snapshot, &mut entry) {
            Ok(done) => {
                let at_us = now_us();
                entry.done_us = Some(at_us);
                snapshot.notes.actions.insert(action.id.clone(), entry);
                // If this write fails, the next call finds the effect: each step looks first.
                snapshot
                    .notes
                    .write(&self.slurm, &self.config.notes, action)
                    .map_err(|error| ask::unknown(error.to_string()))?;
                Ok(receipt(at_us, false, done))
            }
            Err(error) => {
                let nothing_done = matches!(
                    error,
                    TargetError::Refused { .. }
                        | TargetError::Precondition(_)
                        | TargetError::Unsupported { .. }
                );
                if nothing_done {
                    snapshot.notes.actions.remove(&action.id);
                    snapshot.notes.write(&self.slurm, &self.config.notes, action)?;
                }
                Err(error)
            }
        }
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        let snapshot = self.snapshot()?;
        let begun = snapshot.notes.actions.get(&action.id).filter(|entry| entry.begun_us.is_some());
        let Some(entry) = begun else { return Ok(Effect::Absent) };
        let act = self.act(action);
        let effect = effect::effect(&act, &snapshot, entry);
        // What remains of a loan is removed once its last job has left: no later call does it.
        if let (Effect::Done { .. }, Change::Reclaim { loan, .. }) = (&effect, &action.change) {
            act.forget(&snapshot, loan);
        }
        if let (Effect::Done { .. }, Some(name)) = (&effect, effect::left_over(action, &snapshot)) {
            // A reservation still in use, e.g. by a job of the lender, is deleted the next time, or
            // ends by itself.
            self.slurm.run("scontrol", &["delete", &format!("ReservationName={name}")]).ok();
        }
        Ok(effect)
    }
}
