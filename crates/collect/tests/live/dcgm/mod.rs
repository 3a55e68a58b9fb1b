//! The dcgm source on pages served over HTTP. The pages follow NVIDIA's documentation and sources
//! and are not recorded; each names its source. `@ENERGY@` stands for a counter that moves with
//! each collection.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_collect::dcgm::{Dcgm, DcgmOptions};
use tidegate_collect::reading::MissingReason;
use tidegate_collect::{Metric, Reading, Value};
use tidegate_events::{Event, v1};

use crate::support::{Recorder, wait_until};

/// The whole response of the server, which may break off.
type Answer = dyn Fn(u64) -> Vec<u8> + Send;

/// A server that answers each request with the result of a function, then closes.
struct Exporter {
    address: SocketAddr,
    answer: Arc<Mutex<Box<Answer>>>,
}

impl Exporter {
    fn start(answer: impl Fn(u64) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer: Arc<Mutex<Box<Answer>>> = Arc::new(Mutex::new(Box::new(answer)));
        let answers = Arc::clone(&answer);
        std::thread::spawn(move || {
            for (asked, stream) in listener.incoming().flatten().enumerate() {
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                    line.clear();
                }
                let answer = answers.lock().unwrap()(asked as u64);
                reader.into_inner().write_all(&answer).ok();
            }
        });
        Self { address, answer }
    }

    fn set(&self, answer: impl Fn(u64) -> Vec<u8> + Send + 'static) {
        *self.answer.lock().unwrap() = Box::new(answer);
    }

    fn options(&self) -> DcgmOptions {
        DcgmOptions {
            url: format!("http://{}/metrics", self.address),
            every: Duration::from_millis(10),
            patience: Duration::from_millis(500),
            stale_after: Duration::from_secs(60),
            page_bytes: 1 << 20,
        }
    }
}

fn ok(page: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}", page.len())
        .into_bytes()
}

/// The page with a moving energy counter.
fn moving(page: &'static str) -> impl Fn(u64) -> Vec<u8> + Send + 'static {
    move |asked| ok(&page.replace("@ENERGY@", &(1_000_000 + asked).to_string()))
}

/// The last reading of each device, in order of index and instance.
fn readings(page: &'static str, devices: usize) -> Vec<Reading> {
    let exporter = Exporter::start(moving(page));
    let recorded = Recorder::new();
    let _dcgm = Dcgm::start(exporter.options(), Arc::clone(&recorded) as _).unwrap();
    recorded.wait("two readings of each device", |recorded| {
        let tick = recorded.readings.iter().rev().nth(devices)?.tick_ms;
        let mut last: Vec<_> =
            recorded.readings.iter().filter(|reading| reading.tick_ms == tick).cloned().collect();
        last.sort_by_key(|reading| (reading.device.index, reading.device.mig_uuid.clone()));
        (last.len() == devices && recorded.readings.len() > 2 * devices).then_some(last)
    })
}

fn check(reading: &Reading, expected: &[(Metric, Value)]) {
    for (metric, value) in expected {
        assert_eq!(reading.get(*metric), *value, "{metric:?} of {:?}", reading.device);
    }
}

const UNSUPPORTED: Value = Value::Missing(MissingReason::NotSupported);

#[test]
fn a_classic_page() {
    use Metric as M;
    let readings = readings(include_str!("classic.prom"), 2);
    assert_eq!(readings[0].device.uuid, "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52");
    assert_eq!(
        (readings[0].device.model.as_str(), &readings[0].device.mig_uuid),
        ("NVIDIA A100-SXM4-80GB", &None)
    );
    let expected = [
        (M::SmClock, Value::Is(1_410)),
        (M::Power, Value::Is(371_482)),
        (M::GpuUtil, Value::Is(970_000)),
        (M::MemoryUtil, Value::Is(410_000)),
        (M::PowerThrottled, Value::Is(7_364_512)),
        (M::FramebufferUsed, Value::Is(60_970 << 20)),
        (M::FramebufferTotal, Value::Is((20_184 + 60_970 + 766) << 20)),
        (M::GraphicsActive, Value::Is(982_312)),
        (M::SmActive, Value::Is(871_044)),
        (M::TensorActive, Value::Is(455_310)),
        (M::PcieTxRate, Value::Is(1_264_313)),
        // A rate is no counter, and a value over both directions belongs to neither.
        (M::PcieTx, Value::NotAsked),
        (M::NvlinkTx, Value::NotAsked),
        (M::RemappedRows, Value::Is(0)),
        (M::Xid, Value::Is(0)),
    ];
    check(&readings[0], &expected);
    assert!(matches!(readings[0].get(M::Energy), Value::Is(1_000_001..)));
    assert!(matches!(readings[0].get(M::Interval), Value::Is(1..)));
    let expected = [
        (M::MemoryTemp, UNSUPPORTED),
        (M::SmActive, Value::Missing(MissingReason::NoPermission)),
        (M::SmOccupancy, UNSUPPORTED),
        (M::GpuUtil, Value::Is(0)),
        (M::RemappedRows, Value::Is(3)),
        (M::PcieReplay, Value::Is(3)),
    ];
    check(&readings[1], &expected);
}

#[test]
fn renamed_fields_and_base_units() {
    use Metric as M;
    let renamed = readings(include_str!("renamed.prom"), 2);
    let expected = [
        (M::GpuTemp, Value::Is(61)),
        (M::Power, Value::Is(655_017)),
        (M::PowerLimit, Value::Is(700_000)),
        (M::GpuUtil, Value::Is(990_000)),
        (M::SmActive, Value::Is(903_377)),
        (M::SmOccupancy, Value::Is(251_000)),
        (M::TensorActive, Value::Is(510_020)),
        (M::TensorHmmaActive, Value::Is(510_019)),
        (M::DramActive, Value::Is(402_177)),
        (M::PcieTx, Value::Is(912_004_411_228)),
        (M::Xid, Value::Is(94)),
    ];
    check(&renamed[0], &expected);
    let expected = [
        // One percent, under a name that says ratio.
        (M::GpuUtil, Value::Is(10_000)),
        (M::TensorActive, UNSUPPORTED),
        (M::RemappedRowsPending, Value::Is(1)),
        (M::Xid, Value::NotAsked),
    ];
    check(&renamed[1], &expected);

    let base = readings(include_str!("base_units.prom"), 1);
    let expected = [
        (M::SmClock, Value::Is(1_980)),
        (M::MemoryClock, Value::Is(2_619)),
        (M::GpuUtil, Value::Is(1_000_000)),
        (M::FramebufferTotal, Value::Is(85_520_809_984)),
        (M::FramebufferUsed, Value::Is(1 << 30)),
        (M::SmActive, Value::Is(903_377)),
    ];
    check(&base[0], &expected);
    assert!(matches!(base[0].get(M::Energy), Value::Is(mj) if mj % 1_000 == 250));
}

#[test]
fn instances_do_not_repeat_their_board() {
    use Metric as M;
    let readings = readings(include_str!("mig.prom"), 4);
    let migs: Vec<_> = readings.iter().map(|reading| reading.device.mig_uuid.as_deref()).collect();
    let board = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52";
    assert_eq!(migs, [None, Some(&*format!("MIG-{board}/3")), Some(&*format!("MIG-{board}/5")), None]);
    check(
        &readings[0],
        &[(M::Power, Value::Is(52_746)), (M::GraphicsActive, UNSUPPORTED), (M::GpuUtil, UNSUPPORTED)],
    );
    let expected = [
        (M::Power, Value::NotAsked),
        (M::Energy, Value::NotAsked),
        (M::FramebufferUsed, Value::Is(1 << 30)),
        (M::GraphicsActive, Value::Is(959_228)),
        (M::TensorActive, Value::Is(300_000)),
    ];
    check(&readings[1], &expected);
    check(&readings[2], &[(M::GraphicsActive, Value::Is(0)), (M::FramebufferUsed, Value::Is(12 << 20))]);
    check(&readings[3], &[(M::Power, Value::Is(56_121)), (M::GpuUtil, Value::Is(120_000))]);
}

#[test]
fn unusable_pages_are_reported_and_make_devices_stale() {
    let page = include_str!("classic.prom");
    let exporter = Exporter::start(moving(page));
    let recorded = Recorder::new();
    let mut options = exporter.options();
    options.stale_after = Duration::from_millis(300);
    let dcgm = Dcgm::start(options, Arc::clone(&recorded) as _).unwrap();
    recorded.wait("readings", |recorded| (recorded.readings.len() >= 4).then_some(()));

    // Right length for its headers, longer, huge, other pages, silence.
    let half = &page[..page.len() / 2];
    let short = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{half}", page.len());
    let endless = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", "# padding\n".repeat(200_000));
    let bad: [(&str, Vec<u8>); 6] = [
        ("in the middle of a line", ok(half.trim_end())),
        ("broke off", short.into_bytes()),
        ("longer than 1048576 bytes", endless.into_bytes()),
        ("the answer is 503", b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("names no GPU", ok("up 1\n")),
        ("is dcgm-exporter running", Vec::new()),
    ];
    for (expected, answer) in bad {
        exporter.set(move |_| answer.clone());
        wait_until(expected, || dcgm.status().last_failure.is_some_and(|what| what.contains(expected)));
        assert!(!dcgm.status().answering);
    }
    let stale = recorded.wait("stale devices", |recorded| {
        let nodes: Vec<_> = recorded
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Node(node) => Some(node.clone()),
                _ => None,
            })
            .collect();
        (nodes.len() >= 2).then_some(nodes)
    });
    assert!(stale.iter().all(|event| event.kind() == v1::NodeEventKind::DeviceStale), "{stale:?}");
    recorded.wait("readings that say so", |recorded| {
        recorded
            .readings
            .iter()
            .rev()
            .take(2)
            .all(|r| r.get(Metric::Power) == Value::Missing(MissingReason::Stale))
            .then_some(())
    });
    exporter.set(moving(page));
    recorded.wait("devices that answer again", |recorded| {
        let answers =
            |event: &&Event| matches!(event, Event::Node(n) if n.kind() == v1::NodeEventKind::DeviceAnswers);
        (recorded.events.iter().filter(answers).count() == 2).then_some(())
    });
    wait_until("it answers", || dcgm.status().answering);
}

#[test]
fn an_absent_exporter_or_a_tls_url_is_explained() {
    for (url, expected) in [
        ("http://127.0.0.1:1/metrics", "is dcgm-exporter running"),
        ("https://127.0.0.1/metrics", "only http://"),
    ] {
        let options = DcgmOptions { url: url.into(), ..DcgmOptions::default() };
        let dcgm = Dcgm::start(options, Recorder::new() as _).unwrap();
        wait_until(expected, || dcgm.status().last_failure.is_some_and(|what| what.contains(expected)));
    }
}
