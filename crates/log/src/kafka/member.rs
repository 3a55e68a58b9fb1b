//! Membership of a consumer group: which process reads which partitions.
//!
//! A consumer takes part in Kafka's group protocol and does nothing else. Whatever it is assigned
//! is paused at once, since records are read by offset ([`EventLog::read`](crate::EventLog::read)),
//! from where the reader's own output ends.
//!
//! Partitions change hands one by one (`cooperative-sticky`): a member that keeps a partition never
//! stops reading it. To revoke one, the client library asks us to release it, and no other member
//! gets it before we answer. We answer at the next [`poll`](Member::poll), so that the caller has
//! all the time up to `max.poll.interval.ms` to finish what it took in. Heartbeats go on meanwhile,
//! from the library's own thread.
//!
//! A member that was silent for too long learns it from the broker or from the library's clock. Its
//! partitions may have been assigned to another member by then: [`RebalanceEvent::Lost`]. For a
//! moment, two processes may both believe that they hold a partition; fencing of the output keeps
//! the slower one from writing.
//!
//! A separate thread commits offsets, so that a slow commit never keeps the process from polling. A
//! process joins one group per topic, and a rebalance completes only once all members of its group
//! have polled. Two processes that each block in a commit to a different group would block each
//! other for minutes. rdkafka's asynchronous commit (0.39) is no way out: it never reports a
//! result, so we would not know which commits to repeat.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};

use super::client::Cluster;
use super::client_errors::{ClientErrors, is_passing};
use super::deadline::Deadline;
use crate::check::lock;
use crate::{LogError, Member, RebalanceEvent, TopicPartition};

/// Rebalance events, until [`Joined::poll`] returns them.
struct RebalanceEvents {
    errors: ClientErrors,
    /// Prefix of the log's topics in Kafka.
    prefix: String,
    events: Mutex<VecDeque<KafkaResult<RebalanceEvent>>>,
    rebalances: AtomicU64,
    /// Set when the member leaves; no event is recorded from then on.
    closing: AtomicBool,
}

impl RebalanceEvents {
    fn partitions(&self, list: &TopicPartitionList) -> Vec<TopicPartition> {
        let ours = |topic: &str| topic.strip_prefix(&self.prefix).unwrap_or(topic).to_owned();
        let at = |at: (&str, i32)| TopicPartition {
            topic: ours(at.0),
            partition: u32::try_from(at.1).unwrap_or(0),
        };
        list.elements().iter().map(|element| at((element.topic(), element.partition()))).collect()
    }

    fn record(&self, event: RebalanceEvent) {
        let (RebalanceEvent::Assigned(which) | RebalanceEvent::Revoking(which) | RebalanceEvent::Lost(which)) =
            &event;
        if !which.is_empty() {
            lock(&self.events).push_back(Ok(event));
        }
    }

    /// Accepts an assignment, at the end of each partition, so that nothing is fetched before the
    /// pause.
    fn take(&self, consumer: &BaseConsumer<Self>, list: &mut TopicPartitionList) -> KafkaResult<()> {
        list.set_all_offsets(Offset::End)?;
        consumer.incremental_assign(list)?;
        self.record(RebalanceEvent::Assigned(self.partitions(list)));
        consumer.pause(list)
    }

    /// Gives partitions up: at once if another member has them already or this one leaves;
    /// otherwise when the caller polls next.
    fn give(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) -> KafkaResult<()> {
        let lost = consumer.assignment_lost();
        if lost || self.closing.load(Ordering::SeqCst) || list.count() == 0 {
            consumer.incremental_unassign(list)?;
        }
        let which = self.partitions(list);
        self.record(if lost { RebalanceEvent::Lost(which) } else { RebalanceEvent::Revoking(which) });
        Ok(())
    }
}

impl ClientContext for RebalanceEvents {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.errors.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.errors.record(&error, reason);
    }
}

impl ConsumerContext for RebalanceEvents {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        change: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        self.rebalances.fetch_add(1, Ordering::Relaxed);
        let done = match change {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.take(consumer, list),
            _ => self.give(consumer, list),
        };
        if let Err(error) = done {
            lock(&self.events).push_back(Err(error));
        }
    }
}

/// How long to wait before a failed commit is sent again.
const COMMIT_AGAIN: Duration = Duration::from_millis(250);

/// How long a commit may run before we give up on it and send it again. rdkafka's commit has no
/// timeout of its own.
const UNANSWERED: Duration = Duration::from_secs(20);

/// How long a leaving member waits for its last commit.
const LAST_COMMIT: Duration = Duration::from_secs(1);

/// Offsets to commit, one commit at a time: of two at once, the older could arrive last. That can
/// still happen to one given up after [`UNANSWERED`]; the next commit corrects it.
#[derive(Default)]
struct Commits {
    unsent: BTreeMap<TopicPartition, u64>,
    /// The earliest time to send `unsent`.
    due: Option<Instant>,
    running: Option<Running>,
}

struct Running {
    offsets: Vec<(TopicPartition, u64)>,
    since: Instant,
    thread: JoinHandle<KafkaResult<()>>,
}

/// A member of a group on Kafka.
pub(super) struct Joined {
    cluster: Arc<Cluster>,
    /// As Kafka spells it.
    group: String,
    topics: Vec<String>,
    consumer: Arc<BaseConsumer<RebalanceEvents>>,
    held: BTreeSet<TopicPartition>,
    /// Announced to the caller as leaving, and not let go of yet.
    leaving: Vec<TopicPartition>,
    commits: Commits,
    /// Rebalances of consumers that were given up.
    before: u64,
}

impl Joined {
    pub fn join(cluster: Arc<Cluster>, group: &str, topics: &[&str]) -> Result<Self, LogError> {
        let (group, topics) =
            (cluster.name(group), topics.iter().map(|topic| cluster.name(topic)).collect::<Vec<_>>());
        let consumer = Arc::new(enter(&cluster, &group, &topics)?);
        let (held, leaving, commits) = (BTreeSet::new(), Vec::new(), Commits::default());
        Ok(Self { cluster, group, topics, consumer, held, leaving, commits, before: 0 })
    }

    fn list(&self, of: &[TopicPartition]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(of.len());
        for at in of {
            list.add_partition(&self.cluster.name(&at.topic), at.partition as i32);
        }
        list
    }

    fn error(&self, doing: &str, error: &KafkaError) -> LogError {
        self.cluster.error(&format!("{doing} group {}", self.group), error, Duration::ZERO)
    }

    /// Releases the partitions that the previous call reported as leaving.
    fn hand_over(&mut self) -> Result<(), LogError> {
        let leaving = std::mem::take(&mut self.leaving);
        if leaving.is_empty() {
            return Ok(());
        }
        let given = self.consumer.incremental_unassign(&self.list(&leaving));
        given.map_err(|error| self.error("handing over partitions of", &error))
    }

    fn pass_on(&mut self, event: RebalanceEvent) -> RebalanceEvent {
        tracing::debug!(target: "kafka", group = self.group, ?event, "a rebalance");
        match &event {
            RebalanceEvent::Assigned(which) => self.held.extend(which.iter().cloned()),
            RebalanceEvent::Revoking(which) | RebalanceEvent::Lost(which) => which.iter().for_each(|at| {
                self.held.remove(at);
            }),
        }
        if let RebalanceEvent::Revoking(which) = &event {
            self.leaving.clone_from(which);
        }
        event
    }

    /// Joins as a new member without partitions. After its timeout the library has left the group,
    /// and what it reports about its former partitions depends on its state.
    fn start_over(&mut self) -> Result<Option<RebalanceEvent>, LogError> {
        let consumer = enter(&self.cluster, &self.group, &self.topics)?;
        self.before += self.consumer.context().rebalances.load(Ordering::Relaxed);
        self.consumer.context().closing.store(true, Ordering::SeqCst);
        (self.consumer, self.commits) = (Arc::new(consumer), Commits::default());
        let lost: Vec<_> = std::mem::take(&mut self.held).into_iter().collect();
        Ok((!lost.is_empty()).then_some(RebalanceEvent::Lost(lost)))
    }

    /// Starts a commit of `unsent`, if one is due and none is running.
    fn send_commit(&mut self) -> Result<(), LogError> {
        let is_due = self.commits.due.is_some_and(|due| Instant::now() >= due);
        if !is_due || self.commits.running.is_some() {
            return Ok(());
        }
        self.commits.due = None;
        let offsets: Vec<_> = std::mem::take(&mut self.commits.unsent).into_iter().collect();
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        for (at, offset) in &offsets {
            let name = self.cluster.name(&at.topic);
            list.add_partition_offset(&name, at.partition as i32, Offset::Offset(*offset as i64))
                .map_err(|error| self.error(COMMITTING, &error))?;
        }
        if !offsets.is_empty() {
            let consumer = Arc::clone(&self.consumer);
            let commit = move || consumer.commit(&list, CommitMode::Sync);
            let (since, thread) = (Instant::now(), std::thread::spawn(commit));
            self.commits.running = Some(Running { offsets, since, thread });
        }
        Ok(())
    }

    /// Collects the result of the running commit, then starts the next one. Offsets whose commit
    /// failed go into the next one, unless another member has the partition by now.
    fn poll_commit(&mut self) -> Result<(), LogError> {
        let is_over =
            |running: &mut Running| running.thread.is_finished() || running.since.elapsed() >= UNANSWERED;
        if let Some(Running { offsets, thread, .. }) = self.commits.running.take_if(is_over) {
            let answer = match thread.is_finished() {
                true => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // The thread, and with it the consumer, stays until the library returns.
                false => Err(KafkaError::ConsumerCommit(Code::OperationTimedOut)),
            };
            if let Err(error) = answer {
                for (at, offset) in offsets {
                    self.commits.unsent.entry(at).or_insert(offset);
                }
                self.commits.due = Some(Instant::now() + COMMIT_AGAIN);
                // A broker that has just started may not know its topics yet.
                if !(of_a_rebalance(&error) || is_passing(&error) || is_missing_topic(&error)) {
                    return Err(self.error(COMMITTING, &error));
                }
                tracing::debug!(target: "kafka", group = self.group, %error, "a commit is sent again");
            }
        }
        if self.commits.due.is_some() {
            self.commits.unsent.retain(|at, _| self.held.contains(at));
            self.send_commit()?;
        }
        Ok(())
    }
}

const COMMITTING: &str = "committing offsets of";

fn enter(
    cluster: &Cluster,
    group: &str,
    topics: &[String],
) -> Result<BaseConsumer<RebalanceEvents>, LogError> {
    let shares = RebalanceEvents {
        errors: cluster.errors.clone(),
        prefix: cluster.name(""),
        events: Mutex::default(),
        rebalances: AtomicU64::new(0),
        closing: AtomicBool::new(false),
    };
    let topics: Vec<_> = topics.iter().map(String::as_str).collect();
    BaseConsumer::from_config_and_context(&cluster.options.member(group), shares)
        .and_then(|consumer| consumer.subscribe(&topics).map(|()| consumer))
        .map_err(|error| cluster.error(&format!("joining group {group}"), &error, Duration::ZERO))
}

impl Member for Joined {
    fn poll(&mut self, timeout: Duration) -> Result<Option<RebalanceEvent>, LogError> {
        self.hand_over()?;
        self.poll_commit()?;
        let deadline = Deadline::after(timeout);
        loop {
            let next = lock(&self.consumer.context().events).pop_front();
            if let Some(event) = next {
                return match event {
                    Ok(event) => Ok(Some(self.pass_on(event))),
                    Err(error) => Err(self.error("following the sharing-out of", &error)),
                };
            }
            let event = self.consumer.poll(deadline.left());
            // While brokers are away the library queues hundreds of errors. Drain them all, even
            // past the deadline: one per poll would delay the rebalance queued behind them by
            // minutes.
            let is_drained = event.is_none();
            match event {
                Some(Err(error)) if error.rdkafka_error_code() == Some(Code::PollExceeded) => {
                    if let Some(lost) = self.start_over()? {
                        return Ok(Some(lost));
                    }
                }
                // A rebalance follows when a missing topic appears or brokers come back.
                Some(Err(error)) if is_passing(&error) || is_missing_topic(&error) => {
                    tracing::debug!(target: "kafka", group = self.group, %error, "a member waits");
                }
                Some(Err(error)) => return Err(self.error("taking part in", &error)),
                Some(Ok(_)) | None => {}
            }
            if is_drained && deadline.passed() && lock(&self.consumer.context().events).is_empty() {
                return Ok(None);
            }
        }
    }

    fn commit(&mut self, offsets: &[(TopicPartition, u64)]) -> Result<(), LogError> {
        if offsets.is_empty() {
            return Ok(());
        }
        self.commits.unsent.extend(offsets.iter().cloned());
        self.commits.due = Some(Instant::now());
        self.send_commit()
    }

    fn rebalances(&self) -> u64 {
        self.before + self.consumer.context().rebalances.load(Ordering::Relaxed)
    }
}

impl Drop for Joined {
    /// The consumer leaves the group when it is dropped, and waits until everything is let go of.
    fn drop(&mut self) {
        let deadline = Deadline::after(LAST_COMMIT);
        while (self.commits.running.is_some() || self.commits.due.is_some()) && !deadline.passed() {
            // The commit may be waiting for a rebalance that needs this member to poll.
            self.consumer.poll(Duration::from_millis(10));
            if self.poll_commit().is_err() {
                break;
            }
        }
        self.consumer.context().closing.store(true, Ordering::SeqCst);
        let left = std::mem::take(&mut *lock(&self.consumer.context().events));
        let unseen = left.into_iter().filter_map(|event| match event {
            Ok(RebalanceEvent::Revoking(which)) => Some(which),
            _ => None,
        });
        self.leaving.extend(unseen.flatten());
        if let Err(error) = self.hand_over() {
            tracing::warn!(target: "kafka", group = self.group, %error, "a member leaves without a word");
        }
        if Arc::strong_count(&self.consumer) > 1 {
            // A commit still running keeps the consumer alive; leave the group without it.
            self.consumer.unsubscribe();
        }
    }
}

fn is_missing_topic(error: &KafkaError) -> bool {
    matches!(error.rdkafka_error_code(), Some(Code::UnknownTopicOrPartition | Code::UnknownTopic))
}

/// The group is rebalancing, or went on without this member, which will learn of it.
fn of_a_rebalance(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(
        code,
        Some(
            Code::RebalanceInProgress
                | Code::IllegalGeneration
                | Code::UnknownMemberId
                | Code::FencedInstanceId
                | Code::WaitingForCoordinator
        )
    )
}
