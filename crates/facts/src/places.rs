//! Racks of nodes and prices of pools, as the topology file and the price book state them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::pairs;
use tidegate_autopilot::state::ClusterState;
use tidegate_events::Micros;
use tidegate_events::v1::{CapacityEvent, CapacityEventKind, NodeEvent, NodeEventKind};

/// Nodes and entries of the price book that are kept; further ones are ignored.
const MAX_NODES: usize = 200_000;
const MAX_PRICES: usize = 10_000;
/// Contract of GPUs that are paid by the hour.
const ON_DEMAND: &str = "on_demand";

/// Places and prices of one cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Places {
    /// Rack of each node, or the switch that it is connected to where no rack is stated.
    racks: BTreeMap<String, String>,
    /// By pool and GPU model (either absent: any) and the start of the price, ms.
    #[serde(with = "pairs")]
    prices: BTreeMap<(Option<String>, Option<String>, i64), Price>,
}

/// An entry of the price book; without a price it ends the one before.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Price {
    micros: Option<u64>,
    is_on_demand: bool,
    entered_ms: i64,
}

impl Places {
    pub fn node(&mut self, event: &NodeEvent) {
        if event.kind() != NodeEventKind::NodeLabeled {
            return;
        }
        match event.rack.as_ref().or(event.switch.as_ref()) {
            Some(rack) if self.racks.len() < MAX_NODES || self.racks.contains_key(&event.node) => {
                self.racks.insert(event.node.clone(), rack.clone());
            }
            Some(_) => {}
            None => {
                self.racks.remove(&event.node);
            }
        }
    }

    pub fn price(&mut self, event: &CapacityEvent, from_ms: i64) {
        if event.kind() != CapacityEventKind::PriceSet {
            return;
        }
        let key = (event.pool.clone(), event.gpu_model.clone(), from_ms);
        let entry = Price {
            micros: event.price_micros_per_gpu_hour,
            is_on_demand: event.contract.as_deref() == Some(ON_DEMAND),
            entered_ms: event.entered_ms.unwrap_or(from_ms),
        };
        match self.prices.get(&key) {
            Some(known) if known.entered_ms > entry.entered_ms => {}
            None if self.prices.len() >= MAX_PRICES => {}
            _ => {
                self.prices.insert(key, entry);
            }
        }
    }

    /// Adds racks and prices. A rack that somebody stated goes before the scheduler's, a price of
    /// the scheduler's configuration before the price book.
    pub fn enrich(&self, state: &mut ClusterState) {
        for (name, node) in &mut state.nodes {
            if let Some(rack) = self.racks.get(name) {
                node.rack = Some(rack.clone());
            }
        }
        let at_ms = Micros(state.at_us).floor_millis().0;
        for (name, pool) in &mut state.pools {
            // A pool of several models has the price of the first.
            let model = state.nodes.values().find(|node| node.pool == *name).map(|node| &*node.gpu_model);
            if pool.price_micros_per_gpu_hour.is_none() {
                pool.price_micros_per_gpu_hour = self.price_of(name, model, at_ms);
            }
            if pool.on_demand_micros_per_gpu_hour.is_none() {
                pool.on_demand_micros_per_gpu_hour = self.on_demand(model, at_ms);
            }
        }
    }

    /// Price of a pool's GPUs; the more specific entry goes first.
    fn price_of(&self, pool: &str, model: Option<&str>, at_ms: i64) -> Option<u64> {
        let (pool, model) = (Some(pool.to_owned()), model.map(str::to_owned));
        let specific = [(pool.clone(), model.clone()), (pool, None), (None, model), (None, None)];
        specific.into_iter().find_map(|(pool, model)| self.valid(pool, model, at_ms)?.micros)
    }

    /// Lowest price at which GPUs of this model are rented by the hour.
    fn on_demand(&self, model: Option<&str>, at_ms: i64) -> Option<u64> {
        let mut keys: Vec<_> = self.prices.keys().map(|(pool, of, _)| (pool.clone(), of.clone())).collect();
        keys.dedup();
        let is_alike = |of: &Option<String>| of.is_none() || of.as_deref() == model;
        let valid = keys.into_iter().filter(|(_, of)| is_alike(of));
        let valid = valid.filter_map(|(pool, of)| self.valid(pool, of, at_ms));
        valid.filter(|price| price.is_on_demand).filter_map(|price| price.micros).min()
    }

    /// The entry of exactly this pool and model that applies at a time.
    fn valid(&self, pool: Option<String>, model: Option<String>, at_ms: i64) -> Option<&Price> {
        let from = (pool.clone(), model.clone(), i64::MIN);
        self.prices.range(from..=(pool, model, at_ms)).next_back().map(|(_, price)| price)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_autopilot::state::{Health, Node, NodeState, Pool};

    use super::*;

    fn price(pool: Option<&str>, micros: Option<u64>, contract: &str, entered_ms: i64) -> CapacityEvent {
        CapacityEvent {
            kind: CapacityEventKind::PriceSet.into(),
            pool: pool.map(str::to_owned),
            price_micros_per_gpu_hour: micros,
            contract: Some(contract.into()),
            entered_ms: Some(entered_ms),
            ..CapacityEvent::default()
        }
    }

    #[test]
    fn the_price_that_applies_is_the_most_specific_one_entered_last() {
        let mut places = Places::default();
        places.price(&price(None, Some(2_000_000), "owned", 1), 0);
        places.price(&price(Some("burst"), Some(4_000_000), ON_DEMAND, 1), 0);
        places.price(&price(Some("train"), Some(1_500_000), "reserved", 5), 100);
        places.price(&price(Some("train"), Some(9), "reserved", 4), 100);
        places.price(&price(Some("train"), None, "reserved", 6), 300);
        let pools_at = |at_ms: i64| {
            let pools = ["train", "burst"].map(|name| (name.to_owned(), Pool::default()));
            let mut state =
                ClusterState { at_us: at_ms * 1_000, pools: pools.into(), ..ClusterState::default() };
            places.enrich(&mut state);
            state.pools
        };
        let prices = |at_ms: i64| {
            let pools = pools_at(at_ms);
            ["train", "burst"].map(|name| pools[name].price_micros_per_gpu_hour)
        };
        assert_eq!(prices(50), [Some(2_000_000), Some(4_000_000)]);
        assert_eq!(prices(200), [Some(1_500_000), Some(4_000_000)]);
        assert_eq!(prices(300), [Some(2_000_000), Some(4_000_000)], "the entry has ended");
        assert_eq!(prices(-1), [None, None]);
        assert_eq!(pools_at(200)["train"].on_demand_micros_per_gpu_hour, Some(4_000_000));
    }

    #[test]
    fn a_node_without_a_rack_has_its_switch_as_one() {
        let mut places = Places::default();
        let label = |rack: Option<&str>, switch: Option<&str>| NodeEvent {
            kind: NodeEventKind::NodeLabeled.into(),
            node: "n1".into(),
            rack: rack.map(str::to_owned),
            switch: switch.map(str::to_owned),
            ..NodeEvent::default()
        };
        places.node(&label(None, Some("leaf-3")));
        assert_eq!(places.racks["n1"], "leaf-3");
        places.node(&label(Some("r7"), Some("leaf-3")));
        assert_eq!(places.racks["n1"], "r7");
        places.node(&label(None, None));
        assert!(places.racks.is_empty());
    }

    #[test]
    fn a_stated_rack_goes_before_the_schedulers() {
        let mut places = Places::default();
        places.node(&NodeEvent {
            kind: NodeEventKind::NodeLabeled.into(),
            node: "n1".into(),
            rack: Some("r7".into()),
            ..NodeEvent::default()
        });
        let node = |rack: &str| Node {
            pool: "train".into(),
            rack: Some(rack.to_owned()),
            gpu_model: "h100".into(),
            gpus: 8,
            state: NodeState::Up,
            health: Health::default(),
            drain: None,
            do_not_disrupt: false,
        };
        let nodes = ["n1", "n2"].map(|name| (name.to_owned(), node("leaf-3")));
        let mut state = ClusterState { nodes: nodes.into(), ..ClusterState::default() };
        places.enrich(&mut state);
        let racks = ["n1", "n2"].map(|name| state.nodes[name].rack.as_deref());
        assert_eq!(racks, [Some("r7"), Some("leaf-3")]);
    }
}
