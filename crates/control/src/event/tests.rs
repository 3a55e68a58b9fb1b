use tidegate_autopilot::dry_run::{Compared, Difference, Expected};

use super::*;

#[test]
fn what_a_job_saved_and_who_ignored_a_notice_is_in_the_columns() {
    let columns = |transition: Transition| {
        let step = IntentEvent { action: "preempt-1".into(), at_us: 5_000, generation: 3, transition };
        let entry = JournalEntry { at_us: 5_000, generation: 3, event: JournalEvent::Step(Box::new(step)) };
        let Event::Autopilot(event) = encode_entry(&entry, &entry, "c", "one", 1).unwrap() else { panic!() };
        assert_eq!(decode_entry(&event), Some(entry), "and read back");
        (event.kind(), event.why)
    };
    let saved = Transition::Acknowledged { saved_step: Some(1_200) };
    assert_eq!(columns(saved), (EventKind::Acknowledged, Some("saved step 1200".into())));
    let bare = Transition::Acknowledged { saved_step: None };
    assert_eq!(columns(bare), (EventKind::Acknowledged, None));
    assert_eq!(columns(Transition::NoticeIgnored), (EventKind::NoticeIgnored, None));
}

#[test]
fn what_a_dry_run_expects_and_what_came_of_it_is_in_words() {
    let columns = |event: JournalEvent| {
        let entry = JournalEntry { at_us: 5_000, generation: 3, event };
        let Event::Autopilot(event) = encode_entry(&entry, &entry, "c", "one", 1).unwrap() else { panic!() };
        assert_eq!(decode_entry(&event), Some(entry), "and read back");
        (event.kind(), event.action.unwrap(), event.why.unwrap())
    };
    let expected = Expected {
        action: "preempt-1".into(),
        kind: Kind::Preempt,
        observed_us: 4_000,
        beside: vec![],
        jobs: [("7".into(), 0)].into(),
        nodes: [].into(),
        free_gpus: [("train".into(), 8)].into(),
        starts: [("9".into(), 16)].into(),
        reports: vec![],
    };
    let why = "job 7 holds 0 GPUs; 8 GPUs of train are free; job 9 can start";
    let of = |event| columns(JournalEvent::Expected(Box::new(event)));
    assert_eq!(of(expected), (EventKind::Expected, "preempt-1".into(), why.into()));
    let pool = Difference::FreeGpus { pool: "train".into(), expected: 8, found: 0 };
    let start = Difference::Start { job: "9".into(), gpus: 16 };
    let compared = |differences| Compared {
        action: "preempt-1".into(),
        kind: Kind::Preempt,
        observed_us: 6_000,
        without: vec![],
        differences,
    };
    let of = |event| columns(JournalEvent::Compared(Box::new(event)));
    assert_eq!(of(compared(vec![])).2, "as expected");
    let why = "0 GPUs of train are free, 8 were expected; job 9 still waits for 16 GPUs";
    assert_eq!(of(compared(vec![pool, start])), (EventKind::Compared, "preempt-1".into(), why.into()));
}
