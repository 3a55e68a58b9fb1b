//! A ledger that is the truth is found to be it, and one that is not is not.

use crate::bench::ledger::scenes;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringViewArray, TimestampMicrosecondArray};
use arrow::datatypes::DataType;
use datafusion::datasource::MemTable;
use tidegate_lake::catalog::Catalog;
use tidegate_lake::catalog::CatalogSource;
use tidegate_lake::table::{Column, Layout, TableSpec, timestamp_type};
use tidegate_server::QueryLimits;

use super::*;

/// Minute, node, class, pool, team, job.
type Key = (i64, Option<String>, &'static str, &'static str, Option<&'static str>, Option<String>);

/// The truth as a ledger has it: whole ms by minute and node, of which none is lost to rounding.
fn ledger(day: &Day) -> Vec<(Key, i64)> {
    let mut time: BTreeMap<Key, i64> = BTreeMap::new();
    let mut add = |span: Span, weight: i64, key: &dyn Fn(i64) -> Key| {
        let first_ms = span.from_ms.div_euclid(MINUTE_MS) * MINUTE_MS;
        for start_ms in (first_ms..span.to_ms).step_by(MINUTE_MS as usize) {
            let ms = span.to_ms.min(start_ms + MINUTE_MS) - span.from_ms.max(start_ms);
            *time.entry(key(start_ms)).or_default() += ms * weight;
        }
    };
    for (place, unit) in day.fleet.units.iter().enumerate() {
        let node = &day.fleet.nodes[unit.node];
        for piece in day.pieces(place) {
            let job = piece.by.map(|by| &day.jobs[by.job]);
            add(piece.span, unit.weight(), &|start_ms| {
                let (team, id) = (job.map(|job| job.team), job.map(|job| job.id.clone()));
                (start_ms, Some(node.name.clone()), piece.class.name(), node.pool, team, id)
            });
        }
    }
    let node = &day.fleet.nodes[day.fleet.of_pool(BURST)[0]];
    let missing = Span { from_ms: day.reserved.from_ms, to_ms: node.registered.from_ms };
    add(missing, WHOLE * GPUS_PER_NODE as i64, &|start_ms| {
        (start_ms, None, Class::NotProvisioned.name(), BURST, None, None)
    });
    let (mut before, mut rest) = (None, 0);
    let whole = |(key, time): (Key, i64)| {
        let of = Some((key.0, key.1.clone()));
        rest = if before == of { rest } else { 0 } + time;
        before = of;
        let ms = rest / WHOLE;
        rest -= ms * WHOLE;
        (key, ms)
    };
    time.into_iter().map(whole).collect()
}

async fn compared(day: &Day, rows: Vec<(Key, i64)>) -> Compared {
    let column = |name: &str, data_type| Column { name: name.into(), data_type, doc: String::new() };
    let text = DataType::Utf8View;
    let spec = Arc::new(TableSpec {
        name: LEDGER.into(),
        version: 1,
        doc: String::new(),
        layout: Layout::Keyed,
        columns: vec![
            column("window_start", timestamp_type()),
            column("node", text.clone()),
            column("class", text.clone()),
            column("pool", text.clone()),
            column("team", text.clone()),
            column("job_id", text),
            column("gpu_ms", DataType::Int64),
        ],
        key: vec!["window_start".into()],
        partials: Vec::new(),
    });
    let texts = |of: fn(&Key) -> Option<&str>| {
        Arc::new(rows.iter().map(|(key, _)| of(key)).collect::<StringViewArray>())
    };
    let starts: TimestampMicrosecondArray = rows.iter().map(|(key, _)| Some(key.0 * 1_000)).collect();
    let batch = RecordBatch::try_new(
        spec.public_schema(),
        vec![
            Arc::new(starts.with_timezone("UTC")),
            texts(|key| key.1.as_deref()),
            texts(|key| Some(key.2)),
            texts(|key| Some(key.3)),
            texts(|key| key.4),
            texts(|key| key.5.as_deref()),
            Arc::new(rows.iter().map(|(_, ms)| Some(*ms)).collect::<Int64Array>()),
        ],
    );
    let table = MemTable::try_new(spec.public_schema(), vec![vec![batch.unwrap()]]).unwrap();
    let mut catalog = Catalog::default();
    catalog.tables.insert(LEDGER.into(), Arc::new(table));
    catalog.specs.insert(LEDGER.into(), spec);
    let service = QueryService::new(CatalogSource::fixed(catalog), QueryLimits::default()).unwrap();
    let truth = Truth::new(day, &vec![Vec::new(); day.fleet.nodes.len()]);
    compare(&service, day, &truth).await.unwrap()
}

#[tokio::test]
async fn the_truth_is_without_error_and_closed() {
    let day = scenes::generate(3, 1, 3);
    let compared = compared(&day, ledger(&day)).await;
    assert!(compared.largest_error_ppm.is_some_and(|ppm| ppm < 50.0), "{compared:?}");
    assert!(compared.largest_of_jobs.iter().all(|error| error.error_ppm.abs() < 50.0));
    assert_eq!((compared.closed, compared.windows_off), (Some(true), Some(0)), "{:?}", compared.examples_off);
    assert!(compared.windows.is_some_and(|windows| windows > 200));
    let unknown = compared.classes.last().unwrap();
    assert_eq!((compared.classes.len(), unknown.class.as_str(), unknown.ledger_ms), (20, "unknown", Some(0)));
}

#[tokio::test]
async fn errors_are_found_and_named() {
    let day = scenes::generate(3, 1, 3);
    let mut rows = ledger(&day);
    let worst = rows.iter().position(|(key, ms)| key.2 == "productive" && *ms > 30_000).unwrap();
    let (node, start_ms) = (rows[worst].0.1.clone(), rows[worst].0.0);
    rows[worst].1 += 10_000_000;
    let stranger = rows.len() - 1;
    rows[stranger].0.2 = "lost";
    let compared = compared(&day, rows).await;
    let ppm = 10_000_000.0 * 1e6 / (day.paid() as f64 / WHOLE as f64);
    assert!((compared.largest_error_ppm.unwrap() - ppm).abs() < ppm * 0.01);
    assert_eq!(compared.largest_of_jobs[0].class, "productive");
    assert_eq!((compared.closed, compared.windows_off), (Some(false), Some(1)));
    let off = &compared.examples_off[0];
    assert_eq!((off.start_ms, &off.node, off.ledger_ms - off.provisioned_ms), (start_ms, &node, 10_000_000));
    assert!(compared.classes.iter().any(|of| of.class == "lost (no class)"), "{:?}", compared.classes);
}
