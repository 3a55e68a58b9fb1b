//! Generates realistic accounting files from a seed, for benchmarks and tests, not for statistics.
//!
//! Jobs arrive in a weekly rhythm, are placed first come first served, and so wait, run, fail, are
//! cancelled and requeued. No node ever holds more devices than it has.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};

use chrono::DateTime;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const GPUS_PER_NODE: u32 = 8;
const ACCOUNTS: u32 = 40;
const USERS: u32 = 400;
/// Share of the cluster that jobs would fill without waiting. First come first served cannot fill
/// much more.
const LOAD: f64 = 0.5;
/// Spread of the log-normal durations: the mean is e^(SIGMA²/2) ≈ 4.8 times the median.
const SIGMA: f64 = 1.77;
const MAX_RUN_S: f64 = 14.0 * 86_400.0;
/// GPUs of a job, and how many of a hundred jobs request them.
const SIZES: [(u32, u32); 8] = [(0, 8), (1, 50), (2, 12), (4, 10), (8, 13), (16, 4), (32, 2), (64, 1)];
const HEADER: &str = "JobID|JobName|User|Account|Partition|QOS|Submit|Eligible|Start|End|State|ExitCode|ReqTRES|\
                      AllocTRES|NodeList|AllocNodes|Timelimit|Reason|Priority";

/// Parameters of a file.
#[derive(Debug, Clone, Copy)]
pub struct SacctFile {
    /// Seed of everything random.
    pub seed: u64,
    /// Number of jobs, counting each array task. Requeued jobs have an additional row.
    pub jobs: u64,
    /// GPUs of the cluster, rounded down to whole nodes of 8, at least one node.
    pub cluster_gpus: u32,
    /// Time from the first to about the last submission.
    pub days: u32,
    /// Start of the file, s since 1970. A Monday 00:00 UTC aligns the weekly rhythm.
    pub first_s: i64,
    /// Whether to add `.batch`, `.extern` and `.0` rows for jobs that started.
    pub steps: bool,
}

impl SacctFile {
    /// A year from Monday 2024-01-01, without steps.
    pub fn year(seed: u64, jobs: u64, cluster_gpus: u32) -> Self {
        Self { seed, jobs, cluster_gpus, days: 365, first_s: 1_704_067_200, steps: false }
    }
}

/// Totals of a generated file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generated {
    /// Lines without the header.
    pub rows: u64,
    /// Number of jobs.
    pub jobs: u64,
    /// GPU time of all ended attempts, GPU × ms.
    pub gpu_ms_ended: i64,
}

/// Writes `sacct --parsable2` output with times in UTC. Equal parameters give equal bytes.
///
/// # Errors
/// Errors of `out`.
pub fn sacct(out: &mut dyn Write, file: &SacctFile) -> io::Result<Generated> {
    writeln!(out, "{HEADER}")?;
    let mut cluster = Cluster::new(file);
    let mut arrivals = Arrivals::new(file);
    let mut requeued: BinaryHeap<Reverse<Job>> = BinaryHeap::new();
    let mut generated = Generated { jobs: file.jobs, ..Generated::default() };
    let end_s = file.first_s + i64::from(file.days) * 86_400;
    let mut next = arrivals.next();
    loop {
        let from_queue = match (&next, requeued.peek()) {
            (Some(job), Some(Reverse(again))) => again.submit_s <= job.submit_s,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (None, None) => return Ok(generated),
        };
        let job = if from_queue {
            requeued.pop().map(|Reverse(job)| job)
        } else {
            std::mem::replace(&mut next, arrivals.next())
        };
        let Some(job) = job else {
            return Ok(generated);
        };
        let record = cluster.run(&job, end_s);
        if record.state == "REQUEUED" || record.state == "NODE_FAIL" {
            requeued.push(Reverse(job.again(record.end_s.unwrap_or(end_s))));
        }
        generated.rows += record.write(out, &job, file.steps)?;
        if let (Some(start_s), Some(end_s)) = (record.start_s, record.end_s) {
            generated.gpu_ms_ended += (end_s - start_s) * 1000 * i64::from(job.gpus);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Job {
    submit_s: i64,
    number: u64,
    task: Option<u32>,
    user: u32,
    gpus: u32,
    run_s: i64,
    /// 0..1000, decides how it ends.
    fate: u32,
    attempt: u32,
}

impl Job {
    fn again(&self, submit_s: i64) -> Self {
        // The second attempt does the rest of the work, with another fate.
        let fate = (self.fate * 7 + 400) % 1000;
        Self {
            submit_s: submit_s + 30,
            run_s: self.run_s / 2 + 1,
            fate,
            attempt: self.attempt + 1,
            ..self.clone()
        }
    }

    fn account(&self) -> u32 {
        self.user % ACCOUNTS
    }

    /// A quarter of the accounts use the newer devices.
    fn newer(&self) -> bool {
        self.account().is_multiple_of(4)
    }

    fn model(&self) -> &'static str {
        if self.newer() { "h100" } else { "a100" }
    }
}

/// Submissions, ordered by time.
struct Arrivals {
    rng: ChaCha8Rng,
    left: u64,
    time_s: f64,
    first_s: i64,
    /// Submissions per second in the busiest hours.
    peak_rate: f64,
    median_run_s: f64,
    max_gpus: u32,
    number: u64,
    /// Array tasks still to come from the last submission.
    array: Option<(Job, u32)>,
}

/// Activity of an hour of the week; the busiest is 1.
fn activity(second: f64) -> f64 {
    let hour = (second / 3600.0) as u64 % 168;
    match (hour / 24, hour % 24) {
        (0..=4, 9..=18) => 1.0,
        (0..=4, 7..=22) => 0.6,
        (5..=6, 9..=22) => 0.35,
        _ => 0.25,
    }
}

impl Arrivals {
    fn new(file: &SacctFile) -> Self {
        let span_s = f64::from(file.days) * 86_400.0;
        let mean_activity = (0..168).map(|hour| activity(f64::from(hour) * 3600.0)).sum::<f64>() / 168.0;
        let mean_gpus = SIZES.iter().map(|(gpus, share)| f64::from(gpus * share)).sum::<f64>() / 100.0;
        let mean_run_s = LOAD * f64::from(file.cluster_gpus) * span_s / (file.jobs.max(1) as f64 * mean_gpus);
        Self {
            rng: ChaCha8Rng::seed_from_u64(file.seed),
            left: file.jobs,
            time_s: 0.0,
            first_s: file.first_s,
            peak_rate: file.jobs as f64 / (span_s * mean_activity),
            median_run_s: mean_run_s / (SIGMA * SIGMA / 2.0).exp(),
            max_gpus: newer_nodes(file) * GPUS_PER_NODE,
            number: 1000,
            array: None,
        }
    }

    fn next(&mut self) -> Option<Job> {
        self.left = self.left.checked_sub(1)?;
        if let Some((mut job, tasks)) = self.array.take() {
            job.task = job.task.map(|task| task + 1);
            job.run_s = self.run_s();
            job.fate = self.rng.random_range(0..1000);
            if tasks > 1 {
                self.array = Some((job.clone(), tasks - 1));
            }
            return Some(job);
        }
        // One submission in fifty is an array of 25 tasks on average, so gaps are half as long
        // again.
        loop {
            self.time_s += -(1.0 - self.rng.random::<f64>()).ln() / self.peak_rate * 1.48;
            if self.rng.random::<f64>() < activity(self.time_s) {
                break;
            }
        }
        let array = self.rng.random_range(0..50) == 0;
        // The square gives a few users most of the jobs.
        let user = (self.rng.random::<f64>().powi(2) * f64::from(USERS)) as u32;
        let job = Job {
            submit_s: self.first_s + self.time_s as i64,
            number: self.number,
            task: array.then_some(0),
            user,
            gpus: self.size(),
            run_s: self.run_s(),
            fate: self.rng.random_range(0..1000),
            attempt: 0,
        };
        self.number += 1;
        if array {
            self.array = Some((job.clone(), self.rng.random_range(1..49)));
        }
        Some(job)
    }

    fn size(&mut self) -> u32 {
        let mut draw = self.rng.random_range(0..100);
        for (gpus, share) in SIZES {
            if draw < share {
                return gpus.min(self.max_gpus);
            }
            draw -= share;
        }
        0
    }

    fn run_s(&mut self) -> i64 {
        let (a, b) = (1.0 - self.rng.random::<f64>(), self.rng.random::<f64>());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        (self.median_run_s * (SIGMA * normal).exp()).clamp(1.0, MAX_RUN_S) as i64
    }
}

/// Two pools with a queue each: a quarter of the nodes has the newer devices.
struct Cluster {
    older: Pool,
    newer: Pool,
}

/// Free devices of the nodes, and the attempts that hold the others.
struct Pool {
    first_node: usize,
    free: Vec<u32>,
    /// End, first node, number of nodes, devices on each.
    running: BinaryHeap<Reverse<(i64, usize, usize, u32)>>,
    /// Start of the last attempt. None starts before it: first come, first served.
    clock_s: i64,
}

/// Nodes of the smaller pool.
fn newer_nodes(file: &SacctFile) -> u32 {
    (file.cluster_gpus / GPUS_PER_NODE / 4).max(1)
}

impl Cluster {
    fn new(file: &SacctFile) -> Self {
        let newer = newer_nodes(file) as usize;
        let older = ((file.cluster_gpus / GPUS_PER_NODE) as usize).saturating_sub(newer).max(1);
        let pool = |first_node, nodes| Pool {
            first_node,
            free: vec![GPUS_PER_NODE; nodes],
            running: BinaryHeap::new(),
            clock_s: i64::MIN,
        };
        Self { older: pool(1, older), newer: pool(1 + older, newer) }
    }

    fn run(&mut self, job: &Job, end_s: i64) -> Record {
        if job.newer() { self.newer.run(job, end_s) } else { self.older.run(job, end_s) }
    }
}

impl Pool {
    /// Consecutive nodes with enough free devices.
    fn place(&self, nodes: usize, each: u32) -> Option<usize> {
        self.free.windows(nodes).position(|window| window.iter().all(|free| *free >= each))
    }

    /// Runs an attempt as soon as it fits.
    fn run(&mut self, job: &Job, end_s: i64) -> Record {
        let waits_until_cancelled = job.fate < 30 && job.attempt == 0;
        if waits_until_cancelled {
            let end_s = Some(job.submit_s + job.run_s.min(86_400));
            return Record { start_s: None, end_s, state: "CANCELLED by", exit: "0:0", node: 0, nodes: 0 };
        }
        let nodes = job.gpus.div_ceil(GPUS_PER_NODE).max(1) as usize;
        let each = if nodes > 1 { GPUS_PER_NODE } else { job.gpus };
        let mut start_s = job.submit_s.max(self.clock_s);
        while let Some(Reverse((stop_s, ..))) = self.running.peek()
            && *stop_s <= start_s
        {
            self.release();
        }
        let node = loop {
            match self.place(nodes, each) {
                Some(node) => break node,
                None => start_s = start_s.max(self.release()),
            }
        };
        self.clock_s = start_s;
        if start_s >= end_s {
            return Record { start_s: None, end_s: None, state: "PENDING", exit: "0:0", node: 0, nodes: 0 };
        }
        for free in &mut self.free[node..node + nodes] {
            *free -= each;
        }
        let (share, state, exit) = outcome(job);
        let stop_s = start_s + (job.run_s * share / 100).max(1);
        self.running.push(Reverse((stop_s, node, nodes, each)));
        let node = self.first_node + node;
        if stop_s >= end_s {
            return Record {
                start_s: Some(start_s),
                end_s: None,
                state: "RUNNING",
                exit: "0:0",
                node,
                nodes,
            };
        }
        Record { start_s: Some(start_s), end_s: Some(stop_s), state, exit, node, nodes }
    }

    /// Frees the devices of the attempt that ends first, and returns its end. No job is larger than
    /// its empty pool, so a job that does not fit always has an attempt to wait for.
    fn release(&mut self) -> i64 {
        let Some(Reverse((end_s, node, nodes, each))) = self.running.pop() else {
            return i64::MAX;
        };
        for free in &mut self.free[node..node + nodes] {
            *free += each;
        }
        end_s
    }
}

/// Share of its run that an attempt completes, in percent, and how it ends.
fn outcome(job: &Job) -> (i64, &'static str, &'static str) {
    match job.fate {
        0..700 => (100, "COMPLETED", "0:0"),
        700..850 => (40, "FAILED", "1:0"),
        850..930 => (60, "CANCELLED by", "0:15"),
        930..965 => (100, "TIMEOUT", "0:0"),
        965..980 => (30, "OUT_OF_MEMORY", "0:125"),
        _ if job.attempt > 0 => (100, "COMPLETED", "0:0"),
        980..992 => (50, "REQUEUED", "0:0"),
        _ => (50, "NODE_FAIL", "1:0"),
    }
}

/// One accounting record.
struct Record {
    start_s: Option<i64>,
    end_s: Option<i64>,
    state: &'static str,
    exit: &'static str,
    node: usize,
    nodes: usize,
}

impl Record {
    fn write(&self, out: &mut dyn Write, job: &Job, steps: bool) -> io::Result<u64> {
        let id = match job.task {
            Some(task) => format!("{}_{task}", job.number),
            None => job.number.to_string(),
        };
        let (user, account, model) = (job.user, job.account(), job.model());
        let mut state = self.state.to_owned();
        if state.ends_with(" by") {
            state.push_str(&format!(" {}", 1000 + user));
        }
        let tres = tres(job.gpus, model, self.nodes.max(1));
        let allocated = if self.start_s.is_some() { tres.as_str() } else { "" };
        let (submit, eligible) =
            (iso(job.submit_s), iso(job.submit_s + i64::from(job.fate.is_multiple_of(17)) * 5));
        let (start, end) =
            (self.start_s.map_or("Unknown".into(), iso), self.end_s.map_or("Unknown".into(), iso));
        let nodes = self.node_list();
        let limit = time_limit(job.run_s * 2);
        let reason = if state == "PENDING" { "Priority" } else { "None" };
        writeln!(
            out,
            "{id}|train-{}|user{user:03}|team{account:02}|{model}|{}|{submit}|{eligible}|{start}|{end}|{state}|{}|{tres}|\
             {allocated}|{nodes}|{}|{limit}|{reason}|{}",
            job.number % 97,
            if job.fate.is_multiple_of(10) { "high" } else { "normal" },
            self.exit,
            self.nodes,
            1000 + job.fate,
        )?;
        if !steps || self.start_s.is_none() {
            return Ok(1);
        }
        let step_state = state.split(' ').next().unwrap_or_default();
        for step in ["batch", "extern", "0"] {
            writeln!(
                out,
                "{id}.{step}|{step}||team{account:02}|||{start}|{start}|{start}|{end}|{step_state}|{}||{tres}|{nodes}|{}|||",
                self.exit, self.nodes
            )?;
        }
        Ok(4)
    }

    fn node_list(&self) -> String {
        match self.nodes {
            0 => "None assigned".into(),
            1 => format!("gpu{:04}", self.node),
            nodes => format!("gpu[{:04}-{:04}]", self.node, self.node + nodes - 1),
        }
    }
}

fn tres(gpus: u32, model: &str, nodes: usize) -> String {
    let cpus = (gpus * 12).max(4);
    let devices = match gpus {
        0 => String::new(),
        gpus => format!(",gres/gpu:{model}={gpus},gres/gpu={gpus}"),
    };
    format!("billing={cpus},cpu={cpus}{devices},mem={}G,node={nodes}", cpus * 8)
}

fn iso(time_s: i64) -> String {
    DateTime::from_timestamp(time_s, 0).unwrap_or_default().format("%Y-%m-%dT%H:%M:%S").to_string()
}

fn time_limit(seconds: i64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days}-{clock}") } else { clock }
}
