//! Looking at a simulation.

use crate::{ClusterSpec, Job, Ledger, Node, Recording, ServiceSpec, Sim, SimEvent};

impl Sim {
    /// Keeps events from now on, or stops.
    pub fn set_recording(&mut self, recording: Recording) {
        self.recording = recording;
    }

    /// Takes what happened since the last time, with when it did.
    pub fn take_events(&mut self) -> Vec<(i64, SimEvent)> {
        std::mem::take(&mut self.events)
    }

    /// Virtual time, µs since the simulation began.
    pub fn now_us(&self) -> i64 {
        self.now_us
    }

    /// The description it was made from.
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// All jobs, those to come included.
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

    /// Jobs that run, by number.
    pub fn running(&self) -> impl Iterator<Item = u32> + '_ {
        self.running.iter().copied()
    }

    /// Jobs that wait, team by team, in the order they would start.
    pub fn waiting(&self) -> impl Iterator<Item = u32> + '_ {
        self.queues.iter().flatten().map(|(_, job)| *job)
    }

    /// GPUs of a pool's own nodes that can serve now.
    pub fn serving_gpus(&self, pool: usize) -> u32 {
        self.nodes.ready(pool) as u32
    }

    /// Free GPUs that jobs of a pool can have: of its own nodes, and of borrowed ones.
    pub fn free_gpus(&self, pool: usize) -> (u32, u32) {
        self.nodes.free(pool)
    }

    /// What a service needs now, GPUs.
    pub fn demand_gpus(&self, service: usize) -> u32 {
        self.demand[service] as u32
    }

    /// What a team may hold now.
    pub fn limit_gpus(&self, team: usize) -> Option<u32> {
        self.limits[team]
    }

    /// What a team holds now.
    pub fn held_gpus(&self, team: usize) -> u32 {
        self.held_by_team[team]
    }

    /// GPU time so far, counted up to now; work of jobs that run is settled up to their last
    /// change.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Jobs that are done.
    pub fn jobs_done(&self) -> usize {
        self.done
    }

    /// Happenings that were worked through.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Changes from outside that were carried out so far.
    pub fn actions(&self) -> u64 {
        self.actions
    }
}
