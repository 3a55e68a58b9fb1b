//! Runs Slurm's programs, each within a time limit.

use std::io::{self, Read, Write};
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
    /// The program was killed because its answer is longer than [`SlurmClient::most_bytes`].
    #[error("{program} gives more than {most_bytes} bytes; its answer is not read")]
    TooLong {
        /// The program.
        program: String,
        /// The limit.
        most_bytes: u64,
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

/// Longest error message of a program that is kept, bytes.
const MESSAGE_BYTES: u64 = 64 << 10;

/// Runs Slurm's client programs. Where they are, and how long each may take and answer.
#[derive(Debug, Clone)]
pub struct SlurmClient {
    /// Folder of the programs; `None`: found by `PATH`.
    pub folder: Option<PathBuf>,
    /// `SLURM_CONF` for the programs; `None`: inherited from this process.
    pub conf: Option<PathBuf>,
    /// Time limit of one program.
    pub time_limit: Duration,
    /// Longest answer of one program, bytes. More is an error, and not read.
    pub most_bytes: u64,
}

impl SlurmClient {
    /// A limit for [`Self::most_bytes`]: `squeue --json` of 130,000 jobs (3.8 kB each in 22.05).
    pub const MOST_BYTES: u64 = 512 << 20;

    /// Runs a program and returns its standard output. Fails if the exit status is not 0, if the
    /// output is longer than [`Self::most_bytes`], or if the program or a child of it still writes
    /// when its time is over.
    ///
    /// Times are printed as seconds since 1970 and lists of array tasks in full.
    ///
    /// # Errors
    /// The program could not be started, failed, or was killed because of its time or the length of
    /// its answer: then the request may have been carried out.
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
        self.run(program, args).map(lossy)
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
        self.answer("sbatch", &mut command, Some(script.as_bytes().to_vec())).map(lossy)
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
        let out = collect(child.stdout.take(), self.most_bytes);
        let err = collect(child.stderr.take(), MESSAGE_BYTES);
        let answer = wait(&mut child, deadline, &out, &err);
        if !matches!(answer, Ended::ByItself { .. }) {
            // It may have ended by itself just now; either way nothing of it stays behind.
            drop((child.kill(), child.wait()));
        }
        let program = program.to_owned();
        match answer {
            Ended::ByItself { succeeded: true, stdout, .. } => Ok(stdout),
            Ended::ByItself { stderr, .. } => {
                let text = lossy(stderr);
                let stderr = text.lines().next().unwrap_or("no message").trim().to_owned();
                Err(CommandError::Failed { program, stderr })
            }
            Ended::TooLong => Err(CommandError::TooLong { program, most_bytes: self.most_bytes }),
            Ended::TooLate => Err(CommandError::TimedOut { program, seconds: self.time_limit.as_secs() }),
        }
    }
}

/// Text of bytes, of which those that are not UTF-8 are replaced.
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|not| String::from_utf8_lossy(not.as_bytes()).into_owned())
}

/// Id of the job in the answer of `sbatch --parsable`: `ID` or `ID;CLUSTER`.
pub fn submitted_job(answer: &str) -> &str {
    answer.trim().split(';').next().unwrap_or_default()
}

/// How a program ended.
enum Ended {
    ByItself {
        succeeded: bool,
        stdout: Vec<u8>,
        stderr: Vec<u8>,
    },
    /// It has not, and its answer is longer than it may be.
    TooLong,
    /// It has not before its deadline.
    TooLate,
}

/// What a stream gave, up to the most bytes.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    has_more: bool,
}

/// Reads a stream on a thread of its own, so that neither stream can block the program.
fn collect(stream: Option<impl Read + Send + 'static>, most_bytes: u64) -> mpsc::Receiver<Output> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let Some(mut stream) = stream else { return };
        let mut output = Output::default();
        if stream.by_ref().take(most_bytes).read_to_end(&mut output.bytes).is_ok() {
            output.has_more = matches!(stream.read(&mut [0]), Ok(1..));
            // The receiver may have given up.
            sender.send(output).ok();
            io::copy(&mut stream, &mut io::sink()).ok();
        }
    });
    receiver
}

/// Waits for a program, until the deadline or until it says too much.
fn wait(
    child: &mut Child,
    deadline: Instant,
    out: &mpsc::Receiver<Output>,
    err: &mpsc::Receiver<Output>,
) -> Ended {
    let receive = |stream: &mpsc::Receiver<Output>| {
        let left = deadline.saturating_duration_since(Instant::now());
        match stream.recv_timeout(left) {
            Ok(output) => Some(output),
            Err(RecvTimeoutError::Disconnected) => Some(Output::default()),
            Err(RecvTimeoutError::Timeout) => None,
        }
    };
    let Some(stdout) = receive(out) else { return Ended::TooLate };
    if stdout.has_more {
        return Ended::TooLong;
    }
    let Some(stderr) = receive(err) else { return Ended::TooLate };
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let (stdout, stderr) = (stdout.bytes, stderr.bytes);
                return Ended::ByItself { succeeded: status.success(), stdout, stderr };
            }
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            _ => return Ended::TooLate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(seconds: u64) -> SlurmClient {
        SlurmClient {
            folder: None,
            conf: None,
            time_limit: Duration::from_secs(seconds),
            most_bytes: 300_003,
        }
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

    #[test]
    fn an_answer_without_end_is_not_read_to_its_end() {
        let begun = Instant::now();
        let long = client(60).run("sh", &["-c", "head -c 300004 /dev/zero"]).unwrap_err();
        assert!(matches!(long, CommandError::TooLong { most_bytes: 300_003, .. }), "{long}");
        let endless = client(60).run("cat", &["/dev/zero"]).unwrap_err();
        assert!(matches!(endless, CommandError::TooLong { .. }), "{endless}");
        // Of a long message the first line is kept.
        let wordy = "echo first >&2; head -c 300000 /dev/zero >&2; exit 1";
        let failed = client(60).run("sh", &["-c", wordy]).unwrap_err();
        assert_eq!(failed.to_string(), "sh failed: first");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
