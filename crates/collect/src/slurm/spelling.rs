//! Spellings that only Slurm has: job ids, TRES, host lists, time limits, exit codes, lists of
//! devices.

use std::borrow::Cow;

use crate::error::{Reject, RejectCode};

/// A pending array longer than this is refused; Slurm's own limit is 4,000,001 tasks, its default
/// 1,001.
pub(crate) const MAX_ARRAY_TASKS: u64 = 100_000;
/// A host list that names more hosts is refused.
const MAX_HOSTS: u64 = 100_000;

/// The parts of a `JobID`.
#[derive(Debug, PartialEq, Eq)]
pub struct JobId<'a> {
    /// Without the step: `123`, `123_4`, `123+1`.
    pub job: &'a str,
    pub step: Option<&'a str>,
    pub array_job: Option<&'a str>,
    pub task: Task<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Task<'a> {
    None,
    One(i64),
    /// Tasks still pending under one record: `1-10,20` of `123_[1-10,20%3]`.
    Pending(&'a str),
}

/// Takes apart `123`, `123_4`, `123_[1-10%3]`, `123+1`, each with an optional `.step`.
pub fn job_id(text: &str) -> Result<JobId<'_>, Reject> {
    let bad = || {
        Reject::new(
            RejectCode::BadJobId,
            format!("{text} is not a Slurm job id such as 123, 123_4 or 123.batch"),
        )
    };
    if text.contains("...") {
        return Err(Reject::new(
            RejectCode::BadJobId,
            format!(
                "the array tasks of {text} were cut short by Slurm; export again with SLURM_BITSTR_LEN=0"
            ),
        ));
    }
    let (job, step) = match text.split_once('.') {
        Some((job, step)) if !step.is_empty() => (job, Some(step)),
        Some(_) => return Err(bad()),
        None => (text, None),
    };
    let (number, rest) = job.split_at(job.find(|c: char| !c.is_ascii_digit()).unwrap_or(job.len()));
    if number.is_empty() {
        return Err(bad());
    }
    let (array_job, task) = match rest.split_at(rest.len().min(1)) {
        ("", _) => (None, Task::None),
        ("+", offset) if offset.parse::<u32>().is_ok() => (None, Task::None),
        ("_", tasks) => match tasks.strip_prefix('[') {
            Some(list) => {
                let list = list.strip_suffix(']').ok_or_else(bad)?;
                let list = list.split_once('%').map_or(list, |(list, _at_once)| list);
                (Some(number), Task::Pending(list))
            }
            None => (Some(number), Task::One(tasks.parse().map_err(|_| bad())?)),
        },
        _ => return Err(bad()),
    };
    Ok(JobId { job, step, array_job, task })
}

/// Task numbers of `1-10,20,30-40:5`.
///
/// # Errors
/// It is no such list, or a very long one.
pub fn array_tasks(list: &str) -> Result<Vec<i64>, Reject> {
    let bad = |what: String| Reject::new(RejectCode::BadJobId, what);
    let mut tasks = Vec::new();
    for part in list.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let numbers = (first.parse::<u32>(), last.parse::<u32>(), step.parse::<u32>());
        let (Ok(first), Ok(last), Ok(step @ 1..)) = numbers else {
            return Err(bad(format!("{part} is not a list of array tasks such as 1-10,20")));
        };
        let count = u64::from(last.saturating_sub(first) / step) + 1;
        if last < first || tasks.len() as u64 + count > MAX_ARRAY_TASKS {
            return Err(bad(format!("{part} is not a range of at most {MAX_ARRAY_TASKS} array tasks")));
        }
        tasks.extend((first..=last).step_by(step as usize).map(i64::from));
    }
    Ok(tasks)
}

/// GPUs of a TRES string.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TresGpus<'a> {
    /// How many.
    pub gpus: i64,
    /// Models named with their type, by name, comma separated; empty if none is.
    pub models: Cow<'a, str>,
}

/// Reads `cpu=8,gres/gpu=4,gres/gpu:a100=4`. The untyped count is the total of the typed ones where
/// both are given.
///
/// # Errors
/// A count of GPUs is no number.
pub fn tres_gpus(text: &str) -> Result<TresGpus<'_>, Reject> {
    let (mut untyped, mut typed, mut models) = (None, 0_i64, Cow::Borrowed(""));
    for part in text.split(',') {
        let Some(rest) = part.strip_prefix("gres/gpu") else {
            continue;
        };
        let count = rest.rsplit_once('=').and_then(|(name, count)| Some((name, count.parse::<i64>().ok()?)));
        match count {
            Some(("", count)) => untyped = Some(count),
            Some((name, count)) if name.len() > 1 && name.starts_with(':') => {
                typed += count;
                models = with_model(models, &name[1..]);
            }
            // gres/gpumem and gres/gpuutil measure usage, not devices.
            _ if rest.starts_with(|c: char| c.is_ascii_alphabetic()) => {}
            _ => {
                return Err(Reject::new(
                    RejectCode::BadNumber,
                    format!("{part} is not a GPU count such as gres/gpu=4"),
                ));
            }
        }
    }
    Ok(TresGpus { gpus: untyped.unwrap_or(typed), models })
}

/// Nearly all jobs have one model, which costs no copy.
fn with_model<'a>(models: Cow<'a, str>, model: &'a str) -> Cow<'a, str> {
    if models.is_empty() {
        return Cow::Borrowed(model);
    }
    let mut names: Vec<_> = models.split(',').chain([model]).collect();
    names.sort_unstable();
    names.dedup();
    Cow::Owned(names.join(","))
}

/// Exit code and signal of `1:9`.
pub fn exit_code(text: &str) -> Result<(i32, i32), Reject> {
    let parts = text.split_once(':').unwrap_or((text, "0"));
    match (parts.0.parse(), parts.1.parse()) {
        (Ok(code), Ok(signal)) => Ok((code, signal)),
        _ => Err(Reject::new(RejectCode::BadNumber, format!("{text} is not an exit code such as 1:9"))),
    }
}

/// Milliseconds of `1-02:00:00`, `02:00:00`, `30:00`, `30` (minutes) or `1-02`; none for
/// `UNLIMITED` and `Partition_Limit`.
pub fn time_limit_ms(text: &str) -> Result<Option<i64>, Reject> {
    if text.eq_ignore_ascii_case("unlimited") || text.eq_ignore_ascii_case("partition_limit") {
        return Ok(None);
    }
    let bad = || Reject::new(RejectCode::BadNumber, format!("{text} is not a time limit such as 1-02:00:00"));
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u32>().map_err(|_| bad())?), clock),
        None => (None, text),
    };
    let mut parts = [0_i64; 3];
    let mut count = 0;
    for part in clock.split(':') {
        *parts.get_mut(count).ok_or_else(bad)? = part.parse::<u32>().map_err(|_| bad())?.into();
        count += 1;
    }
    // With days the first part is hours; without, two parts are minutes and seconds, one is
    // minutes.
    let seconds = match (days, count) {
        (Some(_), _) | (None, 3) => parts[0] * 3600 + parts[1] * 60 + parts[2],
        _ => parts[0] * 60 + parts[1],
    };
    Ok(Some((i64::from(days.unwrap_or(0)) * 86_400 + seconds) * 1000))
}

/// Expands `gpu[01-04,07]-ib,x1` to `gpu01-ib,gpu02-ib,…,x1`; gives the names, comma separated, and
/// their number.
///
/// # Errors
/// It is no host list, or one of very many hosts.
pub fn hosts(text: &str, out: &mut String) -> Result<u32, Reject> {
    out.clear();
    let (mut count, mut open, mut start) = (0, false, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' | ']' => open = c == '[',
            ',' if !open => {
                expand("", &text[start..at], out, &mut count)?;
                start = at + 1;
            }
            _ => {}
        }
    }
    expand("", &text[start..], out, &mut count)?;
    Ok(count)
}

/// Appends the names of `prefix` followed by one host expression; each bracket multiplies.
fn expand(prefix: &str, expression: &str, out: &mut String, count: &mut u32) -> Result<(), Reject> {
    let bad = || {
        Reject::new(RejectCode::BadNumber, format!("{expression} is not a host list such as gpu[01-04,07]"))
    };
    let Some((head, rest)) = expression.split_once('[') else {
        *count += 1;
        if u64::from(*count) > MAX_HOSTS {
            return Err(bad());
        }
        out.push_str(if out.is_empty() { "" } else { "," });
        out.push_str(prefix);
        out.push_str(expression);
        return Ok(());
    };
    let (ranges, tail) = rest.split_once(']').ok_or_else(bad)?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(low), Ok(high)) = (first.parse::<u64>(), last.parse::<u64>()) else {
            return Err(bad());
        };
        if high < low || high - low > MAX_HOSTS {
            return Err(bad());
        }
        for number in low..=high {
            expand(&format!("{prefix}{head}{number:0width$}", width = first.len()), tail, out, count)?;
        }
    }
    Ok(())
}

/// Parts between commas that stand outside of brackets.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// GPUs of one node: how many, and their numbers there where Slurm says them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct NodeGpus {
    /// How many.
    pub count: u64,
    /// Their type, where it is said.
    pub model: Option<String>,
    /// Their numbers on the node, where they are said.
    pub indices: Vec<u32>,
}

/// Reads `gpu:h200:2(IDX:0-1),shard:4` of a job's details, `gpu:h200:8(S:0-1)` of a node, or
/// `gres:gpu:2` of a request.
pub fn node_gpus(text: &str) -> NodeGpus {
    let mut gpus = NodeGpus::default();
    for part in parts(text) {
        let part = part.strip_prefix("gres:").or(part.strip_prefix("gres/")).unwrap_or(part);
        let (name, rest) = part.split_once('(').unwrap_or((part, ""));
        let mut fields = name.split(':');
        if fields.next() != Some("gpu") {
            continue;
        }
        // Without a number it is one.
        let (model, count) = match (fields.next(), fields.next()) {
            (Some(model), Some(count)) => (Some(model), count.parse().unwrap_or(0)),
            (Some(field), None) => field.parse().map_or((Some(field), 1), |count: u64| (None, count)),
            (None, _) => (None, 1),
        };
        gpus.count += count;
        gpus.model = gpus.model.take().or(model.map(str::to_owned));
        let indices = rest.trim_end_matches(')').strip_prefix("IDX:").unwrap_or_default();
        // A list that cannot be read names no devices; there are never more than a node has.
        gpus.indices
            .extend(array_tasks(indices).unwrap_or_default().iter().filter_map(|i| u32::try_from(*i).ok()));
    }
    gpus
}

/// Values that stand for none.
pub fn is_null(text: &str) -> bool {
    matches!(text, "" | "Unknown" | "None" | "N/A" | "None assigned" | "(null)" | "INVALID")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_come_apart() {
        let plain = |job, step| JobId { job, step, array_job: None, task: Task::None };
        let array = |job, step, task| JobId { job, step, array_job: Some("12"), task };
        let cases = [
            ("12", plain("12", None)),
            ("12.batch", plain("12", Some("batch"))),
            ("12.0", plain("12", Some("0"))),
            ("12+1", plain("12+1", None)),
            ("12+1.0", plain("12+1", Some("0"))),
            ("12_4", array("12_4", None, Task::One(4))),
            ("12_4.extern", array("12_4", Some("extern"), Task::One(4))),
            ("12_[1-10%3]", array("12_[1-10%3]", None, Task::Pending("1-10"))),
            ("12_[1,3]", array("12_[1,3]", None, Task::Pending("1,3"))),
        ];
        for (text, expected) in cases {
            assert_eq!(job_id(text), Ok(expected), "{text}");
        }
        for text in ["", "x", "12.", "12_", "12_a", "12+", "12-3", "12_[1", "_4", ".batch"] {
            assert_eq!(job_id(text).unwrap_err().code, RejectCode::BadJobId, "{text}");
        }
    }

    #[test]
    fn array_tasks_are_counted_before_they_are_listed() {
        assert_eq!(array_tasks("1-3,7,10-20:5"), Ok(vec![1, 2, 3, 7, 10, 15, 20]));
        for list in ["", "3-1", "1-x", "1-9:0", "0-4000000000", "0-99999,100000"] {
            assert_eq!(array_tasks(list).unwrap_err().code, RejectCode::BadJobId, "{list}");
        }
    }

    #[test]
    fn gpus_are_the_untyped_count_or_the_sum_of_the_typed_ones() {
        let cases = [
            ("billing=8,cpu=8,mem=4G,node=1", 0, ""),
            ("gres/gpu=4", 4, ""),
            ("gres/gpu:a100=4,gres/gpu=4", 4, "a100"),
            ("gres/gpu:h100=2,gres/gpu:a100=4", 6, "a100,h100"),
            ("gres/gpu:1g.5gb=3", 3, "1g.5gb"),
            ("gres/gpumem=80G,gres/gpuutil=90,gres/gpu=1", 1, ""),
            ("", 0, ""),
        ];
        for (text, gpus, models) in cases {
            assert_eq!(tres_gpus(text), Ok(TresGpus { gpus, models: models.into() }), "{text}");
        }
        for text in ["gres/gpu=x", "gres/gpu", "gres/gpu:=4", "gres/gpu=99999999999999999999"] {
            assert_eq!(tres_gpus(text).unwrap_err().code, RejectCode::BadNumber, "{text}");
        }
    }

    #[test]
    fn devices_of_a_node_have_numbers() {
        let gpus = |count, model: Option<&str>, indices: &[u32]| NodeGpus {
            count,
            model: model.map(str::to_owned),
            indices: indices.to_vec(),
        };
        let cases = [
            ("gpu:h200:4(IDX:0-1,6-7)", gpus(4, Some("h200"), &[0, 1, 6, 7])),
            ("gpu:2(IDX:0,3),shard:8(0/4,4/4)", gpus(2, None, &[0, 3])),
            ("gpu:h200:8(S:0-1)", gpus(8, Some("h200"), &[])),
            ("gpu:a100:1(IDX:7),gpu:h200:2(IDX:0-1)", gpus(3, Some("a100"), &[7, 0, 1])),
            ("gres:gpu:h200:2", gpus(2, Some("h200"), &[])),
            ("gres/gpu", gpus(1, None, &[])),
            ("gres:gpu:a100", gpus(1, Some("a100"), &[])),
            ("(null)", gpus(0, None, &[])),
            ("", gpus(0, None, &[])),
        ];
        for (text, expected) in cases {
            assert_eq!(node_gpus(text), expected, "{text}");
        }
    }

    #[test]
    fn time_limits_are_minutes_clocks_or_days() {
        const HOUR_MS: i64 = 3_600_000;
        let cases = [
            ("30", Some(HOUR_MS / 2)),
            ("30:30", Some(1_830_000)),
            ("01:00:00", Some(HOUR_MS)),
            ("1-02:00:00", Some(26 * HOUR_MS)),
            ("2-03", Some(51 * HOUR_MS)),
            ("2-03:30", Some(51 * HOUR_MS + HOUR_MS / 2)),
            ("UNLIMITED", None),
            ("Partition_Limit", None),
        ];
        for (text, limit_ms) in cases {
            assert_eq!(time_limit_ms(text), Ok(limit_ms), "{text}");
        }
        for text in ["", "x", "1:2:3:4", "-5", "1-"] {
            assert_eq!(time_limit_ms(text).unwrap_err().code, RejectCode::BadNumber, "{text}");
        }
    }

    #[test]
    fn host_lists_expand_with_their_width() {
        let cases = [
            ("x1", "x1", 1),
            ("gpu[01-03,07],x1", "gpu01,gpu02,gpu03,gpu07,x1", 5),
            ("r[1-2]n[09-10]-ib", "r1n09-ib,r1n10-ib,r2n09-ib,r2n10-ib", 4),
        ];
        let mut out = String::new();
        for (text, expected, count) in cases {
            assert_eq!(hosts(text, &mut out), Ok(count), "{text}");
            assert_eq!(out, expected);
        }
        for text in ["gpu[1-", "gpu[x]", "gpu[3-1]", "n[0-999999999]", "a[0-9999]b[0-9999]"] {
            assert!(hosts(text, &mut out).is_err(), "{text}");
        }
    }
}
