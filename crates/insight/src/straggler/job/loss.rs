//! GPU time lost to an episode, compared with the step without it.

use super::Job;
use crate::straggler::episode::{Episode, Kind, Subject};
use crate::straggler::whatif::step_time;

impl Job {
    /// GPU time that step `seq` lost to an episode, ms: all GPUs of the job, for as long as the
    /// step took more than without it (rule 12).
    pub(super) fn loss(&mut self, episode: &Episode, seq: u64) -> f64 {
        let gpus = self.layout.ranks() as f64;
        let lost_s = match episode.kind {
            Kind::Transfer => {
                let slower = f64::from(self.transfer.values.get(seq, 0).exp() - self.transfer.base(0).exp());
                slower.max(0.0)
            }
            _ => self.loss_of_workers(episode, seq),
        };
        if lost_s.is_finite() { lost_s * gpus * 1e3 } else { 0.0 }
    }

    fn loss_of_workers(&mut self, episode: &Episode, seq: u64) -> f64 {
        let unit = f64::from(self.history.step(seq).duration);
        let times = self.history.compute.row(seq);
        let waits = self.data.values.row(seq);
        let (stages, many) = (self.layout.stages, self.layout.micro_batches);
        self.workers.clear();
        for place in 0..times.len() {
            let rank = self.layout.worker_rank(place);
            let wait = f64::from(waits[rank]) * unit;
            self.workers.push(f64::from(times[rank]) + if wait.is_finite() { wait } else { 0.0 });
        }
        let with = step_time(&self.workers, stages, many);
        for place in 0..times.len() {
            let rank = self.layout.worker_rank(place) as u32;
            let time = f64::from(times[rank as usize]);
            let slower = match episode.kind {
                Kind::Data if episode.series.contains(&rank) => {
                    f64::from(self.data.deviation(seq, rank as usize)) * unit
                }
                Kind::Compute if episode.series.contains(&rank) => {
                    time * (1.0 - f64::from(-self.compute.deviation(seq, rank as usize)).exp())
                }
                Kind::Node if Subject::Node(self.layout.node_of[rank as usize]) == episode.subject => {
                    time * (1.0 - f64::from(-self.nodes.deviation(seq, episode.series[0] as usize)).exp())
                }
                Kind::Drift if Subject::Role(self.layout.role_of[rank as usize]) == episode.subject => {
                    time * (1.0 - f64::from(-self.drift.deviation(seq, episode.series[0] as usize)).exp())
                }
                _ => 0.0,
            };
            if slower > 0.0 {
                self.workers[place] -= slower;
            }
        }
        with - step_time(&self.workers, stages, many)
    }
}
