//! Whoever can write the topic, but has no key, changes nothing that is believed.

use std::path::Path;

use tidegate_autopilot::executor::{
    AdoptedStatement, Executor, ExecutorState, IssuedPolicy, PolicyAdopted, Role, Settings, Switched,
};
use tidegate_autopilot::forecast::{SelectedForecast, SeriesNames};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::intent::{IntentEvent, Lease, SignedApproval, Transition};
use tidegate_autopilot::policy::Policy;
use tidegate_events::Micros;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, TopicConfig};

use super::*;
use crate::authority::fixture::{Person, site};
use crate::authority::{
    APPROVE, ActsAs, ApprovalStatement, POLICY, PolicyStatement, SWITCH, SwitchStatement,
};
use crate::forecast_reader::tests::Still;

const NOW_US: i64 = 1_795_000_000_000_000;
const S: i64 = 1_000_000;

/// A cluster with keys: people, an autopilot, and its log.
struct Site {
    folder: tempfile::TempDir,
    log: Arc<dyn EventLog>,
    anna: Person,
    ben: Person,
    signers: Signers,
    key: JournalKey,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (anna, ben, pilot, signers) = site(folder.path());
        let key = JournalKey::read(&pilot.key_file(folder.path())).unwrap();
        let log = new_log(&folder.path().join("log"));
        Self { folder, log, anna, ben, signers, key }
    }

    /// The journal of a process that has the autopilot's key.
    fn process(&self, holder: &str) -> LogJournal {
        let keys = JournalKeys { signers: self.signers.clone(), key: Some(self.key.clone()) };
        open(&self.log, holder).proving(Some(keys), Chains::default())
    }

    /// Everything that counts, read anew, and what does not.
    fn read(&self) -> (Vec<JournalEntry>, Option<EntriesRefused>) {
        read(&self.log, &self.signers)
    }
}

fn new_log(folder: &Path) -> Arc<dyn EventLog> {
    let log = EmbeddedLog::open(folder, EmbeddedOptions::default()).unwrap();
    let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
    log.create_topic(SchemaId::AutopilotEvent.topic(), one).unwrap();
    Arc::new(log)
}

fn open(log: &Arc<dyn EventLog>, holder: &str) -> LogJournal {
    LogJournal::open(Arc::clone(log), "prod", holder).unwrap()
}

fn read(log: &Arc<dyn EventLog>, signers: &Signers) -> (Vec<JournalEntry>, Option<EntriesRefused>) {
    let keys = JournalKeys { signers: signers.clone(), key: None };
    let mut journal = open(log, "reader").proving(Some(keys), Chains::default());
    (journal.read().unwrap(), journal.take_refused())
}

fn entry(generation: u64, at_s: i64, event: JournalEvent) -> JournalEntry {
    JournalEntry { at_us: NOW_US + at_s * S, generation, event }
}

fn lease(holder: &str, generation: u64, at_s: i64) -> JournalEntry {
    let until_us = NOW_US + (at_s + 30) * S;
    entry(generation, at_s, JournalEvent::Lease(Lease { holder: holder.to_owned(), generation, until_us }))
}

fn approved(by: &str, signed: Option<SignedApproval>, generation: u64, at_s: i64) -> JournalEntry {
    let transition = Transition::Approved { by: by.to_owned(), signed };
    let at_us = NOW_US + at_s * S;
    let step = IntentEvent { action: "drain-1".to_owned(), at_us, generation, transition };
    entry(generation, at_s, JournalEvent::Step(Box::new(step)))
}

/// All records as they stand on the log.
fn stored(log: &Arc<dyn EventLog>) -> Vec<Record> {
    let at = TopicPartition { topic: SchemaId::AutopilotEvent.topic().to_owned(), partition: 0 };
    log.read(&at, 0, usize::MAX).unwrap().into_iter().map(|stored| stored.record).collect()
}

/// Appends records as anybody can who may write the topic.
fn inject(log: &Arc<dyn EventLog>, source: &str, records: Vec<Record>) {
    let at = TopicPartition { topic: SchemaId::AutopilotEvent.topic().to_owned(), partition: 0 };
    let producer = Producer { source: source.to_owned(), epoch: 1 };
    log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
}

/// Why the last refused entry does not count.
fn why(refused: Option<EntriesRefused>) -> String {
    refused.expect("something is refused").why
}

#[test]
fn a_forged_entry_counts_only_where_there_are_no_keys() {
    let site = Site::new();
    let mut one = site.process("one");
    one.append(vec![lease("one", 1, 0)]).unwrap();
    // A forged lease stops every autopilot, for ever, and a forged approval drains a node.
    let forged = [lease("mallory", 2, 1), approved("anna", None, 2, 1)];
    open(&site.log, "mallory").append(forged.to_vec()).unwrap();
    // So does a key of somebody who may approve, but is no autopilot.
    let keys = JournalKeys {
        signers: site.signers.clone(),
        key: Some(JournalKey::read(&site.anna.key_file(site.folder.path())).unwrap()),
    };
    let mut as_anna = open(&site.log, "anna").proving(Some(keys), Chains::default());
    assert!(as_anna.append(vec![lease("anna", 3, 1)]).is_ok());
    assert!(as_anna.read().unwrap_err().to_string().contains("does not count"));
    one.append(vec![lease("one", 1, 10)]).unwrap();
    assert_eq!(one.read().unwrap(), [lease("one", 1, 0), lease("one", 1, 10)]);
    let (entries, refused) = site.read();
    assert_eq!(entries, [lease("one", 1, 0), lease("one", 1, 10)]);
    let refused = refused.unwrap();
    assert_eq!((refused.count, refused.offsets, &*refused.holder), (3, (1, 3), "autopilot/prod/anna"));
    assert!(refused.why.contains("not listed"), "{refused:?}");
    assert_eq!(one.take_refused(), Some(refused));
    assert_eq!(open(&site.log, "reader").read().unwrap().len(), 5, "without keys all are believed");
}

/// A lease of the highest generation, without end, stopped every autopilot, after restarts too.
#[test]
fn a_forged_lease_stops_nobody() {
    for keyed in [true, false] {
        let site = Site::new();
        let journal = if keyed { site.process("one") } else { open(&site.log, "one") };
        let policy = Policy::auto();
        let forecast = SelectedForecast::new(&policy, SeriesNames::default());
        let settings = Settings { holder: "one".to_owned(), ..Settings::default() };
        let mut executor = Executor::new(policy, settings, journal, forecast);
        let mut step = |at_s: i64| {
            let now_us = NOW_US + at_s * S;
            executor.step(&mut Still::at(now_us), &mut || KillSwitch::On, &[], now_us).unwrap().role
        };
        assert_eq!(step(0), Role::Leading { generation: 1 });
        let forged = |generation, until_us| {
            let lease = Lease { holder: "mallory".to_owned(), generation, until_us };
            entry(generation, 1, JournalEvent::Lease(lease))
        };
        for (number, (generation, until_us)) in
            [(u64::MAX, NOW_US + 10 * S), (2, i64::MAX), (9, NOW_US + 10 * S)].into_iter().enumerate()
        {
            let mut mallory = open(&site.log, &format!("mallory-{number}"));
            mallory.append(vec![forged(generation, until_us)]).unwrap();
            assert_eq!(step(5 + number as i64), Role::Leading { generation: 1 }, "{generation} {until_us}");
        }
        // One that any process might take does count where there are no keys.
        open(&site.log, "mallory").append(vec![forged(2, NOW_US + 60 * S)]).unwrap();
        assert_eq!(step(9) == Role::Leading { generation: 1 }, keyed);
    }
}

#[test]
fn an_entry_counts_once_in_its_place_and_behind_the_one_before_it() {
    let site = Site::new();
    let mut one = site.process("one");
    for at_s in 0..4 {
        one.append(vec![lease("one", 1, at_s)]).unwrap();
        one.read().unwrap();
    }
    let honest = stored(&site.log);
    assert_eq!(site.read().0.len(), 4);
    let replayed = |order: &[usize]| {
        let folder = tempfile::tempdir().unwrap();
        let log = new_log(folder.path());
        inject(&log, "copy", order.iter().map(|at| honest[*at].clone()).collect());
        let (entries, refused) = read(&log, &site.signers);
        (entries.len(), refused.map_or_else(String::new, |refused| refused.why))
    };
    assert_eq!(replayed(&[0, 1, 2, 3]), (4, String::new()));
    assert_eq!(replayed(&[2, 3]), (2, String::new()), "older records were dropped");
    let (kept, why) = replayed(&[0, 1, 2, 3, 1]);
    assert!(kept == 4 && why.contains("wrote number 1 of generation 1 before"), "{why}");
    let (kept, why) = replayed(&[0, 2, 1, 3]);
    assert!(kept == 2 && why.contains("entry before number 3 of its writer is missing"), "{why}");
    let (kept, why) = replayed(&[0, 1, 3]);
    assert!(kept == 2 && why.contains("before number 3"), "{why}");
    // Nor is another's text taken for it, nor another cluster's, nor another place.
    let changed = |from: &str, to: &str| {
        let folder = tempfile::tempdir().unwrap();
        let log = new_log(folder.path());
        let Event::Autopilot(event) = Event::decode(honest[0].schema, &honest[0].payload).unwrap() else {
            panic!("an event of the autopilot");
        };
        let mut event = AutopilotEvent { body: event.body.replace(from, to), ..event };
        let envelope = event.envelope.as_mut().unwrap();
        envelope.source = envelope.source.replace(from, to);
        let mut event = Event::Autopilot(event);
        inject(&log, "copy", vec![Record::from(event.record().unwrap())]);
        read(&log, &site.signers)
    };
    assert!(why_of(changed("\"generation\":1", "\"generation\":2")).contains("not of this text"));
    assert!(why_of(changed("autopilot/prod/one", "autopilot/prod/two")).contains("not of this text"));
}

fn why_of((entries, refused): (Vec<JournalEntry>, Option<EntriesRefused>)) -> String {
    assert!(entries.is_empty());
    why(refused)
}

#[test]
fn a_journal_of_an_older_version_still_counts_until_entries_are_proven() {
    let site = Site::new();
    open(&site.log, "old").append(vec![lease("old", 1, 0), lease("old", 1, 10)]).unwrap();
    let mut new = site.process("new");
    assert_eq!(new.read().unwrap().len(), 2);
    new.append(vec![lease("new", 2, 60)]).unwrap();
    assert_eq!(new.read().unwrap(), [lease("new", 2, 60)]);
    open(&site.log, "late").append(vec![lease("old", 3, 70)]).unwrap();
    let (entries, refused) = site.read();
    assert_eq!(entries.len(), 3);
    assert_eq!(why(refused), "nobody signed it");
}

/// What a newer version wrote in between is not read, and breaks no chain.
#[test]
fn an_entry_of_a_newer_version_keeps_its_place() {
    let site = Site::new();
    let mut one = site.process("one");
    one.append(vec![lease("one", 1, 0)]).unwrap();
    let keys = one.keys.clone().unwrap();
    let written = lease("one", 1, 1);
    let Event::Autopilot(mut event) = encode_entry(&written, &written, "prod", "one", 1).unwrap() else {
        panic!("an event of the autopilot");
    };
    event.body = event.body.replace("\"lease\"", "\"lease_of_tomorrow\"");
    let hash = prove(&keys, &mut event, one.written.as_deref().unwrap()).unwrap();
    let record = Record::from(Event::Autopilot(event).record().unwrap());
    let producer = Producer { source: source("prod", "one"), epoch: 1 };
    let batch = Batch { producer, first_seq: 1, records: vec![record] };
    site.log.append(&one.cursor.at, batch).unwrap();
    (one.seq, one.written) = (2, Some(hash));
    one.append(vec![lease("one", 1, 2)]).unwrap();
    assert_eq!(site.read(), (vec![lease("one", 1, 0), lease("one", 1, 2)], None));
}

#[test]
fn a_takeover_and_a_restart_from_saved_chains_go_on() {
    let site = Site::new();
    let (mut one, mut two) = (site.process("one"), site.process("two"));
    one.append(vec![lease("one", 1, 0), lease("one", 1, 10)]).unwrap();
    one.read().unwrap();
    two.read().unwrap();
    two.append(vec![lease("two", 2, 60)]).unwrap();
    // What the former holder still writes is proven: that it is void, its generation says.
    one.append(vec![lease("one", 1, 61)]).unwrap();
    one.append(vec![lease("one", 3, 120)]).unwrap();
    for process in [&mut one, &mut two] {
        process.read().unwrap();
        assert_eq!(process.take_refused(), None);
    }
    let (position, chains) = (two.position().unwrap(), two.chains().clone());
    let text = serde_json::to_string(&chains).unwrap();
    assert_eq!(serde_json::from_str::<Chains>(&text).unwrap(), chains);
    one.append(vec![lease("one", 3, 130)]).unwrap();
    let keys = JournalKeys { signers: site.signers.clone(), key: None };
    let mut resumed =
        open(&site.log, "two").proving(Some(keys.clone()), chains).resumed(std::slice::from_ref(&position));
    assert_eq!(resumed.read().unwrap(), [lease("one", 3, 130)]);
    assert_eq!(resumed.take_refused(), None);
    // What was written before does not count again, though this reader has not read it.
    let records = stored(&site.log);
    inject(&site.log, "copy", vec![records[0].clone(), records[2].clone()]);
    let refused = site.read().1.unwrap();
    assert_eq!(refused.count, 2);
    resumed.read().unwrap();
    assert_eq!(resumed.take_refused().map(|refused| refused.count), Some(2));
}

#[test]
fn what_people_decide_counts_only_with_their_signature() {
    let site = Site::new();
    let statement = ApprovalStatement {
        cluster: "prod".to_owned(),
        action: "drain-1".to_owned(),
        plan: "0123".to_owned(),
        given_us: NOW_US,
        expires_us: NOW_US + 3_600 * S,
    };
    let signed = |by: &Person, statement: &ApprovalStatement| SignedApproval {
        plan: statement.plan.clone(),
        given_us: statement.given_us,
        expires_us: statement.expires_us,
        signature: by.sign(APPROVE, &statement.text()).signature,
    };
    let other = ApprovalStatement { action: "drain-2".to_owned(), ..statement.clone() };
    let (anna, ben) = (site.anna.signer(), site.ben.signer());
    let good = approved(&ben, Some(signed(&site.ben, &statement)), 1, 5);
    let bad = [
        approved("anna", None, 1, 5),
        approved(&anna, Some(signed(&site.ben, &statement)), 1, 5),
        approved(&ben, Some(signed(&site.ben, &other)), 1, 5),
        approved(&ben, Some(signed(&site.ben, &statement)), 1, 7_200),
    ];
    let by_policy = approved("policy", None, 1, 7_201);
    let mut one = site.process("one");
    one.append(vec![lease("one", 1, 0), good.clone()]).unwrap();
    assert_eq!(one.read().unwrap(), [lease("one", 1, 0), good]);
    for (number, bad) in bad.into_iter().enumerate() {
        let mut other = site.process(&format!("other-{number}"));
        other.append(vec![bad]).unwrap();
        assert!(other.read().unwrap_err().to_string().contains("does not count"), "{number}");
        assert_eq!(other.read().unwrap().len(), 2, "the rest is read");
        assert_eq!(other.take_refused().map(|refused| refused.count), Some(number as u64 + 1));
        assert!(other.append(vec![lease("x", 1, 6)]).is_err(), "nothing more in that generation");
    }
    one.append(vec![by_policy.clone()]).unwrap();
    assert_eq!(one.read().unwrap(), [by_policy]);
}

/// An entry in which the autopilot adopts a policy that both signed.
fn adopts(site: &Site, statement: &PolicyStatement, policy: &str, at_s: i64) -> JournalEntry {
    let text = statement.text();
    let by = [&site.anna, &site.ben];
    let issued = IssuedPolicy {
        adopted: AdoptedStatement { sequence: statement.sequence, id: hash(text.as_bytes()) },
        signatures: by.iter().map(|person| person.sign(POLICY, &text).signature).collect(),
        statement: text,
        text: policy.to_owned(),
    };
    let adopted = PolicyAdopted {
        policy: "site".to_owned(),
        file: "site.toml".to_owned(),
        signed_by: by.iter().map(|person| person.signer()).collect(),
        changes: Vec::new(),
        issued: Some(issued),
    };
    entry(1, at_s, JournalEvent::Policy(adopted))
}

#[test]
fn an_older_policy_is_not_adopted_again_nor_one_of_another_cluster() {
    let site = Site::new();
    let policy = "name = \"site\"\n";
    let first = PolicyStatement {
        cluster: "prod".to_owned(),
        acts_as: ActsAs::Policy,
        sequence: 1,
        after: None,
        expires: chrono::DateTime::from_timestamp(Micros(NOW_US).floor_secs() + 86_400, 0).unwrap(),
        policy: hash(policy.as_bytes()),
    };
    let second = PolicyStatement { sequence: 2, after: Some(hash(first.text().as_bytes())), ..first.clone() };
    let elsewhere = PolicyStatement { cluster: "test".to_owned(), ..first.clone() };
    let read = |statements: &[(&PolicyStatement, &str)]| {
        let site = Site::new();
        let mut one = site.process("one");
        one.append(vec![lease("one", 1, 0)]).unwrap();
        let adopted = statements.iter().zip(1..).try_for_each(|((statement, policy), at_s)| {
            one.append(vec![adopts(&site, statement, policy, at_s)])?;
            one.read().map(drop)
        });
        let mut known = ExecutorState::default();
        site.read().0.into_iter().for_each(|entry| known.fold(entry));
        (known.adopted.map(|adopted| adopted.sequence), adopted.map_err(|error| error.0))
    };
    assert_eq!(read(&[(&first, policy), (&first, policy), (&second, policy)]), (Some(2), Ok(())));
    for (statements, adopted, said) in [
        (
            &[(&first, policy), (&second, policy), (&first, policy)][..],
            Some(2),
            "does not follow on number 2",
        ),
        (&[(&elsewhere, policy)], None, "signed for this cluster"),
        (&[(&first, "name = \"wide\"\n")], None, "not the one that was signed"),
    ] {
        let (number, answer) = read(statements);
        assert_eq!(number, adopted);
        assert!(answer.as_ref().unwrap_err().contains(said), "{answer:?}");
    }
    drop(site);
}

/// Commands read entries from tables, without the log's order.
#[test]
fn a_row_of_a_table_counts_if_it_is_proven_or_older() {
    let site = Site::new();
    open(&site.log, "old").append(vec![lease("old", 1, 0)]).unwrap();
    let mut one = site.process("one");
    one.read().unwrap();
    one.append(vec![lease("one", 2, 60), approved(&site.anna.signer(), None, 2, 61)]).unwrap();
    assert!(one.read().is_err(), "an approval that nobody signed");
    open(&site.log, "mallory").append(vec![lease("mallory", 3, 61)]).unwrap();
    let folder = site.folder.path().join("autopilot");
    assert!(TableProofs::in_folder(&folder).unwrap().is_none());
    let mut reader = site.process("reader");
    reader.read().unwrap();
    TableProofs::keep(&folder, &site.signers, reader.chains().first_proven().unwrap()).unwrap();
    let proofs = TableProofs::in_folder(&folder).unwrap().unwrap();
    let answers: Vec<String> = stored(&site.log)
        .iter()
        .map(|record| {
            let event = decode_event(record.schema, &record.payload).unwrap();
            let envelope = event.envelope.clone().unwrap();
            let row = TableEntry {
                cluster: envelope.cluster,
                source: envelope.source,
                epoch: Some(envelope.epoch),
                seq: Some(envelope.seq),
                body: event.body.clone(),
            };
            proofs.check(&row, &decode_entry(&event).unwrap()).err().unwrap_or_default()
        })
        .collect();
    assert_eq!((&*answers[0], &*answers[1], &*answers[3]), ("", "", "nobody signed it"));
    assert!(answers[2].contains("did not sign the approval"), "{answers:?}");
}

#[test]
fn the_switch_is_on_by_a_signature_only() {
    let site = Site::new();
    let text = SwitchStatement { cluster: "prod".to_owned(), given_us: NOW_US }.text();
    let signature = Some(site.ben.sign(SWITCH, &text).signature);
    let on = |sequence, signature| {
        entry(1, 1, JournalEvent::Switched(Switched { on: true, by: site.ben.signer(), sequence, signature }))
    };
    let mut one = site.process("one");
    one.append(vec![lease("one", 1, 0), on(NOW_US, signature.clone())]).unwrap();
    assert_eq!(one.read().unwrap().len(), 2);
    one.append(vec![on(NOW_US + 1, signature)]).unwrap();
    assert!(one.read().is_err(), "it was signed for another time");
    let mut two = site.process("two");
    two.append(vec![on(NOW_US + 2, None)]).unwrap();
    assert!(two.read().is_err());
}

/// A life that dies while it folds what it reads, unless it reads nothing.
fn dies_of_the_journal(site: &Site, deaths: &Path) -> Result<Vec<JournalEntry>, JournalError> {
    let mut journal = site.process("one").watched_by(DeathWatch::begin(deaths, "autopilot"));
    let entries = journal.read();
    if entries.is_ok() {
        std::mem::forget(journal);
    }
    entries
}

#[test]
fn a_journal_that_lives_died_of_is_read_no_further_and_nothing_of_it_is_skipped() {
    let site = Site::new();
    let deaths = site.folder.path().join("deaths");
    site.process("one").append(vec![lease("one", 1, 0)]).unwrap();
    // The first life notes no place; two others die at the same one.
    for _ in 0..3 {
        assert_eq!(dies_of_the_journal(&site, &deaths).unwrap(), [lease("one", 1, 0)]);
    }
    for _ in 0..2 {
        let error = dies_of_the_journal(&site, &deaths).unwrap_err().to_string();
        assert!(error.contains("autopilot/0 from offset 0") && error.contains("autopilot.json"), "{error}");
    }
    // An executor on it begins nothing.
    let journal = site.process("one").watched_by(DeathWatch::begin(&deaths, "autopilot"));
    assert!(journal.stopped().is_some());
    drop(journal);
    // Somebody has mended it.
    std::fs::remove_file(deaths.join("autopilot.json")).unwrap();
    let mut journal = site.process("one").watched_by(DeathWatch::begin(&deaths, "autopilot"));
    assert_eq!(journal.read().unwrap(), [lease("one", 1, 0)]);
    journal.folded();
    // Killed while it does something else, as often as one likes.
    std::mem::forget(journal);
    for _ in 0..4 {
        let mut journal = site.process("one").watched_by(DeathWatch::begin(&deaths, "autopilot"));
        assert!(journal.read().is_ok());
        journal.folded();
        std::mem::forget(journal);
    }
}
