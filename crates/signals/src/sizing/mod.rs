//! Advice on how much of each pool to commit to for a week, a month and a year, by past demand and
//! the prices in force.
//!
//! Advice is published at midnights (UTC): on Mondays, because the shortest commitment is a week
//! and does not change by the day; on each day of a series' first week, so that a new pool has
//! advice soon; and at the first midnight with other prices. A price entered for a time that has
//! passed renews the last midnight's advice.

mod advice;
mod backtest;
mod hourly_demand;
mod node_sizes;
mod price_book;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_events::v1::SeriesKind;
use tidegate_events::{Event, v1};
use tidegate_insight::sizing::Prices;

use crate::demand::DemandChange;
use crate::publication::{Publication, envelope, producer_name};
use crate::time::{DAY_HOURS, DAY_US, HOUR_US, WEEK_HOURS, YEAR_HOURS};
use advice::Basis;
use backtest::Backtest;
use hourly_demand::HourlyDemand;
use node_sizes::NodeSizes;
use price_book::{PriceBook, PricesInForce};

/// Version of the rules, part of the producer name.
const MODEL: &str = "sizing-1";
/// 365.25 / 12 days, rounded down to hours.
const MONTH_HOURS: usize = 730;
/// Hours of a series before its first advice; for this many more it counts as new.
const MIN_HOURS: usize = DAY_HOURS;
const NEW_HOURS: usize = MIN_HOURS + WEEK_HOURS;
/// After this long without a job event advice stops, and hours start anew with the next event.
const SILENCE_US: i64 = 60 * DAY_US;
/// Most series per cluster, as for forecasts; further pools count in the total alone.
const MAX_SERIES: usize = 256;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Series {
    hours: HourlyDemand,
    /// For a week and a month.
    backtests: [Backtest; 2],
    /// Prices of the last published advice.
    published: Option<PricesInForce>,
}

/// Sizing of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sizing {
    cluster: String,
    publish_from_us: i64,
    /// Start of the current hour; `None` before the first job event.
    hour_us: Option<i64>,
    /// Time of the last job event.
    newest_us: i64,
    /// The last midnight passed.
    midnight_us: Option<i64>,
    /// A price that applies before that midnight was entered since.
    is_repriced: bool,
    series: BTreeMap<(i32, String), Series>,
    book: PriceBook,
    nodes: NodeSizes,
    #[serde(skip)]
    out: Vec<Publication>,
}

impl Sizing {
    /// Advice for decisions before `publish_from_us` is not published; their hours count.
    pub fn new(cluster: &str, publish_from_us: i64) -> Self {
        Self {
            cluster: cluster.into(),
            publish_from_us,
            hour_us: None,
            newest_us: i64::MIN,
            midnight_us: None,
            is_repriced: false,
            series: BTreeMap::new(),
            book: PriceBook::default(),
            nodes: NodeSizes::default(),
            out: Vec::new(),
        }
    }

    /// Takes a change of demand. Series other than pools and the total are not sized.
    pub fn observe_demand(&mut self, change: DemandChange) {
        let DemandChange { series: name, more_milli, at_us } = change;
        if ![SeriesKind::Total, SeriesKind::Pool].map(i32::from).contains(&name.0) {
            return;
        }
        self.advance(at_us);
        self.newest_us = self.newest_us.max(at_us);
        let hour_us = match self.hour_us {
            Some(hour_us) => hour_us,
            None => {
                let hour_us = at_us.div_euclid(HOUR_US) * HOUR_US;
                self.series.values_mut().for_each(|series| series.restart(hour_us, at_us));
                *self.hour_us.insert(hour_us)
            }
        };
        if !self.series.contains_key(&name) && self.series.len() >= MAX_SERIES {
            return;
        }
        let series = self.series.entry(name).or_insert_with(|| Series::new(hour_us, at_us));
        series.hours.add(more_milli, at_us);
    }

    /// Takes a price or the make-up of a partition, valid from `at_us` on.
    pub fn observe_capacity(&mut self, event: v1::CapacityEvent, at_us: i64) {
        if event.kind() == v1::CapacityEventKind::PriceSet {
            self.is_repriced |= self.midnight_us.is_some_and(|midnight_us| at_us <= midnight_us);
            self.book.enter(event, at_us);
        } else {
            self.nodes.observe_partition(&event);
        }
    }

    /// Takes a node event.
    pub fn observe_node(&mut self, event: &v1::NodeEvent) {
        self.nodes.observe_node(event);
    }

    /// Closes the hours that ended by `now_us`, and gives advice at midnights. All events up to
    /// then were applied.
    pub fn advance(&mut self, now_us: i64) {
        while let Some(hour_us) = self.hour_us.filter(|hour_us| hour_us.saturating_add(HOUR_US) <= now_us) {
            if hour_us.saturating_sub(self.newest_us) > SILENCE_US {
                (self.hour_us, self.midnight_us) = (None, None);
                break;
            }
            let end_us = hour_us + HOUR_US;
            self.series.values_mut().for_each(|series| series.hours.close(end_us));
            self.hour_us = Some(end_us);
            if end_us.rem_euclid(DAY_US) == 0 {
                self.midnight_us = Some(end_us);
                self.publish(end_us, false);
            }
        }
        if std::mem::take(&mut self.is_repriced)
            && let Some(midnight_us) = self.midnight_us
        {
            self.publish(midnight_us, true);
        }
    }

    /// Hands over the advice since the last call.
    pub fn take(&mut self) -> Vec<Publication> {
        std::mem::take(&mut self.out)
    }

    /// Publishes the advice due at a midnight. `again`: only where prices differ from the last
    /// advice.
    fn publish(&mut self, at_us: i64, again: bool) {
        // 1970-01-05 was a Monday.
        let is_monday = (at_us.div_euclid(DAY_US) - 4).rem_euclid(7) == 0;
        for ((kind, name), series) in &mut self.series {
            let known = series.hours.known_at(at_us).len();
            if known < MIN_HOURS {
                continue;
            }
            let pool = (*kind == i32::from(SeriesKind::Pool)).then_some(name.as_str());
            let prices = self.book.in_force(pool, self.nodes.model(pool), at_us);
            let node_gpus = self.nodes.size(pool);
            let is_other = series.published.as_ref().is_none_or(|output| !output.has_same_entries(&prices));
            if !is_other && (again || !is_monday && known >= NEW_HOURS) {
                continue;
            }
            // What is due must not depend on when this run of the service began to publish.
            series.published = Some(prices.clone());
            if at_us < self.publish_from_us {
                continue;
            }
            let entered = prices.entered_ms.map_or("-".to_owned(), |ms| ms.to_string());
            let kind_name = SeriesKind::try_from(*kind).unwrap_or_default().as_str_name();
            let about = [MODEL, &self.cluster, "SIZING", kind_name, name, &at_us.to_string(), &entered];
            let source = producer_name(&about);
            let draft = v1::SizingAdvice {
                kind: *kind,
                name: name.clone(),
                prices_entered_ms: prices.entered_ms,
                node_gpus,
                model: MODEL.into(),
                ..v1::SizingAdvice::default()
            };
            let seed = seed(&[&self.cluster, kind_name, name, &at_us.to_string()]);
            let output = series.advice(draft, &prices, at_us, seed);
            let events = (0..).zip(output).map(|(seq, mut advice)| {
                advice.envelope = envelope(&self.cluster, &source, at_us, seq);
                Event::Sizing(advice)
            });
            let events = events.collect();
            self.out.push(Publication { source, events });
        }
    }
}

impl Series {
    fn new(hour_us: i64, at_us: i64) -> Self {
        let backtests = [WEEK_HOURS, MONTH_HOURS].map(Backtest::new);
        Self { hours: HourlyDemand::new(hour_us, at_us), backtests, published: None }
    }

    fn restart(&mut self, hour_us: i64, at_us: i64) {
        self.hours.restart(hour_us, at_us);
        *self = Self { hours: self.hours.clone(), ..Self::new(hour_us, at_us) };
    }

    /// Advice for each term.
    fn advice(
        &mut self,
        draft: v1::SizingAdvice,
        offered: &PricesInForce,
        at_us: i64,
        seed: u64,
    ) -> Vec<v1::SizingAdvice> {
        let hours = self.hours.known_at(at_us);
        let [week, month] = &mut self.backtests;
        let terms = [
            ("WEEK", WEEK_HOURS, Some(week)),
            ("MONTH", MONTH_HOURS, Some(month)),
            ("YEAR", YEAR_HOURS, None),
        ];
        let advice = terms.into_iter().map(|(term, term_hours, backtest)| {
            let mut advice = draft.clone();
            (advice.term, advice.term_hours) = (term.into(), term_hours as u32);
            let reason = advice::describe(&mut advice, hours);
            set_prices(&mut advice, offered);
            let reason = reason.map_or_else(
                || {
                    let prices = match prices(offered) {
                        Ok(prices) => prices,
                        Err(reason) => return Some(reason),
                    };
                    let node_gpus = draft.node_gpus.unwrap_or(1);
                    let basis = Basis { hours, prices: &prices, node_gpus, seed };
                    let output = match backtest {
                        Some(backtest) => {
                            advice::by_rules(&mut advice, basis, backtest, at_us).map(|()| None)
                        }
                        None => advice::by_paths(&mut advice, basis, offered),
                    };
                    // Sizing refuses demand or prices beyond its range.
                    output.unwrap_or(Some("OUT_OF_RANGE"))
                },
                Some,
            );
            advice.reason = reason.map(str::to_owned);
            advice
        });
        advice.collect()
    }
}

/// Prices to size by, or the reason why there are none.
fn prices(offered: &PricesInForce) -> Result<Prices, &'static str> {
    let committed = offered.reserved.as_ref().or(offered.owned.as_ref()).ok_or("NO_RESERVED_PRICE")?;
    let on_demand = offered.on_demand.as_ref().ok_or("NO_ON_DEMAND_PRICE")?;
    let others = [&offered.reserved, &offered.owned, &offered.spot];
    if others.into_iter().flatten().any(|entry| entry.currency != on_demand.currency) {
        return Err("CURRENCIES_DIFFER");
    }
    let price = |micros: Option<u64>| micros.map_or(0.0, |micros| micros as f64);
    Prices::new(price(committed.micros), price(on_demand.micros), price(committed.lend_micros))
        .map_err(|_| "LENDING_TOO_DEAR")
}

fn set_prices(advice: &mut v1::SizingAdvice, offered: &PricesInForce) {
    let PricesInForce { reserved, owned, on_demand, spot, .. } = offered;
    let committed = reserved.as_ref().or(owned.as_ref());
    let any = committed.or(on_demand.as_ref()).or(spot.as_ref());
    advice.currency = any.map(|entry| entry.currency.clone());
    advice.reserved_micros_per_gpu_hour = reserved.as_ref().and_then(|entry| entry.micros);
    advice.owned_micros_per_gpu_hour = owned.as_ref().and_then(|entry| entry.micros);
    advice.on_demand_micros_per_gpu_hour = on_demand.as_ref().and_then(|entry| entry.micros);
    advice.spot_micros_per_gpu_hour = spot.as_ref().and_then(|entry| entry.micros);
    advice.lend_micros_per_gpu_hour = committed.and_then(|entry| entry.lend_micros);
}

/// FNV-1a of the subject of an advice: any process draws the same paths for it.
fn seed(about: &[&str]) -> u64 {
    let bytes = about.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
