//! Measurements of a closed step, one value per series: ratios to peers, waits for input, drifts of
//! lone roles, transfer time.

use super::Job;
use crate::straggler::order_statistics;
use crate::straggler::step_buffer::StepSlot;

impl Job {
    /// Writes the rows of a step.
    pub(super) fn measure(&mut self, seq: u64, slot: &StepSlot) {
        self.history.compute.row_mut(seq).copy_from_slice(&slot.compute);
        for (rank, log) in self.logs.iter_mut().enumerate() {
            let (role, time) = (self.layout.role_of[rank], slot.compute[rank]);
            let (tokens, squared) = (slot.tokens[rank], slot.squared[rank]);
            self.workload.row(role, tokens, squared, time);
            *log = (time / self.workload.expected(role, tokens, squared)).ln();
        }
        self.level_roles(seq);
        for class in 0..self.layout.classes.len() {
            let across = self.layout.everyone == Some(class as u32);
            let logs = if across { &self.levelled } else { &self.logs };
            self.history.reference.row_mut(seq)[class] =
                reference(&self.layout.classes[class], logs, &mut self.scratch);
        }
        let references = self.history.reference.row(seq);
        let row = self.compute.values.row_mut(seq);
        for (rank, (value, &class)) in row.iter_mut().zip(&self.layout.class_of).enumerate() {
            let across = self.layout.everyone == Some(class);
            let log = if across { self.levelled[rank] } else { self.logs[rank] };
            *value = log - references[class as usize];
        }
        // As reported, because what tokens explain is a change of the work too.
        let every = slot.compute.len().div_ceil(64).max(1);
        self.scratch.clear();
        self.scratch.extend(slot.compute.iter().step_by(every).filter(|time| time.is_finite()));
        let level = order_statistics::median(&mut self.scratch).ln();
        self.history.set_level(seq, level);
        self.measure_nodes(seq);
        self.measure_data(seq, slot);
        self.measure_drift(seq);
        let least = slot.communication.iter().copied().fold(f32::NAN, f32::min);
        self.transfer.values.row_mut(seq)[0] = if self.is_pause(seq) { f32::NAN } else { least.ln() };
    }

    /// Subtracts from each rank's logarithm the difference of its role from the others, so that
    /// ranks can be compared across the job. Roles differ by construction, so the difference of the
    /// first steps is kept.
    fn level_roles(&mut self, seq: u64) {
        if self.layout.everyone.is_none() {
            return;
        }
        if seq < u64::from(self.settings.warm_steps) {
            let levels: Vec<f32> = self
                .layout
                .roles
                .iter()
                .map(|ranks| {
                    self.scratch.clear();
                    let logs = ranks.iter().map(|&rank| self.logs[rank as usize]);
                    self.scratch.extend(logs.filter(|log| log.is_finite()));
                    order_statistics::median(&mut self.scratch)
                })
                .collect();
            let mean = levels.iter().sum::<f32>() / levels.len() as f32;
            if mean.is_finite() {
                for (offset, level) in self.offsets.iter_mut().zip(&levels) {
                    *offset += (level - mean - *offset) / (seq + 1) as f32;
                }
            }
        }
        for (rank, level) in self.levelled.iter_mut().enumerate() {
            *level = self.logs[rank] - self.offsets[self.layout.role_of[rank] as usize];
        }
    }

    /// Difference of a rank's role from the others.
    pub fn offset_of(&self, rank: usize) -> f32 {
        self.offsets[self.layout.role_of[rank] as usize]
    }

    /// Whether a step is a pause, several times as long as usual: a checkpoint, an evaluation. It
    /// says nothing about the transfer. A second long step in a row is no pause.
    fn is_pause(&self, seq: u64) -> bool {
        const TIMES: f64 = 4.0;
        let long = |seq: u64| f64::from(self.history.step(seq).duration) * 1e6 > TIMES * self.step_us;
        self.step_us > 0.0 && long(seq) && !(seq > 0 && long(seq - 1))
    }

    /// Waits beyond the job's lower quartile, as a share of the step. The quartile, because waits
    /// only add, and half of the job may be one slow node.
    fn measure_data(&mut self, seq: u64, slot: &StepSlot) {
        let unit = self.history.step(seq).duration;
        self.scratch.clear();
        self.scratch.extend(slot.data.iter().filter(|value| value.is_finite()));
        let usual = order_statistics::quantile(&mut self.scratch, 0.25);
        self.history.data_reference.row_mut(seq)[0] = usual;
        let row = self.data.values.row_mut(seq);
        for (value, data) in row.iter_mut().zip(&slot.data) {
            *value = (data - usual) / unit;
        }
    }

    /// Median deviation of each node's ranks from their own baselines; unknown for nodes with few
    /// ranks.
    pub fn measure_nodes(&mut self, seq: u64) {
        let values = self.compute.values.row(seq);
        let row = self.nodes.values.row_mut(seq);
        for (value, ranks) in row.iter_mut().zip(&self.layout.nodes) {
            self.scratch.clear();
            if ranks.len() >= self.settings.node_ranks {
                let deviations =
                    ranks.iter().map(|&rank| values[rank as usize] - self.compute.base(rank as usize));
                self.scratch.extend(deviations.filter(|deviation| deviation.is_finite()));
            }
            let known = self.scratch.len() * 2 >= ranks.len();
            *value = if known { order_statistics::median(&mut self.scratch) } else { f32::NAN };
        }
    }

    fn measure_drift(&mut self, seq: u64) {
        let references = self.history.reference.row(seq);
        let level = |role: usize| {
            let rank = self.layout.roles[role][0] as usize;
            references[self.layout.class_of[rank] as usize]
        };
        let row = self.drift.values.row_mut(seq);
        for (value, &role) in row.iter_mut().zip(&self.layout.lone_roles) {
            self.scratch.clear();
            let others = (0..self.layout.roles.len()).filter(|other| *other != role as usize);
            self.scratch.extend(others.map(level).filter(|level| level.is_finite()));
            *value = level(role as usize) - order_statistics::median(&mut self.scratch);
        }
    }
}

/// Median of the logarithms of a class; NaN where fewer than three or less than half are known.
pub(in crate::straggler) fn reference(members: &[u32], logs: &[f32], scratch: &mut Vec<f32>) -> f32 {
    scratch.clear();
    scratch.extend(members.iter().map(|&rank| logs[rank as usize]).filter(|log| log.is_finite()));
    if scratch.len() < 3 || scratch.len() * 2 < members.len() {
        f32::NAN
    } else {
        order_statistics::median(scratch)
    }
}
