//! Sums of the truth: GPU time by class and holder.

use std::collections::BTreeMap;

use super::class::Class;
use super::day::Day;
use super::fleet::{BURST, Span, WHOLE};

/// Key of the sums.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub class: Class,
    pub pool: &'static str,
    pub team: Option<&'static str>,
    pub job: Option<String>,
}

/// GPU time by cell, in fourteenths of GPU-ms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Truth(pub BTreeMap<Cell, i64>);

impl Truth {
    /// The truth as far as it is knowable with these unobserved periods of each node.
    pub fn new(day: &Day, unseen: &[Vec<Span>]) -> Self {
        let mut truth = Self::default();
        let unseen: Vec<Vec<Span>> = unseen.iter().map(|spans| joined(spans.clone())).collect();
        for (place, unit) in day.fleet.units.iter().enumerate() {
            let pool = day.fleet.nodes[unit.node].pool;
            for piece in day.pieces(place) {
                let job = piece.by.map(|by| &day.jobs[by.job]);
                let hidden_ms = overlap_ms(&unseen[unit.node], piece.span);
                let parts =
                    [(piece.class, piece.span.length_ms() - hidden_ms), (piece.class.unseen(), hidden_ms)];
                for (class, ms) in parts.into_iter().filter(|(_, ms)| *ms > 0) {
                    let cell = Cell {
                        class,
                        pool,
                        team: job.map(|job| job.team),
                        job: job.map(|job| job.id.clone()),
                    };
                    *truth.0.entry(cell).or_default() += ms * unit.weight();
                }
            }
        }
        let reserved = Cell { class: Class::NotProvisioned, pool: BURST, team: None, job: None };
        truth.0.insert(reserved, day.not_provisioned());
        truth
    }

    /// GPU-ms grouped by a function of the cell.
    pub fn by<K: Ord>(&self, key: impl Fn(&Cell) -> Option<K>) -> BTreeMap<K, f64> {
        let mut sums = BTreeMap::new();
        for (cell, time) in &self.0 {
            if let Some(key) = key(cell) {
                *sums.entry(key).or_insert(0) += time;
            }
        }
        sums.into_iter().map(|(key, time)| (key, time as f64 / WHOLE as f64)).collect()
    }
}

/// Merges spans into disjoint ones, in order.
pub(super) fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| span.from_ms);
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.from_ms <= last.to_ms => last.to_ms = last.to_ms.max(span.to_ms),
            _ => joined.push(span),
        }
    }
    joined
}

/// Overlap of a span with sorted disjoint spans, ms.
pub(super) fn overlap_ms(spans: &[Span], of: Span) -> i64 {
    let first = spans.partition_point(|span| span.to_ms <= of.from_ms);
    let within = spans[first..].iter().take_while(|span| span.from_ms < of.to_ms);
    within.map(|span| span.to_ms.min(of.to_ms) - span.from_ms.max(of.from_ms)).sum()
}
