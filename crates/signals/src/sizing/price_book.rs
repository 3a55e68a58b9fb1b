//! Price book: the prices in force for a pool, one for each contract.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_events::v1;

/// Scopes (pool and model) kept per cluster, and entries per scope. Further scopes are ignored; of
/// entries the oldest is dropped.
const MAX_SCOPES: usize = 1_024;
const MAX_ENTRIES: usize = 64;

/// Pool and model of an entry; `None`: any.
type Scope = (Option<String>, Option<String>);

/// One price.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PriceEntry {
    pub entered_ms: Option<i64>,
    /// `None`: ends the entry before.
    pub micros: Option<u64>,
    pub contract: String,
    pub currency: String,
    /// Earned by an idle GPU-hour.
    pub lend_micros: Option<u64>,
    /// Owned: months of depreciation.
    pub months: Option<u32>,
    /// Spot, as far as entered: interruptions per GPU-hour (millionths), ms lost in each, share of
    /// demand (millionths).
    pub spot: [Option<u64>; 3],
}

/// Prices in force for one pool at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PricesInForce {
    pub reserved: Option<PriceEntry>,
    pub owned: Option<PriceEntry>,
    pub on_demand: Option<PriceEntry>,
    pub spot: Option<PriceEntry>,
    /// When the newest entry in force was entered, of all contracts and scopes that apply.
    pub entered_ms: Option<i64>,
}

impl PricesInForce {
    /// Whether the same entries are in force, whatever else was entered.
    pub fn has_same_entries(&self, other: &Self) -> bool {
        let entries = |of: &Self| [&of.reserved, &of.owned, &of.on_demand, &of.spot].map(Option::clone);
        entries(self) == entries(other)
    }
}

/// Entries of a cluster, by scope and start of validity, µs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PriceBook {
    scopes: BTreeMap<Scope, BTreeMap<i64, PriceEntry>>,
}

impl PriceBook {
    /// Enters a price valid from `from_us` on. Of several for the same time, the one entered last
    /// holds.
    pub fn enter(&mut self, event: v1::CapacityEvent, from_us: i64) {
        let entry = PriceEntry {
            entered_ms: event.entered_ms,
            micros: event.price_micros_per_gpu_hour,
            contract: event.contract.unwrap_or_default(),
            currency: event.currency.unwrap_or_default(),
            lend_micros: event.lend_micros_per_gpu_hour,
            months: event.depreciation_months,
            spot: [
                event.interruptions_ppm_per_gpu_hour.map(u64::from),
                event.lost_ms_per_interruption,
                event.spot_share_ppm.map(u64::from),
            ],
        };
        let scope = (event.pool, event.gpu_model);
        if !self.scopes.contains_key(&scope) && self.scopes.len() >= MAX_SCOPES {
            return;
        }
        let entries = self.scopes.entry(scope).or_default();
        match entries.get(&from_us) {
            Some(known) if *known >= entry => {}
            _ => {
                entries.insert(from_us, entry);
            }
        }
        if entries.len() > MAX_ENTRIES {
            entries.pop_first();
        }
    }

    /// Prices in force at `at_us` for a GPU of `pool` and `model`. `None` stands for several of
    /// them, so that only prices of any apply. For each contract the most specific entry counts:
    /// pool and model, model, pool, any.
    pub fn in_force(&self, pool: Option<&str>, model: Option<&str>, at_us: i64) -> PricesInForce {
        let mut found = PricesInForce::default();
        let scopes = [(pool, model), (None, model), (pool, None), (None, None)];
        for (at, scope) in scopes.iter().enumerate() {
            if scopes[..at].contains(scope) {
                continue;
            }
            let scope = (scope.0.map(str::to_owned), scope.1.map(str::to_owned));
            let Some(entries) = self.scopes.get(&scope) else { continue };
            let entered = entries.range(..=at_us).filter_map(|(_, entry)| entry.entered_ms).max();
            found.entered_ms = found.entered_ms.max(entered);
            let Some((_, entry)) = entries.range(..=at_us).next_back() else { continue };
            let place = match entry.contract.as_str() {
                "reserved" => &mut found.reserved,
                "owned" => &mut found.owned,
                "on_demand" => &mut found.on_demand,
                "spot" => &mut found.spot,
                _ => continue,
            };
            // An entry of 0 is not a price to size by.
            if place.is_none() && entry.micros.is_some_and(|micros| micros > 0) {
                *place = Some(entry.clone());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(scope: (&str, &str), contract: &str, micros: u64, entered_ms: i64) -> v1::CapacityEvent {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        v1::CapacityEvent {
            pool: some(scope.0),
            gpu_model: some(scope.1),
            contract: some(contract),
            price_micros_per_gpu_hour: (micros > 0).then_some(micros),
            entered_ms: Some(entered_ms),
            ..v1::CapacityEvent::default()
        }
    }

    #[test]
    fn the_most_specific_entry_of_each_way_to_pay_holds_from_its_time_on() {
        let mut book = PriceBook::default();
        book.enter(price(("", ""), "on_demand", 4, 1), 0);
        book.enter(price(("p", ""), "reserved", 2, 2), 10);
        book.enter(price(("", "h"), "reserved", 3, 3), 10);
        book.enter(price(("p", "h"), "spot", 1, 4), 10);
        let of = |at_us| {
            let found = book.in_force(Some("p"), Some("h"), at_us);
            let micros = |entry: &Option<PriceEntry>| entry.as_ref().and_then(|entry| entry.micros);
            (micros(&found.reserved), micros(&found.on_demand), micros(&found.spot), found.entered_ms)
        };
        assert_eq!(of(9), (None, Some(4), None, Some(1)));
        // The model's price goes before the pool's, as in price_of.
        assert_eq!(of(10), (Some(3), Some(4), Some(1), Some(4)));
        // For several pools and models only prices of any apply.
        let any = book.in_force(None, None, 10);
        assert!(any.reserved.is_none() && any.on_demand.is_some() && any.entered_ms == Some(1));
    }

    #[test]
    fn an_entry_without_a_price_ends_the_one_before_and_the_last_one_entered_holds() {
        let mut book = PriceBook::default();
        for (micros, entered_ms) in [(5, 2), (4, 1)] {
            book.enter(price(("p", ""), "reserved", micros, entered_ms), 10);
        }
        let reserved =
            |book: &PriceBook, at_us| book.in_force(Some("p"), None, at_us).reserved.map(|it| it.micros);
        assert_eq!(reserved(&book, 10), Some(Some(5)));
        book.enter(price(("p", ""), "", 0, 3), 20);
        assert_eq!((reserved(&book, 19), reserved(&book, 20)), (Some(Some(5)), None));
        for from_us in 0..200 {
            book.enter(price(("q", ""), "reserved", 1, 0), from_us);
        }
        assert_eq!(
            (reserved(&book, 15), book.in_force(Some("q"), None, 135).reserved),
            (Some(Some(5)), None)
        );
    }
}
