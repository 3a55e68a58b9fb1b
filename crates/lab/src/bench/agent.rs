//! Cost of the agent on its node: the real program on a stand-in driver library, sending to a real
//! `tidegate up`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use tidegate_events::Event;
use tidegate_log::tail::Cursor;
use tidegate_log::{DataDir, EmbeddedLog, EmbeddedOptions, TopicPartition};

use super::Scratch;
use tidegate_workspace::CommandError;

/// Excluded from the measurement: start, loading the library and the first connection.
const WARM_UP: Duration = Duration::from_secs(15);
/// Period of polling memory.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// Sources of the stand-in driver, shared with the tests.
const STANDIN: [(&str, &str); 3] = [
    ("standin.h", include_str!("../../../../tests/nvml/standin.h")),
    ("standin.c", include_str!("../../../../tests/nvml/standin.c")),
    ("scenario.c", include_str!("../../../../tests/nvml/scenario.c")),
];

#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Measured time, s
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(5..))]
    seconds: u64,
    /// GPUs of the stand-in driver
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16))]
    devices: u32,
    /// Time between two readings, e.g. 1s or 100ms
    #[arg(long, default_value = "1s")]
    interval: String,
    /// Library to use instead of the stand-in, e.g. a real driver's
    #[arg(long, value_name = "PATH")]
    nvml_lib: Option<PathBuf>,
    /// Program that runs the agent [default: tidegate-node beside this program, else this program]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Log to send to instead of an own `tidegate up`; samples are not counted then
    #[arg(long, value_name = "URL")]
    log: Option<String>,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// Measurements after the warm-up.
#[derive(Debug, Serialize)]
pub struct Report {
    program: String,
    devices: u32,
    interval: String,
    seconds: f64,
    cpu_s: f64,
    cpu_percent_of_core: f64,
    /// Peak resident memory, and its anonymous part.
    rss_mib: f64,
    anonymous_mib: f64,
    threads: u64,
    context_switches_per_s: f64,
    /// Samples (devices × ticks) in the log at the end, warm-up included; `None` with --log.
    samples: Option<u64>,
    batches: Option<u64>,
    bytes_per_sample: Option<f64>,
}

pub fn run(args: &AgentArgs) -> Result<Report, CommandError> {
    let scratch = Scratch::new("agent")?;
    let library = match &args.nvml_lib {
        Some(library) => library.clone(),
        None => build_standin(scratch.path(), args.devices)?,
    };
    let data = scratch.path().join("data");
    let up = if args.log.is_none() { Some(Up::start(&data)?) } else { None };
    let log = args.log.clone().or(up.as_ref().map(|up| up.address.clone())).unwrap_or_default();
    let (program, sub) = program(args)?;
    let mut agent = Command::new(&program);
    agent.arg(sub).args(["--source", "nvml", "--node", "bench", "--cluster", "bench", "--log", &log]);
    agent.args(["--interval", &args.interval, "--nvml-lib"]).arg(&library);
    agent
        .arg("--spool")
        .arg(scratch.path().join("spool"))
        .arg("--socket")
        .arg(scratch.path().join("agent.sock"));
    let mut agent = ChildGuard(agent.stdout(Stdio::null()).spawn()?);
    let measured = measure(&mut agent.0, Duration::from_secs(args.seconds))?;
    agent.end()?;
    let counted = match up {
        None => None,
        Some(mut up) => {
            up.process.end()?;
            Some(count(&data)?)
        }
    };
    Ok(Report {
        program: program.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        devices: args.devices,
        interval: args.interval.clone(),
        samples: counted.map(|counted| counted.samples),
        batches: counted.map(|counted| counted.batches),
        bytes_per_sample: counted.map(|c| c.bytes as f64 / c.samples.max(1) as f64),
        ..measured
    })
}

/// The program that runs the agent, and its subcommand.
fn program(args: &AgentArgs) -> Result<(PathBuf, &'static str), CommandError> {
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("tidegate-node");
    let program = args.program.clone().unwrap_or_else(|| if beside.exists() { beside } else { own });
    Ok((program, "agent"))
}

fn build_standin(folder: &Path, devices: u32) -> Result<PathBuf, CommandError> {
    for (name, text) in STANDIN {
        fs::write(folder.join(name), text)?;
    }
    let library = folder.join("standin.so");
    let built = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .current_dir(folder)
        .args([
            "-std=gnu11",
            "-O1",
            "-fPIC",
            "-shared",
            "-pthread",
            "-o",
            "standin.so",
            "scenario.c",
            "standin.c",
            "-lm",
            "-ldl",
        ])
        .status()
        .map_err(|e| {
            format!(
                "the stand-in for the driver takes a C compiler (cc): {e}; name a library with --nvml-lib"
            )
        })?;
    if !built.success() {
        return Err(
            "the stand-in for the driver could not be compiled; name a library with --nvml-lib".into()
        );
    }
    fs::write(folder.join("standin.so.scenario"), format!("devices {devices}\n"))?;
    Ok(library)
}

/// A child process that is killed when dropped.
struct ChildGuard(Child);

impl ChildGuard {
    /// Sends SIGTERM and waits.
    fn end(&mut self) -> Result<(), CommandError> {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM)?;
        let status = self.0.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("a process of the bench ended with {status}").into())
        }
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Killing a finished process fails, which is fine.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A `tidegate up` that receives events.
struct Up {
    process: ChildGuard,
    address: String,
}

impl Up {
    fn start(data: &Path) -> Result<Self, CommandError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["up", "--ingest", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let said = child.stdout.take();
        let mut process = ChildGuard(child);
        let mut lines = BufReader::new(said.ok_or("the server's output is gone")?).lines();
        let address = loop {
            let Some(line) = lines.next().transpose()? else {
                return Err(format!("tidegate up ended with {}", process.0.wait()?).into());
            };
            if let Some(rest) = line.strip_prefix("events  ") {
                break rest.split_whitespace().next().unwrap_or_default().to_owned();
            }
        };
        // The pipe is closed from here on; the server ignores that and prints little.
        Ok(Self { process, address })
    }
}

/// Resource usage of a process, from /proc.
#[derive(Debug, Clone, Copy)]
struct ProcessUsage {
    cpu_s: f64,
    switches: u64,
    threads: u64,
    rss_mib: f64,
    anonymous_mib: f64,
}

fn read_usage(pid: u32) -> Result<ProcessUsage, CommandError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    };
    let (mut cpu_ns, mut switches) = (0, 0);
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // schedstat has ns; stat has only hundredths of a second. A thread may end meanwhile.
        let ran = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        let mut ran = ran.split_whitespace().map(|number| number.parse::<u64>().unwrap_or_default());
        cpu_ns += ran.next().unwrap_or_default();
        switches += ran.nth(1).unwrap_or_default();
    }
    Ok(ProcessUsage {
        cpu_s: cpu_ns as f64 / 1e9,
        switches,
        threads: field("Threads:"),
        rss_mib: field("VmRSS:") as f64 / 1024.0,
        anonymous_mib: field("RssAnon:") as f64 / 1024.0,
    })
}

fn measure(agent: &mut Child, time: Duration) -> Result<Report, CommandError> {
    let pid = agent.id();
    wait(agent, WARM_UP, |_| Ok(()))?;
    let (before, begun) = (read_usage(pid)?, Instant::now());
    let mut most = before;
    wait(agent, time, |_| {
        let now = read_usage(pid)?;
        most.rss_mib = most.rss_mib.max(now.rss_mib);
        most.anonymous_mib = most.anonymous_mib.max(now.anonymous_mib);
        most.threads = most.threads.max(now.threads);
        Ok(())
    })?;
    let (after, seconds) = (read_usage(pid)?, begun.elapsed().as_secs_f64());
    let cpu_s = after.cpu_s - before.cpu_s;
    Ok(Report {
        program: String::new(),
        devices: 0,
        interval: String::new(),
        seconds,
        cpu_s,
        cpu_percent_of_core: 100.0 * cpu_s / seconds,
        rss_mib: most.rss_mib,
        anonymous_mib: most.anonymous_mib,
        threads: most.threads,
        context_switches_per_s: (after.switches.saturating_sub(before.switches)) as f64 / seconds,
        samples: None,
        batches: None,
        bytes_per_sample: None,
    })
}

fn wait(
    agent: &mut Child,
    time: Duration,
    mut looked: impl FnMut(&mut Child) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if let Some(status) = agent.try_wait()? {
            return Err(format!("the agent ended with {status}").into());
        }
        looked(agent)?;
        std::thread::sleep(POLL_EVERY.min(until.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    samples: u64,
    batches: u64,
    bytes: u64,
}

/// What the log of a folder holds of samples.
fn count(data: &Path) -> Result<Counted, CommandError> {
    let folder = DataDir::open(data)?;
    let log = EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?;
    let at = TopicPartition { topic: "gpu-samples".into(), partition: 0 };
    let mut counted = Counted::default();
    let mut cursor = Cursor::at_start(&log, at)?;
    while cursor.is_behind() {
        for stored in &cursor.read(&log, 1 << 20)? {
            if let Event::GpuSamples(batch) = Event::decode(stored.record.schema, &stored.record.payload)? {
                counted.samples += (batch.devices.len() * (batch.tick_delta_ms.len() + 1)) as u64;
                counted.batches += 1;
                counted.bytes += stored.record.payload.len() as u64;
            }
        }
    }
    Ok(counted)
}
