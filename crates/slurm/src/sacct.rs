//! Attempts that ended, as slurmdbd has them: `sacct --duplicates`.
//!
//! Two questions are asked. The first is for columns whose texts Slurm or an administrator makes:
//! it alone says which attempts there are and what they held. The second is for texts that users
//! choose (`names.rs`).

mod names;

use tidegate_events::{FinalState, Millis};

use crate::client::{CommandError, SlurmClient};
use crate::hostlist::HostList;
use crate::job_id::{ArrayTask, JobId};
use crate::job_state::{JobPhase, phase_in_accounting};
use crate::spelling::{exit_code, is_null, time_limit_ms};
use crate::tres::{Gpus, TresGpus};
use names::{Key, Names};

/// Delimiter of columns that hold no text of users.
const DELIMITER: char = '\u{1f}';
/// Columns whose texts users cannot choose.
const COLUMNS: [&str; 16] = [
    "JobID",
    "User",
    "Partition",
    "QOS",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "State",
    "ExitCode",
    "ReqTRES",
    "AllocTRES",
    "NodeList",
    "Timelimit",
    "Reason",
    "Priority",
];
/// Place of the state among the columns.
const STATE: usize = 8;
/// Places of submission and start.
const SUBMIT: usize = 4;
const START: usize = 6;
/// The states that attempts and jobs end in.
const STATES: &str = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RS,RV,TO";

/// Longest part of a line that a message shows, characters.
const SHOWN: usize = 120;

/// What accounting has of attempts that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Those that can be used.
    pub records: Vec<AttemptRecord>,
    /// One message for each record of which all or a part cannot be used, with its job id.
    pub set_aside: Vec<String>,
}

/// An attempt of a job that ended, a job that never started, or a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Without the step: `123`, `123_4`, `123+1`.
    pub job_id: String,
    /// Step, e.g. `batch` or `0`.
    pub step_id: Option<String>,
    /// Id of the whole array, for a task of one.
    pub array_job_id: Option<String>,
    /// Number of the task in its array.
    pub array_task_id: Option<i64>,
    /// Name of the job or step, as its user wrote it: any bytes.
    pub name: Option<String>,
    /// User.
    pub user: Option<String>,
    /// Account; any bytes where Slurm does not enforce associations.
    pub account: Option<String>,
    /// Partition.
    pub partition: Option<String>,
    /// QOS.
    pub qos: Option<String>,
    /// Submission, ms since 1970; a requeue counts as one.
    pub submit_ms: i64,
    /// When it became eligible.
    pub eligible_ms: Option<i64>,
    /// Start.
    pub start_ms: Option<i64>,
    /// End.
    pub end_ms: Option<i64>,
    /// How it ended.
    pub final_state: FinalState,
    /// Exit code and signal.
    pub exit: Option<(i32, i32)>,
    /// User that cancelled it.
    pub cancelled_by: Option<String>,
    /// GPUs of the requested TRES.
    pub requested: Gpus,
    /// GPUs of the allocated TRES.
    pub allocated: Gpus,
    /// Whether TRES were ever allocated to it.
    pub has_allocation: bool,
    /// Its nodes.
    pub nodes: Option<HostList>,
    /// Time limit, ms; `None`: unlimited.
    pub time_limit_ms: Option<u64>,
    /// Why it waited last.
    pub reason: Option<String>,
    /// Priority.
    pub priority: Option<i64>,
}

impl SlurmClient {
    /// Everything that ended since then, steps included, on one cluster or on the default one.
    /// Times are ms since 1970. `tracks_gpus`: whether TRES name GPUs, see
    /// [`ClusterConfig::tracks_gpus`](crate::scontrol::ClusterConfig::tracks_gpus).
    ///
    /// The load on slurmdbd is two queries over what ended in that time, by an index of its table
    /// of jobs.
    ///
    /// # Errors
    /// sacct failed, or its answer is not of the columns asked for.
    pub fn ended_attempts(
        &self,
        cluster: Option<&str>,
        since_ms: i64,
        now_ms: i64,
        tracks_gpus: bool,
    ) -> Result<Attempts, CommandError> {
        let selection = selection(cluster, since_ms, now_ms, &[&format!("--state={STATES}")]);
        self.attempts(&selection, tracks_gpus, |_| true)
    }

    /// Starts that Slurm undid since then, arguments as of [`Self::ended_attempts`].
    ///
    /// Where a component of a heterogeneous job cannot start, Slurm takes back the components that
    /// it started in the same moment, and tries again two minutes later. Accounting keeps such an
    /// attempt as a record of state `PENDING` with nodes, a start and an end.
    ///
    /// sacct cannot select by that state and an end: the answer lists every attempt that started in
    /// that time, and the others are dropped here.
    ///
    /// # Errors
    /// sacct failed, or its answer is not of the columns asked for.
    pub fn undone_starts(
        &self,
        cluster: Option<&str>,
        since_ms: i64,
        now_ms: i64,
        tracks_gpus: bool,
    ) -> Result<Attempts, CommandError> {
        // Jobs that only waited have no nodes.
        let waited_and_had_nodes = ["--allocations", "--state=PD", "--nnodes=1-10000000"];
        let selection = selection(cluster, since_ms, now_ms, &waited_and_had_nodes);
        self.attempts(&selection, tracks_gpus, |state| state == "PENDING")
    }

    /// The attempts of a selection whose state is one to `keep`.
    fn attempts(
        &self,
        selection: &[String],
        tracks_gpus: bool,
        keep: impl Fn(&str) -> bool,
    ) -> Result<Attempts, CommandError> {
        let ask = |form: &[&str]| {
            let args = form.iter().copied().chain(selection.iter().map(String::as_str));
            self.text("sacct", &args.collect::<Vec<_>>())
        };
        let (columns, delimiter) =
            (format!("--format={}", COLUMNS.join(",")), format!("--delimiter={DELIMITER}"));
        let facts = parse_facts(&ask(&["--parsable2", &delimiter, &columns])?, tracks_gpus, keep)?;
        if facts.records.is_empty() {
            return Ok(facts.named(&Names::default()));
        }
        let delimiter = names::delimiter();
        let (columns, option) =
            (format!("--format={}", names::COLUMNS.join(",")), format!("--delimiter={delimiter}"));
        let answer = ask(&["--noheader", "--parsable", &option, &columns])?;
        Ok(facts.named(&Names::parse(&answer, &delimiter)))
    }

    /// Whether slurmdbd has a record of the job that starts at this second.
    ///
    /// # Errors
    /// sacct failed.
    pub fn has_attempt(&self, job_id: &str, start_s: i64) -> Result<bool, CommandError> {
        let args = ["-n", "-P", "-X", "-D", "-S", "1970-01-01", "-j", job_id, "-o", "Start,NodeList"];
        let start = format!("{start_s}|");
        Ok(self.text("sacct", &args)?.lines().any(|line| line.starts_with(&start)))
    }
}

/// Arguments that select records of all users in that time.
fn selection(cluster: Option<&str>, since_ms: i64, now_ms: i64, more: &[&str]) -> Vec<String> {
    let mut arguments = vec![
        "--allusers".to_owned(),
        "--duplicates".to_owned(),
        format!("--starttime=uts{}", Millis(since_ms).floor_secs()),
        // An hour more: a clock of slurmctld ahead of ours hides nothing.
        format!("--endtime=uts{}", Millis(now_ms).floor_secs().saturating_add(3_600)),
    ];
    arguments.extend(cluster.map(|cluster| format!("--clusters={cluster}")));
    arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
    arguments
}

/// Attempts before they have the texts that users chose.
#[derive(Debug, Default)]
struct Facts {
    records: Vec<(Key, AttemptRecord)>,
    set_aside: Vec<String>,
}

impl Facts {
    /// The attempts with their texts.
    fn named(self, names: &Names) -> Attempts {
        let Self { records, mut set_aside } = self;
        let named = |(key, record): (Key, AttemptRecord)| {
            let Some(texts) = names.of(&key) else {
                let (id, submit, _) = key;
                set_aside.push(format!(
                    "job {id} submitted at {submit}: accounting gives no single name and account, it is recorded without"
                ));
                return record;
            };
            let text = |text: &str| (!is_null(text)).then(|| text.to_owned());
            AttemptRecord { name: text(&texts.name), account: text(&texts.account), ..record }
        };
        Attempts { records: records.into_iter().map(named).collect(), set_aside }
    }
}

/// Parses both answers of sacct: facts about attempts, and the texts that users chose, whose
/// delimiter is `delimiter`. [`SlurmClient::ended_attempts`] asks for them.
///
/// # Errors
/// The first answer is not of the columns asked for.
pub fn parse_attempts(
    facts: &str,
    texts: &str,
    delimiter: &str,
    tracks_gpus: bool,
) -> Result<Attempts, CommandError> {
    Ok(parse_facts(facts, tracks_gpus, |_| true)?.named(&Names::parse(texts, delimiter)))
}

/// Parses the attempts in an answer and keeps those with a state that `keep` accepts. Lines that
/// cannot be parsed are set aside, and the rest is used.
fn parse_facts(answer: &str, tracks_gpus: bool, keep: impl Fn(&str) -> bool) -> Result<Facts, CommandError> {
    let mut lines = answer.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(DELIMITER).collect();
    if header != COLUMNS {
        let what = format!("its first line does not name the columns asked for: {}", header.join(" "));
        return Err(CommandError::unusable("sacct", what));
    }
    let mut facts = Facts::default();
    for line in lines {
        let values: Vec<&str> = line.split(DELIMITER).collect();
        let read = <[&str; COLUMNS.len()]>::try_from(values)
            .map_err(|values| format!("it has {} columns and not {}", values.len(), COLUMNS.len()))
            .and_then(|values| Ok((values, record(&values, tracks_gpus)?)));
        match read {
            Ok((values, record)) => {
                let key = || [values[0], values[SUBMIT], values[START]].map(str::to_owned).into();
                let kept = record.filter(|_| keep(values[STATE]));
                facts.records.extend(kept.map(|record| (key(), record)));
            }
            Err(what) => facts.set_aside.push(set_aside(line, &what)),
        }
    }
    Ok(facts)
}

/// A message about a line that cannot be used.
fn set_aside(line: &str, what: &str) -> String {
    let id = line.split(DELIMITER).next().filter(|id| JobId::parse(id).is_ok());
    let id = id.map_or_else(|| "a record without a job id".to_owned(), |id| format!("job {id}"));
    let shown: String = line.chars().take(SHOWN).collect();
    format!("{id}: {what}; its record in accounting is left out: {shown:?}")
}

/// A line; `None` if the attempt has not ended, or the record is not filled in yet.
fn record(values: &[&str; COLUMNS.len()], tracks_gpus: bool) -> Result<Option<AttemptRecord>, String> {
    let [
        id,
        user,
        partition,
        qos,
        submit,
        eligible,
        start,
        end,
        state,
        exit,
        requested,
        allocated,
        nodes,
        limit,
        reason,
        priority,
    ] = *values;
    let text = |value: &str| (!is_null(value)).then(|| value.to_owned());
    let message = |error: crate::error::ParseError| error.message;
    let time = |value: &str| match value {
        value if is_null(value) => Ok(None),
        value => value
            .parse::<i64>()
            .map(|seconds| Some(Millis::from_secs(seconds).0))
            .map_err(|_| format!("{value} is not a time in seconds")),
    };
    let phase = phase_in_accounting(state).ok_or_else(|| format!("{state} is not a known state of Slurm"))?;
    let final_state = match phase {
        JobPhase::Over(state) => state,
        // Slurm undid its start: see `undone_starts`.
        JobPhase::Waiting if ![start, end, nodes].into_iter().any(is_null) => FinalState::Requeued,
        _ => return Ok(None),
    };
    let id = JobId::parse(id).map_err(message)?;
    // What slurmdbd hears of a job before the job's start, as after an outage, it files under a
    // record without a partition and without its place in an array. Both are filled in a moment
    // later.
    let (Some(submit_ms), true) = (time(submit)?, id.step.is_some() || !is_null(partition)) else {
        return Ok(None);
    };
    let gpus = |tres: &str| match text(tres) {
        Some(tres) if tracks_gpus => TresGpus::parse(&tres).map(TresGpus::into_gpus).map_err(message),
        _ => Ok(Gpus::default()),
    };
    let nodes = text(nodes).map(|list| HostList::parse(&list)).transpose().map_err(message)?;
    let limit_ms = text(limit).map(|limit| time_limit_ms(&limit)).transpose().map_err(message)?.flatten();
    Ok(Some(AttemptRecord {
        job_id: id.job.to_owned(),
        step_id: id.step.map(str::to_owned),
        array_job_id: id.array_job.map(str::to_owned),
        array_task_id: match id.task {
            ArrayTask::One(task) => Some(task),
            _ => None,
        },
        name: None,
        user: text(user),
        account: None,
        partition: text(partition),
        qos: text(qos),
        submit_ms,
        eligible_ms: time(eligible)?,
        start_ms: time(start)?,
        end_ms: time(end)?,
        final_state,
        exit: text(exit).map(|exit| exit_code(&exit)).transpose().map_err(message)?,
        cancelled_by: state.strip_prefix("CANCELLED by ").map(str::to_owned),
        requested: gpus(requested)?,
        allocated: gpus(allocated)?,
        has_allocation: text(allocated).is_some(),
        nodes,
        time_limit_ms: limit_ms.and_then(|limit_ms| u64::try_from(limit_ms).ok()),
        reason: text(reason),
        priority: text(priority).and_then(|priority| priority.parse().ok()),
    }))
}

#[cfg(test)]
mod tests;
