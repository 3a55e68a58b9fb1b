//! How long the log is kept, through the program: who still needs it, and what can be rebuilt once
//! records are gone.

use serde_json::Value;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, TopicPartition};

use crate::program::{Place, jobs, run, succeed, tidegate};

#[test]
fn readers_hold_the_log_until_released_and_a_backfill_refuses_to_lose_rows() {
    let place = Place::new();
    place.import(place.file("jobs.csv", jobs(200)), "jobs_csv");
    let data = place.data();
    succeed(tidegate().args(["insight", "run", "--once", "--data"]).arg(&data));
    assert!(data.join("snapshots/signals").read_dir().unwrap().next().is_some());
    // Nothing is lost yet, so the tables can be rebuilt.
    succeed(tidegate().args(["pipeline", "backfill", "--data"]).arg(&data));
    let at = TopicPartition { topic: "jobs".into(), partition: 0 };
    {
        let log = EmbeddedLog::open(data.join("log"), EmbeddedOptions::default()).unwrap();
        let readers: Vec<String> = log.consumers(&at).unwrap().into_iter().map(|(name, _)| name).collect();
        assert!(readers.contains(&"tidegate-signals".to_owned()), "{readers:?}");
        let config = log.topics().unwrap().into_iter().find(|(topic, _)| *topic == at.topic).unwrap().1;
        assert_eq!(config.retain_ms, Some(400 * 86_400_000));
        let end = log.extent(&at).unwrap().end;
        assert!(log.trim(&at, end).unwrap().start > 0);
    }
    let status = succeed(tidegate().args(["status", "--json", "--data"]).arg(&data));
    let status: Value = serde_json::from_str(&status).unwrap();
    let holds = |reader: &str| {
        status["readers"].as_array().unwrap().iter().any(|it| it["reader"] == reader && it["holds"] == true)
    };
    // No snapshot comes before the first one, so the log does for a start without any.
    assert!(holds("tidegate-signals"), "{status:#}");
    let said = succeed(tidegate().args(["status", "--data"]).arg(&data));
    assert!(said.contains("tidegate-signals") && said.contains("tidegate log release"), "{said}");
    let release = || run(tidegate().args(["log", "release", "tidegate-signals", "--data"]).arg(&data));
    assert_eq!(release().status, Some(0));
    release().refused(&["no reader tidegate-signals"]);
    let backfill = || {
        let mut command = tidegate();
        command.args(["pipeline", "backfill", "--data"]).arg(&data);
        command
    };
    run(&mut backfill()).refused(&["jobs/0 before offset", "--from-what-is-left"]);
    succeed(backfill().arg("--from-what-is-left"));
}
