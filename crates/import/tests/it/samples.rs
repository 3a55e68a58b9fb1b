//! Samples of GPUs from files.

use std::collections::BTreeMap;

use tidegate_events::{Event, v1};
use tidegate_import::{ImportOptions, ImportSummary, Mapping, import};

use crate::support::{Imported, MemoryLog, text};

const HOUR_MS: i64 = 3_600_000;
/// 2026-10-01 00:00 UTC.
const BEGIN_MS: i64 = 1_790_812_800_000;

fn run(content: &str, mapping: &str) -> (MemoryLog, ImportSummary) {
    let log = MemoryLog::default();
    let summary = import_into(&log, content, mapping);
    (log, summary)
}

fn import_into(log: &MemoryLog, content: &str, mapping: &str) -> ImportSummary {
    let options = ImportOptions { cluster: Some("c".into()), ..ImportOptions::default() };
    let mapping = Mapping::load(mapping).unwrap();
    import(text("gpus.csv", content), &mapping, &options, log, &mut |_| {}).unwrap()
}

/// Values by GPU, ms since the begin, and metric; what is missing is left out.
fn values(log: &MemoryLog) -> BTreeMap<(String, i64, String), i64> {
    let mut values = BTreeMap::new();
    for batch in batches(log) {
        let mut ticks = vec![batch.first_tick_ms];
        ticks.extend(batch.tick_delta_ms.iter().scan(batch.first_tick_ms, |at, delta| {
            *at += delta;
            Some(*at)
        }));
        for column in &batch.columns {
            let missing = |at: usize| {
                column.missing.iter().any(|run| (run.first..run.first + run.count).contains(&(at as u32)))
            };
            for (place, device) in batch.devices.iter().enumerate() {
                let mut value = 0;
                for (tick, at_ms) in ticks.iter().enumerate() {
                    let at = place * ticks.len() + tick;
                    value += column.value_delta[at];
                    if !missing(at) {
                        let gpu = device.mig_uuid.as_ref().unwrap_or(&device.uuid).clone();
                        let before = values.insert((gpu, at_ms - BEGIN_MS, column.name.clone()), value);
                        assert_eq!(before, None, "a value stands once");
                    }
                }
            }
        }
    }
    values
}

/// All batches of samples on the log.
pub fn batches(log: &MemoryLog) -> Vec<v1::GpuSampleBatch> {
    let batches = log.events("gpu-samples").into_iter().map(|event| match event {
        Event::GpuSamples(batch) => batch,
        other => panic!("not samples: {other:?}"),
    });
    batches.collect()
}

#[test]
fn rows_of_series_become_samples_whatever_their_order() {
    let rows = [
        "2026-10-01T00:00:00Z,DCGM_FI_DEV_GPU_UTIL,97,n1,0,GPU-1,H100,",
        "2026-10-01T00:01:00Z,DCGM_FI_DEV_GPU_UTIL,98,n1,0,GPU-1,H100,",
        "2026-10-01T00:00:00Z,DCGM_FI_DEV_POWER_USAGE,612.5,n1,0,GPU-1,H100,",
        "2026-10-01T00:01:00Z,DCGM_FI_DEV_POWER_USAGE,NaN,n1,0,GPU-1,H100,",
        "2026-10-01T00:01:00Z,DCGM_FI_PROF_GR_ENGINE_ACTIVE,0.25,n1,0,GPU-1,H100,3",
        "2026-10-01T01:00:00Z,power_mw,500000,n1,0,GPU-1,H100,",
        "2026-10-01T01:00:00Z,DCGM_FI_DEV_VGPU_LICENSE_STATUS,1,n1,0,GPU-1,H100,",
    ];
    let file = |rows: &[&str]| {
        format!("timestamp,metric,value,Hostname,gpu,UUID,modelName,GPU_I_ID\n{}\n", rows.join("\n"))
    };
    let (log, summary) = run(&file(&rows), "dcgm_long");
    assert_eq!((summary.rows_accepted, summary.rows_skipped, summary.rejected()), (6, 1, 0));
    let expected = [
        ("GPU-1", 0, "gpu_util_ppm", 970_000),
        ("GPU-1", 0, "interval_us", 60_000_000),
        ("GPU-1", 0, "power_mw", 612_500),
        ("GPU-1", 60_000, "gpu_util_ppm", 980_000),
        ("GPU-1", 60_000, "interval_us", 60_000_000),
        ("GPU-1", HOUR_MS, "interval_us", 60_000_000),
        ("GPU-1", HOUR_MS, "power_mw", 500_000),
        ("MIG-GPU-1/3", 60_000, "graphics_active_ppm", 250_000),
        ("MIG-GPU-1/3", 60_000, "interval_us", 60_000_000),
    ];
    let expected: BTreeMap<_, _> = expected
        .into_iter()
        .map(|(gpu, at, metric, value)| ((gpu.to_owned(), at, metric.to_owned()), value))
        .collect();
    assert_eq!(values(&log), expected);
    let device = &batches(&log)[0].devices[0];
    assert_eq!((device.model.as_str(), device.index), ("H100", 0));

    // Another order gives the same events, and they are written once.
    let mut other = rows;
    other.reverse();
    let again = import_into(&log, &file(&other), "dcgm_long");
    assert_eq!((again.events_written, again.events_already_present), (0, summary.events_written));
}

#[test]
fn counters_grow_inside_of_an_hour_and_not_over_gaps() {
    let mut rows = String::from("time,node,gpu_uuid,energy_mj\n");
    for minute in (0..120).filter(|minute| !(20..30).contains(minute)) {
        let at_s = BEGIN_MS / 1_000 + minute * 60;
        rows += &format!("{at_s},n1,GPU-1,{}\n", 1_000 * minute);
    }
    let (log, _) = run(&rows, "gpu_samples_csv");
    let batches = batches(&log);
    let spans: Vec<_> = batches
        .iter()
        .map(|batch| ((batch.first_tick_ms - BEGIN_MS) / 60_000, batch.tick_delta_ms.len() + 1))
        .collect();
    assert_eq!(spans, [(0, 20), (30, 30), (60, 60)]);
    for batch in &batches {
        let energy = batch.columns.iter().find(|column| column.name == "energy_mj").unwrap();
        assert_eq!(energy.first_growth, [-1]);
    }
    // The second hour alone gives the same event as together with the first.
    let second: Vec<&str> =
        rows.lines().filter(|line| !line.contains(",GPU-1,") || minute_of(line) >= 60).collect();
    let again = import_into(&log, &(second.join("\n") + "\n"), "gpu_samples_csv");
    assert_eq!(again.rows_accepted, 60);
    let ids: std::collections::BTreeSet<_> =
        log.events("gpu-samples").iter().map(|event| event.envelope().unwrap().event_id.clone()).collect();
    assert_eq!(ids.len(), 3);
}

fn minute_of(line: &str) -> i64 {
    (line.split(',').next().unwrap().parse::<i64>().unwrap() - BEGIN_MS / 1_000) / 60
}

#[test]
fn rows_that_are_no_samples_are_dead_letters() {
    let long = "x".repeat(300);
    let wide = format!(
        "time,node,gpu_uuid,gpu_index,gpu_util_ppm,gpu_temp_celsius\n\
         2026-10-01T00:00:00Z,n1,GPU-1,0,500000,-5\n\
         2026-10-01T00:00:00Z,n1,GPU-1,0,500000,-5\n\
         2026-10-01T00:00:00Z,n1,GPU-1,0,600000,-5\n\
         2026-10-01T00:01:00Z,n1,GPU-1,0,98500000,40\n\
         2026-10-01T00:02:00Z,n1,GPU-1,0,,N/A\n\
         2026-10-01T00:03:00Z,n1,,0,5,40\n\
         2026-10-01T00:04:00Z,n1,{long},0,5,40\n\
         2026-10-01T00:05:00Z,n1,GPU-1,-1,5,40\n\
         soon,n1,GPU-1,0,5,40\n"
    );
    let (log, summary) = run(&wide, "gpu_samples_csv");
    assert_eq!((summary.rows_accepted, summary.rows_duplicate, summary.rejected()), (1, 1, 7));
    let codes: Vec<_> = log.dead_letters().iter().map(|l| (l.line.unwrap(), l.code.clone())).collect();
    let expected = [
        (4, "DUPLICATE_ID"),
        (5, "BAD_NUMBER"),
        (6, "MISSING_VALUE"),
        (7, "MISSING_VALUE"),
        (8, "BAD_NAME"),
        (9, "BAD_NUMBER"),
        (10, "BAD_TIME"),
    ];
    assert_eq!(codes, expected.map(|(line, code)| (line, code.to_owned())));
    assert!(log.dead_letters()[1].reason.contains("does the mapping name the column's unit"));
    assert_eq!(values(&log).len(), 3);

    let rows = "timestamp,metric,value,Hostname,gpu,UUID\n2026-10-01T00:00:00Z,node_load1,1,n1,0,GPU-1\n";
    assert_eq!(run(rows, "dcgm_long").1.rows_rejected["UNKNOWN_METRIC"], 1);
}

#[test]
fn a_mapping_names_units_and_cannot_mix_forms() {
    let base = "name = \"x\"\ndoc = \"\"\nkind = \"gpu_samples\"\nsource = \"\"\ninterval_ms = 60000\n[columns]\n\
                node = \"n\"\ngpu_uuid = \"u\"\ntime = \"t\"\n";
    let units = "power_mw = { column = \"p\", unit = \"w\" }\ngpu_util_ppm = { column = \"g\", unit = \"percent\" }\n";
    let mapping = Mapping::parse(&format!("{base}{units}"), "x.toml").unwrap();
    let log = MemoryLog::default();
    let options = ImportOptions { cluster: Some("c".into()), ..ImportOptions::default() };
    let rows = text("x.csv", "t,n,u,p,g\n2026-10-01T00:00:00Z,n1,GPU-1,612.5,37\n");
    import(rows, &mapping, &options, &log, &mut |_| {}).unwrap();
    let seen = values(&log);
    assert_eq!(seen[&("GPU-1".to_owned(), 0, "power_mw".to_owned())], 612_500);
    assert_eq!(seen[&("GPU-1".to_owned(), 0, "gpu_util_ppm".to_owned())], 370_000);

    for (more, expected) in [
        ("metric = \"m\"\n", "use together with value"),
        ("metric = \"m\"\nvalue = \"v\"\npower_mw = \"p\"\n", "only for files with a column per metric"),
        ("power_mw = { column = \"p\", unit = \"gib\" }\n", "this unit is only for"),
        ("fan_speed_ppm = \"f\"\n", "no such field"),
    ] {
        let error = Mapping::parse(&format!("{base}{more}"), "x.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let without = base.replace("interval_ms = 60000\n", "");
    let error = Mapping::parse(&format!("{without}power_mw = \"p\"\n"), "x.toml").unwrap_err().to_string();
    assert!(error.contains("interval_ms") && error.contains("time that it stands for"), "{error}");
}
