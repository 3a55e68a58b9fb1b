//! `tidegate event`: what a prolog or an epilog tells the agent of its node.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tidegate_collect::inlet;

use crate::units::duration;
use crate::{CommandError, CommandResult};

/// Tell the agent on this node what happened, as a prolog does
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate event hold --job 123 --gpus 0,1
  tidegate event release --job 123

In a prolog or epilog of Slurm the options are taken from what Slurm says there: see deploy/slurm. Only root and users that
the agent was told of (--event-uid) may tell.")]
pub struct EventArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A job holds devices from now on
    Hold(HoldArgs),
    /// A job holds its devices no more
    Release(HoldArgs),
}

#[derive(Debug, Args)]
struct HoldArgs {
    /// The job, as accounting spells it or by its number
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Step of the job, if it is about a step alone
    #[arg(long, value_name = "ID")]
    step: Option<String>,
    /// The devices: numbers in the node, or UUIDs; of a release all of the job's by default
    #[arg(long, value_name = "LIST")]
    gpus: Option<String>,
    /// Thousandths of each device, if others have it too
    #[arg(long, value_name = "NUMBER")]
    share_milli: Option<u32>,
    /// Who tells
    #[arg(long, value_name = "NAME", default_value = "prolog")]
    source: String,
    /// The agent's socket
    #[arg(long, value_name = "PATH", env = "TIDEGATE_SOCKET", default_value = inlet::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// How long to wait for the agent
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    patience: Duration,
}

pub fn run(args: EventArgs) -> CommandResult {
    let (kind, args) = match &args.what {
        What::Hold(args) => ("hold", args),
        What::Release(args) => ("release", args),
    };
    match line(kind, args, |name| env::var(name).ok().filter(|value| !value.is_empty()))? {
        Some(line) => tell(&args.socket, &line, args.patience)?,
        // A job without GPUs.
        None => tracing::debug!("there is nothing to tell"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The line to send; none for a job that has no devices. `variable` is the environment, as Slurm
/// sets it.
fn line(
    kind: &str,
    args: &HoldArgs,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<String>, CommandError> {
    // Slurm says whose place in an array it is to tasks, not to prologs: the agent finds it.
    let array = variable("SLURM_ARRAY_JOB_ID").zip(variable("SLURM_ARRAY_TASK_ID"));
    let spelled = array.map(|(job, task)| format!("{job}_{task}"));
    let job = args.job.clone().or(spelled).or_else(|| variable("SLURM_JOB_ID"));
    let job = job.ok_or("no job is named; give --job, or call it in a prolog of Slurm")?;
    let mut gpus = args.gpus.clone();
    if kind == "hold" {
        // The first is what was given, the second what the job will see of it: slices by their
        // UUIDs.
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
    put("source", Some(json!(args.source)));
    Ok(Some(format!("{}\n", Value::Object(fields))))
}

/// Sends the line and waits for the agent to say that it has it.
fn tell(socket: &Path, line: &str, patience: Duration) -> Result<(), CommandError> {
    let at = socket.display();
    let failed = |error: std::io::Error| {
        format!("the agent cannot be told at {at}: {error}; is it running, with --socket?")
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_write_timeout(Some(patience)).map_err(failed)?;
    stream.set_read_timeout(Some(patience)).map_err(failed)?;
    stream.write_all(line.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(failed)?;
    let said: Value =
        serde_json::from_str(&answer).map_err(|_| format!("the agent at {at} answered {answer:?}"))?;
    match said.get("error").and_then(Value::as_str) {
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

    fn told(kind: &str, args: &HoldArgs, environment: &[(&str, &str)]) -> Option<Value> {
        let variable = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let mut line: Value = serde_json::from_str(&line(kind, args, variable).unwrap()?).unwrap();
        assert!(line["time_ms"].take().as_u64().unwrap() > 1_700_000_000_000);
        Some(line)
    }

    #[test]
    fn a_prolog_of_slurm_says_it_all() {
        // As Slurm 22.05 sets it in a prolog of a task of an array.
        let prolog = [
            ("CUDA_VISIBLE_DEVICES", "0,1"),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_JOB_GPUS", "4,5"),
            ("SLURM_JOB_ID", "17"),
            ("SLURM_JOB_RESTART_COUNT", "2"),
        ];
        let hold = told("hold", &args(), &prolog).unwrap();
        let expected = json!({"event": "hold", "job_id": "17", "gpus": "4,5", "node": "n1", "restart": 2, "source": "prolog", "time_ms": null});
        assert_eq!(hold, expected);
        let release = told("release", &HoldArgs { source: "epilog".into(), ..args() }, &prolog).unwrap();
        let expected = json!({"event": "release", "job_id": "17", "node": "n1", "restart": 2, "source": "epilog", "time_ms": null});
        assert_eq!(release, expected);
    }

    #[test]
    fn slices_shares_and_places_in_arrays() {
        let slice = [("SLURM_JOB_ID", "1"), ("SLURM_JOB_GPUS", "0"), ("CUDA_VISIBLE_DEVICES", "MIG-8f1d")];
        assert_eq!(told("hold", &args(), &slice).unwrap()["gpus"], "MIG-8f1d");
        let task = [("SLURM_JOB_ID", "9"), ("SLURM_ARRAY_JOB_ID", "5"), ("SLURM_ARRAY_TASK_ID", "3")];
        let shared = HoldArgs { gpus: Some("0".into()), share_milli: Some(250), ..args() };
        let hold = told("hold", &shared, &task).unwrap();
        assert_eq!((&hold["job_id"], &hold["share_milli"]), (&json!("5_3"), &json!(250)));
        assert_eq!(told("hold", &args(), &[("SLURM_JOB_ID", "9")]), None, "a job without GPUs");
        assert!(line("hold", &args(), |_| None).is_err());
    }
}
