//! Runs Slurm's programs, each within a time limit.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Why a program of Slurm gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It was not started.
    #[error(
        "cannot run {program}: {source}; install Slurm's client programs or give their folder with --slurm-bin"
    )]
    Spawn { program: String, source: std::io::Error },
    /// It was started and killed.
    #[error("{program} gave no answer within {seconds} s")]
    TimedOut { program: String, seconds: u64 },
    /// It ended with another status than 0; what it said first.
    #[error("{program} failed: {stderr}")]
    Failed { program: String, stderr: String },
    /// It succeeded, and what it printed makes no sense.
    #[error("the answer of {program} cannot be used: {what}")]
    Unusable { program: String, what: String },
}

impl CommandError {
    /// An answer that has not the form expected.
    pub fn unusable(program: &str, what: impl Into<String>) -> Self {
        Self::Unusable { program: program.to_owned(), what: what.into() }
    }
}

/// Where Slurm's programs are and how long each may take.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Their folder; none: they are found by `PATH`.
    pub folder: Option<PathBuf>,
    /// `SLURM_CONF`; none: as it is set where we run.
    pub conf: Option<PathBuf>,
    /// How long each may take.
    pub time_limit: Duration,
}

impl Programs {
    /// What the program printed. A status other than 0 is a failure; so is what it left running
    /// after its time.
    ///
    /// Times are printed as seconds since 1970 and lists of array tasks whole.
    ///
    /// # Errors
    /// It could not be started, failed, or took too long and was killed: then what it asked for may
    /// have happened.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<Vec<u8>, CommandError> {
        let mut command = self.command(program);
        command.envs([("SLURM_TIME_FORMAT", "%s"), ("SLURM_BITSTR_LEN", "0"), ("LC_ALL", "C")]);
        // Filters and formats of whoever started the watcher would show a part for the whole.
        for variable in ["SQUEUE_FORMAT", "SQUEUE_STATES", "SQUEUE_USERS", "SQUEUE_PARTITION", "SACCT_FORMAT"]
        {
            command.env_remove(variable);
        }
        self.answer(program, command.args(args), None)
    }

    /// What `sbatch` printed that was given the script. The job's environment is `env`, and `PATH`
    /// and `SLURM_CONF` as they are here; nothing else of ours goes with it.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub fn submit(&self, args: &[&str], script: &str, env: &[(&str, &str)]) -> Result<String, CommandError> {
        let mut command = self.command("sbatch");
        command.env_clear().args(args).arg("--export=ALL");
        for name in ["PATH", "SLURM_CONF"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.envs(env.iter().copied());
        let bytes = self.answer("sbatch", &mut command, Some(script.as_bytes().to_vec()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn command(&self, program: &str) -> Command {
        let path = self.folder.as_ref().map_or_else(|| PathBuf::from(program), |folder| folder.join(program));
        Command::new(path)
    }

    fn answer(
        &self,
        program: &str,
        command: &mut Command,
        input: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, CommandError> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        if let Some(conf) = &self.conf {
            command.env("SLURM_CONF", conf);
        }
        let failed = |source| CommandError::Spawn { program: program.to_owned(), source };
        let mut child = command.spawn().map_err(failed)?;
        let deadline = Instant::now() + self.time_limit;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // A program that does not read it says so by how it ends.
            thread::spawn(move || stdin.write_all(&input));
        }
        let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let answer = wait(&mut child, deadline, &out, &err);
        let Some((succeeded, stdout, stderr)) = answer else {
            // It may have ended by itself just now; either way nothing of it is left.
            drop((child.kill(), child.wait()));
            let seconds = self.time_limit.as_secs();
            return Err(CommandError::TimedOut { program: program.to_owned(), seconds });
        };
        if !succeeded {
            let text = String::from_utf8_lossy(&stderr);
            let stderr = text.lines().next().unwrap_or("no message").trim().to_owned();
            return Err(CommandError::Failed { program: program.to_owned(), stderr });
        }
        Ok(stdout)
    }

    /// The same as text.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub fn text(&self, program: &str, args: &[&str]) -> Result<String, CommandError> {
        let bytes = self.run(program, args)?;
        // Names of users' jobs may hold any bytes.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let whole = stream.is_some_and(|mut stream| stream.read_to_end(&mut bytes).is_ok());
        if whole {
            // The receiver may have given up.
            sender.send(bytes).ok();
        }
    });
    receiver
}

/// Whether it succeeded and what it printed; none if that takes longer than until the deadline.
fn wait(
    child: &mut Child,
    deadline: Instant,
    out: &mpsc::Receiver<Vec<u8>>,
    err: &mpsc::Receiver<Vec<u8>>,
) -> Option<(bool, Vec<u8>, Vec<u8>)> {
    let receive = |stream: &mpsc::Receiver<Vec<u8>>| {
        let left = deadline.saturating_duration_since(Instant::now());
        match stream.recv_timeout(left) {
            Ok(bytes) => Some(bytes),
            Err(RecvTimeoutError::Disconnected) => Some(Vec::new()),
            Err(RecvTimeoutError::Timeout) => None,
        }
    };
    let (stdout, stderr) = (receive(out)?, receive(err)?);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some((status.success(), stdout, stderr)),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(seconds: u64) -> Programs {
        Programs { folder: None, conf: None, time_limit: Duration::from_secs(seconds) }
    }

    #[test]
    fn what_fails_or_hangs_is_no_answer() {
        let long = "head -c 300000 /dev/zero | tr '\\0' x; echo \"$SLURM_TIME_FORMAT\"";
        assert_eq!(programs(20).run("sh", &["-c", long]).unwrap().len(), 300_003);
        let failed = programs(20).run("sh", &["-c", "echo half; echo no controller >&2; exit 1"]);
        assert_eq!(failed.unwrap_err().to_string(), "sh failed: no controller");
        let begun = Instant::now();
        let hung = programs(1).run("sleep", &["60"]).unwrap_err();
        assert!(matches!(hung, CommandError::TimedOut { seconds: 1, .. }), "{hung}");
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(matches!(programs(1).run("no-such-program", &[]), Err(CommandError::Spawn { .. })));
    }
}
