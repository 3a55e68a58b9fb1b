//! How often a cluster was as its dry run had expected.

use serde::Serialize;
use tidegate_autopilot::action::Kind;
use tidegate_autopilot::dry_run::{Compared, Difference};
use tidegate_autopilot::executor::{JournalEntry, JournalEvent};

/// Comparisons of dry runs with what was observed. An action counts under each kind of difference
/// that it has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct DryRuns {
    /// Actions whose expected effect was compared.
    compared: u32,
    /// Those of which nothing differed.
    agreed: u32,
    /// `agreed` of `compared`, millionths; absent where nothing was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    agreed_ppm: Option<u32>,
    /// The action's own job or node was otherwise than expected.
    own_effect: u32,
    /// A pool had other free GPUs.
    free_gpus: u32,
    /// A job that should have started still waited.
    starts: u32,
}

impl DryRuns {
    /// Those of a kind of decision.
    pub(super) fn of(kind: Kind, entries: &[JournalEntry]) -> Self {
        let compared = entries.iter().filter_map(|entry| match &entry.event {
            JournalEvent::Compared(compared) if compared.kind == kind => Some(&**compared),
            _ => None,
        });
        compared.fold(Self::default(), |sums, compared| sums.with(compared))
    }

    fn with(mut self, compared: &Compared) -> Self {
        let has = |of: fn(&Difference) -> bool| u32::from(compared.differences.iter().any(of));
        self.compared += 1;
        self.agreed += u32::from(compared.differences.is_empty());
        self.own_effect += has(Difference::is_own);
        self.free_gpus += has(|it| matches!(it, Difference::FreeGpus { .. }));
        self.starts += has(|it| matches!(it, Difference::Start { .. }));
        let ppm = u64::from(self.agreed) * 1_000_000 / u64::from(self.compared);
        self.agreed_ppm = u32::try_from(ppm).ok();
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.compared == 0
    }

    /// `None`: nothing was compared.
    pub(super) fn describe(&self) -> Option<String> {
        let Self { compared, agreed, own_effect, free_gpus, starts, .. } = self;
        (!self.is_empty()).then(|| {
            format!(
                "{agreed} of {compared} came out as tried on a copy of the cluster; of the others {own_effect} \
                 differed in their own effect, {free_gpus} in free GPUs, {starts} in jobs that should have started"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_counts_once_under_each_kind_of_difference() {
        let pool = |found| Difference::FreeGpus { pool: "train".into(), expected: 8, found };
        let entry = |differences| {
            let compared = Compared {
                action: "a".into(),
                kind: Kind::Lend,
                observed_us: 1,
                without: Vec::new(),
                differences,
            };
            JournalEntry { at_us: 1, generation: 1, event: JournalEvent::Compared(Box::new(compared)) }
        };
        let start = Difference::Start { job: "9".into(), gpus: 8 };
        let entries = [entry(vec![]), entry(vec![pool(0), pool(4), start])];
        let found = DryRuns::of(Kind::Lend, &entries);
        let expected = DryRuns {
            compared: 2,
            agreed: 1,
            agreed_ppm: Some(500_000),
            own_effect: 0,
            free_gpus: 1,
            starts: 1,
        };
        assert_eq!(found, expected);
        assert!(found.describe().unwrap().starts_with("1 of 2 came out"));
        assert_eq!(DryRuns::of(Kind::Preempt, &entries).describe(), None);
    }
}
