use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn options(dir: &TempDir) -> SpoolOptions {
    SpoolOptions { dir: dir.path().join("spool"), limit_bytes: 1 << 30, take_over: false }
}

fn open(dir: &TempDir) -> Spool {
    let began = std::time::Instant::now();
    loop {
        match Spool::open(&options(dir), "agent/n1", "c", 1_000) {
            // Another test's child holds a copy of the released lock until it executes its own
            // program.
            Err(SpoolError::InUse { .. }) if began.elapsed().as_secs() < 5 => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

fn record(number: u64, bytes: usize) -> Record {
    let payload = format!("{number}:{}", "x".repeat(bytes));
    Record { key: "c/n1".into(), schema: 7, event_time_ms: number as i64, payload: payload.into() }
}

fn number(spooled: &Spooled) -> u64 {
    let text = std::str::from_utf8(&spooled.record.payload).unwrap();
    text.split(':').next().unwrap().parse().unwrap()
}

fn fill(spool: &mut Spool, numbers: std::ops::Range<u64>, bytes: usize) {
    for number in numbers {
        spool.push(record(number, bytes));
        spool.sync().unwrap();
    }
}

/// Delivers everything and returns the numbers in order. Checks that positions have no gaps.
fn drain(spool: &mut Spool) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        let chunk = spool.chunk();
        let Some(last) = chunk.last() else { return numbers };
        assert!(
            chunk
                .windows(2)
                .all(|pair| pair[0].at.seq + 1 == pair[1].at.seq && pair[0].at.epoch == pair[1].at.epoch)
        );
        let epoch = spool.append_epoch(last.at.epoch);
        numbers.extend(chunk.iter().map(number));
        spool.delivered(Position { seq: last.at.seq + 1, ..last.at }, epoch, &[]);
    }
}

fn files(dir: &TempDir) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(options(dir).dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "records"));
    files.sort();
    files
}

#[test]
fn records_wait_on_disk_until_they_are_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    fill(&mut spool, 0..5, 10);
    let epoch = spool.next().epoch;
    drop(spool);
    let mut spool = open(&dir);
    assert_eq!(spool.next(), Position { epoch, seq: 5 }, "the same life");
    assert_eq!(spool.chunk(), spool.chunk());
    assert_eq!(drain(&mut spool), [0, 1, 2, 3, 4]);
    drop(spool);
    let mut spool = open(&dir);
    assert_eq!((spool.chunk(), spool.next().seq), (vec![], 5));
}

#[test]
fn delivered_records_free_their_space() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    fill(&mut spool, 0..60, 100_000);
    assert!(files(&dir).len() > 4 && spool.bytes() > 6_000_000);
    assert_eq!(drain(&mut spool), (0..60).collect::<Vec<_>>());
    assert_eq!(files(&dir).len(), 1);
}

#[test]
fn at_the_limit_the_oldest_are_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool =
        Spool::open(&SpoolOptions { limit_bytes: 5 << 20, ..options(&dir) }, "agent/n1", "c", 1_000).unwrap();
    fill(&mut spool, 0..3, 100_000);
    // These may be in flight, so they stay.
    assert_eq!(spool.chunk().len(), 3);
    fill(&mut spool, 3..100, 100_000);
    assert!(spool.bytes() <= (5 << 20));
    let dropped = spool.take_dropped();
    let count: u64 = dropped.iter().map(|dropped| dropped.count).sum();
    assert!(dropped[0].why.contains("limit of 5242880 bytes"), "{dropped:?}");
    let left = drain(&mut spool);
    assert_eq!(left.len() as u64 + count, 100);
    assert_eq!(left[..3], [0, 1, 2]);
    let gap = left.windows(2).filter(|pair| pair[0] + 1 != pair[1]).collect::<Vec<_>>();
    assert_eq!(gap.len(), 1, "{left:?}");
    assert_eq!(*left.last().unwrap(), 99);
    let times = dropped
        .iter()
        .flat_map(|dropped| dropped.times_ms)
        .fold((i64::MAX, 0), |all, times| (all.0.min(times.0), all.1.max(times.1)));
    assert_eq!(times, (gap[0][0] as i64 + 1, gap[0][1] as i64 - 1), "exactly those between");
}

#[test]
fn a_second_process_learns_who_holds_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let _spool = open(&dir);
    let refused = Spool::open(&options(&dir), "agent/n1", "c", 1_000).unwrap_err().to_string();
    assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
}

#[test]
fn a_spool_belongs_to_one_node() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    let refused = Spool::open(&options(&dir), "agent/n2", "c", 1_000).unwrap_err().to_string();
    assert!(refused.contains("is of agent/n1 in cluster c, not of agent/n2"), "{refused}");
}

#[test]
fn a_copy_of_the_folder_begins_an_epoch() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut spool = open(&dir);
    fill(&mut spool, 0..3, 10);
    let epoch = spool.next().epoch;
    drop(spool);
    fs::create_dir(options(&other).dir).unwrap();
    for entry in fs::read_dir(options(&dir).dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), options(&other).dir.join(entry.file_name())).unwrap();
    }
    let mut copy = open(&other);
    assert!(copy.next().epoch > epoch && copy.next().seq == 0);
    fill(&mut copy, 3..5, 10);
    let old = copy.chunk();
    assert!(
        old.iter().all(|spooled| copy.append_epoch(spooled.at.epoch) == epoch),
        "under the life they are of"
    );
    assert_eq!(drain(&mut copy), [0, 1, 2, 3, 4]);
}

#[test]
fn taking_over_goes_beyond_every_epoch_known() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    fill(&mut spool, 0..3, 10);
    spool.refused_for(5_000_000);
    drop(spool);
    let mut spool =
        Spool::open(&SpoolOptions { take_over: true, ..options(&dir) }, "agent/n1", "c", 1_000).unwrap();
    let first = spool.chunk()[0].at;
    assert_eq!((spool.append_epoch(first.epoch), spool.next().epoch), (5_000_001, 5_000_001));
}

#[test]
fn a_torn_write_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    fill(&mut spool, 0..3, 10);
    drop(spool);
    let file = &files(&dir)[0];
    let whole = fs::read(file).unwrap();
    fs::write(file, &whole[..whole.len() - 3]).unwrap();
    let mut spool = open(&dir);
    assert_eq!(spool.next().seq, 2);
    fill(&mut spool, 20..21, 10);
    assert_eq!(drain(&mut spool), [0, 1, 20]);
    assert_eq!(spool.take_dropped(), []);
}

#[test]
fn damage_is_reported_with_its_place_and_renumbers() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    fill(&mut spool, 0..3, 10);
    let epoch = spool.next().epoch;
    drop(spool);
    let file = &files(&dir)[0];
    let mut bytes = fs::read(file).unwrap();
    bytes[30] ^= 1;
    fs::write(file, bytes).unwrap();
    let mut spool = open(&dir);
    let dropped = spool.take_dropped();
    assert_eq!((dropped.len(), dropped[0].count), (1, 1));
    assert!(dropped[0].why.contains("is damaged at byte 0"), "{dropped:?}");
    assert!(
        spool.append_epoch(epoch) > epoch,
        "the first may have been sent under the number that the second gets now"
    );
    assert_eq!(drain(&mut spool), [1, 2]);
    assert_eq!(spool.take_dropped(), [], "reported once");
}

#[test]
fn without_its_state_everything_is_sent_under_a_new_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = open(&dir);
    fill(&mut spool, 0..3, 10);
    let epoch = spool.next().epoch;
    drop(spool);
    fs::remove_file(options(&dir).dir.join("state.json")).unwrap();
    let mut spool = open(&dir);
    assert!(spool.append_epoch(epoch) > epoch);
    assert_eq!(drain(&mut spool), [0, 1, 2]);
}

#[derive(Debug, Clone)]
enum Step {
    Push(u8, usize),
    Deliver,
    HandOut,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..6_u8, 0..200_000_usize).prop_map(|(count, bytes)| Step::Push(count, bytes)),
        2 => Just(Step::Deliver),
        1 => Just(Step::HandOut),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever happens in between, each record comes out once, in order, under its position.
    #[test]
    fn every_record_comes_out_once_and_in_order(steps in prop::collection::vec(step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = open(&dir);
        let (mut pushed, mut seen) = (0, Vec::new());
        for step in steps {
            match step {
                Step::Push(count, bytes) => {
                    for _ in 0..count {
                        prop_assert_eq!(spool.next().seq, pushed);
                        spool.push(record(pushed, bytes));
                        pushed += 1;
                    }
                    spool.sync().unwrap();
                }
                Step::HandOut => drop(spool.chunk()),
                Step::Deliver => {
                    let chunk = spool.chunk();
                    if let Some(last) = chunk.last() {
                        seen.extend(chunk.iter().map(number));
                        spool.delivered(Position { seq: last.at.seq + 1, ..last.at }, last.at.epoch, &[]);
                    }
                }
                Step::Reopen => {
                    drop(spool);
                    spool = open(&dir);
                }
            }
        }
        seen.extend(drain(&mut spool));
        prop_assert_eq!(seen, (0..pushed).collect::<Vec<_>>());
    }
}
