//! Read access to a simulation.

use std::collections::BTreeMap;

use crate::{ClusterSpec, Job, Ledger, Node, Recording, Reservation, ServiceSpec, Sim, SimEvent};

impl Sim {
    /// Keeps events from now on, or stops.
    pub fn set_recording(&mut self, recording: Recording) {
        self.recording = recording;
    }

    /// Takes the events since the last call, with their times.
    pub fn take_events(&mut self) -> Vec<(i64, SimEvent)> {
        std::mem::take(&mut self.events)
    }

    /// Virtual time, µs since the simulation began.
    pub fn now_us(&self) -> i64 {
        self.now_us
    }

    /// The description of the cluster.
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// All jobs, future ones included.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        self.nodes.all()
    }

    /// All services.
    pub fn services(&self) -> &[ServiceSpec] {
        &self.services
    }

    /// Reservations that have not ended, by name.
    pub fn reservations(&self) -> &BTreeMap<String, Reservation> {
        &self.reservations
    }

    /// Running jobs, by index.
    pub fn running(&self) -> impl Iterator<Item = u32> + '_ {
        self.running.iter().copied()
    }

    /// Waiting jobs, team by team, in the order in which they would start.
    pub fn waiting(&self) -> impl Iterator<Item = u32> + '_ {
        self.queues.iter().flatten().map(|(_, job)| *job)
    }

    /// GPUs of a pool's own nodes that can serve now.
    pub fn serving_gpus(&self, pool: usize) -> u32 {
        self.nodes.ready(pool) as u32
    }

    /// Free GPUs for jobs of a pool: on its own nodes, and on borrowed ones.
    pub fn free_gpus(&self, pool: usize) -> (u32, u32) {
        self.nodes.free(pool)
    }

    /// Demand of a service now, GPUs.
    pub fn demand_gpus(&self, service: usize) -> u32 {
        self.demand[service] as u32
    }

    /// GPU limit of a team now.
    pub fn limit_gpus(&self, team: usize) -> Option<u32> {
        self.limits[team]
    }

    /// GPUs that a team holds now.
    pub fn held_gpus(&self, team: usize) -> u32 {
        self.held_by_team[team]
    }

    /// GPU time up to now; running jobs are settled up to their last change.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Number of finished jobs.
    pub fn jobs_done(&self) -> usize {
        self.done
    }

    /// Number of processed events.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Number of changes made from outside.
    pub fn actions(&self) -> u64 {
        self.actions
    }
}
