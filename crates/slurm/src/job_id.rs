//! Job ids and lists of array tasks.

use crate::error::ParseError;

/// A pending array longer than this is refused. Slurm's own limit is 4,000,001 tasks, its default
/// 1,001.
const MAX_ARRAY_TASKS: u64 = 100_000;

/// The parts of a `JobID` as accounting prints it.
#[derive(Debug, PartialEq, Eq)]
pub struct JobId<'a> {
    /// Without the step: `123`, `123_4`, `123+1`.
    pub job: &'a str,
    /// Step, e.g. `batch` or `0`.
    pub step: Option<&'a str>,
    /// Id of the whole array, for a task of one.
    pub array_job: Option<&'a str>,
    /// Which task of the array.
    pub task: ArrayTask<'a>,
}

/// Which task of an array a job id names.
#[derive(Debug, PartialEq, Eq)]
pub enum ArrayTask<'a> {
    /// The job is not a task of an array.
    None,
    /// One task.
    One(i64),
    /// Tasks still pending under one record: `1-10,20` of `123_[1-10,20%3]`. [`array_tasks`]
    /// expands the list.
    Pending(&'a str),
}

impl<'a> JobId<'a> {
    /// Parses `123`, `123_4`, `123_[1-10%3]` or `123+1`, each with an optional `.step`.
    ///
    /// # Errors
    /// The text is not a job id, or Slurm cut its list of tasks short.
    pub fn parse(text: &'a str) -> Result<Self, ParseError> {
        let bad =
            || ParseError::job_id(format!("{text} is not a Slurm job id such as 123, 123_4 or 123.batch"));
        if text.contains("...") {
            return Err(ParseError::job_id(format!(
                "the array tasks of {text} were cut short by Slurm; export again with SLURM_BITSTR_LEN=0"
            )));
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
        let (array_job, task) = match rest.split_at_checked(1) {
            None if rest.is_empty() => (None, ArrayTask::None),
            Some(("+", offset)) if offset.parse::<u32>().is_ok() => (None, ArrayTask::None),
            Some(("_", tasks)) => match tasks.strip_prefix('[') {
                Some(list) => {
                    let list = without_limit(list.strip_suffix(']').ok_or_else(bad)?);
                    (Some(number), ArrayTask::Pending(list))
                }
                None => (Some(number), ArrayTask::One(tasks.parse().map_err(|_| bad())?)),
            },
            _ => return Err(bad()),
        };
        Ok(JobId { job, step, array_job, task })
    }
}

/// A list of tasks without `%N`, the number that may run at a time.
pub(crate) fn without_limit(list: &str) -> &str {
    list.split_once('%').map_or(list, |(list, _at_once)| list)
}

/// Task numbers of `1-10,20,30-40:5`.
///
/// # Errors
/// The text is not such a list, or names more than 100,000 tasks.
pub fn array_tasks(list: &str) -> Result<Vec<i64>, ParseError> {
    numbers(list, MAX_ARRAY_TASKS)
}

/// The numbers of a list such as `1-10:2,20`, at most so many.
pub(crate) fn numbers(list: &str, most: u64) -> Result<Vec<i64>, ParseError> {
    let mut tasks = Vec::new();
    for part in list.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let numbers = (first.parse::<u32>(), last.parse::<u32>(), step.parse::<u32>());
        let (Ok(first), Ok(last), Ok(step @ 1..)) = numbers else {
            return Err(ParseError::job_id(format!("{part} is not a list of array tasks such as 1-10,20")));
        };
        let count = u64::from(last.saturating_sub(first) / step) + 1;
        if last < first || tasks.len() as u64 + count > most {
            return Err(ParseError::job_id(format!("{part} is not a range of at most {most} array tasks")));
        }
        tasks.extend((first..=last).step_by(step as usize).map(i64::from));
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ParseErrorKind;

    #[test]
    fn job_ids_come_apart() {
        let plain = |job, step| JobId { job, step, array_job: None, task: ArrayTask::None };
        let array = |job, step, task| JobId { job, step, array_job: Some("12"), task };
        let cases = [
            ("12", plain("12", None)),
            ("12.batch", plain("12", Some("batch"))),
            ("12.0", plain("12", Some("0"))),
            ("12+1", plain("12+1", None)),
            ("12+1.0", plain("12+1", Some("0"))),
            ("12_4", array("12_4", None, ArrayTask::One(4))),
            ("12_4.extern", array("12_4", Some("extern"), ArrayTask::One(4))),
            ("12_[1-10%3]", array("12_[1-10%3]", None, ArrayTask::Pending("1-10"))),
            ("12_[1,3]", array("12_[1,3]", None, ArrayTask::Pending("1,3"))),
        ];
        for (text, expected) in cases {
            assert_eq!(JobId::parse(text), Ok(expected), "{text}");
        }
        for text in ["", "x", "12.", "12_", "12_a", "12+", "12-3", "12_[1", "_4", ".batch", "12\u{e9}"] {
            assert_eq!(JobId::parse(text).unwrap_err().kind, ParseErrorKind::JobId, "{text}");
        }
    }

    #[test]
    fn array_tasks_are_counted_before_they_are_listed() {
        assert_eq!(array_tasks("1-3,7,10-20:5"), Ok(vec![1, 2, 3, 7, 10, 15, 20]));
        for list in ["", "3-1", "1-x", "1-9:0", "0-4000000000", "0-99999,100000"] {
            assert_eq!(array_tasks(list).unwrap_err().kind, ParseErrorKind::JobId, "{list}");
        }
    }
}
