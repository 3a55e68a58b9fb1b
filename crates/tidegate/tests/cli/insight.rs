//! Insight through the program: a planted straggler and days of jobs, checked in tables; a second
//! run changes nothing.

use std::io::Write;
use std::net::TcpStream;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidegate_evaluation::straggler::scene::{Injected, MessageBody, Place as Where, Plan, Regime, Stream};
use tidegate_events::{Event, v1};
use tidegate_insight::straggler::{Class, StepReport};

use crate::case_data::tables_of;
use crate::program::{Place, address_of, query, run, succeed, tidegate, wait_until};
use crate::support::Response;

/// 2026-01-01T00:00:00Z, as the scene's jobs begin.
const START_MS: i64 = 1_767_225_600_000;
const HOUR_MS: i64 = 3_600_000;
const SLOW_RANK: u32 = 3;

fn event(mut event: Event, at_ms: i64) -> Event {
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("prod".into(), "test".into());
    (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms);
    event.seal();
    event
}

fn job(kind: v1::JobEventKind, job_id: &str, gpus: u64, at_ms: i64) -> Event {
    let has_begun = matches!(kind, v1::JobEventKind::Started | v1::JobEventKind::Ended);
    let message = v1::JobEvent {
        kind: kind.into(),
        job_id: job_id.into(),
        attempt_id: has_begun.then_some(1),
        team: Some("vision".into()),
        pool: Some("h100".into()),
        gpus_milli: Some(gpus * 1_000),
        final_state: (kind == v1::JobEventKind::Ended).then(|| "COMPLETED".into()),
        ..v1::JobEvent::default()
    };
    event(Event::Job(message), at_ms)
}

/// Four days of jobs before the scene: of eight GPUs, one begins every six hours and takes three.
fn days() -> Vec<Event> {
    let begins = (-16..0).map(|n| (format!("d{n}"), START_MS + n * 6 * HOUR_MS));
    let events = begins.flat_map(|(id, at_ms)| {
        [
            job(v1::JobEventKind::Submitted, &id, 8, at_ms),
            job(v1::JobEventKind::Started, &id, 8, at_ms),
            job(v1::JobEventKind::Ended, &id, 8, at_ms + 3 * HOUR_MS),
        ]
    });
    events.collect()
}

/// A job of the trial with few ranks and no restart, one of which is a quarter slower for ten
/// minutes.
fn scene() -> Vec<Event> {
    let plans = (0..100).map(|seed| Plan::draw(seed, Regime::A, Some(0.7)));
    let plan = plans
        .into_iter()
        .find(|plan| {
            (2..=4).contains(&plan.nodes)
                && plan.stages == 1
                && plan.restarts_s.is_empty()
                && plan.step_s < 4.0
        })
        .expect("such a job among a hundred");
    let (ranks, nodes) = (plan.ranks() as u32, plan.node_ids.clone());
    let slow = Injected {
        class: Class::ComputeSilent,
        place: Where::Device(SLOW_RANK as usize),
        start_s: 1_200.0,
        end_s: 1_800.0,
        size: 0.25,
        evidence: false,
    };
    let mut events = vec![
        job(v1::JobEventKind::Submitted, "slow", u64::from(ranks), START_MS),
        job(v1::JobEventKind::Started, "slow", u64::from(ranks), START_MS),
    ];
    let mut end_ms = START_MS;
    for message in Stream::new(plan, vec![slow]) {
        let MessageBody::Step(report) = message.body else { continue };
        end_ms = end_ms.max(report.end_us / 1_000);
        events.push(step(&report, ranks, &nodes));
    }
    events.push(job(v1::JobEventKind::Ended, "slow", u64::from(ranks), end_ms + 1_000));
    events
}

fn step(report: &StepReport, ranks: u32, nodes: &[u32]) -> Event {
    let begin_ms = (report.end_us - report.duration_us as i64).div_euclid(1_000);
    let message = v1::StepReport {
        job_id: "slow".into(),
        attempt_id: Some(1),
        rank: report.rank,
        world_size: Some(ranks),
        step: report.step,
        duration_us: report.duration_us,
        compute_us: report.compute_us,
        communication_us: report.communication_us,
        data_wait_us: report.data_us,
        tokens: report.tokens,
        node: Some(format!("node-{}", nodes[report.rank as usize / 8])),
        gpu_index: Some(report.rank % 8),
        ..v1::StepReport::default()
    };
    event(Event::Step(message), begin_ms)
}

#[test]
fn a_planted_straggler_and_demand_are_said_once() {
    let place = Place::new();
    let data = tables_of(place.0.path(), days().into_iter().chain(scene()).collect());
    let insight = || succeed(tidegate().args(["insight", "run", "--once", "--data"]).arg(&data));
    let said = insight();
    assert!(said.contains("0 undecodable") && !said.contains("\n0 signals"), "{said}");

    let found = query(
        &data,
        "SELECT state, blame, rank, gpu_index, class, confirmed_time IS NOT NULL AS confirmed FROM stragglers \
         WHERE confirmed_time IS NOT NULL",
    );
    assert_eq!(
        found.lines().nth(1),
        Some(format!("CLEARED,RANK,{SLOW_RANK},{SLOW_RANK},COMPUTE_SILENT,true").as_str()),
        "{}",
        query(&data, "SELECT * FROM straggler_signals ORDER BY event_time")
    );
    assert_eq!(found.lines().count(), 2, "nobody else is confirmed: {found}");
    let late = query(
        &data,
        "SELECT count(*) AS late FROM stragglers WHERE onset_time < '2026-01-01T00:19:00Z' AND confirmed_time IS NOT NULL",
    );
    assert_eq!(late, "late\n0\n");

    // From 24 hours of each series on, every six hours: total, pool, team and size of jobs.
    let issued = query(
        &data,
        "SELECT kind, name, count(DISTINCT event_time) AS issued FROM forecasts GROUP BY kind, name ORDER BY kind",
    );
    assert_eq!(issued, "kind,name,issued\nCLASS,5-8,13\nPOOL,h100,13\nTEAM,vision,13\nTOTAL,total,13\n");
    let scored = query(
        &data,
        "SELECT count(*) > 100 AS many, min(truth_gpus_milli) AS least, max(truth_gpus_milli) AS most FROM forecast_scores \
         WHERE kind = 'POOL' AND target_time < '2026-01-01T00:00:00Z'",
    );
    assert_eq!(scored, "many,least,most\ntrue,0,8000\n");

    let counts = "SELECT (SELECT count(*) FROM straggler_signals) AS signals, (SELECT count(*) FROM forecasts) AS forecasts";
    let before = query(&data, counts);
    let again = insight();
    assert!(again.contains("\n0 signals and forecasts written"), "{again}");
    assert_eq!(query(&data, counts), before);
}

#[test]
fn the_fault_that_ended_a_job_stands_beside_its_end() {
    let placed = |kind: v1::JobEventKind, final_state: &str, at_ms: i64| {
        let Event::Job(message) = job(kind, "lost", 8, at_ms) else { unreachable!("a job's event") };
        let ended = (kind == v1::JobEventKind::Ended).then(|| final_state.to_owned());
        let message = v1::JobEvent { nodes: Some("n1".into()), final_state: ended, ..message };
        event(Event::Job(message), at_ms)
    };
    let xid = v1::NodeEvent {
        kind: v1::NodeEventKind::Xid.into(),
        node: "n1".into(),
        gpu_uuid: Some("GPU-3".into()),
        gpu_index: Some(3),
        xid: Some(79),
        ..v1::NodeEvent::default()
    };
    let end_ms = START_MS + HOUR_MS;
    let events = vec![
        placed(v1::JobEventKind::Submitted, "", START_MS),
        placed(v1::JobEventKind::Started, "", START_MS),
        event(Event::Node(xid), end_ms - 30_000),
        placed(v1::JobEventKind::Ended, "FAILED", end_ms),
        // Time goes on: the minute after the end is over.
        job(v1::JobEventKind::Submitted, "next", 8, end_ms + 300_000),
    ];
    let place = Place::new();
    let data = tables_of(place.0.path(), events);
    succeed(tidegate().args(["insight", "run", "--once", "--data"]).arg(&data));
    let found = query(
        &data,
        "SELECT job_id, final_state, cause, node, gpu_uuid, xid, probability_ppm, lost_gpu_ms IS NULL AS unsaved FROM job_ends",
    );
    // e^(5 - 0.1) against one.
    let score = 4.9_f64.exp();
    let ppm = (score / (1.0 + score) * 1e6).round();
    assert_eq!(
        found,
        format!(
            "job_id,final_state,cause,node,gpu_uuid,xid,probability_ppm,unsaved\nlost,FAILED,DEVICE_LOST,n1,GPU-3,79,{ppm},true\n"
        )
    );
}

#[test]
fn up_says_it_beside_the_pipelines_and_ends_when_told() {
    let place = Place::new();
    let data = tables_of(place.0.path(), scene());
    let mut command = tidegate();
    command.args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(&data).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (address, _stdout) = address_of(&mut child, "SQL");
    wait_until("a straggler that is over", || {
        let mut socket = TcpStream::connect(&address).unwrap();
        let sql = "SELECT rank, state FROM stragglers WHERE confirmed_time IS NOT NULL";
        socket.write_all(crate::program::post(sql, "text/csv").as_bytes()).unwrap();
        Response::read(socket).text() == format!("rank,state\n{SLOW_RANK},CLEARED\n")
    });
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_folder_is_followed_by_up_alone() {
    let place = Place::new();
    let ended = run(tidegate().args(["insight", "run", "--data"]).arg(place.data()));
    ended.refused(&["tidegate up", "--once", "--log"]);
}
