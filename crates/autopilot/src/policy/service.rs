//! GPUs a service needs so that requests do not wait too long: M/M/n, Erlang C
//! (`tidegate_insight::forecast`; docs/control.md, 4.4).

use serde::{Deserialize, Serialize};
use tidegate_insight::forecast::servers_for;

use super::Policy;
use crate::names::{OwnerName, PoolName};

/// Load and waiting-time promise of a service in a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Owner of the service.
    pub owner: OwnerName,
    /// Pool it runs on.
    pub pool: PoolName,
    /// Requests per second that one GPU of demand stands for.
    pub requests_per_gpu: f64,
    /// Mean service time, seconds.
    pub service_s: f64,
    /// Requests one GPU serves concurrently.
    pub slots_per_gpu: u32,
    /// Longest allowed wait, seconds.
    pub wait_s: f64,
    /// Share of requests that may wait longer.
    pub late_share: f64,
}

impl Service {
    /// Fewest GPUs that keep the share of late requests within its limit at a demand of
    /// `demand_gpus`, by Erlang C over slots. `None`: the demand is not a number or exceeds ten
    /// million slots.
    pub fn least_gpus(&self, demand_gpus: f64) -> Option<u32> {
        let rate = demand_gpus * self.requests_per_gpu;
        let slots = servers_for(rate, self.service_s, self.wait_s, self.late_share).ok()?;
        Some(slots.div_ceil(self.slots_per_gpu.max(1)))
    }
}

impl Policy {
    /// GPUs of `pool` that a service of `owner` must keep at a demand of `demand_gpus`. 0: the
    /// policy declares no such service.
    pub fn service_floor(&self, owner: &str, pool: &str, demand_gpus: f64) -> u32 {
        let of = self.services.iter().find(|service| service.owner == owner && service.pool == pool);
        of.and_then(|service| service.least_gpus(demand_gpus)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(slots_per_gpu: u32, wait_s: f64) -> Service {
        let (owner, pool) = ("serving".to_owned(), "serve".to_owned());
        Service { owner, pool, requests_per_gpu: 1.0, service_s: 1.0, slots_per_gpu, wait_s, late_share: 0.1 }
    }

    #[test]
    fn the_floor_is_that_of_erlangs_tables() {
        // Two erlangs: 4/9 wait with three servers, 4/23 with four, 0.060 with five.
        assert_eq!(service(1, 0.0).least_gpus(2.0), Some(5));
        // With half a second allowed, of those who wait e^(-2 x 0.5) wait longer with four servers
        // (0.064 in all), e^(-0.5) with three.
        assert_eq!(service(1, 0.5).least_gpus(2.0), Some(4));
        assert_eq!(service(4, 0.0).least_gpus(2.0), Some(2), "five slots are two GPUs");
        assert_eq!(service(1, 0.0).least_gpus(0.0), Some(0));
        assert_eq!(service(1, 0.0).least_gpus(f64::NAN), None);
    }
}
