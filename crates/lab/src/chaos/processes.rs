//! The processes of a run: starts, kills, pauses and continues them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tidegate_log::TopicPartition;

use super::history::Plan;
use tidegate_workspace::{CommandError, LOG_UNAVAILABLE, LogArgs};

/// Session timeout of group members: the minimum that Kafka allows by default.
const SESSION_MS: u64 = 6_000;
/// Pause between batches, so that a history lasts about as long as the disturbances.
const PAUSE_MS: u64 = 100;
const PRODUCERS: u32 = 2;
/// Time limit once disturbances are over.
const PATIENCE: Duration = Duration::from_secs(240);

/// By partition: number of acknowledged records.
pub type Acknowledged = Arc<Mutex<BTreeMap<TopicPartition, u64>>>;

/// All processes of a run, and their disturbances.
pub struct Processes {
    pub plan: Plan,
    /// The log on Kafka; `None` for the embedded log, which has one process at a time.
    pub log: Option<LogArgs>,
    pub data: PathBuf,
    pub acknowledged: Acknowledged,
    pub pipeline_kills: u64,
    pub producer_kills: u64,
    pub pauses: u64,
    /// Pipeline processes that ended because the log did not answer in time.
    pub gave_up: u64,
    pipelines: Vec<Option<Child>>,
    producers: Vec<Running>,
}

/// A producer and the thread that reads its output.
struct Running {
    child: Option<(Child, JoinHandle<bool>)>,
    done: bool,
}

impl Processes {
    pub fn new(plan: Plan, log: Option<LogArgs>, data: PathBuf, pipelines: u32) -> Self {
        let (pipelines, producers) = if log.is_some() { (pipelines, PRODUCERS) } else { (1, 1) };
        Self {
            plan,
            log,
            data,
            acknowledged: Acknowledged::default(),
            pipeline_kills: 0,
            producer_kills: 0,
            pauses: 0,
            gave_up: 0,
            pipelines: (0..pipelines).map(|_| None).collect(),
            producers: (0..producers).map(|_| Running { child: None, done: false }).collect(),
        }
    }

    pub fn start_all(&mut self) -> Result<(), CommandError> {
        (0..self.producers.len()).try_for_each(|number| self.start_producer(number))?;
        if self.log.is_some() {
            (0..self.pipelines.len()).try_for_each(|number| self.start_pipeline(number))?;
        }
        Ok(())
    }

    /// Kills or pauses a random process. A killed one restarts at once or, half of the time, after
    /// a moment.
    pub fn disturb(&mut self, number: u32, rng: &mut ChaCha8Rng) -> Result<(), CommandError> {
        for index in 0..self.producers.len() {
            self.hear_out(index)?;
        }
        let late = Duration::from_millis(if rng.random_bool(0.5) { rng.random_range(0..1500) } else { 0 });
        if self.log.is_none() {
            return self.take_turns(late, rng);
        }
        let victim = rng.random_range(0..self.producers.len());
        if number.is_multiple_of(4) && !self.producers[victim].done {
            self.kill_producer(victim)?;
            std::thread::sleep(late);
            return self.start_producer(victim);
        }
        let victim = rng.random_range(0..self.pipelines.len());
        if number % 4 == 1 {
            return self.pause(victim, rng.random_range(SESSION_MS + 1_000..SESSION_MS + 4_000));
        }
        self.kill_pipeline(victim)?;
        std::thread::sleep(late);
        self.start_pipeline(victim)
    }

    /// The embedded log has one process at a time: kills its owner and starts the producer or the
    /// pipeline.
    fn take_turns(&mut self, late: Duration, rng: &mut ChaCha8Rng) -> Result<(), CommandError> {
        self.kill_producer(0)?;
        self.kill_pipeline(0)?;
        std::thread::sleep(late);
        match self.producers[0].done || rng.random_bool(0.6) {
            true => self.start_pipeline(0),
            false => self.start_producer(0),
        }
    }

    fn kill_pipeline(&mut self, victim: usize) -> Result<(), CommandError> {
        let Some(mut child) = self.pipelines[victim].take() else { return Ok(()) };
        if let Some(ended) = child.try_wait()? {
            // A service manager would start it again. Any other end is a finding, not a victim.
            if !is_unavailable(ended) {
                return Err(format!("pipeline process {victim} ended by itself: {ended}").into());
            }
            self.gave_up += 1;
            return Ok(());
        }
        child.kill()?;
        child.wait()?;
        self.pipeline_kills += 1;
        Ok(())
    }

    /// Lets producers get done, ends every pipeline process with kill -9, and brings the tables up
    /// to date.
    pub fn finish(&mut self) -> Result<(), CommandError> {
        let begun = Instant::now();
        if self.log.is_none() && !self.producers[0].done {
            self.end_pipelines()?;
            self.kill_producer(0)?;
            self.start_producer(0)?;
        }
        for index in 0..self.producers.len() {
            while !self.producers[index].done {
                if begun.elapsed() > PATIENCE {
                    return Err(format!("producer {index} does not get done").into());
                }
                self.hear_out(index)?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        self.end_pipelines()?;
        loop {
            let mut last = self.pipeline(false)?;
            let output = last.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
            if output.status.success() {
                return Ok(());
            }
            if !is_unavailable(output.status) || begun.elapsed() > PATIENCE {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("the last pipeline run failed: {said}").into());
            }
            self.gave_up += 1;
        }
    }

    fn end_pipelines(&mut self) -> Result<(), CommandError> {
        for mut child in self.pipelines.iter_mut().filter_map(Option::take) {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    fn program(&self) -> Result<Command, CommandError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn pipeline(&self, follow: bool) -> Result<Command, CommandError> {
        let mut command = self.program()?;
        command.args(["pipeline", "run", "--flush-events", "300", "--data"]).arg(&self.data);
        if let Some(log) = &self.log {
            command.args(log.arguments());
            command.arg("--kafka-property").arg(format!("session.timeout.ms={SESSION_MS}"));
        }
        if follow {
            command.args(["--follow", "--flush-every", "0.3"]);
        }
        Ok(command)
    }

    fn start_pipeline(&mut self, number: usize) -> Result<(), CommandError> {
        let child = self.pipeline(true)?.stdout(Stdio::null()).spawn()?;
        self.pipelines[number] = Some(child);
        Ok(())
    }

    /// Stops a process, as a cut network or a hanging machine would; its group reassigns its
    /// partitions.
    fn pause(&mut self, number: usize, ms: u64) -> Result<(), CommandError> {
        if let Some(child) = &self.pipelines[number] {
            let pid = Pid::from_raw(child.id() as i32);
            kill(pid, Signal::SIGSTOP)?;
            std::thread::sleep(Duration::from_millis(ms));
            kill(pid, Signal::SIGCONT)?;
            self.pauses += 1;
        }
        Ok(())
    }

    fn start_producer(&mut self, number: usize) -> Result<(), CommandError> {
        let mut command = self.program()?;
        command.args(["chaos", "producer", "--data"]).arg(&self.data);
        let of = self.producers.len() as u64;
        let Plan { seed, jobs, .. } = self.plan;
        let arguments =
            [("--seed", seed), ("--jobs", u64::from(jobs)), ("--number", number as u64), ("--of", of)];
        for (name, value) in arguments.into_iter().chain([("--pause-ms", PAUSE_MS)]) {
            command.arg(name).arg(value.to_string());
        }
        if let Some(log) = &self.log {
            command.args(log.arguments());
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("a producer without output")?;
        let acknowledged = Arc::clone(&self.acknowledged);
        let hearing = std::thread::spawn(move || hear(BufReader::new(stdout), &acknowledged));
        self.producers[number].child = Some((child, hearing));
        Ok(())
    }

    fn kill_producer(&mut self, number: usize) -> Result<(), CommandError> {
        if let Some((mut child, hearing)) = self.producers[number].child.take() {
            child.kill()?;
            child.wait()?;
            self.producers[number].done |= hearing.join().unwrap_or(false);
            self.producer_kills += 1;
        }
        Ok(())
    }

    /// Records that a producer is done; restarts one that gave up, as a service manager would.
    fn hear_out(&mut self, number: usize) -> Result<(), CommandError> {
        let producer = &mut self.producers[number];
        let Some((child, _)) = &mut producer.child else { return Ok(()) };
        let Some(ended) = child.try_wait()? else { return Ok(()) };
        let (_, hearing) = producer.child.take().ok_or("a producer just seen")?;
        producer.done = hearing.join().unwrap_or(false);
        match (producer.done, ended.success()) {
            (true, _) => Ok(()),
            (false, false) => self.start_producer(number),
            (false, true) => Err(format!("producer {number} ended without being done").into()),
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let pipelines = self.pipelines.iter_mut().filter_map(Option::take);
        let producers = self.producers.iter_mut().filter_map(|p| p.child.take()).map(|(child, _)| child);
        for mut child in pipelines.chain(producers) {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Whether a process gave up because the log did not answer.
fn is_unavailable(ended: ExitStatus) -> bool {
    ended.code() == Some(i32::from(LOG_UNAVAILABLE))
}

/// Records acknowledgements from a producer's output. Returns whether it reported that it is done.
fn hear(lines: impl BufRead, acknowledged: &Acknowledged) -> bool {
    for line in lines.lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next(), words.next(), words.next()) {
            (Some("ACK"), Some(topic), Some(partition), Some(first), Some(count)) => {
                let number = |word: &str| word.parse::<u64>().unwrap_or(0);
                let at = TopicPartition { topic: topic.into(), partition: number(partition) as u32 };
                let mut all = acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
                let known = all.entry(at).or_default();
                *known = (*known).max(number(first) + number(count));
            }
            (Some("DONE"), ..) => return true,
            _ => {}
        }
    }
    false
}
