//! Pending spans: what a joined table has yet to recompute.
//!
//! They are in the same commit as the progress that took them over. A checkpoint of the log keeps
//! application transactions and no other note, so each bound of a span is one.

use chrono::Utc;
use deltalake::kernel::{Action, Transaction};

use super::DeltaStore;
use crate::error::Result;
use crate::window::{Span, coarsened};

/// Spans kept at most; more are merged with their neighbours.
const MAX_PENDING: usize = 16;

/// How far a joined table is up to date.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pending {
    /// Watermark up to which the table has windows, µs; `None` before the first update.
    pub live_to: Option<i64>,
    /// Windows before it that were invalidated and not recomputed yet, µs, sorted and disjoint.
    pub spans: Vec<Span>,
}

impl Pending {
    /// With at most [`MAX_PENDING`] spans. They cover more then, and what they cover is recomputed.
    pub fn bounded(mut self) -> Self {
        self.spans = coarsened(self.spans, MAX_PENDING);
        self
    }
}

impl DeltaStore {
    /// What the table has yet to recompute.
    pub async fn pending(&self) -> Result<Pending> {
        let read = async {
            let name = &self.spec().name;
            let live_to = self.transaction(&format!("tidegate-live/{name}")).await?;
            let count = self.transaction(&format!("tidegate-pending/{name}")).await?.unwrap_or(0);
            let mut spans = Vec::new();
            for place in 0..count {
                let [from, to] = self.bounds_ids(place as usize);
                spans.extend(self.transaction(&from).await?.zip(self.transaction(&to).await?));
            }
            Ok(Pending { live_to, spans })
        };
        self.pending.get_or_try_init(|| read).await.cloned()
    }

    fn bounds_ids(&self, place: usize) -> [String; 2] {
        let name = &self.spec().name;
        [format!("tidegate-pending/{name}/{place}/from"), format!("tidegate-pending/{name}/{place}/to")]
    }

    /// The actions that replace what is pending.
    pub(super) fn pending_actions(&self, pending: &Pending) -> Vec<Action> {
        let now_ms = Utc::now().timestamp_millis();
        let name = &self.spec().name;
        let mut numbers = vec![(format!("tidegate-pending/{name}"), pending.spans.len() as i64)];
        numbers.extend(pending.live_to.map(|time| (format!("tidegate-live/{name}"), time)));
        for (place, (from, to)) in pending.spans.iter().enumerate() {
            numbers.extend(self.bounds_ids(place).into_iter().zip([*from, *to]));
        }
        let action = |(app, number)| Transaction::new_with_last_update(app, number, Some(now_ms));
        numbers.into_iter().map(|number| Action::Txn(action(number))).collect()
    }
}
