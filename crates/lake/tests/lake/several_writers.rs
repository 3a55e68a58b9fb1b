//! Several processes write to one lake: whichever loses a partition, and however late it notices,
//! the tables are the same.

use std::collections::BTreeSet;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::Event;
use tidegate_lake::catalog::committed_catalog;
use tidegate_lake::delta::DeltaStore;
use tidegate_lake::engine::Limits;
use tidegate_lake::error::LakeError;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::pipeline::Plan;
use tidegate_lake::testing::equivalence::{TableContents, read_tables};
use tidegate_log::partition_for;
use url::Url;

use crate::equivalence::plan;
use crate::histories::history;

const PARTITIONS: u32 = 3;
const TOPICS: [&str; 4] = ["jobs", "capacity", "nodes", "steps"];

/// Events of each topic and partition, in order of offset.
type Log = Vec<((&'static str, u32), Vec<Event>)>;

fn log(seed: u64) -> Log {
    let mut log: Log =
        TOPICS.iter().flat_map(|t| (0..PARTITIONS).map(move |p| ((*t, p), Vec::new()))).collect();
    for event in history(seed, 30) {
        let place = (event.schema().topic(), partition_for(event.key().as_bytes(), PARTITIONS));
        let (_, events) = log.iter_mut().find(|(at, _)| *at == place).unwrap();
        events.push(event);
    }
    log
}

/// A process: its lake, and the positions in the partitions it believes to own.
struct Process {
    lake: Lake,
    cursors: Vec<((&'static str, u32), usize)>,
}

impl Process {
    async fn start(root: &Url, plan: &Plan, sharing: Sharing) -> Self {
        let lake = Lake::open(root, plan.clone(), Limits::default(), sharing).await.unwrap();
        Self { lake, cursors: Vec::new() }
    }

    async fn gain(&mut self, at: (&'static str, u32)) {
        let start = self.lake.attach(at.0, &[at.1]).await.unwrap()[0];
        self.cursors.retain(|(kept, _)| *kept != at);
        self.cursors.push((at, start as usize));
    }

    async fn detach_partitions(&mut self, at: (&'static str, u32)) {
        self.lake.detach(at.0, &[at.1]).await.unwrap();
        self.cursors.retain(|(kept, _)| *kept != at);
    }

    /// Absorbs up to `most` events of each partition, but not beyond the end of an interrupted
    /// flush.
    fn read(&mut self, log: &Log, most: usize) {
        for (at, next) in &mut self.cursors {
            let events = &log.iter().find(|(place, _)| place == at).unwrap().1;
            let here =
                self.lake.states().filter(|s| s.partition == at.1 && s.group.raw.schema.topic() == at.0);
            let limit = here.filter_map(|s| s.recover_to).min().map_or(usize::MAX, |end| end as usize);
            let end = next.saturating_add(most).min(events.len()).min(limit).max(*next);
            let mut intake = self.lake.intake(at.0, at.1);
            (*next..end).for_each(|offset| intake.push(offset as u64, &events[offset]));
            self.lake.absorb(intake, end as u64).unwrap();
            *next = end;
        }
    }

    /// Commits. Returns `false` if another process had taken over and this one has dropped
    /// everything.
    async fn flush(&mut self) -> bool {
        match self.lake.flush().await {
            Ok(_) => true,
            Err(LakeError::Fenced { .. }) => {
                for (at, _) in self.cursors.clone() {
                    self.detach_partitions(at).await;
                }
                false
            }
            Err(e) => panic!("{e:?}"),
        }
    }
}

async fn committed(root: &Url, plan: &Plan) -> TableContents {
    read_tables(&committed_catalog(root, plan, Limits::default()).await.unwrap()).await.unwrap()
}

/// The tables of one process that is never disturbed.
async fn undisturbed(log: &Log, plan: &Plan) -> TableContents {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut process = Process::start(&root, plan, Sharing::Exclusive).await;
    for (at, _) in log {
        process.gain(*at).await;
    }
    process.read(log, usize::MAX);
    assert!(process.flush().await);
    committed(&root, plan).await
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_take_partitions_from_each_other_give_the_tables_of_one() {
    let plan = plan().await;
    let (mut fenced, mut killed) = (0, 0);
    for seed in 0..crate::equivalence::seeds() {
        let log = log(seed);
        let expected = undisturbed(&log, &plan).await;
        assert!(expected["jobs"].num_rows() == 30);

        let folder = tempfile::tempdir().unwrap();
        let root = Url::from_directory_path(folder.path()).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut processes = Vec::new();
        for _ in 0..3 {
            processes.push(Process::start(&root, &plan, Sharing::Shared).await);
        }
        for _ in 0..50 {
            let at = log[..PARTITIONS as usize + 1].choose(&mut rng).unwrap().0;
            let who = rng.random_range(0..processes.len());
            match rng.random_range(0..10) {
                // Without notice to the owner.
                0..3 => processes[who].gain(at).await,
                3 => {
                    processes[who].flush().await;
                    processes[who].detach_partitions(at).await;
                }
                4 => {
                    let process = &mut processes[who];
                    process.lake.interrupt_flush_after(rng.random_range(0..6));
                    process.read(&log, 5);
                    process.lake.flush().await.ok();
                    processes[who] = Process::start(&root, &plan, Sharing::Shared).await;
                    killed += 1;
                }
                5..8 => processes[who].read(&log, rng.random_range(1..12)),
                _ => fenced += u32::from(!processes[who].flush().await),
            }
        }
        // One process takes everything over; the others are too late.
        let mut last = Process::start(&root, &plan, Sharing::Shared).await;
        for (at, _) in &log {
            last.gain(*at).await;
        }
        for process in &mut processes {
            let kept = process.cursors.len();
            process.read(&log, 3);
            let before = committed(&root, &plan).await;
            fenced += u32::from(!process.flush().await);
            assert_eq!(
                committed(&root, &plan).await,
                before,
                "seed {seed}: kept {kept} partitions, lost all"
            );
        }
        // Where a flush was interrupted, the first one ends where that one did, so it takes more
        // than one.
        while last.cursors.iter().any(|(at, next)| *next < log.iter().find(|(p, _)| p == at).unwrap().1.len())
        {
            last.read(&log, usize::MAX);
            assert!(last.flush().await);
        }
        for (table, rows) in committed(&root, &plan).await {
            assert_eq!(rows, expected[&table], "seed {seed}, table {table}");
        }
    }
    assert!(fenced > 0 && killed > 0, "{fenced} fenced, {killed} killed");
    println!("{fenced} commits refused, {killed} processes killed within a commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_build_on_each_others_commits_and_a_claim_alone_fences() {
    let plan = plan().await;
    let log = log(0);
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut first = Process::start(&root, &plan, Sharing::Shared).await;
    let mut second = Process::start(&root, &plan, Sharing::Shared).await;
    first.gain(("jobs", 0)).await;
    second.gain(("jobs", 1)).await;
    for most in [5, usize::MAX] {
        first.read(&log, most);
        second.read(&log, most);
        assert!(first.flush().await && second.flush().await, "partitions of their own do not conflict");
    }
    let jobs: BTreeSet<String> = log[..2]
        .iter()
        .flat_map(|(_, events)| events)
        .map(Event::key)
        // No heartbeats, and no pods, which no scheduler reports.
        .filter(|k| k.contains("/j"))
        .collect();
    assert_eq!(committed(&root, &plan).await["jobs"].num_rows(), jobs.len());

    first.gain(("jobs", 2)).await;
    first.read(&log, 5);
    // The second process takes the partition over and commits nothing. The first one even reads the
    // new version before it tries to commit.
    second.gain(("jobs", 2)).await;
    first.lake.refresh_snapshots().await.unwrap();
    let refused = first.lake.flush().await.unwrap_err();
    assert!(matches!(refused, LakeError::Fenced { partition: Some(2), .. }), "{refused}");
    assert_eq!(committed(&root, &plan).await["jobs"].num_rows(), jobs.len());
}

/// Of several processes that start at once, one has created and claimed a table, and not yet the
/// others of its group.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_another_process_is_creating_are_not_history() {
    let plan = plan().await;
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let group = plan.groups.iter().find(|group| group.raw.spec.name == "gpu_samples").unwrap();
    let first = group.commit_order().remove(0);
    let mut made = DeltaStore::open_or_create(&root, first).await.unwrap();
    made.claim(&[0]).await.unwrap();
    assert!(made.version() > 0);
    let mut process = Process::start(&root, &plan, Sharing::Shared).await;
    process.gain(("gpu-samples", 0)).await;
}
