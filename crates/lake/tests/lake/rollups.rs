//! A sum is the same whether it is read from the table that the query names, from a rollup, or from
//! rows that are not merged yet.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use arrow::util::pretty::pretty_format_batches;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::SessionContext;
use tidegate_lake::catalog::rollup::rewrite_onto_rollups;
use tidegate_lake::catalog::{Catalog, committed_catalog};
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::pipeline::{Plan, shipped};
use tidegate_lake::testing::equivalence::{Delivery, ViewSelection, tables_after};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::histories::{history, samples};

/// What a query is answered from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum From {
    /// This rollup.
    Rollup(&'static str),
    /// Rows of its own table that are not merged.
    Parts,
    /// The table as it names it.
    Table,
}
use self::From::{Parts, Rollup, Table};

/// `LATE` is half an hour and a second after the first window.
const QUERIES: [(&str, From); 24] = [
    ("SELECT node, sum(us_sampled), max(gpu_index) FROM gpu_1m GROUP BY node", Rollup("gpu_1h")),
    ("SELECT sum(samples) FROM gpu_1m WHERE mig_uuid IS NULL AND window_start >= LATE", Rollup("gpu_1h")),
    ("SELECT date_trunc('day', window_start), sum(energy_mj) FROM gpu_1m GROUP BY 1", Rollup("gpu_1h")),
    ("SELECT max(s) FROM (SELECT node, sum(samples) AS s FROM gpu_1m GROUP BY node) AS t", Rollup("gpu_1h")),
    (
        "SELECT x.node, sum(x.samples) FROM gpu_1m AS x GROUP BY 1 HAVING sum(x.samples) > 50",
        Rollup("gpu_1h"),
    ),
    ("SELECT (SELECT sum(samples) FROM gpu_1m) / count(*) FROM usage_1h", Rollup("gpu_1h")),
    (
        "SELECT team, sum(gpu_ms_held) FROM usage_1h WHERE window_start >= LATE GROUP BY team",
        Rollup("usage_1d"),
    ),
    // As the question of the table asks.
    (
        "SELECT node, max(gpu_index) AS gpu_index, 1000 * sum(energy_mj) / nullif(sum(energy_known_us), 0) \
         FROM gpu_1m WHERE mig_uuid IS NULL AND window_start >= LATE \
         GROUP BY cluster, node, gpu_uuid ORDER BY node, gpu_index LIMIT 100",
        Rollup("gpu_1h"),
    ),
    ("SELECT node, window_start, sum(samples) FROM gpu_1m GROUP BY node, window_start", Parts),
    ("SELECT sum(samples) FROM gpu_1h WHERE window_start >= LATE", Parts),
    (
        "SELECT gpu_uuid, sum(energy_mj) / nullif(sum(us_sampled), 0) FROM gpu_1h GROUP BY gpu_uuid ORDER BY 1",
        Parts,
    ),
    ("SELECT sum(samples) FILTER (WHERE node = 'n1'), min(window_start), max(node) FROM gpu_1m", Parts),
    (
        "SELECT node || '!', sum(samples) FROM gpu_1m WHERE date_part('minute', window_start) < 30 GROUP BY 1",
        Parts,
    ),
    ("SELECT a.node, sum(a.samples) FROM gpu_1h AS a WHERE a.node <> 'n2' GROUP BY a.node", Parts),
    ("SELECT window_start, max(gpu_index) FROM gpu_1m GROUP BY window_start", Parts),
    ("SELECT count(*) FROM gpu_1m", Table),
    ("SELECT sum(samples) FROM gpu_1m WHERE samples > 10", Table),
    ("SELECT samples, sum(us_sampled) FROM gpu_1m GROUP BY samples", Table),
    ("SELECT avg(samples), min(samples), max(samples) FROM gpu_1m", Table),
    ("SELECT sum(DISTINCT samples) FROM gpu_1m", Table),
    ("SELECT sum(samples + 1) FROM gpu_1m", Table),
    ("SELECT sum(a.samples) FROM gpu_1m a JOIN gpu_1h b ON a.gpu_uuid = b.gpu_uuid", Table),
    (
        "SELECT o.node, (SELECT sum(u.samples) FROM gpu_1m u WHERE u.node = o.node AND u.window_start >= LATE) \
         FROM (SELECT DISTINCT node FROM gpu_1m) AS o",
        Table,
    ),
    ("WITH gpu_1m AS (SELECT 3 AS samples) SELECT sum(samples) FROM gpu_1m", Table),
];

fn session() -> SessionContext {
    let limits = Limits { threads: 2, ..Limits::default() };
    engine::session(&engine::runtime(limits).unwrap(), limits)
}

async fn logical(ctx: &SessionContext, sql: &str) -> LogicalPlan {
    ctx.state().create_logical_plan(sql).await.unwrap()
}

/// The rows, sorted as text, and the plan that made them.
async fn answer(ctx: &SessionContext, plan: LogicalPlan) -> (Vec<String>, String) {
    let plan: Arc<dyn ExecutionPlan> = ctx.state().create_physical_plan(&plan).await.unwrap();
    let rows = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
    let table = pretty_format_batches(&rows).unwrap().to_string();
    let mut lines: Vec<String> = table.lines().skip(3).map(str::to_owned).collect();
    lines.sort();
    (lines, displayable(plan.as_ref()).indent(true).to_string())
}

/// What it is answered from, by the files that the plan reads and by what it groups.
fn source(plan: &str, sql: &str) -> From {
    for rollup in ["gpu_1h", "usage_1d"] {
        if plan.contains(&format!("lake/{rollup}/")) && !sql.contains(&format!("FROM {rollup} ")) {
            return Rollup(rollup);
        }
    }
    // A merge groups by all columns of the key.
    match plan.lines().any(|line| line.contains("gby=[") && line.contains("gpu_model")) {
        true => Table,
        false => Parts,
    }
}

async fn lake(folder: &std::path::Path) -> Catalog {
    let wanted = ["gpu_1h", "usage_1d", "device_holds"].map(str::to_owned).to_vec();
    let plan = Plan::compile(with_dependencies(shipped(), wanted)).await.unwrap();
    let root = Url::from_directory_path(folder.join("lake")).unwrap();
    let mut events = history(4, 40);
    events.extend(samples(4, 60));
    // Commits at random places, so that windows are in several parts.
    tables_after(&plan, &root, &events, Delivery::RandomCuts, 4, ViewSelection::Only("no view"))
        .await
        .unwrap();
    committed_catalog(&root, &plan, Limits::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sums_are_the_same_wherever_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = lake(folder.path()).await;
    let (plain, named) = (session(), session());
    catalog.register(&plain).unwrap();
    catalog.register_named(&named).unwrap();
    let first: Vec<RecordBatch> =
        plain.sql("SELECT min(window_start) FROM gpu_1m").await.unwrap().collect().await.unwrap();
    let first = first[0].column(0).as_primitive::<TimestampMicrosecondType>().value(0);
    let late = format!("to_timestamp_micros({})", first + 1_801_000_000);
    for (sql, from) in QUERIES {
        let sql = sql.replace("LATE", &late);
        let (expected, _) = answer(&plain, logical(&plain, &sql).await).await;
        let plan = rewrite_onto_rollups(&named, &catalog, logical(&named, &sql).await).unwrap();
        let (found, plan) = answer(&named, plan).await;
        assert_eq!(found, expected, "{sql}");
        assert!(found.len() > 1, "{sql} has rows");
        if !sql.contains("WITH") && !sql.contains("JOIN") {
            assert_eq!(source(&plan, &sql), from, "{sql}\n{plan}");
        }
    }
}

/// A view that sums up minutes by columns of their key does not merge them first.
#[tokio::test(flavor = "multi_thread")]
async fn views_read_rows_that_are_not_merged() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = lake(folder.path()).await;
    let ctx = session();
    catalog.register(&ctx).unwrap();
    let by_view = "SELECT cluster, max(sampled_to) AS sampled_to FROM device_holds GROUP BY cluster";
    let from_minutes = "SELECT h.cluster, plus_ms(max(m.window_start), 60000) AS sampled_to \
                        FROM (SELECT DISTINCT cluster FROM gpu_holds WHERE from_time IS NOT NULL) h \
                        LEFT JOIN gpu_1m m ON m.cluster = h.cluster GROUP BY h.cluster";
    let (expected, merging) = answer(&ctx, logical(&ctx, from_minutes).await).await;
    let (found, plan) = answer(&ctx, logical(&ctx, by_view).await).await;
    assert_eq!(found, expected);
    assert!(found.len() > 1, "it has rows");
    assert_eq!((source(&merging, from_minutes), source(&plan, "FROM gpu_1h ")), (Table, Parts), "{plan}");
}
