//! `sacct --duplicates`: the attempts that ended, as slurmdbd has them.

use super::command::CommandError;
use super::queue::Setup;
use super::record::{Gpus, Record};
use super::spelling::{Task, exit_code, hosts, is_null, job_id, time_limit_ms, tres_gpus};
use super::states::{Phase, phase};

/// Stands in no name: what users call their jobs cannot add a column.
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
/// Of which attempts and jobs that are over are in.
const STATES: &str = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RS,RV,TO";

/// Arguments that ask for all that ended since then, steps included.
///
/// The load on slurmdbd is one query over what ended in that time, by an index of its table of
/// jobs.
pub(super) fn arguments(cluster: Option<&str>, since_ms: i64, now_ms: i64) -> Vec<String> {
    let mut arguments = vec![
        "--allusers".to_owned(),
        "--duplicates".to_owned(),
        "--parsable2".to_owned(),
        format!("--delimiter={DELIMITER}"),
        format!("--state={STATES}"),
        format!("--starttime=uts{}", since_ms / 1000),
        // A clock of slurmctld that is ahead of ours hides nothing.
        format!("--endtime=uts{}", now_ms / 1000 + 3600),
        format!("--format={}", COLUMNS.join(",")),
    ];
    arguments.extend(cluster.map(|cluster| format!("--clusters={cluster}")));
    arguments
}

/// The records of an answer: of jobs, and of their steps.
pub(super) fn read(answer: &str, setup: Setup) -> Result<Vec<Record>, CommandError> {
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
        if let Some(record) = record(&values, setup).map_err(|what| unusable(format!("{what}: {line:?}")))? {
            records.push(record);
        }
    }
    Ok(records)
}

/// A line; none for one that is not over, or is no record of a job that ran or was given up.
fn record(values: &[&str; COLUMNS.len()], setup: Setup) -> Result<Option<Record>, String> {
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
    let told = |reject: crate::error::Reject| reject.reason;
    let time = |value: &str| match value {
        value if is_null(value) => Ok(None),
        value => value
            .parse::<i64>()
            .map(|seconds| Some(seconds * 1000))
            .map_err(|_| format!("{value} is no time in seconds")),
    };
    let over @ Phase::Over(_) =
        phase(state).ok_or_else(|| format!("{state} is no state of Slurm that is known"))?
    else {
        return Ok(None);
    };
    let id = job_id(id).map_err(told)?;
    // What slurmdbd hears of a job before its start, as after an outage, it files under a record
    // without a partition, nor its place in an array. It is filled in a moment later.
    let (Some(submit_ms), true) = (time(submit)?, id.step.is_some() || !is_null(partition)) else {
        return Ok(None);
    };
    let gpus = |tres: &str| match text(tres) {
        Some(tres) if setup.gpus_tracked => tres_gpus(&tres).map_err(told).map(|gpus| Gpus {
            milli: u64::try_from(gpus.gpus).ok().and_then(|gpus| gpus.checked_mul(1000)),
            model: (!gpus.models.is_empty()).then(|| gpus.models.into_owned()),
        }),
        _ => Ok(Gpus::default()),
    };
    let mut names = String::new();
    let listed = match text(nodes) {
        Some(list) => Some(hosts(&list, &mut names).map_err(told)?),
        None => None,
    };
    let limit_ms = text(limit).map(|limit| time_limit_ms(&limit).map_err(told)).transpose()?.flatten();
    Ok(Some(Record {
        job_id: id.job.to_owned(),
        step_id: id.step.map(str::to_owned),
        array_job_id: id.array_job.map(str::to_owned),
        array_task_id: match id.task {
            Task::One(task) => Some(task),
            _ => None,
        },
        team: text(account),
        user_name: text(user),
        pool: text(partition),
        qos: text(qos),
        name: text(name),
        requested: gpus(requested)?,
        held: gpus(allocated)?,
        shape: None,
        allocated: text(allocated).is_some(),
        nodes: listed.map(|count| (names, count)),
        time_limit_ms: limit_ms.and_then(|limit_ms| u64::try_from(limit_ms).ok()),
        reason: text(reason),
        priority: text(priority).and_then(|priority| priority.parse().ok()),
        phase: over,
        submit_ms,
        eligible_ms: time(eligible)?,
        start_ms: time(start)?,
        end_ms: time(end)?,
        resized: false,
        suspend_ms: None,
        exit: text(exit).map(|exit| exit_code(&exit).map_err(told)).transpose()?,
        cancelled_by: state.strip_prefix("CANCELLED by ").map(str::to_owned),
        devices: Vec::new(),
    }))
}
