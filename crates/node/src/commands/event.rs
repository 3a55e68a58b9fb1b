//! `tidegate event`: reports a hold or release to the agent of this node, for prologs and epilogs.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tidegate_collect::receiver;

use crate::error::{CommandError, CommandResult};
use crate::units::duration;

/// Report to the agent of this node, as a prolog does
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate event hold --job 123 --gpus 0,1
  tidegate event release --job 123

In a Slurm prolog or epilog, options default to Slurm's environment: see deploy/slurm. Only root and
the users that the agent allows (--event-uid) may report.")]
pub struct EventArgs {
    #[command(subcommand)]
    report: HoldReport,
}

#[derive(Debug, Subcommand)]
enum HoldReport {
    /// Report that a job now holds devices
    #[command(after_help = "Examples:
  tidegate event hold --job 123 --gpus 0,1")]
    Hold(HoldArgs),
    /// Report that a job released its devices
    #[command(after_help = "Examples:
  tidegate event release --job 123")]
    Release(HoldArgs),
}

#[derive(Debug, Args)]
struct HoldArgs {
    /// The job: its accounting id, or its number
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Step of the job, if the report is about a step alone
    #[arg(long, value_name = "ID")]
    step: Option<String>,
    /// Devices: indexes on the node, or UUIDs; `release` without them releases all of the job's
    #[arg(long, value_name = "LIST")]
    gpus: Option<String>,
    /// Thousandths of each device, if it is shared
    #[arg(long, value_name = "NUMBER")]
    share_milli: Option<u32>,
    /// Reporter
    #[arg(long, value_name = "NAME", default_value = "prolog")]
    source: String,
    /// The agent's socket
    #[arg(long, value_name = "PATH", env = "TIDEGATE_SOCKET", default_value = receiver::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// How long to wait for the agent
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    patience: Duration,
}

/// Reports one hold or release.
pub fn run(args: EventArgs) -> CommandResult {
    let (kind, args) = match &args.report {
        HoldReport::Hold(args) => ("hold", args),
        HoldReport::Release(args) => ("release", args),
    };
    match line(kind, args, |name| env::var(name).ok().filter(|value| !value.is_empty()))? {
        Some(line) => send(&args.socket, &line, args.patience)?,
        None => tracing::debug!("a job without GPUs: nothing to report"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The line to send; `None` for a job without devices. `variable` reads Slurm's environment.
fn line(
    kind: &str,
    args: &HoldArgs,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<String>, CommandError> {
    // Slurm sets the array index for tasks, not for prologs; the agent finds it.
    let array = variable("SLURM_ARRAY_JOB_ID").zip(variable("SLURM_ARRAY_TASK_ID"));
    let array_id = array.map(|(job, task)| format!("{job}_{task}"));
    let job = args.job.clone().or(array_id).or_else(|| variable("SLURM_JOB_ID"));
    let job = job.ok_or("no job is named; give --job, or call it in a Slurm prolog")?;
    let mut gpus = args.gpus.clone();
    if kind == "hold" {
        // SLURM_JOB_GPUS is the allocation, CUDA_VISIBLE_DEVICES what the job sees of it: MIG
        // slices by UUID.
        let given = variable("SLURM_JOB_GPUS").or_else(|| variable("CUDA_VISIBLE_DEVICES"));
        let slices = variable("CUDA_VISIBLE_DEVICES").filter(|list| list.contains("MIG-"));
        gpus = gpus.or(slices).or(given).filter(|list| list != "NoDevFiles");
        if gpus.is_none() {
            return Ok(None);
        }
    }
    let mut fields = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    put("event", Some(json!(kind)));
    put("job_id", Some(json!(job)));
    put("step_id", args.step.as_ref().map(|step| json!(step)));
    put("gpus", gpus.map(|list| json!(list)));
    put("node", variable("SLURMD_NODENAME").map(|node| json!(node)));
    put("time_ms", u64::try_from(now.as_millis()).ok().map(|now_ms| json!(now_ms)));
    let restart = variable("SLURM_JOB_RESTART_COUNT").or_else(|| variable("SLURM_RESTART_COUNT"));
    put("restart", restart.and_then(|count| count.parse::<u32>().ok()).map(|count| json!(count)));
    put("share_milli", args.share_milli.map(|share| json!(share)));
    // Only the job's owner may report its steps.
    put("uid", variable("SLURM_JOB_UID").and_then(|uid| uid.parse::<u32>().ok()).map(|uid| json!(uid)));
    put("source", Some(json!(args.source)));
    Ok(Some(format!("{}\n", Value::Object(fields))))
}

/// Sends the line and waits for the acknowledgement.
fn send(socket: &Path, line: &str, patience: Duration) -> Result<(), CommandError> {
    let at = socket.display();
    let failed = |error: std::io::Error| {
        format!("cannot reach the agent at {at}: {error}; is it running, with --socket?")
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_write_timeout(Some(patience)).map_err(failed)?;
    stream.set_read_timeout(Some(patience)).map_err(failed)?;
    stream.write_all(line.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(failed)?;
    let answered: Value =
        serde_json::from_str(&answer).map_err(|_| format!("the agent at {at} answered {answer:?}"))?;
    match answered.get("error").and_then(Value::as_str) {
        Some(error) => Err(format!("the agent refuses it: {error}").into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> HoldArgs {
        HoldArgs {
            job: None,
            step: None,
            gpus: None,
            share_milli: None,
            source: "prolog".into(),
            socket: "/nowhere".into(),
            patience: Duration::from_secs(1),
        }
    }

    fn sent(kind: &str, args: &HoldArgs, environment: &[(&str, &str)]) -> Option<Value> {
        let variable = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let mut line: Value = serde_json::from_str(&line(kind, args, variable).unwrap()?).unwrap();
        assert!(line["time_ms"].take().as_u64().unwrap() > 1_700_000_000_000);
        Some(line)
    }

    #[test]
    fn options_come_from_a_slurm_prolog() {
        // As Slurm 22.05 sets it in a prolog of a task of an array.
        let prolog = [
            ("CUDA_VISIBLE_DEVICES", "0,1"),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_JOB_GPUS", "4,5"),
            ("SLURM_JOB_ID", "17"),
            ("SLURM_JOB_RESTART_COUNT", "2"),
            ("SLURM_JOB_UID", "1001"),
        ];
        let hold = sent("hold", &args(), &prolog).unwrap();
        let expected = json!({"event": "hold", "job_id": "17", "gpus": "4,5", "node": "n1", "restart": 2, "uid": 1001, "source": "prolog", "time_ms": null});
        assert_eq!(hold, expected);
        let release = sent("release", &HoldArgs { source: "epilog".into(), ..args() }, &prolog).unwrap();
        let expected = json!({"event": "release", "job_id": "17", "node": "n1", "restart": 2, "uid": 1001, "source": "epilog", "time_ms": null});
        assert_eq!(release, expected);
    }

    #[test]
    fn slices_shares_and_array_indices() {
        let slice = [("SLURM_JOB_ID", "1"), ("SLURM_JOB_GPUS", "0"), ("CUDA_VISIBLE_DEVICES", "MIG-8f1d")];
        assert_eq!(sent("hold", &args(), &slice).unwrap()["gpus"], "MIG-8f1d");
        let task = [("SLURM_JOB_ID", "9"), ("SLURM_ARRAY_JOB_ID", "5"), ("SLURM_ARRAY_TASK_ID", "3")];
        let shared = HoldArgs { gpus: Some("0".into()), share_milli: Some(250), ..args() };
        let hold = sent("hold", &shared, &task).unwrap();
        assert_eq!((&hold["job_id"], &hold["share_milli"]), (&json!("5_3"), &json!(250)));
        assert_eq!(sent("hold", &args(), &[("SLURM_JOB_ID", "9")]), None, "a job without GPUs");
        assert!(line("hold", &args(), |_| None).is_err());
    }
}
