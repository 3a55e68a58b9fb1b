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
