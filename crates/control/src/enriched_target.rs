//! A target enriched from the log: [`Facts`] are added to the scheduler's state.

use std::sync::Arc;

use tidegate_autopilot::action::Action;
use tidegate_autopilot::state::ClusterState;
use tidegate_autopilot::target::{Capabilities, Effect, Notice, Receipt, Target, TargetError};
use tidegate_facts::Facts;
use tidegate_log::snapshot::Position;
use tidegate_log::{EventLog, LogError};

use super::tail::Tail;

/// A target whose observed state is enriched from the log.
pub struct EnrichedTarget<T> {
    target: T,
    tail: Tail,
    /// Step reports are many and soon old: their reading may begin later.
    steps: Tail,
    facts: Facts,
}

impl<T> std::fmt::Debug for EnrichedTarget<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrichedTarget").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl<T: Target> EnrichedTarget<T> {
    /// Enriches `target` with what the log holds of the cluster, from its beginning; step reports
    /// from `steps_since_ms` on, or from the beginning as well.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn new(
        target: T,
        log: Arc<dyn EventLog>,
        cluster: &str,
        steps_since_ms: Option<i64>,
    ) -> Result<Self, LogError> {
        let tail = Tail::new(Arc::clone(&log), cluster, &Facts::TOPICS, None)?;
        let steps = Tail::new(log, cluster, &[Facts::STEPS], steps_since_ms)?;
        Ok(Self { target, tail, steps, facts: Facts::default() })
    }

    /// Goes on from what was read up to these positions.
    #[must_use]
    pub(crate) fn resumed(self, facts: Facts, positions: &[Position]) -> Self {
        let (tail, steps) = (self.tail.resumed(positions), self.steps.resumed(positions));
        Self { tail, steps, facts, ..self }
    }

    /// What was learned, and up to where the log was read for it.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub(crate) fn read_so_far(&self) -> Result<(&Facts, Vec<Position>), LogError> {
        let mut positions = self.tail.positions()?;
        positions.extend(self.steps.positions()?);
        Ok((&self.facts, positions))
    }

    /// The inner target, e.g. to let a simulated one's time go on.
    pub fn target_mut(&mut self) -> &mut T {
        &mut self.target
    }

    fn read(&mut self) -> Result<(), LogError> {
        let Self { tail, steps, facts, .. } = self;
        // Jobs first: steps of unknown jobs do not count.
        tail.read(|event| facts.observe(event))?;
        steps.read(|event| facts.observe(event))
    }
}

impl<T: Target> Target for EnrichedTarget<T> {
    fn capabilities(&self) -> Capabilities {
        self.target.capabilities()
    }

    /// Observes the scheduler. Fails if the log cannot be read: half a state is worse than none.
    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        self.read()
            .map_err(|e| TargetError::Unreachable { target: "the log".to_owned(), why: e.to_string() })?;
        let mut state = self.target.observe()?;
        self.facts.enrich(&mut state);
        Ok(state)
    }

    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError> {
        self.target.notify(action)
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        self.target.apply(action)
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        self.target.read_back(action)
    }
}
