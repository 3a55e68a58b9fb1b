//! What new events of nodes invalidate. What an event says of a node holds until the next event
//! that says the same, so a late one changes no more than the time between.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Array, AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::TimestampMicrosecondType;
use datafusion::logical_expr::Expr;
use datafusion::prelude::{SessionContext, ident, lit};
use futures::StreamExt;
use tidegate_events::SchemaId;

use super::Lake;
use crate::batch::conform;
use crate::error::Result;
use crate::pipeline::plan::Plan;
use crate::state::GroupState;
use crate::window::Span;

/// Pipelines that read raw events of nodes for joined tables, and of which it is known here what
/// they make of a late event.
pub(super) const READERS: [&str; 5] =
    ["node_capacity", "device_faults", "watched", "price_of", "sample_intervals"];

/// Kinds of events that these read. Of others they read the pool and the model.
const KINDS: [&str; 8] = [
    "NODE_REGISTERED",
    "NODE_REMOVED",
    "STATE_CHANGED",
    "DEVICE_LOST",
    "DEVICE_FOUND",
    "DEVICE_STALE",
    "DEVICE_ANSWERS",
    "COLLECTOR_STARTED",
];
/// Events that late ones are compared with, at most. Beside more of them, a late event invalidates
/// everything since.
const MAX_REPORTS: usize = 200_000;

/// A pool and a model.
type Named = (Option<String>, Option<String>);

/// What an event says of a node, less the values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Report {
    cluster: String,
    node: String,
    time: i64,
    says: Says,
    /// Pool and model that it names.
    named: Named,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Says {
    /// The node exists; which of pool, model and number of GPUs it has.
    Registered([bool; 3]),
    Removed,
    State,
    /// Something of this device: UUID and MIG slice.
    Device(String, String),
    AgentStarted,
    /// Nothing that a joined table depends on.
    Nothing,
}

impl Says {
    /// Whether nothing of what `self` says holds after an event that says `later`.
    fn ends_with(&self, later: &Self) -> bool {
        match (self, later) {
            // A field that a later registration does not state keeps its value.
            (Self::Registered(fields), Self::Registered(later)) => {
                fields.iter().zip(later).all(|(stated, later)| !stated || *later)
            }
            (Self::Removed, Self::Registered(_) | Self::Removed) | (Self::State, Self::State) => true,
            (Self::Device(..), Self::Device(..)) => self == later,
            _ => false,
        }
    }
}

impl Lake {
    /// The spans that uncommitted events of nodes invalidate; `None` for another group.
    pub(super) async fn node_spans(&self, state: &GroupState) -> Result<Option<Vec<Span>>> {
        if state.raw().schema != SchemaId::NodeEvent || !state.group.feeds_joined {
            return Ok(None);
        }
        let uncommitted = state.raw_rows_from(state.committed)?;
        let Some(first) = uncommitted.iter().filter_map(first_time).min() else {
            return Ok(Some(Vec::new()));
        };
        let is_late =
            state.closed_before.max(self.joined_watermark).is_some_and(|watermark| first < watermark);
        if !is_late || !has_known_readers(&self.plan) {
            return Ok(Some(vec![(first, i64::MAX)]));
        }
        let new: Vec<Report> = uncommitted.iter().flat_map(reports).collect();
        let Some(first) = new.iter().map(|report| report.time).min() else { return Ok(Some(Vec::new())) };
        let ctx = self.session();
        let names = self.known_names(&ctx, state, &new).await?;
        let mut all = new.clone();
        let since = ident("event_time").gt_eq(time(first)).and(is_of_kinds());
        let is_whole = self
            .each_committed(&ctx, state, since, |report| {
                all.push(report);
                all.len() <= MAX_REPORTS
            })
            .await?;
        Ok(Some(if is_whole { invalidated(&new, &all, &names) } else { vec![(first, i64::MAX)] }))
    }

    /// Passes on the committed events of a group that meet a condition and say something, for as
    /// long as `take` returns true. Returns whether it got all of them.
    async fn each_committed(
        &self,
        ctx: &SessionContext,
        state: &GroupState,
        condition: Expr,
        mut take: impl FnMut(Report) -> bool,
    ) -> Result<bool> {
        let spec = &state.raw().spec;
        let rows = ctx.read_table(self.stores[&spec.name].provider().await?)?.filter(condition)?;
        let mut stream = rows.execute_stream().await?;
        while let Some(rows) = stream.next().await {
            if !reports(&conform(&rows?, &spec.public_schema())?).into_iter().all(&mut take) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Committed events that name a pool or a model, or the start of an agent: asked only if a new
    /// one does.
    async fn known_names(
        &self,
        ctx: &SessionContext,
        state: &GroupState,
        new: &[Report],
    ) -> Result<LastingFacts> {
        let mut known = LastingFacts::default();
        if new.iter().all(|report| report.named == (None, None) && report.says != Says::AgentStarted) {
            return Ok(known);
        }
        let names = ident("pool").is_not_null().or(ident("gpu_model").is_not_null());
        let starts = ident("kind").eq(lit("COLLECTOR_STARTED"));
        self.each_committed(ctx, state, names.or(starts), |report| {
            known.add(&report);
            true
        })
        .await?;
        Ok(known)
    }
}

/// What committed events say that no later event ends.
#[derive(Debug, Default)]
struct LastingFacts {
    /// When each pool and model of a cluster was first named, µs.
    named: BTreeMap<(String, Named), i64>,
    /// Whether a node of a cluster ever stated its pool, and its model.
    stated: BTreeMap<(String, String), [bool; 2]>,
    /// When the first agent, and the first node, of each cluster reported, µs.
    first_agent: BTreeMap<String, i64>,
    first_node: BTreeMap<String, i64>,
}

impl LastingFacts {
    fn add(&mut self, report: &Report) {
        let earliest = |times: &mut BTreeMap<String, i64>| {
            let first = times.entry(report.cluster.clone()).or_insert(report.time);
            *first = report.time.min(*first);
        };
        match report.says {
            Says::AgentStarted => earliest(&mut self.first_agent),
            Says::Registered(_) => earliest(&mut self.first_node),
            _ => {}
        }
        if report.named != (None, None) {
            let name = (report.cluster.clone(), report.named.clone());
            let first = self.named.entry(name).or_insert(report.time);
            *first = report.time.min(*first);
            let node = (report.cluster.clone(), report.node.clone());
            let stated = self.stated.entry(node).or_default();
            stated[0] |= report.named.0.is_some();
            stated[1] |= report.named.1.is_some();
        }
    }

    /// Whether the event changes something that lasts.
    fn is_changed_by(&self, report: &Report) -> bool {
        let is_first = |times: &BTreeMap<String, i64>| {
            times.get(&report.cluster).is_none_or(|first| report.time < *first)
        };
        let first = match report.says {
            Says::AgentStarted => is_first(&self.first_agent),
            Says::Registered(_) => is_first(&self.first_node),
            _ => false,
        };
        let names = match (report.named.0.is_some(), report.named.1.is_some()) {
            (false, false) => false,
            (true, true) => self.is_news(report),
            // The node's other field, stated at another time, may make a pair that is new.
            (states_pool, _) => {
                let node = (report.cluster.clone(), report.node.clone());
                self.is_news(report) || self.stated.get(&node).is_some_and(|of| of[usize::from(states_pool)])
            }
        };
        first || names
    }

    fn is_news(&self, report: &Report) -> bool {
        let name = (report.cluster.clone(), report.named.clone());
        self.named.get(&name).is_none_or(|first| report.time < *first)
    }
}

/// The spans in which new events say something; `all` has them and all other events since.
fn invalidated(new: &[Report], all: &[Report], known: &LastingFacts) -> Vec<Span> {
    let mut by_node: BTreeMap<(&str, &str), Vec<&Report>> = BTreeMap::new();
    for report in all {
        by_node.entry((&report.cluster, &report.node)).or_default().push(report);
    }
    let span = |report: &Report| {
        if known.is_changed_by(report) {
            return Some((report.time, i64::MAX));
        }
        if matches!(report.says, Says::Nothing | Says::AgentStarted) {
            return None;
        }
        let later = by_node[&(report.cluster.as_str(), report.node.as_str())].iter();
        let end = later.filter(|later| later.time > report.time && report.says.ends_with(&later.says));
        Some((report.time, end.map(|later| later.time).min().unwrap_or(i64::MAX)))
    };
    new.iter().filter_map(span).collect()
}

/// Whether joined tables read events of nodes only in ways that are known here.
fn has_known_readers(plan: &Plan) -> bool {
    let table = raw_name();
    let mut open: Vec<&str> = plan.joined.iter().map(|planned| planned.spec.name.as_str()).collect();
    let mut seen = BTreeSet::new();
    while let Some(name) = open.pop() {
        let Some(planned) = plan.pipelines().find(|planned| planned.spec.name == name) else { continue };
        if !seen.insert(name) {
            continue;
        }
        if planned.pipeline.sources.contains(&table) && !READERS.contains(&name) {
            return false;
        }
        open.extend(planned.pipeline.sources.iter().map(String::as_str));
    }
    true
}

fn raw_name() -> String {
    let table = crate::raw::raw_tables().into_iter().find(|table| table.schema == SchemaId::NodeEvent);
    table.expect("every schema has a raw table").spec.name.clone()
}

fn is_of_kinds() -> Expr {
    ident("kind").in_list(KINDS.map(lit).to_vec(), false)
}

/// Whether each event says something that a joined table depends on.
pub(super) fn is_informative(rows: &RecordBatch) -> Vec<bool> {
    let text = |name: &str| rows.column_by_name(name).expect("a column of node_events").as_string_view();
    let (kinds, pools, models) = (text("kind"), text("pool"), text("gpu_model"));
    let says = |row| KINDS.contains(&kinds.value(row)) || pools.is_valid(row) || models.is_valid(row);
    (0..rows.num_rows()).map(says).collect()
}

/// Time of the earliest event, µs.
fn first_time(rows: &RecordBatch) -> Option<i64> {
    let times = rows.column_by_name("event_time").expect("a column of node_events");
    times.as_primitive::<TimestampMicrosecondType>().values().iter().copied().min()
}

/// The events that say something.
fn reports(rows: &RecordBatch) -> Vec<Report> {
    let column = |name: &str| rows.column_by_name(name).expect("a column of node_events");
    let text = |name| column(name).as_string_view();
    let times = column("event_time").as_primitive::<TimestampMicrosecondType>().values();
    let (clusters, nodes, kinds) = (text("cluster"), text("node"), text("kind"));
    let (pools, models, uuids, migs) = (text("pool"), text("gpu_model"), text("gpu_uuid"), text("mig_uuid"));
    let value = |of: &StringViewArray, row| of.is_valid(row).then(|| of.value(row).to_owned());
    let report = |row: usize| Report {
        cluster: value(clusters, row).unwrap_or_default(),
        node: value(nodes, row).unwrap_or_default(),
        time: times[row],
        says: match kinds.value(row) {
            "NODE_REGISTERED" => {
                Says::Registered(["pool", "gpu_model", "gpus_milli"].map(|name| column(name).is_valid(row)))
            }
            "NODE_REMOVED" => Says::Removed,
            "STATE_CHANGED" if column("state").is_valid(row) => Says::State,
            "DEVICE_LOST" | "DEVICE_FOUND" | "DEVICE_STALE" | "DEVICE_ANSWERS" => {
                Says::Device(value(uuids, row).unwrap_or_default(), value(migs, row).unwrap_or_default())
            }
            "COLLECTOR_STARTED" => Says::AgentStarted,
            _ => Says::Nothing,
        },
        named: (value(pools, row), value(models, row)),
    };
    let says = is_informative(rows).into_iter().enumerate().filter(|(_, says)| *says);
    says.map(|(row, _)| report(row)).collect()
}

fn time(us: i64) -> Expr {
    let value = datafusion::common::ScalarValue::TimestampMicrosecond(Some(us), Some("UTC".into()));
    lit(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(node: &str, time: i64, says: Says) -> Report {
        Report { cluster: "c".into(), node: node.into(), time, says, named: (None, None) }
    }

    #[test]
    fn a_late_event_holds_until_the_next_that_says_the_same() {
        let device = |uuid: &str| Says::Device(uuid.into(), String::new());
        let committed = [
            report("a", 1, Says::Registered([true, true, true])),
            report("a", 20, Says::State),
            report("a", 30, Says::Registered([false, false, true])),
            report("a", 40, Says::Registered([true, true, true])),
            report("a", 50, device("g0")),
            report("b", 12, Says::State),
        ];
        let mut known = LastingFacts::default();
        committed.iter().for_each(|report| known.add(report));
        let spans = |late: Report| {
            let all = [committed.as_slice(), std::slice::from_ref(&late)].concat();
            invalidated(&[late], &all, &known)
        };
        assert_eq!(spans(report("a", 10, Says::State)), [(10, 20)], "the state of b does not matter");
        assert_eq!(spans(report("a", 25, Says::State)), [(25, i64::MAX)], "it is the newest");
        assert_eq!(spans(report("a", 10, Says::Registered([true, false, true]))), [(10, 40)]);
        assert_eq!(spans(report("a", 10, Says::Registered([false, false, true]))), [(10, 30)]);
        assert_eq!(spans(report("a", 10, Says::Removed)), [(10, 30)]);
        assert_eq!(spans(report("a", 10, device("g0"))), [(10, 50)]);
        assert_eq!(spans(report("a", 10, device("g1"))), [(10, i64::MAX)]);
        assert_eq!(spans(report("a", 10, Says::Nothing)), []);
        assert_eq!(spans(report("c", 10, Says::AgentStarted)), [(10, i64::MAX)], "the first of all");
        assert_eq!(
            spans(report("d", 0, Says::Registered([false, false, true]))),
            [(0, i64::MAX)],
            "before it no node was known"
        );
        let named = Report {
            named: (Some("p".into()), None),
            ..report("a", 10, Says::Registered([true, false, true]))
        };
        assert_eq!(spans(named), [(10, i64::MAX)], "prices may be of a pool that was never named");
    }
}
