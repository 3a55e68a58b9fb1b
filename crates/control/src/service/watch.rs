//! What the service watches beside its plans: entries of the journal that do not count, the signed
//! switch, and whether its policy is still the one that acts.

use tidegate_autopilot::executor::{EntriesRefused, JournalEvent, Switched};

use super::{Service, switch};
use crate::event::describe_refused;
use crate::journal::TableProofs;
use crate::pager::Alarm;

/// How long refused entries page after the last one, µs.
const PAGE_US: i64 = 3_600_000_000;

impl Service {
    /// Whether another process has adopted a policy with a later statement than ours.
    pub(super) fn is_superseded(&self) -> bool {
        let acts = self.executor.state().adopted.as_ref().map(|adopted| adopted.sequence);
        self.adopted.is_some_and(|own| acts.is_some_and(|acts| acts > own))
    }

    /// Lets the leader record which entries do not count, each once whoever leads. `leads`: it held
    /// the lease at its last step.
    pub(super) fn record_refused(&mut self, leads: bool) {
        if let Some(new) = self.executor.journal_mut().take_refused() {
            tracing::error!("{}", describe_refused(&new));
            let before = self.refused.take();
            self.refused = Some(before.map_or_else(
                || new.clone(),
                |before| EntriesRefused {
                    count: before.count + new.count,
                    offsets: (before.offsets.0, new.offsets.1),
                    ..new.clone()
                },
            ));
        }
        let recorded = self.executor.state().refusals.as_ref().map(|refusals| refusals.last.offsets.1);
        let is_known = |refused: &EntriesRefused| recorded.is_some_and(|last| refused.offsets.1 <= last);
        self.refused.take_if(|refused| is_known(refused));
        if leads && let Some(refused) = self.refused.take() {
            self.executor.record_when_leading(JournalEvent::Refused(refused));
        }
    }

    /// Lets commands that read the tables of this data folder verify entries too.
    pub(super) fn keep_proofs(&mut self) {
        let from = self.executor.journal().chains().first_proven();
        let (Some(from), Some(signers)) = (from, self.signers.as_ref()) else { return };
        if self.proofs_kept == Some(from) {
            return;
        }
        match TableProofs::keep(self.control.path(), signers, from) {
            Ok(()) => self.proofs_kept = Some(from),
            Err(error) => tracing::warn!("whose proofs count is not kept for commands: {error}"),
        }
    }

    /// Lets the leader record that the switch changed; returns it as the journal knows it.
    pub(super) fn record_switch(&mut self, leads: bool) -> Option<Switched> {
        let last = self.executor.state().switched.clone();
        let Some(signers) = self.signers.as_ref() else {
            let news = switch::unsigned_news(&self.control, last.as_ref(), chrono::Utc::now());
            if let Some(news) = news.filter(|_| leads) {
                self.executor.record_when_leading(JournalEvent::Switched(news));
            }
            return last;
        };
        let found =
            switch::find(&self.control, signers, &self.config.cluster, last.as_ref(), chrono::Utc::now());
        if found.why != self.switch_refused {
            if let Some(why) = &found.why {
                tracing::warn!("the switch says on, and is off: {why}");
            }
            self.switch_refused = found.why;
        }
        if let Some(news) = found.news.filter(|_| leads) {
            self.executor.record_when_leading(JournalEvent::Switched(news));
        }
        last
    }

    /// Pages that earlier lives died of the journal, and that this one does not act.
    pub(super) fn page_stopped(&self, now_us: i64) {
        if let (Some(pager), Some(why)) = (&self.pager, self.executor.journal().stopped()) {
            pager.alarm(Alarm { since_us: now_us, why: format!("the autopilot does not act: {why}") });
        }
    }

    /// Hands what fires to the pager.
    pub(super) fn page(&self, now_us: i64) {
        let Some(pager) = &self.pager else { return };
        let state = self.executor.state();
        let refusals = state.refusals.as_ref().filter(|refusals| now_us - refusals.last_us < PAGE_US);
        let alarm = refusals
            .map(|refusals| Alarm { since_us: refusals.last_us, why: describe_refused(&refusals.last) });
        pager.report(state.slo.firing().cloned().collect(), alarm);
    }
}
