//! Turns pages into readings: detects news, staleness and XIDs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_events::{Event, v1};
use tidegate_readings::dcgm::devices::{self, DeviceSamples, Key, MAX_DEVICES, Page};

use super::DcgmStatus;
use crate::reading::{Device, Metric, MissingReason, Reading, Sink, Value};

/// A device without news for this long, while others have some, is gone: a removed MIG instance or
/// GPU.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

/// When a page was fetched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Wall clock, ms since the epoch.
    pub tick_ms: i64,
    /// Time since the source began; unaffected by clock steps.
    pub elapsed: Duration,
}

/// State of a device.
struct DeviceState {
    device: Arc<Device>,
    pci_bus_id: Option<String>,
    /// Energy counter when it last moved.
    energy: Option<Value>,
    /// Time of its last news; at first, when it was first seen.
    new_at: Moment,
    /// Whether it had news since it was first seen.
    proven: bool,
    stale: bool,
    /// Metrics seen so far.
    asked: Vec<Metric>,
    /// The last XID, 0 for none.
    xid: i64,
}

pub(super) struct Watch {
    sink: Arc<dyn Sink>,
    stale_after: Duration,
    /// At most [`MAX_DEVICES`]: pages may name others each time.
    devices: BTreeMap<Key, DeviceState>,
    /// A page named a device that had no room.
    is_full: bool,
    fingerprint: Option<u64>,
    pub status: DcgmStatus,
}

impl Watch {
    pub fn new(sink: Arc<dyn Sink>, stale_after: Duration) -> Self {
        Self {
            sink,
            stale_after,
            devices: BTreeMap::new(),
            is_full: false,
            fingerprint: None,
            status: DcgmStatus::default(),
        }
    }

    /// Handles a page fetched now.
    ///
    /// # Errors
    /// Why the page is unusable; it is then ignored.
    pub fn page(&mut self, now: Moment, text: &str) -> Result<(), String> {
        let page = devices::read(text)?;
        let again = !self.status.answering && self.status.failures > 0;
        self.status.answering = true;
        self.status.pages += 1;
        (self.status.bad_lines, self.status.unused_lines) = (page.bad_lines, page.unused_lines);
        if again {
            tracing::info!("the dcgm-exporter answers again");
        }
        let before = self.fingerprint.replace(page.fingerprint);
        self.status.repeated += u64::from(before == Some(page.fingerprint));
        let changed = before.is_some_and(|before| before != page.fingerprint);
        if changed {
            // The exporter has news of other devices.
            self.devices
                .retain(|_, known| now.elapsed.saturating_sub(known.new_at.elapsed) < FORGOTTEN_AFTER);
        }
        self.take(now, page, changed);
        self.emit_stale(now, "the dcgm-exporter has nothing new of it");
        Ok(())
    }

    /// Handles a failed fetch.
    pub fn failed(&mut self, now: Moment, what: &str) {
        if self.status.answering || self.status.failures == 0 {
            tracing::warn!("the dcgm-exporter cannot be read: {what}");
        }
        self.status.answering = false;
        self.status.failures += 1;
        self.status.last_failure = Some(what.to_owned());
        self.emit_stale(now, "the dcgm-exporter cannot be read");
    }

    fn take(&mut self, now: Moment, page: Page, changed: bool) {
        // An instance has no energy counter; its board's shows whether the driver still answers.
        let mut moved = BTreeMap::new();
        for ((uuid, instance), on_page) in &page.devices {
            if instance.is_none() {
                let energy =
                    on_page.values.get(&Metric::Energy).filter(|value| matches!(value, Value::Is(_)));
                let before = self.devices.get(&(uuid.clone(), None)).and_then(|known| known.energy);
                moved.insert(
                    uuid.clone(),
                    energy.map_or(changed, |now| before.is_some_and(|before| before != *now)),
                );
            }
        }
        let was_full = std::mem::take(&mut self.is_full);
        for (key, on_page) in page.devices {
            let new = moved.get(&key.0).copied().unwrap_or(changed);
            let has_room = self.devices.len() < MAX_DEVICES;
            match self.devices.get_mut(&key) {
                Some(known) if new => emit_news(&*self.sink, known, now, &on_page),
                Some(_) => {}
                None if has_room => {
                    self.devices.insert(key, DeviceState::first_seen(now, on_page));
                }
                None => self.is_full = true,
            }
        }
        if self.is_full && !was_full {
            tracing::warn!(
                "pages of the dcgm-exporter named more than {MAX_DEVICES} GPUs and MIG instances within an hour; \
                 further ones are left out"
            );
        }
    }

    /// Handles devices without news for too long: one event, and a stale reading at each tick.
    fn emit_stale(&mut self, now: Moment, reason: &str) {
        for known in self.devices.values_mut() {
            if now.elapsed.saturating_sub(known.new_at.elapsed) < self.stale_after {
                continue;
            }
            if !std::mem::replace(&mut known.stale, true) {
                let event = v1::NodeEvent { reason: Some(reason.to_owned()), ..Default::default() };
                emit_event(&*self.sink, known, now, v1::NodeEventKind::DeviceStale, event);
            }
            let mut reading = Reading::new(Arc::clone(&known.device), now.tick_ms);
            for metric in &known.asked {
                reading.set(*metric, Value::Missing(MissingReason::Stale));
            }
            self.sink.reading(reading);
        }
        self.status.devices = self.devices.len();
        self.status.stale = self.devices.values().filter(|known| known.stale).count();
    }
}

impl DeviceState {
    fn first_seen(now: Moment, on_page: DeviceSamples) -> Self {
        Self {
            asked: on_page.values.keys().copied().collect(),
            energy: on_page.values.get(&Metric::Energy).copied(),
            xid: xid(&on_page),
            device: Arc::new(on_page.device),
            pci_bus_id: on_page.pci_bus_id,
            new_at: now,
            proven: false,
            stale: false,
        }
    }
}

fn xid(on_page: &DeviceSamples) -> i64 {
    match on_page.values.get(&Metric::Xid) {
        Some(Value::Is(xid)) => *xid,
        _ => 0,
    }
}

/// Emits the reading of a device with news.
fn emit_news(sink: &dyn Sink, known: &mut DeviceState, now: Moment, on_page: &DeviceSamples) {
    if *known.device != on_page.device {
        known.device = Arc::new(on_page.device.clone());
    }
    if std::mem::take(&mut known.stale) {
        emit_event(sink, known, now, v1::NodeEventKind::DeviceAnswers, v1::NodeEvent::default());
        // The averaging window meanwhile is unknown.
        known.proven = false;
    }
    let mut reading = Reading::new(Arc::clone(&known.device), now.tick_ms);
    for metric in &known.asked {
        // It was on an earlier page.
        reading.set(*metric, Value::Missing(MissingReason::Stale));
    }
    for (metric, value) in &on_page.values {
        reading.set(*metric, *value);
        if !known.asked.contains(metric) {
            known.asked.push(*metric);
        }
    }
    if known.proven {
        let interval = now.elapsed.saturating_sub(known.new_at.elapsed);
        reading.set(Metric::Interval, Value::Is(i64::try_from(interval.as_micros()).unwrap_or(i64::MAX)));
    }
    let xid_now = xid(on_page);
    if xid_now == 0 {
        // Left out of the page while there is none.
        reading.set(Metric::Xid, on_page.values.get(&Metric::Xid).copied().unwrap_or(Value::NotAsked));
    } else if xid_now != known.xid {
        let event = v1::NodeEvent { xid: u32::try_from(xid_now).ok(), ..Default::default() };
        emit_event(sink, known, now, v1::NodeEventKind::Xid, event);
    }
    known.xid = xid_now;
    known.energy = on_page.values.get(&Metric::Energy).copied();
    (known.new_at, known.proven) = (now, true);
    sink.reading(reading);
}

fn emit_event(
    sink: &dyn Sink,
    known: &DeviceState,
    now: Moment,
    kind: v1::NodeEventKind,
    event: v1::NodeEvent,
) {
    sink.event(Event::Node(v1::NodeEvent {
        envelope: Some(v1::Envelope {
            event_time_ms: now.tick_ms,
            observed_time_ms: now.tick_ms,
            ..Default::default()
        }),
        kind: kind.into(),
        gpu_uuid: Some(known.device.uuid.clone()),
        mig_uuid: known.device.mig_uuid.clone(),
        gpu_index: Some(known.device.index),
        pci_bus_id: known.pci_bus_id.clone(),
        evidence: Some("dcgm".into()),
        ..event
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct RecordingSink(Mutex<(Vec<Reading>, Vec<v1::NodeEvent>)>);

    impl Sink for RecordingSink {
        fn reading(&self, reading: Reading) {
            self.0.lock().unwrap().0.push(reading);
        }

        fn event(&self, event: Event) {
            let Event::Node(event) = event else { panic!("an event of a node") };
            self.0.lock().unwrap().1.push(event);
        }
    }

    impl RecordingSink {
        fn take(&self) -> (Vec<Reading>, Vec<v1::NodeEvent>) {
            std::mem::take(&mut *self.0.lock().unwrap())
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment { tick_ms: 1_763_712_000_000 + seconds as i64 * 1_000, elapsed: Duration::from_secs(seconds) }
    }

    /// A page of GPUs: number, energy in mJ, utilization in percent, XID.
    fn page(gpus: &[(u32, i64, i64, Option<i64>)]) -> String {
        let mut page = String::new();
        for (gpu, energy, util, xid) in gpus {
            let labels =
                format!("{{gpu=\"{gpu}\",UUID=\"GPU-{gpu}\",pci_bus_id=\"b{gpu}\",modelName=\"M\"}}");
            page += &format!(
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{labels} {energy}\nDCGM_FI_DEV_GPU_UTIL{labels} {util}\n"
            );
            if let Some(xid) = xid {
                page += &format!("DCGM_FI_DEV_XID_ERRORS{labels} {xid}\n");
            }
        }
        page
    }

    fn watch() -> (Arc<RecordingSink>, Watch) {
        let sink = Arc::<RecordingSink>::default();
        (Arc::clone(&sink), Watch::new(sink, Duration::from_secs(90)))
    }

    #[test]
    fn a_repeated_page_is_no_news() {
        let (sink, mut watch) = watch();
        for second in [0, 10, 20] {
            watch.page(at(second), &page(&[(0, 1_000, 50, None)])).unwrap();
        }
        assert_eq!(sink.take().0.len(), 0, "it may be the last page of an exporter that hangs");
        watch.page(at(30), &page(&[(0, 2_000, 60, None)])).unwrap();
        watch.page(at(40), &page(&[(0, 2_000, 60, None)])).unwrap();
        watch.page(at(60), &page(&[(0, 3_000, 60, None)])).unwrap();
        let (readings, events) = sink.take();
        let seen: Vec<_> =
            readings.iter().map(|r| (r.tick_ms - at(0).tick_ms, r.get(Metric::Interval))).collect();
        assert_eq!(seen, [(30_000, Value::NotAsked), (60_000, Value::Is(30_000_000))]);
        assert_eq!(readings[1].get(Metric::GpuUtil), Value::Is(600_000));
        assert_eq!((events.len(), watch.status.repeated), (0, 3));
    }

    #[test]
    fn a_device_without_news_while_others_have_some_is_stale() {
        let (sink, mut watch) = watch();
        for step in 0..12 {
            let moved = 1_000 * step;
            watch
                .page(at(10 * step as u64), &page(&[(0, moved, 50, None), (1, moved.min(3_000), 99, None)]))
                .unwrap();
        }
        let (readings, events) = sink.take();
        let still: Vec<_> = readings.iter().filter(|r| r.device.index == 1).collect();
        // News at 10, 20 and 30 s; nothing for 90 s.
        assert_eq!(still.len(), 3);
        assert_eq!(events.len(), 0);
        watch.page(at(120), &page(&[(0, 99_000, 50, None), (1, 3_000, 99, None)])).unwrap();
        let (readings, events) = sink.take();
        assert_eq!(
            (events.len(), events[0].kind(), events[0].gpu_index),
            (1, v1::NodeEventKind::DeviceStale, Some(1))
        );
        assert_eq!(readings[1].get(Metric::GpuUtil), Value::Missing(MissingReason::Stale));
        assert_eq!(watch.status.stale, 1);

        // It answers again, with an unknown averaging window.
        watch.page(at(130), &page(&[(0, 99_500, 50, None), (1, 3_500, 10, None)])).unwrap();
        let (readings, events) = sink.take();
        assert_eq!((events.len(), events[0].kind()), (1, v1::NodeEventKind::DeviceAnswers));
        assert_eq!(readings[1].get(Metric::GpuUtil), Value::Is(100_000));
        assert_eq!(readings[1].get(Metric::Interval), Value::NotAsked);
        assert_eq!(readings[0].get(Metric::Interval), Value::Is(10_000_000));
    }

    #[test]
    fn pages_that_name_other_devices_each_time_take_no_more_memory() {
        let (_, mut watch) = watch();
        for first in (0..4_000).step_by(500) {
            let gpus: Vec<_> = (first..first + 500).map(|gpu| (gpu, 1, 5, None)).collect();
            watch.page(at(u64::from(first)), &page(&gpus)).unwrap();
        }
        assert_eq!(watch.status.devices, MAX_DEVICES);
        let many: Vec<_> = (0..2_000).map(|gpu| (gpu, 1, 5, None)).collect();
        let error = watch.page(at(4_000), &page(&many)).unwrap_err();
        assert!(error.contains("more than 1024"), "{error}");
        // After an hour without news there is room for others.
        watch.page(at(9_000), &page(&[(7_000, 1, 5, None)])).unwrap();
        assert_eq!(watch.status.devices, 1);
    }

    #[test]
    fn an_absent_exporter_makes_all_devices_stale_once() {
        let (sink, mut watch) = watch();
        watch.page(at(0), &page(&[(0, 1, 5, None), (1, 1, 5, None)])).unwrap();
        watch.page(at(10), &page(&[(0, 2, 5, None), (1, 2, 5, None)])).unwrap();
        sink.take();
        for second in (20..=120).step_by(10) {
            watch.failed(at(second), "refused");
        }
        let (readings, events) = sink.take();
        assert_eq!(
            events.iter().map(v1::NodeEvent::kind).collect::<Vec<_>>(),
            [v1::NodeEventKind::DeviceStale; 2]
        );
        assert!(events[0].reason.as_ref().unwrap().contains("cannot be read"));
        // At 100, 110 and 120 s.
        assert_eq!(readings.len(), 6);
        assert!(readings.iter().all(|r| r.get(Metric::Energy) == Value::Missing(MissingReason::Stale)));
        assert_eq!(readings[0].get(Metric::SmActive), Value::NotAsked);
        // It does not forget them while it cannot know better.
        watch.failed(at(10_000), "refused");
        assert_eq!((sink.take().0.len(), watch.status.devices), (2, 2));
    }

    #[test]
    fn an_xid_is_emitted_when_its_code_changes() {
        let (sink, mut watch) = watch();
        // The one that is there at first may be days old.
        let xids = [
            (Some(31), None),
            (Some(31), None),
            (Some(31), Some(0)),
            (Some(79), Some(48)),
            (Some(0), Some(48)),
            (Some(79), None),
        ];
        for (step, (first, second)) in xids.into_iter().enumerate() {
            let energy = step as i64;
            watch
                .page(at(30 * step as u64), &page(&[(0, energy, 5, first), (1, energy, 5, second)]))
                .unwrap();
        }
        let (readings, events) = sink.take();
        let seen: Vec<_> = events.iter().map(|e| (e.gpu_index.unwrap(), e.xid.unwrap())).collect();
        assert_eq!(seen, [(0, 79), (1, 48), (0, 79)]);
        assert_eq!(
            (events[0].evidence.as_deref(), events[0].pci_bus_id.as_deref()),
            (Some("dcgm"), Some("b0"))
        );
        assert_eq!(readings[0].get(Metric::Xid), Value::Is(31));
        assert_eq!(readings[1].get(Metric::Xid), Value::NotAsked);
    }

    #[test]
    fn left_out_metrics_are_missing() {
        let (sink, mut watch) = watch();
        let other = |value: i64| format!("DCGM_FI_PROF_SM_ACTIVE{{gpu=\"0\",UUID=\"GPU-0\"}} 0.{value}\n");
        watch.page(at(0), &(page(&[(0, 1, 5, None), (1, 1, 5, None)]) + &other(4))).unwrap();
        watch.page(at(30), &(page(&[(0, 2, 5, None), (1, 2, 5, None)]) + &other(5))).unwrap();
        watch.page(at(60), &page(&[(0, 3, 5, None), (1, 3, 5, None)])).unwrap();
        let (readings, _) = sink.take();
        let sm: Vec<_> = readings.iter().map(|r| r.get(Metric::SmActive)).collect();
        use MissingReason::{NotSupported, Stale};
        // The second GPU lacks it; then the exporter has it for neither.
        let missing = Value::Missing;
        assert_eq!(sm, [Value::Is(500_000), missing(NotSupported), missing(Stale), missing(Stale)]);
    }

    #[test]
    fn an_invalid_page_is_refused() {
        let (_, mut watch) = watch();
        let cut = page(&[(0, 1, 5, None)]);
        for text in ["", "<html>\n", "up 1\n", cut.trim_end()] {
            let error = watch.page(at(0), text).unwrap_err();
            assert!(error.starts_with("the page "), "{error}");
        }
    }
}
