//! The real Slurm as a target of the autopilot: looked at and changed with its own programs, whose
//! every call has a time limit.
//!
//! What each kind of action takes, and what Slurm asks for it (as tried on 22.05;
//! `deploy/autopilot/rights.md` has its words).
//!
//! | kind | what is done | rights |
//! |---|---|---|
//! | `resize_job`, smaller | `scontrol update JobId= NodeList=` with the nodes to keep; `scancel` of who joined | Operator |
//! | `resize_job`, larger | `requeuehold`, `NumNodes=N-N StartTime=now+3`, `release`; only where the job declares it | Operator |
//! | `resize_job`, larger | `sbatch` of jobs that join it; only where the job declares it | root, for others |
//! | `preempt` | `requeue`, then `StartTime=now+3` (else it waits two minutes) | Operator |
//! | `lend`, `reclaim` | a reservation with an end of its own; its nodes; see `loans` | Operator |
//! | `lend`, `reclaim` | `GrpTRES` of the borrower's QOS, and a job that begins at the end; see `lent` | Administrator |
//! | `adjust_reservation` | a reservation; `GrpTRES` of an account, or of a QOS | Operator; Administrator for a QOS |
//! | `drain_node`, `return_node` | `State=DRAIN`, `State=UNDRAIN` | Administrator |
//!
//! Which action did it is written beside the effect: into the reason and `Extra` of a node, the
//! `AdminComment` of a job (of an Operator, the `Comment`), the name of a reservation or of jobs
//! that join, the description of a QOS. What was begun and what was done, and the greatest
//! generation seen, stand in notes inside Slurm, see `notes`: another process finds them there
//! after a crash.

mod act;
mod ask;
mod config;
mod declare;
mod effect;
mod inventory;
mod lent;
mod loans;
mod marker;
mod notes;
mod notice;
mod observe;
mod probe;
mod queue;
mod satellites;

use tidegate_autopilot::action::{Action, Change};
use tidegate_autopilot::state::ClusterState;
use tidegate_autopilot::target::{Capabilities, Effect, Notice, Receipt, Target, TargetError};

use act::Act;
use ask::{SLURM, Slurm, now_us, refused};
use notes::{Entry, Notes};
use observe::Look;
use probe::Setup;

pub use config::{LendBy, NotesConfig, NoticeConfig, OwnerConfig, PoolConfig, ShareConfig, SlurmConfig};
pub use declare::{Declared, Elastic};

/// A Slurm cluster that the autopilot may change.
///
/// It keeps nothing between calls but its configuration: each call looks anew, so that any other
/// process can go on.
#[derive(Debug)]
pub struct SlurmTarget {
    config: SlurmConfig,
    slurm: Slurm,
    setup: Setup,
}

impl SlurmTarget {
    /// Finds out what this Slurm is and what we may do there. Changes nothing.
    ///
    /// # Errors
    /// The configuration contradicts itself, or Slurm does not answer.
    pub fn open(config: SlurmConfig) -> Result<Self, TargetError> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(ask::unreachable(format!("its configuration: {}", problems.join("; "))));
        }
        let slurm = Slurm::new(&config);
        let setup = probe::probe(&slurm, &config)?;
        Ok(Self { config, slurm, setup })
    }

    fn look(&self) -> Result<Look, TargetError> {
        self.slurm.reach()?;
        let jobs = queue::jobs(&self.slurm)?;
        let notes = Notes::of(&jobs, &self.setup.keeping)?;
        let in_slurm = |share: &ShareConfig| share.quota_account.is_some() || share.quota_qos.is_some();
        let asked = self.config.owners.values().flat_map(|owner| owner.shares.values()).any(in_slurm);
        let limits = if self.setup.accounting && asked {
            inventory::limits(&self.slurm, &self.setup.cluster)?
        } else {
            inventory::Limits::default()
        };
        Ok(Look {
            jobs,
            notes,
            nodes: inventory::nodes(&self.slurm)?,
            reservations: inventory::reservations(&self.slurm)?,
            limits,
            // Not before any of what was seen.
            at_us: now_us(),
        })
    }

    fn act<'a>(&'a self, action: &'a Action) -> Act<'a> {
        Act { slurm: &self.slurm, config: &self.config, setup: &self.setup, action }
    }

    /// Everything that lets an action begin, checked on Slurm itself; what is noted of it then.
    fn begin(&self, look: &Look, action: &Action) -> Result<Entry, TargetError> {
        if look.at_us > action.expires_us {
            return Err(refused(&action.id, "the action has expired"));
        }
        let state = observe::state(&self.config, &self.setup.cluster, look);
        action
            .preconditions
            .iter()
            .try_for_each(|fact| fact.check(&state))
            .map_err(TargetError::Precondition)?;
        let before = self.act(action).check(look)?;
        let told_us = look.notes.actions.get(&action.id).and_then(|entry| entry.told_us);
        Ok(Entry {
            generation: action.generation,
            begun_us: Some(look.at_us),
            done_us: None,
            expires_us: action.expires_us,
            change: action.change.clone(),
            restarts: before.restarts,
            nodes: before.nodes,
            told_us,
        })
    }

    /// Looks again whether a newer generation has come while this one was looking around. Whoever
    /// comes later still sees what this one noted.
    fn still_newest(&self, look: &mut Look, action: &Action) -> Result<(), TargetError> {
        let seen = Notes::of(&queue::jobs(&self.slurm)?, &self.setup.keeping)?.seen;
        if seen <= action.generation {
            return Ok(());
        }
        look.notes.actions.remove(&action.id);
        look.notes.write(&self.slurm, &self.config.notes, action)?;
        Err(TargetError::StaleGeneration { generation: action.generation, seen })
    }

    /// Refuses kinds that we have no rights for, names that Slurm would misread, and what is older
    /// than was seen.
    fn admit(&self, look: &mut Look, action: &Action) -> Result<(), TargetError> {
        let kind = action.change.kind();
        if !probe::capabilities(&self.setup, &self.config).kinds.contains(&kind) {
            let why = format!("{} has no rights for it in Slurm; see what is lacking", self.setup.user);
            return Err(TargetError::Unsupported { target: SLURM.to_owned(), kind, why });
        }
        let id_like = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+');
        let job = action.change.job().filter(|job| job.is_empty() || !job.chars().all(id_like));
        if !config::is_word(&action.id) || job.is_some() {
            return Err(refused(&action.id, "its id, or that of its job, is no word that Slurm takes"));
        }
        look.notes.fence(&self.slurm, &self.config.notes, action)
    }
}

impl Target for SlurmTarget {
    fn capabilities(&self) -> Capabilities {
        probe::capabilities(&self.setup, &self.config)
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        Ok(observe::state(&self.config, &self.setup.cluster, &self.look()?))
    }

    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError> {
        let mut look = self.look()?;
        self.admit(&mut look, action)?;
        notice::tell(&self.slurm, &self.config, &mut look, action)
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        let mut look = self.look()?;
        self.admit(&mut look, action)?;
        let receipt =
            |at_us, already, done: String| Receipt { action: action.id.clone(), at_us, already, done };
        let known = look.notes.actions.get(&action.id).filter(|entry| entry.begun_us.is_some()).cloned();
        let mut entry = match known {
            Some(Entry { done_us: Some(at_us), .. }) => {
                return Ok(receipt(at_us, true, "done before".to_owned()));
            }
            Some(begun) => begun,
            None => {
                let entry = self.begin(&look, action)?;
                look.notes.actions.insert(action.id.clone(), entry.clone());
                look.notes.write(&self.slurm, &self.config.notes, action)?;
                self.still_newest(&mut look, action)?;
                entry
            }
        };
        match self.act(action).carry_out(&look, &mut entry) {
            Ok(done) => {
                let at_us = now_us();
                entry.done_us = Some(at_us);
                look.notes.actions.insert(action.id.clone(), entry);
                // Done and not noted is found by whoever asks next: each step looks first.
                look.notes
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
                    look.notes.actions.remove(&action.id);
                    look.notes.write(&self.slurm, &self.config.notes, action)?;
                }
                Err(error)
            }
        }
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        let look = self.look()?;
        let begun = look.notes.actions.get(&action.id).filter(|entry| entry.begun_us.is_some());
        let Some(entry) = begun else { return Ok(Effect::Absent) };
        let act = self.act(action);
        let effect = effect::effect(&act, &look, entry);
        // What is left of a loan goes when its last job has: nobody else comes back for it.
        if let (Effect::Done { .. }, Change::Reclaim { loan, .. }) = (&effect, &action.change) {
            act.forget(&look, loan);
        }
        if let (Effect::Done { .. }, Some(name)) = (&effect, effect::left_over(action, &look)) {
            // One that is still in use, e.g. by a job of the lender, goes the next time, or by its
            // own end.
            self.slurm.tell("scontrol", &["delete", &format!("ReservationName={name}")]).ok();
        }
        Ok(effect)
    }
}
