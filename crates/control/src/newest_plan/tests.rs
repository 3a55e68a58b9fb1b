use std::sync::Arc;

use tidegate_autopilot::executor::{Executor, Journal, JournalEvent, Settings};
use tidegate_autopilot::forecast::{SelectedForecast, SeriesNames};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::state::{ClusterState, GrowBy, JobKind, JobState};
use tidegate_autopilot::target::{Capabilities, Effect, Notice, Receipt, Target, TargetError};
use tidegate_events::SchemaId;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, TopicConfig, TopicPartition};

use super::*;
use crate::forecast_reader::tests::{ISSUED_MS, Still};
use crate::{LogJournal, PlanArchive};

const MINUTE_US: i64 = 60_000_000;
const JOBS: u32 = 1_000;

/// A cluster that cannot be changed: `turnover` of its jobs end in each minute, and as many begin.
struct Site {
    now_us: i64,
    turnover: u32,
}

impl Target for Site {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        let mut state = Still::sized(self.now_us, 125, JOBS).observe()?;
        // Nobody may lend, so nothing is ever decided; elastic jobs run and are looked at.
        state.owners.values_mut().flat_map(|owner| owner.shares.values_mut()).for_each(|share| {
            share.lendable = false;
        });
        let minute = u32::try_from((self.now_us / 1_000 - ISSUED_MS) / 60_000).unwrap();
        let first = minute * self.turnover;
        let jobs: Vec<_> = std::mem::take(&mut state.jobs).into_values().collect();
        for (at, mut job) in (first..).zip(jobs) {
            let since_us = ISSUED_MS * 1_000 + i64::from(at) * 1_000;
            job.state = JobState::Running { since_us };
            job.kind = JobKind::Elastic { min_gpus: 8, max_gpus: 16, sizes: vec![], grow: GrowBy::Requeue };
            job.placement = [(format!("s{:02}", at % 125), 1)].into();
            state.jobs.insert(format!("{}", 100_000 + at), job);
        }
        Ok(state)
    }

    fn notify(&mut self, _: &tidegate_autopilot::action::Action) -> Result<Notice, TargetError> {
        Ok(Notice::Unsupported)
    }

    fn apply(&mut self, action: &tidegate_autopilot::action::Action) -> Result<Receipt, TargetError> {
        Err(TargetError::Unreachable { target: "nobody".into(), why: action.id.clone() })
    }

    fn read_back(&mut self, _: &tidegate_autopilot::action::Action) -> Result<Effect, TargetError> {
        Ok(Effect::Absent)
    }
}

/// What some minutes of an autopilot cost and left.
struct Cost {
    plans: Vec<String>,
    journal_bytes: usize,
    archive_bytes: u64,
    /// Bytes written to the files of the newest plan.
    newest_bytes: u64,
    newest: NewestPlan,
}

fn autopilot(minutes: i64, turnover: u32, most_changed: u32) -> Cost {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let log = EmbeddedLog::open(data.join("log"), EmbeddedOptions::default()).unwrap();
    let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
    log.create_topic(SchemaId::AutopilotEvent.topic(), one).unwrap();
    let log: Arc<dyn EventLog> = Arc::new(log);
    let journal = LogJournal::open(Arc::clone(&log), "c", "one").unwrap();
    let journal = journal.archiving(PlanArchive::in_data(data)).showing(NewestPlanFile::in_data(data));
    let policy = Policy::auto();
    let forecast = SelectedForecast::new(&policy, SeriesNames::default());
    let settings = Settings { holder: "one".into(), lease_ms: 90_000, most_changed, ..Settings::default() };
    let mut executor = Executor::new(policy, settings, journal, forecast);
    let (mut newest_bytes, mut last) = (0, Vec::new());
    for minute in 0..minutes {
        let now_us = ISSUED_MS * 1_000 + minute * MINUTE_US;
        let mut site = Site { now_us, turnover };
        executor.step(&mut site, &mut || KillSwitch::On, &[], now_us).unwrap();
        let bytes = std::fs::read(plan_path(&data.join("autopilot"))).unwrap();
        newest_bytes += if bytes == last { 0 } else { bytes.len() as u64 };
        last = bytes;
    }
    let entries = LogJournal::open(Arc::clone(&log), "c", "reader").unwrap().read().unwrap();
    let plan = |entry: tidegate_autopilot::executor::JournalEntry| match entry.event {
        JournalEvent::Planned(planned) => Some(planned.plan.id),
        _ => None,
    };
    let at = TopicPartition { topic: SchemaId::AutopilotEvent.topic().into(), partition: 0 };
    let stored = log.read(&at, 0, usize::MAX).unwrap();
    let archived = std::fs::read_dir(data.join("autopilot/plans")).unwrap();
    Cost {
        plans: entries.into_iter().filter_map(plan).collect(),
        journal_bytes: stored.iter().map(|stored| stored.record.payload.len()).sum(),
        archive_bytes: archived.map(|file| file.unwrap().metadata().unwrap().len()).sum(),
        newest_bytes,
        newest: newest_plan(data).unwrap().unwrap(),
    }
}

#[test]
fn what_has_changed_is_recorded_at_once_and_within_a_bound() {
    // As before: one in ten minutes, whatever the plans say.
    let before = autopilot(60, 3, 0);
    assert_eq!(before.plans.len(), 6);
    let changing = autopilot(60, 3, 6);
    assert_eq!(changing.plans.len(), 11, "six at once, then one in ten minutes");
    let same = autopilot(60, 0, 6);
    assert_eq!(same.plans.len(), 6, "an identical plan is recorded every ten minutes, as before");
    for (name, cost) in [("before", &before), ("changing", &changing), ("same", &same)] {
        let Cost { journal_bytes, archive_bytes, newest_bytes, .. } = cost;
        println!(
            "an hour of {JOBS} jobs, {name}: {} plans, {journal_bytes} bytes of journal, {archive_bytes} of archive, \
             {newest_bytes} written for the newest plan",
            cost.plans.len()
        );
    }
    assert!(changing.journal_bytes < 2 * before.journal_bytes);
    assert!(changing.archive_bytes < 2 * before.archive_bytes);
}

#[test]
fn the_newest_plan_is_there_though_it_is_not_recorded() {
    let cost = autopilot(9, 3, 6);
    let NewestPlan { holder, generation, is_recorded, planned, same_until_us } = &cost.newest;
    let last_us = ISSUED_MS * 1_000 + 8 * MINUTE_US;
    assert_eq!((holder.as_str(), *generation, *is_recorded), ("one", 1, false));
    assert_eq!((planned.plan.made_us, *same_until_us, planned.state.jobs.len()), (last_us, last_us, 1_000));
    assert_eq!(cost.plans.len(), 6);
    assert!(!cost.plans.contains(&planned.plan.id));

    // One that stays the same keeps the first, recorded, and says until when it held.
    let cost = autopilot(9, 0, 6);
    assert_eq!(cost.plans, std::slice::from_ref(&cost.newest.planned.plan.id));
    assert_eq!(cost.newest.planned.plan.made_us, ISSUED_MS * 1_000);
    assert_eq!((cost.newest.same_until_us, cost.newest.is_recorded), (last_us, true));
}

#[test]
fn a_damaged_file_is_an_error_and_none_is_none() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(newest_plan(folder.path()).unwrap(), None);
    let path = plan_path(&folder.path().join("autopilot"));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    for damaged in [&b""[..], b"{}", &zstd::encode_all(&b"{\"holder\": 7}"[..], 1).unwrap()] {
        std::fs::write(&path, damaged).unwrap();
        assert!(newest_plan(folder.path()).is_err());
    }
    let bomb = zstd::encode_all(std::io::repeat(b' ').take(MAX_BYTES + 1), 1).unwrap();
    std::fs::write(&path, bomb).unwrap();
    assert!(newest_plan(folder.path()).unwrap_err().to_string().contains("longer"));
}
