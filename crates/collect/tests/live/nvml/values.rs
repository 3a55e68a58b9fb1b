//! Values are the driver's, in our units, at common ticks.

use std::time::Duration;

use tidegate_collect::nvml::{GPU_METRICS, NvmlOptions, NvmlSourceError, start};
use tidegate_collect::{Metric, Reading, Value};
use tidegate_events::v1::NodeEventKind;
use tidegate_events::v1::gpu_sample_batch::MissingReason;
use tidegate_events::v1::gpu_sample_batch::process::Kind;

use super::{INTERVAL_MS, NOT_SUPPORTED, Node, number};
use crate::sink::Recorded;

const UNKNOWN: Value = Value::Missing(MissingReason::Unspecified);

/// Values of device 3 in the scenario of `every_value`, where constant.
const EXPECTED: &[(Metric, i64)] = &[
    (Metric::GpuUtil, 930_000),
    (Metric::MemoryUtil, 430_000),
    (Metric::GraphicsActive, 950_000),
    (Metric::SmActive, 735_000),
    (Metric::SmOccupancy, 400_000),
    (Metric::TensorActive, 600_000),
    (Metric::TensorHmmaActive, 580_000),
    (Metric::TensorImmaActive, 0),
    (Metric::TensorDfmaActive, 0),
    (Metric::Fp64Active, 0),
    (Metric::Fp32Active, 120_000),
    (Metric::Fp16Active, 10_000),
    (Metric::IntActive, 50_000),
    (Metric::DramActive, 450_000),
    (Metric::EncoderUtil, 70_000),
    (Metric::DecoderUtil, 0),
    (Metric::Power, 503_000),
    (Metric::PowerLimit, 700_000),
    (Metric::GpuTemp, 53),
    (Metric::MemoryTemp, 63),
    (Metric::SmClock, 1_755),
    (Metric::SmClockMax, 1_980),
    (Metric::MemoryClock, 2_619),
    (Metric::MemoryClockMax, 2_619),
    (Metric::ThrottleReasons, 4),
    (Metric::ThermalThrottled, 0),
    (Metric::SyncBoostThrottled, 0),
    (Metric::BoardLimitThrottled, 0),
    (Metric::ReliabilityThrottled, 0),
    (Metric::SwThermalThrottled, 5_000),
    (Metric::HwThermalThrottled, 6_000),
    (Metric::PowerBrakeThrottled, 7_000),
    (Metric::FramebufferUsed, 60_003_000_000),
    (Metric::FramebufferReserved, 660_602_880),
    (Metric::FramebufferTotal, 85_520_809_984),
    (Metric::PcieReplay, 11),
    (Metric::NvlinkErrors, 1 + 2 + 3 + 4),
    (Metric::PcieTxRate, 2_000 << 20),
    (Metric::PcieRxRate, 3_000 << 20),
    (Metric::NvlinkRxRate, 90_000 << 20),
    (Metric::NvlinkTxRate, 91_000 << 20),
    (Metric::EccCorrected, 12),
    (Metric::EccUncorrected, 1),
    (Metric::RemappedRows, 2 + 3),
    (Metric::RemappedRowsPending, 1),
    (Metric::RemappedRowsFailed, 0),
    (Metric::RetiredPages, 4 + 5),
    (Metric::RecoveryAction, 2),
    (Metric::Processes, 0),
    (Metric::ProcessMemory, 0),
];

const SCENARIO: &str = "set 3 gpm_sm 73.5\nset 3 enc_util 7\nset 3 pcie_replay 11\nset 3 nvlink_replay 1
set 3 nvlink_recovery 2\nset 3 nvlink_flit 3\nset 3 nvlink_data 4\nset 3 ecc_corrected 12\nset 3 ecc_uncorrected 1
set 3 remap_cor 2\nset 3 remap_unc 3\nset 3 remap_pending 1\nset 3 retired_sbe 4\nset 3 retired_dbe 5\nset 3 recovery 2
set 3 sw_therm_ns 5000000\nset 3 hw_therm_ns 6000000\nset 3 hw_brake_ns 7000000";

/// Readings of a device that were in time, after another that was: averages are between the two.
fn complete(sink: &Recorded, index: u32, count: usize) -> Vec<(Reading, i64)> {
    let recorded = sink.until("enough readings", |recorded| recorded.of(index).len() > count);
    let in_time = |reading: &Reading| reading.get(Metric::Power) != super::STALE;
    let pairs = recorded.of(index);
    let pairs = pairs.windows(2).filter(|pair| pair.iter().all(|(reading, _)| in_time(reading)));
    pairs.map(|pair| (*pair[1]).clone()).collect()
}

/// A counter that grows evenly from `base` since the scenario's start.
#[track_caller]
fn grows(node: &Node, readings: &[(Reading, i64)], metric: Metric, base: f64, per_ms: f64) {
    let mut last = i64::MIN;
    for (reading, arrived) in readings {
        let is = number(reading.get(metric), metric);
        // It was read between the tick and its arrival.
        let at = |ms: i64| base + per_ms * (ms - node.start_ms) as f64;
        let (least, most) = (at(reading.tick_ms) as i64 - 1, at(arrived + 1) as i64 + 1);
        assert!((least..=most).contains(&is), "{metric:?}: {is} is not in {least}..={most}");
        assert!(is >= last);
        last = is;
    }
}

#[test]
fn every_value() {
    for driver in ["570.86.15", "580.95.05"] {
        let node = Node::new(&format!("driver {driver}\n{SCENARIO}"));
        let (source, sink) = node.start();
        let readings = complete(&sink, 3, 6);
        drop(source);
        assert!(readings.len() >= 3, "most ticks are read in time");
        for (reading, arrived) in &readings {
            for (metric, expected) in EXPECTED {
                assert_eq!(reading.get(*metric), Value::Is(*expected), "{metric:?} with driver {driver}");
            }
            // Eighteen links, of which the wrapper could read one.
            assert_eq!(reading.get(Metric::NvlinkTx), NOT_SUPPORTED);
            assert!(*arrived >= reading.tick_ms);
        }
        grows(&node, &readings, Metric::Energy, 4e9, 503_000.0 / 1e3);
        grows(&node, &readings, Metric::PcieTx, 0.0, 2e6);
        grows(&node, &readings, Metric::PcieRx, 0.0, 3e6);
        grows(&node, &readings, Metric::PowerThrottled, 0.0, 1e8 / 1e3 / 1e3);
        grows(&node, &readings, Metric::PowerCapThrottled, 0.0, 1e8 / 1e3 / 1e3);
        let recorded = sink.recorded();
        recorded.each_tick_once(8, INTERVAL_MS);
        for (reading, _) in &recorded.readings {
            let asked: Vec<_> =
                Metric::ALL.iter().copied().filter(|m| reading.get(*m) != Value::NotAsked).collect();
            let mut expected = GPU_METRICS.to_vec();
            expected.sort_unstable();
            assert_eq!(asked, expected);
            assert_eq!(reading.device.model, "NVIDIA H100 80GB HBM3");
        }
        let covered = EXPECTED.len() + 5 + 2 + 1;
        assert_eq!(
            covered,
            GPU_METRICS.len(),
            "each is tested: constants, five counters, NVLink, the interval"
        );
        let registered = recorded.of_kind(NodeEventKind::NodeRegistered);
        assert_eq!(registered.len(), 1);
        assert_eq!(registered[0].gpus_milli, Some(8_000));
        assert_eq!(registered[0].gpu_model.as_deref(), Some("NVIDIA H100 80GB HBM3"));
        assert_eq!(registered[0].driver_version.as_deref(), Some(driver));
        assert_eq!(recorded.events.len(), 1, "{:#?}", recorded.events);
    }
}

#[test]
fn averages_cover_the_whole_time_between_two_readings() {
    let node = Node::new("devices 1\nramp 0 gpm_sm 10 5");
    let (source, sink) = node.start();
    let mut readings = complete(&sink, 0, 12);
    drop(source);
    // A reading right after a late one has no averages: the next one's cover its time too.
    readings.retain(|(reading, _)| reading.get(Metric::SmActive) != UNKNOWN);
    assert!(readings.len() >= 6, "{readings:#?}");
    let (first, last) = (&readings[0], readings.last().unwrap());
    // The sum of value × interval is the integral of 10 % + 5 % per second from the first sample to
    // the last.
    let (mut sum, mut time) = (0.0, 0.0);
    for (reading, _) in &readings[1..] {
        let interval = number(reading.get(Metric::Interval), Metric::Interval) as f64 / 1e6;
        sum += number(reading.get(Metric::SmActive), Metric::SmActive) as f64 * interval;
        time += interval;
    }
    let seconds = |ms: i64| (ms - node.start_ms) as f64 / 1e3;
    let integral = |t: f64| 1e4 * (10.0 * t + 2.5 * t * t);
    let (from, to) = (seconds(first.0.tick_ms), seconds(last.0.tick_ms));
    let late = (first.1 - first.0.tick_ms).max(last.1 - last.0.tick_ms) as f64 / 1e3 + 0.005;
    let off = (sum - (integral(to) - integral(from))).abs();
    assert!(off <= 1e4 * (10.0 + 5.0 * (to + late)) * 2.0 * late, "off by {off}, read at most {late} s late");
    assert!((time - (to - from)).abs() <= 2.0 * late);
}

#[test]
fn the_unit_of_a_rate_is_the_drivers() {
    for (unit, expected) in [
        ("gpm_unit MiB/s 1", Value::Is(2_000 << 20)),
        ("gpm_unit bytes/s 1048576", Value::Is(2_000 << 20)),
        ("gpm_unit furlongs 1", UNKNOWN),
    ] {
        let node = Node::new(&format!("devices 1\n{unit}"));
        let (_source, sink) = node.start();
        let readings = complete(&sink, 0, 2);
        assert_eq!(readings[0].0.get(Metric::PcieTxRate), expected, "{unit}");
        assert_eq!(readings[0].0.get(Metric::SmActive), Value::Is(800_000));
    }
}

#[test]
fn before_hopper_there_is_no_gpm() {
    let node = Node::new("devices 2\nno_gpm *");
    let (_source, sink) = node.start();
    for (reading, _) in complete(&sink, 1, 3) {
        for metric in [Metric::SmActive, Metric::TensorActive, Metric::NvlinkTxRate] {
            assert_eq!(reading.get(metric), NOT_SUPPORTED);
        }
        assert_eq!(reading.get(Metric::GpuUtil), Value::Is(910_000));
        assert!(number(reading.get(Metric::Interval), Metric::Interval) > 0);
    }
    assert_eq!(node.calls("nvmlGpmSampleAlloc"), 0);
}

#[test]
fn a_refusal_is_reported_with_its_reason_and_cached() {
    let node = Node::new(
        "devices 1\nfail * nvmlDeviceGetPowerUsage 3 0 1e12\nfail * nvmlDeviceGetComputeRunningProcesses_v3 4 0 1e12
fail * field_83 3 0 1e12\nfail * nvmlDeviceGetTemperature 999 0 1e12\npcie_bits 32",
    );
    let (_source, sink) = node.start();
    for (reading, _) in complete(&sink, 0, 6) {
        assert_eq!(reading.get(Metric::Power), NOT_SUPPORTED);
        assert_eq!(reading.get(Metric::Energy), NOT_SUPPORTED);
        assert_eq!(reading.get(Metric::Processes), Value::Missing(MissingReason::NoPermission));
        assert_eq!(reading.get(Metric::ProcessMemory), Value::Missing(MissingReason::NoPermission));
        assert_eq!(reading.get(Metric::GpuTemp), UNKNOWN);
        // A 32-bit counter wraps between two readings.
        assert_eq!(reading.get(Metric::PcieTx), NOT_SUPPORTED);
        assert_eq!(reading.get(Metric::GpuUtil), Value::Is(900_000));
    }
    assert_eq!(node.calls("nvmlDeviceGetPowerUsage"), 1);
    assert_eq!(node.calls("nvmlDeviceGetComputeRunningProcesses_v3"), 1);
    assert!(node.calls("nvmlDeviceGetTemperature") >= 6);
    assert_eq!(node.calls("nvmlDeviceGetPcieThroughput"), 0);
}

#[test]
fn one_link_has_counters() {
    let node =
        Node::new("devices 1\nset 0 nvlink_links 1\nramp 0 nvlink_tx_kib 0 1000\nset 0 nvlink_rx_kib 7");
    let (_source, sink) = node.start();
    let readings = complete(&sink, 0, 4);
    grows(&node, &readings, Metric::NvlinkTx, -1024.0, 1024.0);
    assert_eq!(readings[0].0.get(Metric::NvlinkRx), Value::Is(7 * 1024));
}

#[test]
fn errors_of_links_are_added_up_where_there_is_no_sum() {
    let node = Node::new(
        "devices 1\nset 0 nvlink_links 2\nset 0 nvlink_replay 5\nset 0 nvlink_data 1
fail * field_38 3 0 1e12\nfail * field_45 3 0 1e12\nfail * field_52 3 0 1e12\nfail * field_59 3 0 1e12",
    );
    let (_source, sink) = node.start();
    assert_eq!(complete(&sink, 0, 3)[0].0.get(Metric::NvlinkErrors), Value::Is(12));
}

#[test]
fn processes_with_their_memory_and_names() {
    let node = Node::new(
        "devices 2\nprocess 0 compute 4711 1000000 0 1e12\nprocess 0 compute 4712 500 0 1e12
process 0 graphics 4711 2000000 0 1e12\nprocess 0 mps 4713 7 0 1e12\nprocess 1 compute 4714 -1 0 1e12",
    );
    std::fs::create_dir(node.path("proc/4711")).unwrap();
    std::fs::write(node.path("proc/4711/comm"), "python3\n").unwrap();
    let (_source, sink) = node.start();
    for (reading, _) in complete(&sink, 0, 3) {
        assert_eq!(reading.get(Metric::Processes), Value::Is(3));
        assert_eq!(reading.get(Metric::ProcessMemory), Value::Is(2_000_507));
        let seen: Vec<_> =
            reading.processes.iter().map(|p| (p.pid, p.kind, p.memory_bytes, p.name.as_deref())).collect();
        assert_eq!(
            seen,
            [
                (4711, Kind::Compute, Some(2_000_000), Some("python3")),
                (4712, Kind::Compute, Some(500), None),
                (4713, Kind::Mps, Some(7), None)
            ]
        );
    }
    for (reading, _) in complete(&sink, 1, 3) {
        assert_eq!(reading.get(Metric::Processes), Value::Is(1));
        assert_eq!(reading.get(Metric::ProcessMemory), NOT_SUPPORTED, "the driver does not say");
        assert_eq!(reading.processes[0].memory_bytes, None);
    }
}

#[test]
fn a_node_without_a_driver_says_so() {
    let sink = || std::sync::Arc::new(Recorded::default());
    let missing = NvmlOptions { lib_path: Some("nowhere/libnvidia-ml.so".into()), ..NvmlOptions::default() };
    let error = start(missing, sink()).unwrap_err();
    assert!(matches!(error, NvmlSourceError::NoLibrary { .. }), "{error}");
    assert!(error.to_string().contains("install NVIDIA's driver"), "{error}");
    let node = Node::new("fail * nvmlInit_v2 9 0 1e12");
    let error = start(node.options(), sink()).unwrap_err();
    assert!(error.to_string().contains("NVIDIA driver is not loaded"), "{error}");
    let node = Node::new("wedge * nvmlDeviceGetCount_v2 0 4000");
    let options = NvmlOptions { start_timeout: Duration::from_millis(500), ..node.options() };
    let error = start(options, sink()).unwrap_err();
    assert!(matches!(error, NvmlSourceError::Hangs { .. }), "{error}");
    let too_quick = NvmlOptions { interval: Duration::from_millis(50), ..node.options() };
    assert!(matches!(start(too_quick, sink()).unwrap_err(), NvmlSourceError::Interval(_)));
}
