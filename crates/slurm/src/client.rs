//! Runs Slurm's programs, each within a time limit.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Why one of Slurm's programs gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program could not be started.
    #[error("cannot run {program}: {source}; install Slurm's client programs or name their folder")]
    Spawn {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// The program was killed because it exceeded its time limit.
    #[error("{program} gave no answer within {seconds} s")]
    TimedOut {
        /// The program.
        program: String,
        /// The limit.
        seconds: u64,
    },
    /// The program exited with a status other than 0.
    #[error("{program} failed: {stderr}")]
    Failed {
        /// The program.
        program: String,
        /// First line of its standard error.
        stderr: String,
    },
    /// The program succeeded, but its output cannot be read.
    #[error("the answer of {program} cannot be used: {what}")]
    Unusable {
        /// The program.
        program: String,
        /// What is wrong with the output.
        what: String,
    },
}

impl CommandError {
    /// An answer that is not in the expected form.
    pub fn unusable(program: &str, what: impl Into<String>) -> Self {
        Self::Unusable { program: program.to_owned(), what: what.into() }
    }

    /// Whether the program reports that it could not reach its daemon: the request was not carried
    /// out.
    pub fn is_connection_failure(&self) -> bool {
        let words =
            ["Unable to contact", "Connection refused", "Connection timed out", "persistent connection"];
        match self {
            Self::Failed { stderr, .. } => words.iter().any(|words| stderr.contains(words)),
            _ => false,
        }
    }
}

/// Runs Slurm's client programs. Where they are and how long each may take.
#[derive(Debug, Clone)]
pub struct SlurmClient {
    /// Folder of the programs; `None`: found by `PATH`.
    pub folder: Option<PathBuf>,
    /// `SLURM_CONF` for the programs; `None`: inherited from this process.
    pub conf: Option<PathBuf>,
    /// Time limit of one program.
    pub time_limit: Duration,
}

impl SlurmClient {
    /// Runs a program and returns its standard output. Fails if the exit status is not 0, or if the
    /// program or a child of it still writes when its time is over.
    ///
    /// Times are printed as seconds since 1970 and lists of array tasks in full.
    ///
    /// # Errors
    /// The program could not be started, failed, or was killed after its time limit: then the
    /// request may have been carried out.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<Vec<u8>, CommandError> {
        let mut command = self.command(program);
        command.envs([("SLURM_TIME_FORMAT", "%s"), ("SLURM_BITSTR_LEN", "0"), ("LC_ALL", "C")]);
        // Filters and formats in our environment would show a part instead of everything.
        for variable in ["SQUEUE_FORMAT", "SQUEUE_STATES", "SQUEUE_USERS", "SQUEUE_PARTITION", "SACCT_FORMAT"]
        {
            command.env_remove(variable);
        }
        self.answer(program, command.args(args), None)
    }

    /// Runs a program and returns its standard output as text; see [`Self::run`]. Bytes that are
    /// not UTF-8 are replaced: names of users' jobs may hold any bytes.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub fn text(&self, program: &str, args: &[&str]) -> Result<String, CommandError> {
        let bytes = self.run(program, args)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Runs `sbatch --parsable` on a script and returns the id of the new job. The job's
    /// environment is `env` with our `PATH` and `SLURM_CONF`; nothing else of ours goes with it.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub fn submit(&self, args: &[&str], script: &str, env: &[(&str, &str)]) -> Result<String, CommandError> {
        let mut command = self.command("sbatch");
        command.env_clear().arg("--parsable").args(args).arg("--export=ALL");
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
            // A program that does not read its input shows that by its exit status.
            thread::spawn(move || stdin.write_all(&input));
        }
        let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let answer = wait(&mut child, deadline, &out, &err);
        let Some((succeeded, stdout, stderr)) = answer else {
            // It may have ended by itself just now; either way nothing of it stays behind.
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
}

/// Id of the job in the answer of `sbatch --parsable`: `ID` or `ID;CLUSTER`.
pub fn submitted_job(answer: &str) -> &str {
    answer.trim().split(';').next().unwrap_or_default()
}

/// Reads a stream on a thread of its own, so that neither stream can block the program.
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

/// Whether the program succeeded, its standard output and its standard error; `None` if it does not
/// end before the deadline.
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

    fn client(seconds: u64) -> SlurmClient {
        SlurmClient { folder: None, conf: None, time_limit: Duration::from_secs(seconds) }
    }

    #[test]
    fn what_fails_or_hangs_is_no_answer() {
        let long = "head -c 300000 /dev/zero | tr '\\0' x; echo \"$SLURM_TIME_FORMAT\"";
        assert_eq!(client(20).run("sh", &["-c", long]).unwrap().len(), 300_003);
        let failed = client(20).run("sh", &["-c", "echo half; echo no controller >&2; exit 1"]);
        assert_eq!(failed.unwrap_err().to_string(), "sh failed: no controller");
        let begun = Instant::now();
        let hung = client(1).run("sleep", &["60"]).unwrap_err();
        assert!(matches!(hung, CommandError::TimedOut { seconds: 1, .. }), "{hung}");
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(matches!(client(1).run("no-such-program", &[]), Err(CommandError::Spawn { .. })));
    }
}
