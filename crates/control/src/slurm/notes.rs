//! Notes inside Slurm: which actions were begun and done, under which generation.
//!
//! The only text that slurmctld keeps for any user, of any length, without slurmdbd and without
//! rights over the cluster, is a job's. So the notes are the `AdminComment` of a job that is
//! submitted held and never runs, one for each generation of the lease. A generation writes into
//! its own job only: a process that lost the lease cannot overwrite the notes of a newer one, and
//! the greatest generation that has a job is the fence. Only Administrators can write an
//! `AdminComment`, so nobody else can raise the fence.
//!
//! An Operator cannot (`Access/permission denied`): its notes are the `Comment` of its job. The
//! job's user, Operators and coordinators of its account can write that, so it counts only if the
//! job's user is trusted. A `Comment` has 1,024 bytes, so there each action has a job of its own,
//! beside the generation's fence. slurmctld logs each change in full, so notes are kept small.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_autopilot::action::{Action, ActionId, Adjustment, Change};
use tidegate_autopilot::target::TargetError;
use tidegate_slurm::{JobPhase as Phase, submitted_job};

use super::ask::{Slurm, now_us, refused, unknown};
use super::config::{NotesConfig, is_word};
use super::queue::{self, QueueJob};

/// Name of the jobs that hold notes.
pub(super) const NAME: &str = "tidegate-notes";
/// An entry is dropped this long after its action expired: an expired action is not applied again.
const KEEP_US: i64 = 2 * 3_600 * 1_000_000;
/// Most bytes of an `AdminComment`; Linux allows 128 KiB for an argument of a program.
const MOST_BYTES: usize = 100_000;
/// Most bytes of a `Comment` (else `Pathname of a file, directory or other parameter too long`).
const MOST_COMMENT_BYTES: usize = 1_024;
/// Jobs of older generations that are kept: their last notes may not have been read when a newer
/// generation began.
const KEEP_JOBS: usize = 3;

/// Notes of one action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub generation: u64,
    /// `None`: its job was notified, and nothing else was done.
    pub begun_us: Option<i64>,
    /// `None`: not noted as done; with `begun_us` it may be done in part.
    pub done_us: Option<i64>,
    pub expires_us: i64,
    pub change: Change,
    /// Restart count of the job when the action began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
    /// Nodes that Slurm chose, or that were held before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// When its job was notified.
    #[serde(rename = "told_us", default, skip_serializing_if = "Option::is_none")]
    pub notified_us: Option<i64>,
    /// Deadline of that notice: its job is disturbed then, if it does not acknowledge before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_by_us: Option<i64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct NotesDocument {
    tidegate_generation: u64,
    actions: BTreeMap<ActionId, Entry>,
}

/// Where we keep notes, and whose notes we trust.
#[derive(Debug, Clone, Default)]
pub(super) struct NotesAccess {
    /// We write into the `AdminComment`; otherwise into the `Comment`.
    pub as_administrator: bool,
    /// Users whose jobs may hold notes in their `Comment`.
    pub trusted: BTreeSet<String>,
}

impl NotesAccess {
    fn field(&self) -> &'static str {
        if self.as_administrator { "AdminComment" } else { "Comment" }
    }

    /// The notes that a job holds.
    fn text<'a>(&self, job: &'a QueueJob) -> Option<&'a str> {
        let noted = job.name == NAME && !job.admin_comment.is_empty();
        let by_comment = job.name == NAME && job.comment.starts_with('{') && self.trusted.contains(&job.user);
        if noted { Some(job.admin_comment.as_str()) } else { by_comment.then_some(job.comment.as_str()) }
    }
}

/// All notes of all generations.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes {
    notes_access: NotesAccess,
    /// Greatest generation that has notes: the fence.
    pub seen: u64,
    pub actions: BTreeMap<ActionId, Entry>,
    /// Jobs with notes that we can write, by generation; in a `Comment`, those without an action.
    jobs: BTreeMap<u64, String>,
    /// Jobs with one action's notes in their `Comment`, by action and generation.
    by_action: BTreeMap<(ActionId, u64), String>,
}

impl Notes {
    /// Collects the notes of all jobs in the queue. Of an action in several, the newest state
    /// counts.
    pub(super) fn from_jobs(jobs: &[QueueJob], notes_access: &NotesAccess) -> Result<Self, TargetError> {
        let mut notes = Self { notes_access: notes_access.clone(), ..Self::default() };
        for (job, text) in jobs.iter().filter_map(|job| Some((job, notes_access.text(job)?))) {
            let written: NotesDocument = serde_json::from_str(text).map_err(|error| {
                unknown(format!(
                    "the notes in the comment of job {} cannot be read: {error}; cancel the job if they are not ours",
                    job.id
                ))
            })?;
            notes.seen = notes.seen.max(written.tidegate_generation);
            // An Operator cannot write where an Administrator wrote.
            let can_write = notes_access.as_administrator || job.admin_comment.is_empty();
            if job.phase == Phase::Waiting && can_write {
                let generation = written.tidegate_generation;
                let one = written.actions.keys().next().filter(|_| !notes_access.as_administrator);
                match one {
                    Some(id) => notes.by_action.insert((id.clone(), generation), job.id.clone()),
                    None => notes.jobs.insert(generation, job.id.clone()),
                };
            }
            for (id, entry) in written.actions {
                let known = notes.actions.get(&id);
                if known
                    .is_none_or(|known| (known.done_us, known.generation) < (entry.done_us, entry.generation))
                {
                    notes.actions.insert(id, entry);
                }
            }
        }
        Ok(notes)
    }

    /// Refuses generations older than the fence, and raises the fence to this one.
    pub(super) fn fence(
        &mut self,
        slurm: &Slurm,
        config: &NotesConfig,
        action: &Action,
    ) -> Result<(), TargetError> {
        let generation = action.generation;
        let stale = |seen| TargetError::StaleGeneration { generation, seen };
        if generation < self.seen {
            return Err(stale(self.seen));
        }
        if !self.jobs.contains_key(&generation) {
            let job = begin(slurm, config, &self.notes_access, action)?;
            self.seen = generation;
            self.jobs.insert(generation, job);
            self.write(slurm, config, action)?;
            // Of two that begin at the same time, at least one sees the other here.
            let seen = Self::from_jobs(&queue::jobs(slurm)?, &self.notes_access)?.seen;
            if generation < seen {
                return Err(stale(seen));
            }
            self.forget_old(slurm);
        }
        Ok(())
    }

    /// Writes the notes into the job of the action's generation. All other notes are copied along,
    /// or jobs of older generations would have to stay for ever.
    pub(super) fn write(
        &mut self,
        slurm: &Slurm,
        config: &NotesConfig,
        action: &Action,
    ) -> Result<(), TargetError> {
        let now = now_us();
        let open_loans: Vec<ActionId> = self.loans_in_use();
        self.actions.retain(|id, entry| {
            now < entry.expires_us.saturating_add(KEEP_US)
                || matches!(&entry.change, Change::Lend { expires_us, .. } if *expires_us > now)
                || matches!(&entry.change, Change::AdjustReservation(Adjustment::Reservation { end_us, .. }) if *end_us > now)
                || open_loans.contains(id)
        });
        if self.notes_access.as_administrator {
            let job = self.jobs.get(&action.generation).cloned().unwrap_or_default();
            return self.write_into(slurm, &job, self.actions.clone(), action);
        }
        let Some(entry) = self.actions.get(&action.id).cloned() else {
            let job = self.jobs.get(&action.generation).cloned().unwrap_or_default();
            return self.write_into(slurm, &job, BTreeMap::new(), action);
        };
        let own = (action.id.clone(), action.generation);
        let job = match self.by_action.get(&own) {
            Some(job) => job.clone(),
            None => begin(slurm, config, &self.notes_access, action)?,
        };
        self.by_action.insert(own, job.clone());
        self.write_into(slurm, &job, BTreeMap::from([(action.id.clone(), entry)]), action)?;
        self.forget_over(slurm);
        Ok(())
    }

    fn write_into(
        &self,
        slurm: &Slurm,
        job: &str,
        actions: BTreeMap<ActionId, Entry>,
        action: &Action,
    ) -> Result<(), TargetError> {
        let (noted, most) = match self.notes_access.as_administrator {
            true => (actions.len(), MOST_BYTES),
            false => (1, MOST_COMMENT_BYTES),
        };
        let text = serde_json::to_string(&NotesDocument { tidegate_generation: action.generation, actions })
            .map_err(|error| refused(&action.id, format!("the notes cannot be written: {error}")))?;
        if text.len() > most {
            let why = format!(
                "the notes of {noted} actions need {} bytes and {} takes {most}; nothing more is done until some have expired, \
                 and as Slurm's Administrator there would be {MOST_BYTES}",
                text.len(),
                self.notes_access.field()
            );
            return Err(refused(&action.id, why));
        }
        let update = [format!("JobId={job}"), format!("{}={text}", self.notes_access.field())];
        let result = slurm.run("scontrol", &["update", &update[0], &update[1]]);
        result.map(|_| ()).map_err(|failed| failed.as_error(&action.id))
    }

    /// Cancels the jobs of actions whose notes were dropped.
    fn forget_over(&mut self, slurm: &Slurm) {
        let Self { by_action, actions, .. } = self;
        by_action.retain(|(id, _), job| {
            let stays = actions.contains_key(id);
            if !stays {
                // A job that stays is found again the next time.
                slurm.run("scancel", &[job]).ok();
            }
            stays
        });
    }

    /// Latest deadline of jobs that were notified for other actions and are not disturbed yet.
    pub(super) fn others_ready_by_us(&self, action: &str) -> Option<i64> {
        let stay = self.actions.iter().filter(|(id, entry)| *id != action && entry.done_us.is_none());
        stay.filter_map(|(_, entry)| entry.ready_by_us).max()
    }

    /// Actions that are needed to read loans that are not over.
    fn loans_in_use(&self) -> Vec<ActionId> {
        let now = now_us();
        let ends = |loan: &String| match self.actions.get(loan).map(|entry| &entry.change) {
            Some(Change::Lend { expires_us, .. }) => *expires_us > now,
            _ => false,
        };
        let used = self.actions.iter().filter(|(_, entry)| match &entry.change {
            Change::Reclaim { loan, .. } | Change::Lend { extends: Some(loan), .. } => ends(loan),
            _ => false,
        });
        used.map(|(id, _)| id.clone()).collect()
    }

    /// Cancels all but the last few jobs of older generations: their notes are in ours now.
    fn forget_old(&mut self, slurm: &Slurm) {
        while self.jobs.len() > KEEP_JOBS + 1 {
            let Some((_, job)) = self.jobs.pop_first() else { return };
            // A job that stays is found again the next time.
            slurm.run("scancel", &[&job]).ok();
        }
    }
}

/// A held job for the notes of the action's generation: one that was submitted earlier and has no
/// notes yet, or a new one.
fn begin(
    slurm: &Slurm,
    config: &NotesConfig,
    notes_access: &NotesAccess,
    action: &Action,
) -> Result<String, TargetError> {
    let comment = format!("notes of the autopilot: do not cancel (generation {})", action.generation);
    let left = queue::jobs(slurm)?.into_iter().find(|job| {
        job.name == NAME
            && job.phase == Phase::Waiting
            && job.admin_comment.is_empty()
            && notes_access.trusted.contains(&job.user)
            && job.comment == comment
    });
    if let Some(job) = left {
        return Ok(job.id);
    }
    let mut args = vec![
        "--parsable".to_owned(),
        "--hold".to_owned(),
        format!("--job-name={NAME}"),
        format!("--comment={comment}"),
        "--nodes=1".to_owned(),
        "--ntasks=1".to_owned(),
        "--mem=1".to_owned(),
        "--time=1".to_owned(),
        "--output=/dev/null".to_owned(),
        "--chdir=/".to_owned(),
        "--wrap=true".to_owned(),
    ];
    args.extend(config.options());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let answer = slurm.run("sbatch", &args).map_err(|failed| failed.as_error(&action.id))?;
    let job = submitted_job(&answer).to_owned();
    if is_word(&job) { Ok(job) } else { Err(unknown(format!("sbatch gave no job id but {answer:?}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(generation: u64, done_us: Option<i64>) -> Entry {
        let change = Change::Preempt { job: "7".into(), frees_gpus: 8 };
        let (restarts, nodes) = (Some(0), Vec::new());
        Entry {
            generation,
            begun_us: Some(1),
            done_us,
            expires_us: 9,
            change,
            restarts,
            nodes,
            notified_us: None,
            ready_by_us: None,
        }
    }

    fn job(id: &str, generation: u64, actions: &[(&str, Entry)], state: &str) -> String {
        let actions = actions.iter().map(|(id, entry)| ((*id).to_owned(), entry.clone())).collect();
        let written =
            serde_json::to_string(&NotesDocument { tidegate_generation: generation, actions }).unwrap();
        format!(
            r#"{{"job_id": {id}, "name": "{NAME}", "submit_time": 5, "job_state": "{state}", "admin_comment": {}}}"#,
            serde_json::to_string(&written).unwrap()
        )
    }

    #[test]
    fn notes_of_older_releases_are_read() {
        let notified = Entry { notified_us: Some(7), ..entry(1, None) };
        let written = serde_json::to_string(&notified).unwrap();
        assert!(written.contains(r#""told_us":7"#), "{written}");
        assert_eq!(serde_json::from_str::<Entry>(&written).unwrap(), notified);
    }

    #[test]
    fn a_job_waits_for_those_that_were_notified_beside_it_and_have_not_left() {
        let notified = |at_us| Entry { ready_by_us: Some(at_us), begun_us: None, ..entry(1, None) };
        let mut notes = Notes::default();
        notes.actions.insert("own".into(), notified(90));
        assert_eq!(notes.others_ready_by_us("own"), None);
        notes.actions.insert("silent".into(), entry(1, None));
        notes.actions.insert("stays".into(), notified(70));
        notes.actions.insert("has-left".into(), Entry { done_us: Some(2), ..notified(80) });
        assert_eq!(notes.others_ready_by_us("own"), Some(70));
    }

    #[test]
    fn the_greatest_generation_counts_also_of_a_cancelled_job_and_done_beats_begun() {
        let notes_access = NotesAccess { as_administrator: true, ..NotesAccess::default() };
        let jobs = [
            job("3", 4, &[("a", entry(4, Some(2))), ("b", entry(4, None))], "PENDING"),
            job("5", 6, &[("a", entry(4, None))], "PENDING"),
            job("6", 7, &[], "CANCELLED"),
        ];
        let answer = format!(r#"{{"meta": {{}}, "errors": [], "jobs": [{}]}}"#, jobs.join(","));
        let notes = Notes::from_jobs(&queue::read(answer.as_bytes()).unwrap(), &notes_access).unwrap();
        assert_eq!(notes.seen, 7);
        assert_eq!(notes.actions["a"].done_us, Some(2));
        assert_eq!(notes.actions["b"].done_us, None);
        assert_eq!(notes.jobs, [(4, "3".to_owned()), (6, "5".to_owned())].into());
        let broken = answer.replace("tidegate_generation", "x");
        let broken = queue::read(broken.as_bytes()).unwrap();
        assert!(Notes::from_jobs(&broken, &notes_access).is_err(), "never read as no notes");
    }

    #[test]
    fn a_comment_holds_notes_only_of_those_who_may_change_others_jobs() {
        let as_comment = job("3", 4, &[("a", entry(4, Some(2)))], "PENDING")
            .replace("admin_comment", "comment")
            .replace("\"submit_time\"", "\"user_name\": \"pilot\", \"submit_time\"");
        let answer = format!(r#"{{"meta": {{}}, "errors": [], "jobs": [{as_comment}]}}"#);
        let jobs = queue::read(answer.as_bytes()).unwrap();
        let seen = |trusted: &[&str]| {
            let trusted = trusted.iter().map(|name| (*name).to_owned()).collect();
            Notes::from_jobs(&jobs, &NotesAccess { as_administrator: false, trusted }).unwrap().seen
        };
        assert_eq!((seen(&["pilot"]), seen(&["root"])), (4, 0));
    }
}
