//! Opening balances of the past: of all history, the rows that the windows of one span of days can
//! depend on. An import of years and repairs of old windows go through history in such spans, so
//! their memory depends on the jobs of a span and their nodes, not on all that ever ran.
//!
//! It keeps no rows in memory between spans, as [`Opening`](super::opening::Opening) does. For each
//! span it reads the keys of jobs from the files, passing over files of attempts from other times,
//! and then the full rows of the span's jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int64Array, RecordBatch, TimestampMicrosecondArray};
use datafusion::datasource::MemTable;
use hashbrown::{HashMap, HashSet};

use super::node_reports::NodeReports;
use super::opening::{Balance, JOBS, MODELS, Model, NODES, OF_JOBS, models_of, models_table};
use crate::batch::{compact, conform};
use crate::delta::DeltaStore;
use crate::error::Result;
use crate::pipeline::plan::Plan;
use crate::table::KEY;
use crate::window::{MICROS_PER_DAY, Span, floor_to};

/// Waits and runs of jobs that begin in a span, each counted once for each of its nodes, at most,
/// unless one day has more.
pub(in crate::lake) const JOBS_AT_ONCE: usize = 100_000;
/// Fewer attempts than this part of it are not counted: they fit, on up to so many nodes each.
const MANY_NODES: usize = 64;
/// Rows that are decoded at a time.
const ROWS_AT_ONCE: usize = 64 * 1024;
/// Begin and end of what a row of a keyed table of jobs says, if it has them.
const INTERVALS: [(&str, &str); 2] = [("from_time", "to_time"), ("queued_from", "queued_to")];

type Stores = BTreeMap<String, DeltaStore>;

/// History in spans of whole days, so that the jobs of each fit into memory.
#[derive(Debug)]
pub(super) struct Past {
    /// The newest first; the first has no end, the last no beginning. µs.
    pub spans: Vec<Span>,
    models: BTreeSet<Model>,
    /// Time range of the waits and runs in each file of attempts, µs.
    files: HashMap<String, Span>,
}

impl Past {
    /// `None` if there are few jobs: of these, all history can be computed at any time. With one
    /// span, all jobs fit into memory at once.
    pub async fn divide(stores: &Stores, jobs_at_once: usize) -> Result<Option<Self>> {
        let attempts: usize = match stores.get(OF_JOBS[0]) {
            Some(store) => store.files()?.iter().filter_map(|file| file.rows()).sum::<u64>() as usize,
            None => 0,
        };
        if attempts <= jobs_at_once / MANY_NODES {
            return Ok(None);
        }
        let (mut begun, mut models, mut files) = (BTreeMap::new(), BTreeSet::new(), HashMap::new());
        let store = &stores[OF_JOBS[0]];
        for file in store.files()? {
            let columns = [
                "cluster",
                "pool",
                "gpu_model",
                "node_count",
                "from_time",
                "to_time",
                "queued_from",
                "queued_to",
            ];
            let mut hull = (i64::MAX, i64::MIN);
            for rows in store.read_columns(&file, &columns).await? {
                models.extend(models_of(&conform(&rows, &store.spec().public_schema())?)?);
                let nodes = int_column(&rows, "node_count");
                for (begins, ends) in intervals(&rows) {
                    for ((begin, end), nodes) in begins.iter().zip(ends).zip(nodes) {
                        let Some(begin) = begin else { continue };
                        hull = (hull.0.min(begin), hull.1.max(end.unwrap_or(i64::MAX)));
                        let nodes = nodes.map_or(1, |nodes| usize::try_from(nodes).unwrap_or(1).max(1));
                        *begun.entry(floor_to(begin, MICROS_PER_DAY)).or_default() += nodes;
                    }
                }
            }
            files.insert(file.path, hull);
        }
        Ok(Some(Self { spans: spans(&begun, jobs_at_once), models, files }))
    }

    /// The day that has this time and those in which the `before_us` before it lie, unless they
    /// have too many jobs. µs.
    pub fn days_of(&self, time: i64, before_us: i64) -> Span {
        let of_it = |(from, to): &&Span| *from <= time && time < *to;
        let (from, to) = self.spans.iter().find(of_it).copied().unwrap_or((i64::MIN, i64::MAX));
        let first = floor_to(time.saturating_sub(before_us).max(i64::MIN + MICROS_PER_DAY), MICROS_PER_DAY);
        let next = floor_to(time, MICROS_PER_DAY).saturating_add(MICROS_PER_DAY);
        (from.max(first), to.min(next))
    }

    /// The rows on which windows in `[from, to)` can depend.
    pub async fn balance(&self, plan: &Plan, stores: &Stores, (from, to): Span) -> Result<Balance> {
        let mut balance = Balance::of((from, to));
        if let Some(store) = stores.get(NODES) {
            let mut nodes = NodeReports::default();
            nodes.update(store, from).await?;
            match nodes.rows() {
                Some(rows) => {
                    let rows = MemTable::try_new(store.spec().public_schema(), vec![rows.to_vec()])?;
                    balance.tables.insert(NODES.into(), Arc::new(rows));
                }
                None => balance.nodes_from = i64::MAX,
            }
        }
        let keys = self.keys_in(stores, (from, to)).await?;
        for name in OF_JOBS.into_iter().chain([JOBS]) {
            let Some(store) = stores.get(name) else { continue };
            let rows = MemTable::try_new(store.spec().public_schema(), vec![rows_of(store, &keys).await?])?;
            balance.tables.insert(name.into(), Arc::new(rows));
        }
        if let Some(view) = plan.views.iter().find(|view| view.spec.name == MODELS) {
            balance.tables.insert(MODELS.into(), models_table(view, &self.models)?);
        }
        Ok(balance)
    }

    /// Keys with a row of which an interval meets the span.
    async fn keys_in(&self, stores: &Stores, (from, to): Span) -> Result<HashSet<i64>> {
        let mut keys = HashSet::new();
        let columns: Vec<&str> =
            [KEY].into_iter().chain(INTERVALS.iter().flat_map(|(a, b)| [*a, *b])).collect();
        for store in OF_JOBS.iter().filter_map(|name| stores.get(*name)) {
            for file in store.files()? {
                if self.files.get(&file.path).is_some_and(|(first, last)| *first >= to || *last < from) {
                    continue;
                }
                for rows in store.read_columns(&file, &columns).await? {
                    let key = int_column(&rows, KEY);
                    for (begins, ends) in intervals(&rows) {
                        let meets = |row: &usize| {
                            let end = if ends.is_valid(*row) { ends.value(*row) } else { i64::MAX };
                            begins.is_valid(*row) && begins.value(*row) < to && end >= from
                        };
                        keys.extend((0..rows.num_rows()).filter(meets).map(|row| key.value(row)));
                    }
                }
            }
        }
        Ok(keys)
    }
}

/// Divides time, given how many intervals begin on each day.
fn spans(begun: &BTreeMap<i64, usize>, jobs_at_once: usize) -> Vec<Span> {
    let (mut spans, mut to, mut count) = (Vec::new(), i64::MAX, 0);
    for (day, jobs) in begun.iter().rev() {
        if count > 0 && count + jobs > jobs_at_once {
            let from = day + MICROS_PER_DAY;
            spans.push((from, to));
            (to, count) = (from, 0);
        }
        count += jobs;
    }
    spans.push((i64::MIN, to));
    spans
}

/// All rows of these keys, public columns.
async fn rows_of(store: &DeltaStore, keys: &HashSet<i64>) -> Result<Vec<RecordBatch>> {
    let schema = store.spec().public_schema();
    let mut found = Vec::new();
    for file in store.files()? {
        let holds = |rows: &RecordBatch| -> BooleanArray {
            int_column(rows, KEY).values().iter().map(|key| Some(keys.contains(key))).collect()
        };
        let wanted: Vec<_> = store.read_columns(&file, &[KEY]).await?.iter().map(holds).collect();
        if wanted.iter().all(|wanted| wanted.true_count() == 0) {
            continue;
        }
        for rows in store.wanted_rows_of(&file, &wanted, ROWS_AT_ONCE).await? {
            found.push(compact(&conform(&rows?, &schema)?)?);
        }
    }
    Ok(found)
}

fn int_column<'a>(rows: &'a RecordBatch, name: &str) -> &'a Int64Array {
    rows.column_by_name(name).expect("a column of tables of jobs").as_primitive()
}

/// Begins and ends of what rows say, each kind that they have.
fn intervals(rows: &RecordBatch) -> Vec<(&TimestampMicrosecondArray, &TimestampMicrosecondArray)> {
    let times = |name: &str| Some(rows.column_by_name(name)?.as_primitive());
    INTERVALS.iter().filter_map(|(begin, end)| Some((times(begin)?, times(end)?))).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::ArrayRef;
    use datafusion::prelude::SessionContext;
    use url::Url;

    use super::*;
    use crate::delta::Change;
    use crate::pipeline::shipped;
    use crate::table::{OPEN, PARTITION, TableSpec};

    fn day(number: i64) -> i64 {
        number * MICROS_PER_DAY
    }

    #[test]
    fn spans_hold_few_jobs_and_leave_out_no_time() {
        let begun = BTreeMap::from([(day(1), 3), (day(2), 3), (day(5), 9), (day(6), 1), (day(7), 3)]);
        let expected = [(day(6), i64::MAX), (day(3), day(6)), (day(2), day(3)), (i64::MIN, day(2))];
        assert_eq!(spans(&begun, 5), expected);
        assert_eq!(spans(&begun, 100), [(i64::MIN, i64::MAX)]);
    }

    /// A key and the times, µs, of one row of it, on two nodes.
    type Row = (i64, [Option<i64>; 4]);

    async fn store(root: &Url, spec: Arc<TableSpec>, rows: &[Row]) -> DeltaStore {
        let mut store = DeltaStore::open_or_create(root, spec).await.unwrap();
        add(&mut store, rows).await;
        store
    }

    /// Adds a file.
    async fn add(store: &mut DeltaStore, rows: &[Row]) {
        let time = |at: usize| -> ArrayRef {
            let times: TimestampMicrosecondArray = rows.iter().map(|(_, times)| times[at]).collect();
            Arc::new(times.with_timezone("UTC"))
        };
        let keys: Int64Array = rows.iter().map(|(key, _)| *key).collect();
        let columns: [(&str, ArrayRef); 7] = [
            ("node_count", Arc::new(Int64Array::from(vec![2; rows.len()]))),
            ("from_time", time(0)),
            ("to_time", time(1)),
            ("queued_from", time(2)),
            ("queued_to", time(3)),
            ("event_time", time(0)),
            (KEY, Arc::new(keys)),
        ];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let rows = conform(&rows, &store.spec().file_schema()).unwrap();
        let values = [(PARTITION, "0".to_owned()), (OPEN, "false".to_owned())];
        let values = values.into_iter().filter(|(name, _)| store.spec().partition_columns().contains(name));
        let file = store.write(values.collect(), &[rows]).await.unwrap();
        store.commit(Change { adds: file.into_iter().collect(), ..Change::default() }).await.unwrap();
    }

    async fn count(balance: &Balance, table: &str) -> usize {
        let ctx = SessionContext::new();
        ctx.read_table(Arc::clone(&balance.tables[table])).unwrap().count().await.unwrap()
    }

    #[tokio::test]
    async fn a_balance_has_the_jobs_of_its_span_whole_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let root = Url::from_directory_path(folder.path()).unwrap();
        let plan = Plan::compile(shipped()).await.unwrap();
        let spec = |name: &str| plan.tables().into_iter().find(|spec| spec.name == name).unwrap();
        // Thirty jobs of half a day, one that waits for three weeks, and one that never ends.
        let mut attempts: Vec<Row> = (0..30)
            .map(|key| (key, [Some(day(key)), Some(day(key) + MICROS_PER_DAY / 2), None, None]))
            .collect();
        attempts.push((100, [None, None, Some(day(1)), Some(day(21))]));
        attempts.push((101, [Some(day(2)), None, None, None]));
        // An earlier attempt of the job that waits.
        attempts.push((100, [Some(day(0)), Some(day(1)), None, None]));
        let events: Vec<Row> =
            attempts.iter().map(|(key, _)| (*key, [Some(day(40)), None, None, None])).collect();
        let stores = BTreeMap::from([
            ("attempts".to_owned(), store(&root, spec("attempts"), &attempts).await),
            (JOBS.to_owned(), store(&root, spec(JOBS), &events).await),
        ]);
        let spans =
            async |jobs_at_once| Past::divide(&stores, jobs_at_once).await.unwrap().unwrap().spans.len();
        assert_eq!(spans(2 * attempts.len()).await, 1);
        assert_eq!(spans(2 * attempts.len() - 1).await, 2, "two nodes each");
        assert!(Past::divide(&stores, MANY_NODES * attempts.len()).await.unwrap().is_none(), "few");
        let past = Past::divide(&stores, 10).await.unwrap().unwrap();
        assert!(past.spans.len() > 5, "{:?}", past.spans);
        let (from, to) = past.days_of(day(12) + 5, i64::MAX);
        assert!(past.spans.iter().any(|span| span.0 == from), "{from}");
        assert_eq!(past.days_of(day(12) + 5, 6), (day(11).max(from), day(13)));
        assert_eq!(past.days_of(day(12), 0), (day(12), day(13)));
        let inside = (0..30).filter(|key| day(*key) + MICROS_PER_DAY / 2 >= from && day(*key) < to).count();
        assert!((1..=5).contains(&inside), "{inside}");
        let balance = past.balance(&plan, &stores, (from, to)).await.unwrap();
        assert_eq!(count(&balance, "attempts").await, inside + 3);
        assert_eq!(count(&balance, JOBS).await, inside + 3);
        let last = past.balance(&plan, &stores, past.spans[0]).await.unwrap();
        assert!(count(&last, "attempts").await <= 6);
    }

    #[tokio::test]
    async fn files_of_other_times_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let root = Url::from_directory_path(folder.path()).unwrap();
        let plan = Plan::compile(shipped()).await.unwrap();
        let spec = plan.tables().into_iter().find(|spec| spec.name == "attempts").unwrap();
        let run = |key: i64| (key, [Some(day(key)), Some(day(key) + 1), None, None]);
        let mut attempts = store(&root, spec, &[run(1), run(2)]).await;
        add(&mut attempts, &[run(5), run(7)]).await;
        add(&mut attempts, &[run(9), (10, [None, None, Some(day(3)), None]), (11, [None; 4])]).await;
        let stores = BTreeMap::from([("attempts".to_owned(), attempts)]);
        let mut past = Past::divide(&stores, 1).await.unwrap().unwrap();
        let mut hulls: Vec<Span> = past.files.values().copied().collect();
        hulls.sort_unstable();
        let open = (day(3), i64::MAX);
        assert_eq!(hulls, [(day(1), day(2) + 1), open, (day(5), day(7) + 1)]);

        let spans: Vec<Span> = (0..12).map(|from| (day(from), day(from + 1))).collect();
        let mut found = Vec::new();
        for span in &spans {
            found.push(past.keys_in(&stores, *span).await.unwrap());
        }
        assert_eq!(found[3], HashSet::from([10]));
        assert_eq!(found[7], HashSet::from([7, 10]));
        past.files.clear();
        for (span, found) in spans.iter().zip(found) {
            assert_eq!(past.keys_in(&stores, *span).await.unwrap(), found, "of all files: {span:?}");
        }
    }
}
