//! `tidegate autopilot approve` and `reject`: a person decides about an action that has not begun.

use std::path::Path;

use serde::Deserialize;
use tidegate_control::ControlFolder;
use tidegate_control::authority::{self, ApprovalStatement, SignedText};

use crate::commands::{CommandError, DataArgs, ask, block_on, committed, quoted, user_name};

/// Steps after which an action may still be rejected.
const UNBEGUN: [&str; 6] = ["PROPOSED", "APPROVED", "LEASED", "NOTICED", "ACKNOWLEDGED", "NOTICE_IGNORED"];

/// A row of the table `decisions`.
#[derive(Deserialize)]
struct Decision {
    cluster: String,
    plan: String,
    state: String,
    mode: String,
    object: String,
}

impl Decision {
    fn find(action: &str, data: &DataArgs) -> Result<Self, CommandError> {
        let found: Vec<Self> = block_on(async {
            let service = committed(data).await?;
            let action = quoted(action);
            ask(
                &service,
                &format!(
                    "SELECT cluster, plan, state, mode, object FROM decisions WHERE action = {action} AND role <> 'shadow'"
                ),
            )
            .await
        })??;
        found.into_iter().next().ok_or_else(|| {
            format!("there is no decision {action}: `tidegate sql \"SELECT action, object, state FROM decisions WHERE state = 'PROPOSED'\"` lists what waits").into()
        })
    }
}

/// Writes an approval for the autopilot to take up, signed where a key is given.
pub(super) fn approve(action: &str, key: Option<&Path>, data: &DataArgs) -> Result<(), CommandError> {
    let Decision { cluster, plan, state, mode, object } = Decision::find(action, data)?;
    if state != "PROPOSED" || mode != "approve" {
        let state = state.to_lowercase();
        return Err(format!("{action} waits for nobody: its mode is {mode}, and it is {state}").into());
    }
    let statement = ApprovalStatement::given(&cluster, action, &plan, chrono::Utc::now());
    let signed = key.map(|key| SignedText::by_key(key, authority::APPROVE, statement.text())).transpose()?;
    ControlFolder::in_data(&data.data).approve(action, &user_name(), signed.as_ref())?;
    say!(
        "{action} of {object} is approved by {}{}: the next look begins it, if the guard lets it",
        user_name(),
        if signed.is_some() { ", signed" } else { "" }
    );
    Ok(())
}

/// Writes a rejection for the autopilot to take up.
pub(super) fn reject(action: &str, why: Option<&str>, data: &DataArgs) -> Result<(), CommandError> {
    let Decision { state, object, .. } = Decision::find(action, data)?;
    if !UNBEGUN.contains(&state.as_str()) {
        let state = state.to_lowercase();
        return Err(format!(
            "{action} of {object} is {state}, so there is nothing to reject; `tidegate autopilot pause` stops what comes next"
        )
        .into());
    }
    ControlFolder::in_data(&data.data).reject(action, &user_name(), why)?;
    say!(
        "{action} of {object} is rejected by {}: the next look ends it, unless it has begun, and the like is refused for 24 hours",
        user_name()
    );
    Ok(())
}
