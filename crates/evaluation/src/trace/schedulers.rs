//! Schedulers under comparison, by name.

use tidegate_autopilot::policy::Policy;
use tidegate_sim::{
    Backfill, Reports, Schedule,
    backtest::Contender,
    pilot::PilotConfig,
    scenario::Scenario,
    schedulers::{Clairvoyant, Gfs, Lender, Lyra, Static},
    target::ControlFaults,
};

use super::published::SiteForecasts;

/// Makes a scheduler for each run.
pub type SchedulerFactory = Box<dyn Fn(&Scenario) -> Contender>;

/// Names that [`scheduler`] accepts.
pub const SCHEDULER_NAMES: [&str; 7] =
    ["static", "backfill", "lyra", "gfs", "clairvoyant", "lender", "autopilot"];

/// Jobs that may be backfilled where that does not delay the first in line.
const BACKFILL_DEPTH: usize = 100;

/// The scheduler of a name; `None` if unknown. The jobs of the autopilot's site report this much.
pub fn scheduler(name: &str, reports: Reports) -> Option<SchedulerFactory> {
    Some(match name {
        "static" => Box::new(|_| Static::default().into()),
        "backfill" => Box::new(|_| Static { backfill: Some(BACKFILL_DEPTH) }.into()),
        "lyra" => Box::new(|_| Lyra::default().into()),
        "gfs" => Box::new(|_| Gfs::default().into()),
        "clairvoyant" => Box::new(|_| Clairvoyant::default().into()),
        "lender" => Box::new(|_| Lender::default().into()),
        "autopilot" => autopilot(Policy::auto(), reports),
        _ => return None,
    })
}

/// The autopilot with a policy: planner, guard and executor. Jobs report this much.
pub fn autopilot(policy: Policy, reports: Reports) -> SchedulerFactory {
    Box::new(move |_| Contender::Pilot {
        policy: Box::new(policy.clone()),
        control: ControlFaults::default(),
        habits: PilotConfig::default(),
        schedule: Schedule { backfill: Backfill::Easy { depth: BACKFILL_DEPTH }, ..Schedule::default() },
        reports,
        publisher: Some(Box::new(SiteForecasts::new())),
    })
}
