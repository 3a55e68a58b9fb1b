//! The plan that a command is about: the newest there is, from the autopilot's own file or from the
//! tables, or one by its id.

use tidegate_autopilot::executor::PlanRecord;
use tidegate_control::{NewestPlan, newest_plan};
use tidegate_server::QueryService;

use super::{Common, Made, archive, load, made};
use crate::commands::{CommandError, chain, committed};

/// A plan, and what is known of how it came about.
pub(super) struct Found {
    pub planned: PlanRecord,
    pub holder: Option<String>,
    pub generation: Option<u64>,
    /// Whether the journal has it.
    pub is_recorded: bool,
    /// When the last plan was made that says the same, µs since 1970.
    pub same_until_us: i64,
}

impl From<NewestPlan> for Found {
    fn from(newest: NewestPlan) -> Self {
        let NewestPlan { holder, generation, is_recorded, planned, same_until_us } = newest;
        Self { planned, holder: Some(holder), generation: Some(generation), is_recorded, same_until_us }
    }
}

/// The plan with this id, or the newest there is.
pub(super) async fn find(plan: Option<&str>, common: &Common) -> Result<Found, CommandError> {
    let shown = shown(common);
    let tables = committed(&common.data).await;
    match (plan, shown, tables) {
        (Some(id), Some(shown), _) if shown.planned.plan.id == id => Ok(shown.into()),
        (Some(id), _, tables) => {
            let service = tables?;
            let planned = load(&service, &archive(common), id).await?;
            Ok(recorded(planned, None))
        }
        (None, Some(shown), Err(_)) => Ok(shown.into()),
        (None, shown, tables) => newest(shown, &tables?, common).await,
    }
}

/// The newer of the plan in the autopilot's file and the newest in the tables.
async fn newest(
    shown: Option<NewestPlan>,
    service: &QueryService,
    common: &Common,
) -> Result<Found, CommandError> {
    let newest = match (made(service, 1).await, shown.as_ref()) {
        (Ok(mut newest), _) => newest.remove(0),
        (Err(error), None) => return Err(error),
        (Err(_), Some(shown)) => return Ok(shown.clone().into()),
    };
    let planned = load(service, &archive(common), &newest.plan).await?;
    match shown {
        Some(shown) if planned.plan.made_us <= shown.same_until_us => Ok(shown.into()),
        _ => Ok(recorded(planned, Some(newest))),
    }
}

fn recorded(planned: PlanRecord, made: Option<Made>) -> Found {
    let (holder, generation) = made.map_or((None, None), |made| (made.holder, made.generation));
    let same_until_us = planned.plan.made_us;
    Found { planned, holder, generation, is_recorded: true, same_until_us }
}

/// The plan in the autopilot's own file. One that cannot be read is said; the tables have others.
pub(super) fn shown(common: &Common) -> Option<NewestPlan> {
    newest_plan(&common.data.data).unwrap_or_else(|error| {
        tracing::warn!(
            "the newest plan in autopilot/newest-plan.json.zst of the data folder cannot be read: {}",
            chain(&error)
        );
        None
    })
}
