//! Joins the kernel log's and NVML's reports of an XID into one event per occurrence.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::line::PciAddress;

/// One report of an XID.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Occurrence {
    /// XID, or SXid of a switch.
    pub code: u32,
    /// `None` if the driver did not name the device.
    pub pci: Option<PciAddress>,
    /// MIG GPU instance, if the driver names one.
    pub gpu_instance: Option<u32>,
    /// Process id.
    pub pid: Option<u32>,
    /// Name of the process.
    pub process: Option<String>,
    /// The kernel's text.
    pub text: Option<String>,
    /// When it happened, ms since the epoch.
    pub at_ms: i64,
    /// Number of the kernel's record.
    pub record: Option<u64>,
    /// Whether it is an NVSwitch error, which NVML does not report.
    pub switch: bool,
}

#[derive(Debug)]
struct Waiting {
    occurrence: Occurrence,
    since: Instant,
    kernel: bool,
    driver: bool,
}

/// Pairs reports of the kernel log with events of NVML.
///
/// A report waits up to `window` for its counterpart and is then emitted alone. Pairs are one to
/// one: three lines and two events are three occurrences. A counterpart has the same address and
/// code. An event without one pairs with any unconfirmed line of its device, because NVML reports
/// the last code for all events that piled up: lines 31 and 43 with events 43 and 43 are two
/// occurrences. An event that pairs with no line is emitted alone, since the kernel log may have
/// lost the line.
///
/// With only one source, nothing waits. With NVML alone, piled-up occurrences carry the last code,
/// and the codes it overwrote stay unknown.
#[derive(Debug)]
pub struct Join {
    window: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    kernel_reads: bool,
    driver_reads: bool,
}

impl Join {
    /// Reports within `window` of each other can be one occurrence.
    pub fn new(window: Duration) -> Self {
        Self { window, state: Mutex::default() }
    }

    /// Sets whether the kernel log is being read.
    pub fn kernel_reads(&self, reads: bool) {
        self.state().kernel_reads = reads;
    }

    /// Sets whether NVML events are being received.
    pub fn driver_reads(&self, reads: bool) {
        self.state().driver_reads = reads;
    }

    /// Adds a line of the kernel log.
    pub fn kernel(&self, occurrence: Occurrence, now: Instant) {
        let mut state = self.state();
        let counterpart = state.counterpart(&occurrence, |w| !w.kernel, now, self.window);
        let counterpart = counterpart.filter(|_| !occurrence.switch);
        match counterpart {
            // The kernel's code, time and process are exact.
            Some(at) => {
                let waiting = &mut state.waiting[at];
                waiting.occurrence =
                    Occurrence { pci: occurrence.pci.or(waiting.occurrence.pci), ..occurrence };
                waiting.kernel = true;
            }
            None => state.waiting.push_back(Waiting { occurrence, since: now, kernel: true, driver: false }),
        }
    }

    /// Adds an NVML event.
    pub fn driver(&self, occurrence: Occurrence, now: Instant) {
        let mut state = self.state();
        match state.counterpart(&occurrence, |w| !w.driver, now, self.window) {
            Some(at) => state.waiting[at].driver = true,
            None => state.waiting.push_back(Waiting { occurrence, since: now, kernel: false, driver: true }),
        }
    }

    /// Whether an occurrence is ready to be emitted.
    pub fn is_due(&self, now: Instant) -> bool {
        let state = self.state();
        state.waiting.front().is_some_and(|w| state.is_complete(w, now, self.window))
    }

    /// Takes the occurrences that are ready, oldest first, each with its evidence: `nvml`, `kmsg`
    /// or `nvml,kmsg`. None overtakes an older one, so that a single kernel record number marks
    /// what was emitted. `all` takes everything, at the end.
    pub fn due(&self, now: Instant, all: bool) -> Vec<(Occurrence, &'static str)> {
        let mut state = self.state();
        let count =
            state.waiting.iter().take_while(|w| all || state.is_complete(w, now, self.window)).count();
        let with_evidence = |w: Waiting| {
            let evidence = match (w.driver, w.kernel) {
                (true, true) => "nvml,kmsg",
                (true, false) => "nvml",
                _ => "kmsg",
            };
            (w.occurrence, evidence)
        };
        state.waiting.drain(..count).map(with_evidence).collect()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether no further report of it is expected.
    fn is_complete(&self, w: &Waiting, now: Instant, window: Duration) -> bool {
        let alone = w.occurrence.switch || !(self.kernel_reads && self.driver_reads);
        alone || (w.kernel && w.driver) || now.saturating_duration_since(w.since) >= window
    }

    fn counterpart(
        &self,
        of: &Occurrence,
        lacks: impl Fn(&Waiting) -> bool,
        now: Instant,
        window: Duration,
    ) -> Option<usize> {
        let near = |w: &&Waiting| {
            let same_place = w.occurrence.pci == of.pci || w.occurrence.pci.is_none() || of.pci.is_none();
            lacks(w) && !w.occurrence.switch && same_place && now.saturating_duration_since(w.since) < window
        };
        let place = |w: &Waiting| self.waiting.iter().position(|other| std::ptr::eq(other, w));
        let exact = self.waiting.iter().filter(near).find(|w| w.occurrence.code == of.code);
        exact.or_else(|| self.waiting.iter().find(near)).and_then(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(code: u32, bus: u8) -> Occurrence {
        let pci = Some(PciAddress { domain: 0, bus, device: 0 });
        Occurrence { code, pci, ..Occurrence::default() }
    }

    fn join() -> (Join, Instant) {
        let join = Join::new(Duration::from_secs(3));
        join.kernel_reads(true);
        join.driver_reads(true);
        (join, Instant::now())
    }

    fn due(join: &Join, now: Instant) -> Vec<(u32, &'static str)> {
        join.due(now, false).into_iter().map(|(o, evidence)| (o.code, evidence)).collect()
    }

    #[test]
    fn a_line_and_an_event_are_one_occurrence_in_either_order() {
        let (join, now) = join();
        join.kernel(Occurrence { pid: Some(7), ..report(31, 1) }, now);
        assert_eq!(due(&join, now), []);
        join.driver(report(31, 1), now);
        join.driver(report(79, 2), now);
        join.kernel(Occurrence { pid: Some(9), at_ms: 5, ..report(79, 2) }, now);
        let both = join.due(now, false);
        assert_eq!(
            both.iter().map(|(o, e)| (o.code, o.pid, *e)).collect::<Vec<_>>(),
            [(31, Some(7), "nvml,kmsg"), (79, Some(9), "nvml,kmsg")]
        );
    }

    #[test]
    fn repeats_are_counted_however_close() {
        let (join, now) = join();
        for _ in 0..3 {
            join.kernel(report(13, 1), now);
        }
        join.driver(report(13, 1), now);
        join.driver(report(13, 1), now);
        let later = now + Duration::from_secs(3);
        assert_eq!(due(&join, later), [(13, "nvml,kmsg"), (13, "nvml,kmsg"), (13, "kmsg")]);
    }

    #[test]
    fn piled_up_events_confirm_existing_lines() {
        let (join, now) = join();
        join.kernel(report(31, 1), now);
        join.kernel(report(43, 1), now);
        join.driver(report(43, 1), now);
        join.driver(report(43, 1), now);
        assert_eq!(due(&join, now), [(31, "nvml,kmsg"), (43, "nvml,kmsg")]);
    }

    #[test]
    fn other_devices_and_other_times_are_other_occurrences() {
        let (join, now) = join();
        join.kernel(report(31, 1), now);
        join.driver(report(31, 2), now);
        let later = now + Duration::from_secs(4);
        join.driver(report(31, 1), later);
        assert_eq!(due(&join, later), [(31, "kmsg"), (31, "nvml")]);
        assert_eq!(due(&join, later + Duration::from_secs(3)), [(31, "nvml")]);
    }

    #[test]
    fn nothing_overtakes_an_older_occurrence() {
        let (join, now) = join();
        join.kernel(report(31, 1), now);
        join.kernel(Occurrence { switch: true, ..report(20, 9) }, now);
        join.kernel(report(79, 2), now);
        join.driver(report(79, 2), now);
        assert_eq!(due(&join, now), []);
        let later = now + Duration::from_secs(3);
        assert_eq!(due(&join, later), [(31, "kmsg"), (20, "kmsg"), (79, "nvml,kmsg")]);
    }

    #[test]
    fn a_source_alone_does_not_wait() {
        let (join, now) = join();
        join.kernel_reads(false);
        join.driver(report(48, 1), now);
        assert_eq!(due(&join, now), [(48, "nvml")]);
    }

    #[test]
    fn an_event_without_a_device_finds_its_line() {
        let (join, now) = join();
        join.driver(Occurrence { pci: None, ..report(79, 0) }, now);
        join.kernel(report(79, 4), now);
        let (occurrence, evidence) = join.due(now, false).remove(0);
        assert_eq!((occurrence.pci.unwrap().bus, evidence), (4, "nvml,kmsg"));
    }
}
