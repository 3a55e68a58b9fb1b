//! With slurmdbd: the watcher's events equal accounting, to the second.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tidegate_events::Event;
use tidegate_events::v1::JobEventKind as Kind;
use tidegate_import::{ImportOptions, Mapping, Source, import};
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, TopicPartition};
use tidegate_testing::slurm::{Cluster, wait_for};

use crate::bare::{now_ms, polled, watcher};
use crate::recorded::{Attempt, Recorded, gpu_seconds};
use crate::watching::Watching;
use crate::workload;

/// Attempts by accounting: each record with devices or nodes is one. An attempt resized in the
/// second in which it started took no time. An error while records are not filled in, or not over.
/// `states`: only records in these; all if there are none.
fn attempts(cluster: &Cluster, states: &[&str]) -> Result<BTreeSet<Attempt>, String> {
    let columns = "JobID,Start,End,State,NodeList,AllocTRES,Partition";
    let text = cluster.run("sacct", &["-a", "-D", "-X", "-n", "-P", "-S", "now-1day", "-o", columns]);
    let mut attempts = BTreeSet::new();
    for line in text.lines() {
        let values: Vec<&str> = line.split('|').collect();
        let [job_id, start, end, state, nodes, tres, partition] = values[..] else { panic!("{line}") };
        if !states.is_empty() && !states.contains(&state) {
            continue;
        }
        if nodes == "None assigned" || tres.is_empty() || (state == "RESIZING" && start == end) {
            continue;
        }
        let gpus = tres.split(',').find_map(|part| part.strip_prefix("gres/gpu="));
        let time = |text: &str| text.parse().map_err(|_| format!("not over: {line}"));
        if partition.is_empty() {
            return Err(format!("not filled in: {line}"));
        }
        attempts.insert(Attempt {
            job_id: job_id.to_owned(),
            start_s: time(start)?,
            end_s: time(end)?,
            gpus: gpus.map_or(0, |gpus| gpus.parse().unwrap()),
        });
    }
    Ok(attempts)
}

#[test]
fn every_gpu_second_of_many_jobs_though_the_watcher_is_killed_and_slurmctld_restarted() {
    let Some(cluster) = Cluster::start(&["--dbd"]) else { return };
    let jobs = std::env::var("TIDEGATE_SLURM_JOBS").map_or(200, |jobs| jobs.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut watching = Watching::begin(folder.path(), cluster.conf());
    std::thread::scope(|threads| {
        let workload = threads.spawn(|| {
            workload::submit(&cluster, jobs * 3 / 4);
            workload::disturb(&cluster, true, (jobs / 70).max(1));
            workload::submit(&cluster, jobs / 4);
            workload::restart(&cluster);
            workload::drain(&cluster, 300);
        });
        let mut round = 0;
        while !workload.is_finished() {
            std::thread::sleep(Duration::from_millis(3300 + 700 * (round % 4)));
            watching.kill();
            // Now and then it is away for long enough that jobs come and go unobserved.
            std::thread::sleep(Duration::from_millis(if round % 3 == 2 { 6000 } else { 0 }));
            watching.revive();
            round += 1;
        }
        workload.join().unwrap();
    });
    let read = || {
        let mut recorded = Recorded::default();
        recorded.add(watching.events());
        recorded
    };
    // Accounting itself lags after an outage; then wait, so that a repeated end would show.
    let deadline = Instant::now() + Duration::from_secs(150);
    loop {
        let (recorded, expected) = (read().ended(), attempts(&cluster, &[]));
        match expected {
            Ok(expected) if recorded == expected => break,
            expected if Instant::now() > deadline => {
                let expected = expected.unwrap();
                let (more, less): (Vec<_>, Vec<_>) =
                    (recorded.difference(&expected).collect(), expected.difference(&recorded).collect());
                for attempt in more.iter().chain(&less) {
                    describe(&cluster, &read(), &attempt.job_id);
                }
                panic!("only recorded: {more:#?}\nonly in accounting: {less:#?}");
            }
            _ => std::thread::sleep(Duration::from_secs(1)),
        }
    }
    std::thread::sleep(Duration::from_secs(5));
    let (recorded, expected) = (read(), attempts(&cluster, &[]).unwrap());
    let found = recorded.attempts();
    assert_eq!(found, expected);
    let (sums, truth) = (gpu_seconds(&found), gpu_seconds(&expected));
    assert_eq!(sums, truth);
    let total: i64 = truth.values().sum();
    eprintln!(
        "{} jobs, {} attempts, {total} GPU seconds; {} events came again",
        truth.len(),
        expected.len(),
        recorded.repeated
    );
    devices_add_up(&recorded, &found);
    import_says_the_same(&cluster, &recorded, &found);
}

/// Prints what accounting and the watcher have of a job.
fn describe(cluster: &Cluster, recorded: &Recorded, job_id: &str) {
    let columns = "JobID,Submit,Eligible,Start,End,State,NodeList,AllocTRES,Partition,Reason";
    let job = job_id.split(['+', '_']).next().unwrap();
    let arguments = ["-a", "-D", "-X", "-P", "-S", "now-1day", "-j", job, "-o", columns];
    eprintln!("{job_id} in accounting:\n{}", cluster.run("sacct", &arguments));
    eprintln!("{job_id} as recorded: {:#?}", recorded.course(job_id));
}

/// Slurm starts the components of a heterogeneous job in one step. Where one cannot start, it takes
/// back those that did: accounting keeps that as an attempt, in state PENDING, and the queue never
/// shows it.
#[test]
fn a_start_that_slurm_undoes_is_an_attempt() {
    // The scheduler pauses between two jobs of a cycle, so that the plans it made may fail.
    let slowly = "SchedulerParameters=bf_interval=2,bf_max_time=60,bf_continue,bf_yield_interval=1,\
                  bf_yield_sleep=700000,sched_min_interval=200000,batch_sched_delay=0,default_queue_depth=1000";
    let Some(cluster) = Cluster::start_with(&["--dbd"], slowly) else { return };
    let mut watched = watcher(&cluster);
    let mut recorded = Recorded::default();
    recorded.add(polled(&mut watched).unwrap());
    let undone = |job: &str| {
        let attempts = attempts(&cluster, &["PENDING"]).unwrap_or_default();
        attempts.into_iter().find(|attempt| attempt.job_id.starts_with(job))
    };
    let mut found = None;
    for _ in 0..5 {
        // Something to look at after the components, which are planned first.
        let behind: Vec<_> =
            (0..3).map(|_| cluster.submit(&["--nodelist=n3", "--gres=gpu:8"], "sleep 15")).collect();
        let first = ["--parsable", "--output=/dev/null", "--chdir=/", "--wrap=sleep 2", "--nice=-100"];
        let both = ["--nodelist=n1", "--gres=gpu:8", ":", "--nice=-100", "--nodelist=n2", "--gres=gpu:8"];
        let job = cluster.run("sbatch", &[&first[..], &both[..]].concat());
        let second = format!("{job}+1 ");
        wait_for("a plan for its second component", 60, || {
            let queue = cluster.run("squeue", &["--noheader", "--format=%i %S"]);
            queue.lines().any(|line| line.starts_with(&second) && !line.ends_with("N/A"))
        });
        // It takes the node of the second component, before the scheduler has come to its end.
        let other = cluster.submit(&["--nodelist=n2", "--gres=gpu:8", "--nice=-500", "--time=1"], "sleep 30");
        wait_for("the job starts, or is taken back", 90, || {
            recorded.add(polled(&mut watched).unwrap());
            found = undone(&job);
            found.is_some() || !cluster.state(&job).starts_with("PD")
        });
        if found.is_some() {
            break;
        }
        for job in behind.iter().chain([&job, &other]) {
            cluster.try_run("scancel", &[job]).ok();
        }
    }
    let expected = found.expect("Slurm undid a start");
    // Accounting is asked for it once a minute, as long as the job is there.
    recorded.add(watched.poll(now_ms() + 61_000).unwrap());
    let attempt = recorded.ended().into_iter().find(|it| it.job_id == expected.job_id);
    if attempt.is_none() {
        describe(&cluster, &recorded, &expected.job_id);
    }
    assert_eq!(attempt, Some(expected.clone()));
    let course = recorded.course(&expected.job_id);
    let end = (Kind::Ended, expected.end_s, "REQUEUED".to_owned());
    assert!(course.contains(&end), "{course:#?}");
}

/// Device events add up to the same time, for all attempts that were observed while they ran.
fn devices_add_up(recorded: &Recorded, attempts: &BTreeSet<Attempt>) {
    let sums = recorded.device_seconds();
    for attempt in attempts {
        if let Some(seconds) = sums.get(&(attempt.job_id.clone(), attempt.start_s)) {
            assert_eq!(*seconds, attempt.gpus as i64 * (attempt.end_s - attempt.start_s), "{attempt:?}");
        }
    }
    // Attempts that began and ended while the watcher was away were not observed: on a slow machine
    // most of them.
    let with_gpus = attempts.iter().filter(|attempt| attempt.gpus > 0).count();
    eprintln!("of {with_gpus} attempts with GPUs {} were seen with their devices", sums.len());
    assert!(sums.len() > 10, "only {} were seen", sums.len());
}

/// The same history, imported later from sacct's output, gives the same attempts.
fn import_says_the_same(cluster: &Cluster, recorded: &Recorded, attempts: &BTreeSet<Attempt>) {
    let columns = "JobID,JobName,User,Account,Partition,QOS,Submit,Eligible,Start,End,State,ExitCode,ReqTRES,AllocTRES,\
                   NodeList,Timelimit,Reason,Priority";
    let text = cluster.run("sacct", &["-a", "-D", "-P", "-S", "now-1day", "-o", columns]);
    // The mapping reads what sites have: a bar in a job's name would be a column.
    let text = text.replace("pl|ain", "pl_ain");
    if let Some(file) = std::env::var_os("TIDEGATE_SLURM_SHOW") {
        std::fs::write(file, &text).unwrap();
    }
    let source = Source::Reader { name: "sacct.txt".into(), reader: Box::new(std::io::Cursor::new(text)) };
    let folder = tempfile::tempdir().unwrap();
    let log = EmbeddedLog::open(folder.path(), EmbeddedOptions::default()).unwrap();
    let mapping = Mapping::load("sacct").unwrap();
    let options = ImportOptions { cluster: Some("tidegate".into()), ..ImportOptions::default() };
    let summary = import(source, &mapping, &options, &log, &mut |_| {}).unwrap();
    assert_eq!(summary.rejected(), 0);
    let (mut imported, mut known, mut unknown) = (Recorded::default(), 0, Vec::new());
    for partition in 0..options.topics.partitions {
        let at = TopicPartition { topic: "jobs".into(), partition };
        let records = log.read(&at, 0, usize::MAX).unwrap();
        imported.add(records.iter().map(|stored| {
            let record = &stored.record;
            Event::decode(record.schema, &record.payload).unwrap()
        }));
    }
    for job in &imported.jobs {
        if recorded.has(&job.envelope.as_ref().unwrap().event_id) {
            known += 1;
        } else {
            unknown.push(job);
        }
    }
    let nothing = |attempt: &&Attempt| attempt.start_s < attempt.end_s;
    let timed =
        |attempts: &BTreeSet<Attempt>| attempts.iter().filter(nothing).cloned().collect::<BTreeSet<_>>();
    assert_eq!(timed(&imported.ended()), timed(attempts));
    eprintln!("{known} of {} imported events are known by their ids", imported.jobs.len());
    if std::env::var_os("TIDEGATE_SLURM_SHOW").is_some() {
        unknown.iter().for_each(|job| eprintln!("unknown: {job:?}"));
    }
    assert!(known * 10 >= imported.jobs.len() * 7, "most events are the same events");
}
