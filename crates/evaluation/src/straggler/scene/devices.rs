//! Measurements of devices and nodes beside the reports: clocks, throttling, links, network marks,
//! XIDs.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tidegate_insight::straggler::{Class, DeviceWindow, Fault};

use super::confounders::Confounders;
use super::faults::{Injected, Place};
use super::plan::{PER_NODE, Plan};
use crate::straggler::random::{child, exponential, lognormal, normal, poisson};

/// Length of a window, seconds.
pub(crate) const WINDOW_S: f64 = 10.0;
const CLOCK_MHZ: f64 = 1755.0;
/// XIDs of applications and of row remaps without consequences.
const HARMLESS_XIDS: [u32; 4] = [13, 31, 43, 63];
const HARMLESS_PER_NODE_S: f64 = 0.02 / 3600.0;

#[derive(Debug)]
struct Device {
    clock: f64,
    /// Share of the time at the software power cap; harmless on 15 % of devices.
    capped: f64,
    slowdown: f64,
    width: f64,
    retries: f64,
    read: bool,
}

/// Devices of one job, spare node included.
#[derive(Debug)]
pub(crate) struct Devices {
    rng: ChaCha8Rng,
    devices: Vec<Device>,
    /// By node: network marks of a normal window.
    marks: Vec<f64>,
    next_s: f64,
    xid_s: f64,
}

impl Devices {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut rng = child(plan.seed, plan.regime.letter(), "devices");
        let mut devices: Vec<Device> = (0..(plan.nodes + 1) * PER_NODE)
            .map(|_| {
                let capped = if rng.random_bool(0.15) { rng.random_range(0.3..1.0) } else { 0.0 };
                Device {
                    clock: CLOCK_MHZ * (1.0 + 0.004 * normal(&mut rng)) * (1.0 - 0.02 * capped),
                    capped,
                    slowdown: if rng.random_bool(0.02) { rng.random_range(0.0..0.05) } else { 0.0 },
                    width: if rng.random_bool(0.01) { 0.5 } else { 1.0 },
                    retries: if rng.random_bool(0.01) { 0.5 } else { 0.01 },
                    read: true,
                }
            })
            .collect();
        for node in 0..=plan.nodes {
            if rng.random_bool(0.05) {
                devices[node * PER_NODE + rng.random_range(0..PER_NODE)].read = false;
            }
        }
        let marks = (0..=plan.nodes).map(|_| lognormal(&mut rng, 20.0, 0.5)).collect();
        let xid_s = exponential(&mut rng, HARMLESS_PER_NODE_S * plan.nodes as f64);
        Self { rng, devices, marks, next_s: WINDOW_S, xid_s }
    }

    /// Whether a window ends before this time.
    pub(crate) fn due(&self, now_s: f64) -> bool {
        self.next_s <= now_s
    }

    /// The job was down until now: windows of that time are skipped.
    pub(crate) fn skip_to(&mut self, now_s: f64) {
        while self.next_s - WINDOW_S < now_s {
            self.next_s += WINDOW_S;
        }
    }

    /// The next windows of all ranks. Times are in seconds into the job; the caller converts them
    /// to µs.
    pub(crate) fn windows(
        &mut self,
        plan: &Plan,
        faults: &[Injected],
        order: &[usize],
        weather: &Confounders,
        mut emit: impl FnMut(usize, f64, DeviceWindow),
    ) {
        let (start_s, end_s) = (self.next_s - WINDOW_S, self.next_s);
        self.next_s += WINDOW_S;
        let active: Vec<(&Injected, f64)> = faults
            .iter()
            .map(|fault| (fault, (fault.end_s.min(end_s) - fault.start_s.max(start_s)) / WINDOW_S))
            .filter(|(_, share)| *share > 0.0)
            .collect();
        for (position, &node) in order.iter().enumerate() {
            let marks = plan
                .network_counters
                .then(|| self.network(node, &active, weather.marks(node, start_s, end_s)));
            for slot in 0..PER_NODE {
                let rank = (position * PER_NODE + slot) as u32;
                let window = self.window(plan, node * PER_NODE + slot, &active);
                emit(node, end_s, DeviceWindow { rank, network_marks: marks, ..window });
            }
        }
    }

    fn network(&mut self, node: usize, active: &[(&Injected, f64)], burst: f64) -> u64 {
        let faulty: f64 = active
            .iter()
            .filter(|(fault, _)| fault.class == Class::Communication)
            .map(|(fault, share)| match fault.place {
                // Marks grow with the congestion; a slow fabric spreads them over its nodes.
                Place::Node(at) if at == node => 1.0 + share * 8.0 * (1.0 + fault.size),
                Place::Fabric => 1.0 + share * 2.0 * (1.0 + fault.size),
                _ => 1.0,
            })
            .product();
        let mean = self.marks[node] * lognormal(&mut self.rng, 1.0, 0.3) * faulty * burst;
        poisson(&mut self.rng, mean)
    }

    fn window(&mut self, plan: &Plan, device: usize, active: &[(&Injected, f64)]) -> DeviceWindow {
        let rng = &mut self.rng;
        let it = &self.devices[device];
        let (mut clock, mut slowdown, mut retries) = (it.clock + 3.0 * normal(rng), it.slowdown, it.retries);
        for (fault, share) in active.iter().filter(|(fault, _)| fault.place == Place::Device(device)) {
            match fault.class {
                Class::ComputeThermal if fault.evidence => {
                    clock *= 1.0 - share * (1.0 - 1.0 / (1.0 + fault.size));
                    slowdown = (slowdown + share * rng.random_range(0.4..0.95)).min(1.0);
                }
                // Three replays a step.
                Class::Link => retries += 3.0 * share * WINDOW_S / plan.step_s,
                _ => {}
            }
        }
        let cap = (it.capped + 0.05 * normal(rng)).clamp(0.0, 1.0 - slowdown);
        let retries = poisson(rng, retries);
        if !it.read {
            return DeviceWindow::default();
        }
        DeviceWindow {
            sm_clock_mhz: Some(clock),
            slowdown_share: Some(slowdown),
            power_cap_share: Some(if it.capped > 0.0 { cap } else { 0.0 }),
            link_width_ratio: Some(it.width),
            link_retries: Some(retries),
            ..DeviceWindow::default()
        }
    }

    /// Harmless XIDs up to now, as node, device slot and seconds into the job.
    pub(crate) fn xids(
        &mut self,
        plan: &Plan,
        order: &[usize],
        now_s: f64,
        mut emit: impl FnMut(usize, f64, Fault),
    ) {
        while self.xid_s <= now_s {
            let position = self.rng.random_range(0..order.len());
            let rank = (position * PER_NODE + self.rng.random_range(0..PER_NODE)) as u32;
            let xid = HARMLESS_XIDS[self.rng.random_range(0..HARMLESS_XIDS.len())];
            emit(order[position], self.xid_s, Fault { rank, time_us: 0, xid: Some(xid) });
            self.xid_s += exponential(&mut self.rng, HARMLESS_PER_NODE_S * plan.nodes as f64);
        }
    }
}
