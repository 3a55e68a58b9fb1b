//! Attempts that ended, as slurmdbd has them: `sacct --duplicates`.

use tidegate_events::{FinalState, Millis};

use crate::client::{CommandError, SlurmClient};
use crate::hostlist::HostList;
use crate::job_id::{ArrayTask, JobId};
use crate::job_state::{JobPhase, phase_in_accounting};
use crate::spelling::{exit_code, is_null, time_limit_ms};
use crate::tres::{Gpus, TresGpus};

/// Cannot occur in a name: a user cannot add a column by a job's name.
const DELIMITER: char = '\u{1f}';
const COLUMNS: [&str; 18] = [
    "JobID",
    "JobName",
    "User",
    "Account",
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
const STATE: usize = 10;
/// The states that attempts and jobs end in.
const STATES: &str = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RS,RV,TO";

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
    /// Job name.
    pub name: Option<String>,
    /// User.
    pub user: Option<String>,
    /// Account.
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
    /// The load on slurmdbd is one query over what ended in that time, by an index of its table of
    /// jobs.
    ///
    /// # Errors
    /// sacct failed, or its answer cannot be read.
    pub fn ended_attempts(
        &self,
        cluster: Option<&str>,
        since_ms: i64,
        now_ms: i64,
        tracks_gpus: bool,
    ) -> Result<Vec<AttemptRecord>, CommandError> {
        let answer = self.sacct(cluster, since_ms, now_ms, &[&format!("--state={STATES}")])?;
        parse_attempts(&answer, tracks_gpus, |_| true)
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
    /// sacct failed, or its answer cannot be read.
    pub fn undone_starts(
        &self,
        cluster: Option<&str>,
        since_ms: i64,
        now_ms: i64,
        tracks_gpus: bool,
    ) -> Result<Vec<AttemptRecord>, CommandError> {
        // Jobs that only waited have no nodes.
        let waited_and_had_nodes = ["--allocations", "--state=PD", "--nnodes=1-10000000"];
        let answer = self.sacct(cluster, since_ms, now_ms, &waited_and_had_nodes)?;
        parse_attempts(&answer, tracks_gpus, |state| state == "PENDING")
    }

    /// Records of all users in that time, with [`COLUMNS`].
    fn sacct(
        &self,
        cluster: Option<&str>,
        since_ms: i64,
        now_ms: i64,
        selection: &[&str],
    ) -> Result<String, CommandError> {
        let mut arguments = vec![
            "--allusers".to_owned(),
            "--duplicates".to_owned(),
            "--parsable2".to_owned(),
            format!("--delimiter={DELIMITER}"),
            format!("--starttime=uts{}", Millis(since_ms).floor_secs()),
            // An hour more: a clock of slurmctld ahead of ours hides nothing.
            format!("--endtime=uts{}", Millis(now_ms).floor_secs().saturating_add(3_600)),
            format!("--format={}", COLUMNS.join(",")),
        ];
        arguments.extend(cluster.map(|cluster| format!("--clusters={cluster}")));
        let arguments: Vec<&str> =
            arguments.iter().map(String::as_str).chain(selection.iter().copied()).collect();
        self.text("sacct", &arguments)
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

/// The attempts of an answer whose state is one to `keep`.
fn parse_attempts(
    answer: &str,
    tracks_gpus: bool,
    keep: impl Fn(&str) -> bool,
) -> Result<Vec<AttemptRecord>, CommandError> {
    let unusable = |what: String| CommandError::unusable("sacct", what);
    let mut lines = answer.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(DELIMITER).collect();
    if header != COLUMNS {
        return Err(unusable(format!(
            "its first line does not name the columns asked for: {}",
            header.join(" ")
        )));
    }
    let mut records = Vec::new();
    for line in lines {
        let values: Vec<&str> = line.split(DELIMITER).collect();
        let Ok(values) = <[&str; COLUMNS.len()]>::try_from(values) else {
            return Err(unusable(format!("a line has another number of columns than the first: {line:?}")));
        };
        let record = record(&values, tracks_gpus).map_err(|what| unusable(format!("{what}: {line:?}")))?;
        records.extend(record.filter(|_| keep(values[STATE])));
    }
    Ok(records)
}

/// A line; `None` if the attempt has not ended, or the record is not filled in yet.
fn record(values: &[&str; COLUMNS.len()], tracks_gpus: bool) -> Result<Option<AttemptRecord>, String> {
    let [
        id,
        name,
        user,
        account,
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
        name: text(name),
        user: text(user),
        account: text(account),
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
mod tests {
    use super::*;

    /// sacct's answer for a component of a heterogeneous job: its state, start, end and nodes.
    fn answer(records: &[[&str; 4]]) -> String {
        let mut lines = vec![COLUMNS.join("\u{1f}")];
        for [state, start, end, nodes] in records {
            let values = [
                "2620078+0",
                "wrap",
                "ann",
                "ai",
                "train",
                "normal",
                "1795628572",
                "1795628572",
                start,
                end,
                state,
                "0:0",
                "billing=1,cpu=1,gres/gpu=8,mem=100M,node=1",
                "billing=1,cpu=1,gres/gpu:h200=8,gres/gpu=8,mem=100M,node=1",
                nodes,
                "1-00:00:00",
                "Resources",
                "4294901760",
            ];
            lines.push(values.join("\u{1f}"));
        }
        lines.join("\n")
    }

    #[test]
    fn a_start_that_slurm_undid_is_an_attempt_and_a_wait_is_none() {
        // As sacct of 22.05 prints them.
        let answer = answer(&[
            ["PENDING", "1795628588", "1795628588", "n1"],
            ["PENDING", "Unknown", "Unknown", "None assigned"],
            ["RUNNING", "1795628713", "Unknown", "n1"],
            ["COMPLETED", "1795628713", "1795628716", "n1"],
        ]);
        let undone = parse_attempts(&answer, true, |state| state == "PENDING").unwrap();
        let found: Vec<_> = undone.iter().map(|it| (it.start_ms, it.end_ms, it.final_state)).collect();
        assert_eq!(found, [(Some(1_795_628_588_000), Some(1_795_628_588_000), FinalState::Requeued)]);
        assert_eq!((undone[0].allocated.milli, undone[0].has_allocation), (Some(8000), true));
        assert_eq!(parse_attempts(&answer, true, |_| true).unwrap().len(), 2);
    }
}
