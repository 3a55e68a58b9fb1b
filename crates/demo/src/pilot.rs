//! The product's autopilot on the simulated part of the site.

use std::sync::Arc;

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::executor::{Executor, OnlineForecast, Settings};
use tidegate_autopilot::forecast::{Trailing, TrailingConfig};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::intent::{Intent, PersonApproval, Stage};
use tidegate_autopilot::policy::{Mode, Policy};
use tidegate_autopilot::target::Target;
use tidegate_control::service::ServiceStatus;
use tidegate_control::spans::{self, Traced};
use tidegate_control::{Approval, ControlFolder, LogJournal, PlanArchive, Rejection};
use tidegate_log::EventLog;

use crate::plan::{CLUSTER, POOLS};
use crate::{DemoError, Site};

/// Interval of its steps, ms; the lease lasts three of them.
const EVERY_MS: i64 = 120_000;
/// Interval at which the forecast learns while nothing acts yet, ms.
const LEARNS_EVERY_MS: i64 = 600_000;
/// Who approves until people steer it.
const PERSON: &str = "operator";
/// Interval of its steps once people steer it: they wait for what they approved, ms.
const ANSWERS_EVERY_MS: i64 = 10_000;

/// The autopilot: first its forecast learns, then it acts.
pub struct Pilot {
    executor: Executor<LogJournal, Trailing>,
    next_ms: i64,
    /// Where people steer it. Until then [`PERSON`] approves all that waits, and nothing stops it.
    people: Option<ControlFolder>,
}

impl std::fmt::Debug for Pilot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pilot").field("next_ms", &self.next_ms).finish_non_exhaustive()
    }
}

impl Pilot {
    /// An autopilot whose journal is on the log, and whose plans' inputs are in the archive.
    ///
    /// # Errors
    /// The log has no topic for the journal.
    pub fn new(log: Arc<dyn EventLog>, archive: PlanArchive) -> Result<Self, DemoError> {
        let holder = "demo".to_owned();
        let journal = LogJournal::open(log, CLUSTER, &holder)?.archiving(archive);
        let settings =
            Settings { holder, lease_ms: 3 * EVERY_MS, plan_every_ms: EVERY_MS, ..Settings::default() };
        let forecast = Trailing::new(TrailingConfig::default());
        Ok(Self {
            executor: Executor::new(policy(), settings, journal, forecast),
            next_ms: i64::MIN,
            people: None,
        })
    }

    /// From now on people steer it, by the files of this folder.
    pub fn listen_to(&mut self, people: ControlFolder) {
        self.people = Some(people);
        self.next_ms = i64::MIN;
    }

    /// Looks at the site as it is now, and acts if it is time to. Returns the status after a step.
    ///
    /// # Errors
    /// The journal cannot be used.
    pub fn follow(&mut self, site: &mut Site) -> Result<Option<ServiceStatus>, DemoError> {
        let (now_ms, acts_ms) = (site.now_ms(), site.times().acts_ms);
        if now_ms < self.next_ms {
            return Ok(None);
        }
        let target = site.target();
        if now_ms < acts_ms {
            self.next_ms = now_ms + LEARNS_EVERY_MS;
            // Observing a simulated cluster without faults never fails.
            if let Ok(state) = target.observe() {
                self.executor.learn(|forecast| OnlineForecast::observe(forecast, &state));
            }
            return Ok(None);
        }
        let now_us = now_ms * 1_000;
        let step = match self.people.clone() {
            None => {
                self.next_ms = now_ms + EVERY_MS;
                let approved = self.waiting();
                let step =
                    || self.executor.step(&mut Traced(target), &mut || KillSwitch::On, &approved, now_us);
                spans::step(CLUSTER, step)?
            }
            Some(people) => {
                self.next_ms = now_ms + ANSWERS_EVERY_MS;
                let (given, rejected) = (people.approved(), people.rejected());
                let approved =
                    |Approval { action, by, .. }: &Approval| PersonApproval::unsigned(&**action, &**by);
                let approved: Vec<PersonApproval> = given.iter().map(approved).collect();
                self.executor.reject(rejected.iter().cloned().map(Rejection::into).collect());
                let step =
                    || self.executor.step(&mut Traced(target), &mut || people.switch(), &approved, now_us);
                let step = spans::step(CLUSTER, step)?;
                people.discard(&given, &rejected);
                step
            }
        };
        Ok(Some(ServiceStatus::after(CLUSTER, &self.executor, &step, now_us)))
    }

    /// Approvals of all that waits for a person.
    fn waiting(&self) -> Vec<PersonApproval> {
        let waits =
            |intent: &&Intent| intent.stage == Stage::Proposed && intent.decision.mode == Mode::Approve;
        let waiting = self.executor.state().intents.open().filter(waits);
        waiting.map(|intent| PersonApproval::unsigned(&*intent.decision.action.id, PERSON)).collect()
    }
}

/// Loans wait for approval; all other reversible actions are carried out at once.
///
/// The service may be short of GPUs that it lent for a few minutes. Under the shipped promise it
/// lends nothing, because its demand rises too steeply. Its owner is named after its pool.
fn policy() -> Policy {
    let mut policy = Policy { name: "demo".into(), ..Policy::auto() };
    policy.modes.insert(Kind::Lend, Mode::Approve);
    policy.lend.owner_promise_quantile.insert(POOLS[1].to_owned(), 0.99);
    policy
}
