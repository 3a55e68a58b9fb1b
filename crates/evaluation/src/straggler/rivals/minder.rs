//! Minder's distance between machines (NSDI'25), without its autoencoder: the machine farthest from
//! all others for four minutes.

use tidegate_insight::straggler::DeviceWindow;

use super::frames::{Edges, Frames};
use crate::straggler::method::{Alarm, Method, Target};
use crate::straggler::scene::{Message, MessageBody};
use crate::straggler::statistics::mean;

/// Windows of its counters; the same machine must be farthest for four minutes.
const WINDOW_US: i64 = 10_000_000;
const CONTINUITY: u32 = 24;
/// Standard deviations of its distance above the mean of the machines' distances.
const FAR: f64 = 2.5;
/// Mean distance to the others relative to the mean value; replaces the denoising of its
/// autoencoder.
const APART: f64 = 0.01;
const METRICS: usize = 5;

/// Per window and metric, the machine with the largest sum of distances to the others.
#[derive(Debug, Default)]
pub struct Minder {
    frames: Frames,
    nodes: Vec<u32>,
    node_of: Vec<usize>,
    /// By metric and node: sum and count in this window.
    sums: Vec<Vec<(f64, u32)>>,
    end_us: Option<i64>,
    /// By metric: farthest node, and for how many windows.
    held: [(Option<usize>, u32); METRICS],
    edges: Edges,
}

impl Minder {
    /// A new instance.
    pub fn new() -> Self {
        Self::default()
    }

    fn add(&mut self, metric: usize, node: usize, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let cell = &mut self.sums[metric][node];
            *cell = (cell.0 + value, cell.1 + 1);
        }
    }

    fn device(&mut self, window: &DeviceWindow) {
        let Some(&node) = self.node_of.get(window.rank as usize) else { return };
        self.add(0, node, window.sm_clock_mhz);
        self.add(1, node, window.link_retries.map(|count| count as f64));
        self.add(2, node, window.network_marks.map(|count| count as f64));
    }

    fn close(&mut self, end_us: i64) {
        for metric in 0..METRICS {
            let cells = std::mem::replace(&mut self.sums[metric], vec![(0.0, 0); self.nodes.len()]);
            let values: Vec<f64> = cells.iter().map(|(sum, count)| sum / f64::from(*count)).collect();
            // A window without a step (of a long step) keeps the state.
            if values.iter().any(|value| !value.is_finite()) {
                continue;
            }
            let far = farthest(&values);
            let (before, times) = self.held[metric];
            self.held[metric] = if far.is_some() && far == before { (far, times + 1) } else { (far, 1) };
        }
        for (at, &node) in self.nodes.iter().enumerate() {
            let on = self.held.iter().any(|(far, times)| *far == Some(at) && *times >= CONTINUITY);
            self.edges.set(at, on, Target::Node(node), end_us);
        }
    }
}

/// The machine whose summed distance to the others stands out, if there are at least three.
fn farthest(values: &[f64]) -> Option<usize> {
    let distances: Vec<f64> =
        values.iter().map(|value| values.iter().map(|other| (value - other).abs()).sum()).collect();
    let (top, &far) = distances.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
    let others: Vec<f64> =
        distances.iter().enumerate().filter(|(at, _)| *at != top).map(|(_, distance)| *distance).collect();
    let middle = mean(&others).filter(|_| others.len() >= 2)?;
    let spread = mean(&others.iter().map(|other| (other - middle).powi(2)).collect::<Vec<_>>())?.sqrt();
    let apart = far / others.len() as f64 > APART * mean(values)?.abs();
    (apart && far - middle > FAR * spread.max(0.01 * middle)).then_some(top)
}

impl Method for Minder {
    fn name(&self) -> &'static str {
        "Minder-like peer distance, 4 min"
    }

    fn observe(&mut self, message: &Message) {
        if self.frames.observe(message) {
            let shape_nodes = self.frames.shape.as_ref().map(|shape| shape.node.clone()).unwrap_or_default();
            self.nodes = shape_nodes.clone();
            self.nodes.sort_unstable();
            self.nodes.dedup();
            self.node_of =
                shape_nodes.iter().filter_map(|node| self.nodes.binary_search(node).ok()).collect();
            self.sums = vec![vec![(0.0, 0); self.nodes.len()]; METRICS];
            self.end_us = None;
            self.held = Default::default();
            self.edges.reset();
        }
        if let MessageBody::Device(window) = &message.body {
            self.device(window);
        }
    }

    fn advance(&mut self, watermark_us: i64) {
        while let Some(frame) = self.frames.next(watermark_us) {
            for rank in 0..self.node_of.len() {
                self.add(3, self.node_of[rank], Some(frame.compute_s[rank]));
                self.add(4, self.node_of[rank], Some(frame.data_s[rank]));
            }
            if frame.end_us >= *self.end_us.get_or_insert(frame.end_us + WINDOW_US) {
                let windows = (frame.end_us - self.end_us.unwrap_or(frame.end_us)) / WINDOW_US;
                // A step longer than the window keeps the farthest machine for as long.
                self.held.iter_mut().for_each(|held| held.1 += windows as u32);
                self.end_us = Some(frame.end_us + WINDOW_US);
                self.close(frame.end_us);
            }
        }
    }

    fn take(&mut self) -> Vec<Alarm> {
        self.edges.take()
    }
}
