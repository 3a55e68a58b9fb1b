//! Recovery: reads a log back, and checks that it is consistent and holds everything acknowledged.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::partition::{Partition, Writer};
use super::segment::{Segment, Totals, parse_name};
use super::store::{MetaKey, Store};
use super::witness::{self, Witness};
use crate::check::Progress;
use crate::{Extent, LogError, TopicConfig, TopicPartition};

/// A topic with its partitions, by number.
pub(super) struct Topic {
    pub config: TopicConfig,
    pub partitions: Vec<Arc<Partition>>,
}

/// All topics of a store that was just opened.
pub(super) fn topics(store: &Store) -> Result<BTreeMap<String, Topic>, LogError> {
    let mut configs = BTreeMap::new();
    for (topic, config) in store.entries("topic/")? {
        let config: TopicConfig = serde_json::from_slice(&config)
            .map_err(|e| corrupt_store(store, format!("the layout of topic {topic} is unreadable: {e}")))?;
        configs.insert(topic, config);
    }
    let witnessed = witnessed_ends(store, &configs)?;
    let mut segments = segments(store, &configs)?;
    let mut producers = producers(store)?;
    let mut topics = BTreeMap::new();
    for (topic, config) in configs {
        let partition = |partition| {
            let at = TopicPartition { topic: topic.clone(), partition };
            let segments = segments.remove(&at).unwrap_or_default();
            let acknowledged = witnessed.get(&at).copied().unwrap_or(0);
            let producers = producers.remove(&at).unwrap_or_default();
            self::partition(store, at, segments, acknowledged, producers).map(Arc::new)
        };
        let partitions = (0..config.partitions).map(partition).collect::<Result<_, _>>()?;
        topics.insert(topic, Topic { config, partitions });
    }
    Ok(topics)
}

fn witnessed_ends(
    store: &Store,
    configs: &BTreeMap<String, TopicConfig>,
) -> Result<HashMap<TopicPartition, u64>, LogError> {
    let ends = witness::read_all(&store.dir)?;
    let unknown =
        ends.iter().find(|(at, _)| configs.get(&at.topic).is_none_or(|c| at.partition >= c.partitions));
    match unknown {
        Some((at, end)) => Err(corrupt_store(
            store,
            format!("topic {} partition {} with {end} acknowledged records is gone", at.topic, at.partition),
        )),
        None => Ok(ends.into_iter().collect()),
    }
}

/// Base offsets of every partition's segments, in order.
fn segments(
    store: &Store,
    configs: &BTreeMap<String, TopicConfig>,
) -> Result<HashMap<TopicPartition, Vec<u64>>, LogError> {
    let mut segments: HashMap<TopicPartition, Vec<u64>> = HashMap::new();
    for (at, base) in store.db.list_keyspace_names().iter().filter_map(|name| parse_name(name)) {
        if configs.get(&at.topic).is_none_or(|config| at.partition >= config.partitions) {
            let what = format!(
                "it holds records of topic {} partition {}, but not the topic",
                at.topic, at.partition
            );
            return Err(corrupt_store(store, what));
        }
        segments.entry(at).or_default().push(base);
    }
    segments.values_mut().for_each(|bases| bases.sort_unstable());
    Ok(segments)
}

fn producers(store: &Store) -> Result<HashMap<TopicPartition, HashMap<String, Progress>>, LogError> {
    let mut producers: HashMap<TopicPartition, HashMap<String, Progress>> = HashMap::new();
    for (name, value) in store.entries("producer/")? {
        let mut parts = name.splitn(3, '/');
        let place = (|| Some((parts.next()?, parts.next()?.parse().ok()?, parts.next()?)))();
        let Some((topic, partition, source)) = place else {
            return Err(corrupt_store(store, format!("producer/{name} names no partition and source")));
        };
        let [epoch, next_seq] = store.parse_numbers(&name, &value)?;
        let at = TopicPartition { topic: topic.into(), partition };
        producers.entry(at).or_default().insert(source.into(), Progress { epoch, next_seq });
    }
    Ok(producers)
}

/// Recovers a partition. Checks each batch of the last segment, and only the bounds of earlier
/// segments; `verify` checks all.
fn partition(
    store: &Store,
    at: TopicPartition,
    bases: Vec<u64>,
    acknowledged: u64,
    producers: HashMap<String, Progress>,
) -> Result<Partition, LogError> {
    let corrupt = |offset, what: String| LogError::Corrupt {
        topic: at.topic.clone(),
        partition: at.partition,
        offset,
        what,
    };
    let start = store.numbers::<1>(&MetaKey::Start(&at))?.map_or(0, |[start]| start);
    let stored_end = store.numbers::<1>(&MetaKey::End(&at))?.map_or(0, |[end]| end);
    if acknowledged > stored_end {
        let lost = acknowledged - stored_end;
        return Err(corrupt(stored_end, format!("{lost} acknowledged records from here on are gone")));
    }
    let (bases, unused): (Vec<u64>, Vec<u64>) = bases.into_iter().partition(|base| *base <= stored_end);
    for base in unused {
        // Made for a commit that the process did not live to write.
        let segment = Segment::open(store, &at, base)?;
        if segment.last()?.is_some() {
            return Err(corrupt(stored_end, format!("records up to {base} are missing")));
        }
        store.delete_segment(&segment.keyspace)?;
    }
    let mut segments = Vec::with_capacity(bases.len());
    for (i, base) in bases.iter().enumerate() {
        let segment = Arc::new(Segment::open(store, &at, *base)?);
        match bases.get(i + 1) {
            // A trim ended before it could delete what it had cut off.
            Some(next) if *next <= start => store.delete_segment(&segment.keyspace)?,
            Some(next) => {
                let end = segment.last()?.map_or(segment.base, |last| last.end());
                if end != *next {
                    return Err(corrupt(end, format!("records up to {next} are missing")));
                }
                segments.push(segment);
            }
            None => segments.push(segment),
        }
    }
    let first = segments.first().map_or(0, |segment| segment.base);
    if first > start {
        return Err(corrupt(start, format!("records up to {first} are missing")));
    }
    let totals = segments.last().map_or(Ok(Totals::empty(0)), Segment::scan)?;
    if totals.end != stored_end {
        return Err(corrupt(totals.end, format!("the records end here, {stored_end} were stored")));
    }
    let witness = Witness::create(&store.dir, &at, stored_end)?;
    let writer = Writer { active: segments.last().cloned(), totals, producers, witness };
    Ok(Partition::new(at.clone(), Extent { start, end: stored_end }, segments, writer))
}

fn corrupt_store(store: &Store, what: String) -> LogError {
    LogError::CorruptStore { dir: store.dir.clone(), what }
}
