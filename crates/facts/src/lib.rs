//! What the log says of jobs, nodes and pools, added to the state that a scheduler shows.
//!
//! A scheduler knows where a job runs; it does not know when the job ends, what stopping it loses,
//! how it scales or whether its nodes are healthy. [`Facts`] learns that from events, the same way
//! on a real cluster and in the simulator: what a plan rests on there, a site can know.
//!
//! | module | from | adds |
//! |---|---|---|
//! | `run_times` | jobs that ended | expected end, with its uncertainty |
//! | `restarts` | jobs that were stopped and completed later | whether a team's jobs resume |
//! | `progress` | step reports | last checkpoint, time of a step, to save, restart and resize |
//! | `curves` | scaling curves of job families | throughput by size, remaining work |
//! | `node_health` | health and straggler signals | health of nodes |
//! | `waits` | jobs that could start and did | each owner's waits of thirty days |
//! | `places` | locations of nodes, the price book | racks, prices of pools |
//!
//! Beside the state, `published` reads forecasts of demand.

#![warn(missing_docs)]

mod bounded;
mod curves;
mod jobs;
mod node_health;
mod places;
mod progress;
mod published;
mod restarts;
mod run_times;
mod waits;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::state::ClusterState;
use tidegate_events::{Event, Micros, SchemaId};

use curves::Curves;
use jobs::Jobs;
use node_health::NodeSignals;
use places::Places;
use progress::Progress;
pub use published::record_published;
pub use run_times::{Remaining, RunTimes};
use waits::TeamWaits;

/// Everything learned of one cluster; saved and restored as a whole.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    signals: NodeSignals,
    jobs: Jobs,
    curves: Curves,
    progress: Progress,
    places: Places,
    waits: TeamWaits,
}

impl Facts {
    /// Topics whose events count, beside [`Self::STEPS`].
    pub const TOPICS: [&str; 4] = [
        SchemaId::NodeSignal.topic(),
        SchemaId::JobEvent.topic(),
        SchemaId::NodeEvent.topic(),
        SchemaId::CapacityEvent.topic(),
    ];
    /// Topic of the step reports. To be read after the others: steps of unknown jobs do not count.
    pub const STEPS: &str = SchemaId::StepReport.topic();

    /// Takes in an event of the cluster; kinds that say nothing of the above are ignored.
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Job(job) => {
                self.jobs.observe(job, event.event_time_ms());
                self.progress.job(job, event.event_time_ms());
                self.waits.observe(job, event.event_time_ms());
            }
            Event::Step(step) => self.progress.step(step, event.event_time_ms(), &self.jobs),
            Event::Scaling(point) => self.curves.point(point, event.event_time_ms()),
            Event::NodeHealth(_) | Event::Straggler(_) => self.signals.observe(event),
            Event::Node(node) => self.places.node(node),
            Event::Capacity(capacity) => self.places.price(capacity, event.event_time_ms()),
            _ => {}
        }
    }

    /// Adds what is known to a state. What the state has already, from a scheduler or its
    /// configuration, stays.
    pub fn enrich(&self, state: &mut ClusterState) {
        self.signals.enrich(state);
        self.places.enrich(state);
        let at_us = state.at_us;
        self.waits.enrich(state, Micros(at_us).floor_millis().0);
        for (id, job) in &mut state.jobs {
            if job.curve.is_none() {
                job.curve = self.curves.of(&self.jobs.family(id));
            }
            self.progress.enrich(id, job, &self.jobs);
            self.jobs.enrich(id, job, at_us);
        }
    }
}
