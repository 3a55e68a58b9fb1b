//! Without slurmdbd: the watcher's events equal slurmctld's log of completed jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::{Local, NaiveDateTime, TimeZone};
use tidegate_collect::slurm::{PollError, SlurmOptions, Watcher};
use tidegate_events::Event;
use tidegate_events::v1::{self, JobEventKind as Kind};
use tidegate_testing::slurm::Cluster;

use crate::recorded::{Attempt, Recorded};
use crate::workload;

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

pub fn watcher(cluster: &Cluster) -> Watcher {
    let mut options = SlurmOptions::new("tidegate");
    options.conf = Some(cluster.conf());
    options.state = Some(cluster.path().join("watch"));
    options.inventory_interval = Duration::from_secs(2);
    Watcher::new(options).unwrap()
}

/// Polls, and passes the events on.
pub fn polled(watched: &mut Watcher) -> Result<Vec<Event>, PollError> {
    let events = watched.poll(now_ms())?;
    watched.commit();
    Ok(events)
}

/// End and, where it is reliable, start of each attempt in the file of jobcomp/filetxt, which has
/// no GPUs.
///
/// For a resized job the file has the resize as the start of both parts.
fn completed(cluster: &Cluster) -> Vec<Completed> {
    let text = std::fs::read_to_string(cluster.path().join("jobcomp.txt")).unwrap();
    let mut attempts = Vec::new();
    for line in text.lines() {
        // From the right: the job's name, which may hold anything, stands left.
        let value = |name: &str| {
            let (_, rest) = line.rsplit_once(&format!(" {name}=")).unwrap();
            rest.split(' ').next().unwrap()
        };
        let time = |name: &str| {
            let time = NaiveDateTime::parse_from_str(value(name), "%Y-%m-%dT%H:%M:%S").unwrap();
            Local.from_local_datetime(&time).earliest().unwrap().timestamp()
        };
        if value("NodeList") == "(null)" {
            continue;
        }
        let job = line.split(' ').next().unwrap();
        let resized =
            |line: &str| line.starts_with(&format!("{job} ")) && line.contains(" JobState=RESIZING ");
        attempts.push(Completed {
            end_s: time("EndTime"),
            start_s: (!text.lines().any(resized)).then(|| time("StartTime")),
            back_in_queue: matches!(value("JobState"), "PENDING" | "NODE_FAIL"),
        });
    }
    // Match exact ones first, so that no other takes their place.
    attempts.sort_unstable_by_key(|known| (known.start_s.is_none(), known.back_in_queue, known.end_s));
    attempts
}

/// An attempt in that file.
struct Completed {
    end_s: i64,
    start_s: Option<i64>,
    /// It may have ended by a requeue. The queue shows only when the job was back, which is later
    /// by the time it took to release the devices.
    back_in_queue: bool,
}

impl Completed {
    fn is(&self, recorded: &Attempt) -> bool {
        let late_s = recorded.end_s - self.end_s;
        let end = late_s == 0 || (self.back_in_queue && (0..=LATE_S).contains(&late_s));
        end && self.start_s.is_none_or(|start_s| recorded.start_s == start_s)
    }
}

/// Longest time to release devices on a slow machine.
const LATE_S: i64 = 10;

/// Jobs hold what their names say.
fn gpus_are_right(recorded: &Recorded) {
    let named = |job: &v1::JobEvent| {
        let (_, gpus) = job.job_name.as_deref()?.split_once("gpus=")?;
        Some((job.job_id.clone(), gpus.parse::<u64>().unwrap() * 1000))
    };
    let named: BTreeMap<_, _> = recorded.jobs.iter().filter_map(named).collect();
    let starts = recorded.jobs.iter().filter(|job| job.kind() == Kind::Started);
    let held: BTreeMap<_, _> = starts
        .filter(|job| named.contains_key(&job.job_id))
        .map(|job| (job.job_id.clone(), job.gpus_milli.unwrap()))
        .collect();
    assert_eq!(held, named);
}

#[test]
fn without_accounting_nothing_is_missed_though_slurmctld_and_watcher_go_away() {
    let Some(cluster) = Cluster::start(&[]) else { return };
    let mut recorded = Recorded::default();
    let mut watched = watcher(&cluster);
    let mut round = 0;
    std::thread::scope(|threads| {
        let work = threads.spawn(|| {
            workload::submit(&cluster, 30);
            workload::disturb(&cluster, false, 1);
            workload::submit(&cluster, 10);
            workload::restart(&cluster);
            workload::drain(&cluster, 300);
        });
        while !work.is_finished() {
            round += 1;
            match watched.poll(now_ms()) {
                Ok(events) => {
                    recorded.add(events);
                    // Now and then it dies before its events are acknowledged.
                    if round % 5 == 0 {
                        watched = watcher(&cluster);
                    } else {
                        watched.commit();
                    }
                }
                Err(error) => {
                    assert!(matches!(error, PollError::Command(_)), "{error}");
                }
            }
            std::thread::sleep(Duration::from_millis(700));
        }
        work.join().unwrap();
    });
    let expected = completed(&cluster);
    let open = |recorded: &Recorded| {
        let of = |kind: Kind| {
            let those =
                recorded.jobs.iter().filter(move |job| job.kind() == kind && job.attempt_id.is_some());
            those.map(|job| (job.job_id.clone(), job.attempt_id)).collect::<BTreeSet<_>>()
        };
        &of(Kind::Started) - &of(Kind::Ended)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !open(&recorded).is_empty() {
        std::thread::sleep(Duration::from_millis(500));
        recorded.add(polled(&mut watched).unwrap());
        if Instant::now() > deadline {
            for (job_id, _) in open(&recorded) {
                let queue = cluster.try_run("scontrol", &["--oneliner", "show", "job", &job_id]);
                eprintln!("{job_id}: {:#?}\n{queue:?}", recorded.course(&job_id));
            }
            panic!("not all that started ended");
        }
    }
    let mut found: Vec<_> = recorded.attempts().into_iter().collect();
    let kept = || std::fs::read_to_string(cluster.path().join("jobcomp.txt")).unwrap();
    let mut resized = 0;
    for known in &expected {
        match found.iter().position(|recorded| known.is(recorded)) {
            Some(place) => drop(found.swap_remove(place)),
            // An attempt within one second may fall between two polls, and took no time.
            None if known.start_s == Some(known.end_s) => {}
            None => panic!("{:?} to {} is not in {found:#?}\n{}", known.start_s, known.end_s, kept()),
        }
        resized += usize::from(known.start_s.is_none());
    }
    let more: Vec<_> = found.iter().filter(|recorded| recorded.start_s < recorded.end_s).collect();
    assert!(more.is_empty(), "{more:#?}\n{}", kept());
    assert!(resized > 1, "one job has two parts");
    gpus_are_right(&recorded);
    for attempt in recorded.attempts() {
        if let Some(seconds) = recorded.device_seconds().get(&(attempt.job_id.clone(), attempt.start_s)) {
            assert_eq!(*seconds, attempt.gpus as i64 * (attempt.end_s - attempt.start_s), "{attempt:?}");
        }
    }
    eprintln!("{} attempts; {} events came again", expected.len(), recorded.repeated);
}
