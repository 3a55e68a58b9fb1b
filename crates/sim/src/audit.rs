//! Audit: recounts a simulation from its nodes and jobs, and compares with the running sums.

use crate::{Class, JobState, Sim};

impl Sim {
    /// Checks that GPUs of nodes, jobs and teams agree, that each GPU was in one class at each
    /// moment, and that allocated time equals time kept, lost, spent on overhead or still at risk.
    ///
    /// # Errors
    /// The first mismatch.
    pub fn audit(&self) -> Result<(), String> {
        let mut held = vec![0u32; self.nodes().len()];
        let mut by_team = vec![0u32; self.spec.teams.len()];
        let mut open_gpu_us = 0i128;
        for (i, j) in self.jobs.iter().enumerate() {
            let gpus: u32 = j.held.iter().map(|h| h.1).sum();
            if gpus != j.gpus() || (j.state == JobState::Running) != (gpus > 0) {
                return Err(format!(
                    "job {i} is {:?}, holds {:?} and counts {} GPUs",
                    j.state,
                    j.held,
                    j.gpus()
                ));
            }
            if gpus > 0 && !self.running.contains(&(i as u32)) {
                return Err(format!("job {i} runs and is not listed"));
            }
            let queued = self.queues[j.spec.team].contains(&(-j.spec.priority, i as u32));
            if queued != (j.state == JobState::Queued) {
                return Err(format!("job {i} is {:?}, in the queue: {queued}", j.state));
            }
            let (least, most) = j.spec.sizes();
            if gpus > 0 && !(least..=most).contains(&gpus) {
                return Err(format!("job {i} holds {gpus} GPUs, not from {least} to {most}"));
            }
            for (node, count) in &j.held {
                held[*node as usize] += count;
                if !self.nodes.get(*node).jobs.contains(&(i as u32)) {
                    return Err(format!("job {i} holds node {node}, which does not know it"));
                }
            }
            by_team[j.spec.team] += gpus;
            open_gpu_us +=
                i128::from(gpus) * i128::from(self.now_us - j.segment.held_us) + j.segment.risk_gpu_us;
        }
        if by_team != self.held_by_team {
            return Err(format!("teams hold {by_team:?}, counted {:?}", self.held_by_team));
        }
        for (n, node) in self.nodes().iter().enumerate() {
            if node.free + held[n] != node.gpus || (!node.up && held[n] > 0) {
                return Err(format!(
                    "node {n} has {} free, {} held of {}, up: {}",
                    node.free, held[n], node.gpus, node.up
                ));
            }
        }
        self.audit_reservations()?;
        let total: i128 = self.nodes().iter().map(|n| i128::from(n.gpus)).sum();
        let (paid, expected) = (self.ledger().paid_gpu_us(), total * i128::from(self.now_us));
        if paid != expected {
            return Err(format!("classes sum to {paid} GPU-µs, paid for {expected}"));
        }
        if Class::ALL.iter().any(|c| self.ledger().gpu_us(*c) < 0) {
            return Err(format!("a class is below nothing: {:?}", self.ledger()));
        }
        let (allocated, known) =
            (self.ledger().gpu_us(Class::Allocated), self.ledger().settled_gpu_us() + open_gpu_us);
        if allocated != known {
            return Err(format!("{allocated} GPU-µs were allocated, jobs account for {known}"));
        }
        Ok(())
    }

    /// A node is reserved if exactly one reservation has it.
    fn audit_reservations(&self) -> Result<(), String> {
        for (n, node) in self.nodes().iter().enumerate() {
            let having = self.reservations.values().filter(|r| r.nodes.contains(&(n as u32))).count();
            if having != usize::from(node.reserved) {
                return Err(format!("node {n} is in {having} reservations, reserved: {}", node.reserved));
            }
        }
        let late = self.reservations.iter().find(|(_, r)| r.end_us < self.now_us);
        late.map_or(Ok(()), |(name, r)| Err(format!("reservation {name} should have ended at {}", r.end_us)))
    }
}
