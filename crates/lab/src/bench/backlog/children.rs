//! Runs several pipeline processes on one log and measures their cost.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use tidegate_workspace::{CommandError, LogArgs};

/// Period of checking memory and exit of the processes.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Cost of several processes together.
pub struct Usage {
    pub wall_s: f64,
    pub cpu_s: f64,
    /// Of the largest process.
    pub peak_rss_mib: f64,
}

/// Runs `pipeline run` in `processes` processes at once and waits for all of them.
pub fn run_pipelines(processes: u32, data: &Path, log: &LogArgs) -> Result<Usage, CommandError> {
    let (cpu, wall) = (cpu_time()?, Instant::now());
    let mut running = ChildGuards(Vec::new());
    for _ in 0..processes {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["pipeline", "run", "--data"]).arg(data).args(log.arguments());
        // The arguments contain everything; the environment must not override them.
        for set in ["TIDEGATE_LOG", "TIDEGATE_KAFKA_CONFIG", "TIDEGATE_PIPELINES", "TIDEGATE_DATA"] {
            command.env_remove(set);
        }
        running.0.push(command.stdout(Stdio::null()).spawn()?);
    }
    let mut peak_rss_mib = 0.0_f64;
    while !running.0.is_empty() {
        for child in &running.0 {
            peak_rss_mib = peak_rss_mib.max(peak_rss(child).unwrap_or(0.0));
        }
        let mut ended = Ok(());
        running.0.retain_mut(|child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) if status.success() => false,
            Ok(Some(status)) => {
                ended = Err(format!("a process that worked through the log ended with {status}"));
                false
            }
            Err(e) => {
                ended = Err(format!("wait for a process: {e}"));
                false
            }
        });
        ended?;
        std::thread::sleep(POLL_EVERY);
    }
    let wall_s = wall.elapsed().as_secs_f64();
    Ok(Usage { wall_s, cpu_s: (cpu_time()? - cpu).as_secs_f64(), peak_rss_mib })
}

/// Child processes that are killed when dropped.
struct ChildGuards(Vec<Child>);

impl Drop for ChildGuards {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Killing a finished process fails, which is fine.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// CPU time of all finished children.
fn cpu_time() -> Result<Duration, CommandError> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros as u64))
}

/// Peak memory of a running process so far, MiB. The kernel tracks the peak, so occasional polling
/// is enough.
fn peak_rss(child: &Child) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()? / 1024.0)
}
