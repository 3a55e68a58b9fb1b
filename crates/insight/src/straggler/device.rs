//! Recent device windows and faults, each device compared with its node's others and with its own
//! past.

use serde::{Deserialize, Serialize};

use super::input::{DeviceWindow, Fault};
use super::layout::Layout;
use super::order_statistics;

/// Windows kept per rank.
const KEPT: usize = 64;

/// A device over some span, compared with its node's other devices or its own past. `None`:
/// unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct DeviceComparison {
    /// SM clock over the median of the node's other devices.
    pub clock_ratio: Option<f64>,
    /// Share of the time with lowered clocks.
    pub slowdown: Option<f64>,
    /// That share less the other devices'.
    pub slowdown_alone: Option<f64>,
    /// Power over the median of the node's other devices.
    pub power_ratio: Option<f64>,
    /// Share of the time at the power cap, less the other devices'.
    pub power_cap: Option<f64>,
    /// Width of the host link over the widest seen.
    pub width: Option<f64>,
    /// Standard score of the link retries against the usual rate: Poisson, with the error of that
    /// rate.
    pub retries: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct StoredWindow {
    start_us: i64,
    end_us: i64,
    clock: f32,
    slowdown: f32,
    cap: f32,
    power: f32,
    width: f32,
    retries: f32,
    marks: f32,
}

/// Recent windows and faults of all ranks of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Devices {
    windows: Vec<Vec<StoredWindow>>,
    /// Ring position of the next window, for ranks with a full buffer.
    next: Vec<u8>,
    faults: Vec<Fault>,
}

impl Devices {
    /// Memory of a rank with a full buffer.
    pub const BYTES_PER_RANK: usize = KEPT * size_of::<StoredWindow>();

    pub fn new(ranks: usize) -> Self {
        Self { windows: vec![Vec::new(); ranks], next: vec![0; ranks], faults: Vec::new() }
    }

    /// Adds a window of a known rank. Impossible values count as not measured.
    pub fn take(&mut self, window: &DeviceWindow) -> bool {
        let rank = window.rank as usize;
        if window.end_us <= window.start_us {
            return false;
        }
        let within = |value: Option<f64>, most: f64| {
            value.filter(|value| (0.0..=most).contains(value)).map_or(f32::NAN, |value| value as f32)
        };
        let count = |value: Option<u64>| value.map_or(f32::NAN, |value| value as f32);
        let kept = StoredWindow {
            start_us: window.start_us,
            end_us: window.end_us,
            clock: within(window.sm_clock_mhz, 1e5),
            slowdown: within(window.slowdown_share, 1.0),
            cap: within(window.power_cap_share, 1.0),
            power: within(window.power_w, 1e5),
            width: within(window.link_width_ratio, 1.0),
            retries: count(window.link_retries),
            marks: count(window.network_marks),
        };
        let windows = &mut self.windows[rank];
        if windows.iter().any(|old| (old.start_us, old.end_us) == (kept.start_us, kept.end_us)) {
            return false;
        }
        if windows.len() < KEPT {
            windows.push(kept);
        } else {
            windows[self.next[rank] as usize] = kept;
            self.next[rank] = (self.next[rank] + 1) % KEPT as u8;
        }
        true
    }

    /// Adds a fault of a known rank.
    pub fn fault(&mut self, fault: &Fault) -> bool {
        const MOST: usize = 1024;
        if self.faults.contains(fault) {
            return false;
        }
        if self.faults.len() == MOST {
            self.faults.remove(0);
        }
        self.faults.push(*fault);
        true
    }

    /// Faults of a rank from `from_us` on.
    pub fn faults(&self, rank: u32, from_us: i64, to_us: i64) -> impl Iterator<Item = &Fault> {
        self.faults
            .iter()
            .filter(move |fault| fault.rank == rank && (from_us..=to_us).contains(&fault.time_us))
    }

    /// Windows of a rank between two times; at least their second half must lie within.
    fn within(&self, rank: u32, from_us: i64, to_us: i64) -> impl Iterator<Item = &StoredWindow> {
        let windows = self.windows[rank as usize].iter();
        windows.filter(move |window| middle(window) >= from_us && window.end_us <= to_us)
    }

    fn mean(&self, rank: u32, from_us: i64, to_us: i64, field: impl Fn(&StoredWindow) -> f32) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0.0);
        for value in self.within(rank, from_us, to_us).map(|window| f64::from(field(window))) {
            if value.is_finite() {
                sum += value;
                count += 1.0;
            }
        }
        (count > 0.0).then(|| sum / count)
    }

    /// Whether the rank's windows cover at least four fifths of a span.
    pub fn covers(&self, rank: u32, from_us: i64, to_us: i64) -> bool {
        let covered: i64 = self.windows[rank as usize]
            .iter()
            .map(|window| window.end_us.min(to_us).saturating_sub(window.start_us.max(from_us)).max(0))
            .fold(0, i64::saturating_add);
        covered / 4 >= to_us.saturating_sub(from_us) / 5
    }

    /// Compares the device of `rank` over a span.
    pub fn compare(&self, layout: &Layout, rank: u32, from_us: i64, to_us: i64) -> DeviceComparison {
        let mates = &layout.nodes[layout.node_of[rank as usize] as usize];
        let others = |field: fn(&StoredWindow) -> f32| -> Option<f64> {
            let mut values: Vec<f32> = mates
                .iter()
                .filter(|mate| **mate != rank)
                .filter_map(|&mate| self.mean(mate, from_us, to_us, field))
                .map(|value| value as f32)
                .collect();
            (values.len() >= 2).then(|| f64::from(order_statistics::median(&mut values)))
        };
        let own = |field: fn(&StoredWindow) -> f32| self.mean(rank, from_us, to_us, field);
        let against = |field: fn(&StoredWindow) -> f32| own(field).zip(others(field));
        let widest =
            self.windows[rank as usize].iter().map(|window| window.width).filter(|width| width.is_finite());
        let widest = f64::from(widest.fold(f32::NAN, f32::max));
        let ratio = |field: fn(&StoredWindow) -> f32| {
            against(field).filter(|(_, others)| *others > 0.0).map(|(own, others)| own / others)
        };
        DeviceComparison {
            clock_ratio: ratio(|window| window.clock),
            slowdown: own(|window| window.slowdown),
            slowdown_alone: against(|window| window.slowdown).map(|(own, others)| own - others),
            // Power clears or accuses a device, so it must be known for the whole span.
            power_ratio: ratio(|window| window.power)
                .filter(|_| self.within(rank, from_us, to_us).all(|window| window.power.is_finite())),
            power_cap: against(|window| window.cap).map(|(own, others)| own - others),
            width: own(|window| window.width).map(|width| if widest > 0.0 { width / widest } else { 1.0 }),
            retries: self.excess_score(&[rank], from_us, to_us, |window| window.retries),
        }
    }

    /// Standard score of the congestion marks of a node's network cards. Each rank of the node
    /// reports the node's marks.
    pub fn marks(&self, layout: &Layout, node: usize, from_us: i64, to_us: i64) -> Option<f64> {
        let ranks = &layout.nodes[node];
        self.excess_score(ranks, from_us, to_us, |window| window.marks)
    }

    /// Median count per window in a span against the mean before: `(now - before) / sqrt(error)`,
    /// both as Poisson counts with at least the scatter seen before. The median, because a burst in
    /// some windows does not explain slowness in all. `None` without a window in the span and three
    /// before.
    fn excess_score(
        &self,
        ranks: &[u32],
        from_us: i64,
        to_us: i64,
        field: impl Fn(&StoredWindow) -> f32,
    ) -> Option<f64> {
        let (mut now, mut past, mut past2, mut pasts) = (Vec::new(), 0.0, 0.0, 0.0);
        for window in ranks.iter().flat_map(|&rank| &self.windows[rank as usize]) {
            let value = field(window);
            if !value.is_finite() {
                continue;
            }
            if middle(window) >= from_us && window.end_us <= to_us {
                now.push(value);
            } else if window.end_us <= from_us {
                past += f64::from(value);
                past2 += f64::from(value) * f64::from(value);
                pasts += 1.0;
            }
        }
        const FEWEST: f64 = 3.0;
        if now.is_empty() || pasts < FEWEST * ranks.len() as f64 {
            return None;
        }
        let usual = past / pasts;
        let scatter = (past2 / pasts - usual * usual).max(0.0);
        // Ranks of one node report the same counts; they are not independent.
        let independent = (now.len() as f64 / ranks.len() as f64).max(1.0);
        let variance = scatter.max(usual).max(0.25) * (1.0 / independent + 1.0 / pasts.max(1.0));
        Some((f64::from(order_statistics::median(&mut now)) - usual) / variance.sqrt())
    }
}

fn middle(window: &StoredWindow) -> i64 {
    window.start_us.saturating_add(window.end_us.saturating_sub(window.start_us) / 2)
}

#[cfg(test)]
mod tests {
    use super::super::input::JobShape;
    use super::*;

    fn layout() -> Layout {
        let shape = JobShape { attempt: 0, node: vec![0; 4], role: vec![0; 4], stages: 1, micro_batches: 1 };
        Layout::new(&shape, 4, 99)
    }

    fn window(rank: u32, second: i64) -> DeviceWindow {
        DeviceWindow {
            rank,
            start_us: second * 1_000_000,
            end_us: (second + 10) * 1_000_000,
            ..Default::default()
        }
    }

    #[test]
    fn a_slow_clock_shows_against_the_node_and_retries_against_the_past() {
        let mut devices = Devices::new(4);
        for second in (0..100).step_by(10) {
            for rank in 0..4 {
                let slow = rank == 2 && second >= 50;
                assert!(devices.take(&DeviceWindow {
                    sm_clock_mhz: Some(if slow { 1200.0 } else { 1500.0 }),
                    slowdown_share: Some(if slow { 0.8 } else { 0.0 }),
                    link_retries: Some(if slow { 30 } else { 0 }),
                    link_width_ratio: Some(if slow { 0.5 } else { 1.0 }),
                    ..window(rank, second)
                }));
            }
        }
        let layout = layout();
        let shown = devices.compare(&layout, 2, 50_000_000, 100_000_000);
        assert!((shown.clock_ratio.unwrap() - 0.8).abs() < 1e-6);
        assert!((shown.slowdown.unwrap() - 0.8).abs() < 1e-6);
        assert_eq!((shown.width, shown.power_cap), (Some(0.5), None));
        assert!(shown.retries.unwrap() > 10.0);
        let calm = devices.compare(&layout, 1, 50_000_000, 100_000_000);
        assert_eq!((calm.clock_ratio, calm.retries), (Some(1.0), Some(0.0)));
    }

    #[test]
    fn garbage_is_not_read_and_a_duplicate_not_taken() {
        let mut devices = Devices::new(4);
        let odd = DeviceWindow { sm_clock_mhz: Some(f64::NAN), slowdown_share: Some(7.0), ..window(0, 0) };
        assert!(devices.take(&odd));
        assert!(!devices.take(&odd));
        assert!(!devices.take(&DeviceWindow { end_us: i64::MIN, ..window(0, 0) }));
        assert_eq!(devices.compare(&layout(), 0, 0, i64::MAX), DeviceComparison::default());
        let fault = Fault { rank: 0, time_us: 5, xid: Some(79) };
        assert!(devices.fault(&fault) && !devices.fault(&fault));
        assert_eq!(devices.faults(0, 0, 10).count(), 1);
    }

    #[test]
    fn marks_of_a_burst_are_no_evidence_of_what_lasts() {
        let mut devices = Devices::new(4);
        for second in (0..200).step_by(10) {
            let marked = |rank| match rank {
                // A burst in three of ten windows, and in all ten.
                0 if (120..150).contains(&second) => 50,
                1 if second >= 100 => 50,
                _ => 1,
            };
            for rank in 0..4 {
                devices.take(&DeviceWindow { link_retries: Some(marked(rank)), ..window(rank, second) });
            }
        }
        let score = |rank| devices.compare(&layout(), rank, 100_000_000, 200_000_000).retries.unwrap();
        assert_eq!(score(0), 0.0);
        // (50 - 1) / sqrt(1 * (1 / 10 + 1 / 10))
        assert!((score(1) - 49.0 / 0.2_f64.sqrt()).abs() < 1e-6, "{}", score(1));
    }
}
