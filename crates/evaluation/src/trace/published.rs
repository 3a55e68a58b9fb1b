//! Forecasts of a simulated site's services, published by the code that a real site runs.

use std::collections::BTreeMap;

use tidegate_events::{Event, FinalState, GPU_MILLI, v1};
use tidegate_signals::Demand;
use tidegate_sim::pilot::Publisher;

/// Runs the signals service's forecaster on simulated services. It sees each replica as a job of
/// one GPU; when demand falls, the newest jobs end first.
pub(super) struct SiteForecasts {
    demand: Demand,
    /// Running replicas by pool, oldest first.
    replicas: BTreeMap<String, Vec<u64>>,
    begun: u64,
}

impl SiteForecasts {
    pub(super) fn new() -> Self {
        Self { demand: Demand::new("backtest", i64::MIN), replicas: BTreeMap::new(), begun: 0 }
    }

    fn report(&mut self, pool: &str, replica: u64, kind: v1::JobEventKind, at_us: i64) {
        let ends = kind == v1::JobEventKind::Ended;
        let event = v1::JobEvent {
            kind: kind.into(),
            job_id: replica.to_string(),
            pool: Some(pool.to_owned()),
            gpus_milli: Some(GPU_MILLI),
            final_state: ends.then(|| FinalState::Completed.as_str().to_owned()),
            ..v1::JobEvent::default()
        };
        self.demand.observe(event, at_us);
    }
}

impl Publisher for SiteForecasts {
    fn demand(&mut self, pool: &str, gpus: u32, at_us: i64) {
        let running = self.replicas.get(pool).map_or(0, Vec::len);
        for _ in running..gpus as usize {
            self.begun += 1;
            self.replicas.entry(pool.to_owned()).or_default().push(self.begun);
            self.report(pool, self.begun, v1::JobEventKind::Started, at_us);
        }
        for _ in gpus as usize..running {
            let Some(newest) = self.replicas.get_mut(pool).and_then(Vec::pop) else { break };
            self.report(pool, newest, v1::JobEventKind::Ended, at_us);
        }
    }

    fn publish(&mut self, now_us: i64) -> Vec<Event> {
        self.demand.publish(now_us)
    }
}
