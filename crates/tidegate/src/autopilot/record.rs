//! Reads the autopilot's journal from the tables.

use serde::{Deserialize, Serialize};
use tidegate_autopilot::executor::{JournalEntry, JournalEvent, PlanRecord};
use tidegate_control::{PlanArchive, TableEntry, TableProofs};
use tidegate_server::QueryService;

use crate::commands::{CommandError, ask, quoted};

/// A step of an action, as a row of the tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionStep {
    pub cluster: String,
    pub event_time: String,
    pub kind: String,
    pub holder: String,
    pub generation: i64,
    pub rule: Option<String>,
    pub why: Option<String>,
}

/// Journal entries that match `condition`, in order. Where the autopilot of the archive's data
/// folder has keys, those that nobody proved are left out.
///
/// # Errors
/// The tables cannot be read, or an entry of them cannot be decoded.
pub async fn entries(
    service: &QueryService,
    archive: &PlanArchive,
    condition: &str,
) -> Result<Vec<JournalEntry>, CommandError> {
    let proofs = TableProofs::in_folder(archive.beside())?;
    let sql = format!(
        "SELECT cluster, source, epoch, seq, body FROM autopilot_events WHERE {condition} ORDER BY epoch, seq"
    );
    let rows: Vec<TableEntry> = ask(service, &sql).await?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        let entry: JournalEntry = serde_json::from_str(&row.body).map_err(|e| {
            format!(
                "an entry of the autopilot's journal cannot be read ({e}): was it written by a newer version?"
            )
        })?;
        match proofs.as_ref().map_or(Ok(()), |proofs| proofs.check(row, &entry)) {
            Ok(()) => entries.push(entry),
            Err(why) => tracing::warn!("an entry of {:?} does not count: {why}", row.source),
        }
    }
    Ok(entries)
}

/// The recorded plan with this id, with its inputs if the archive has them. Plans that older
/// versions recorded have them in the journal.
///
/// # Errors
/// The tables cannot be read.
pub async fn plan(
    service: &QueryService,
    archive: &PlanArchive,
    id: &str,
) -> Result<Option<PlanRecord>, CommandError> {
    let condition = format!("kind = 'PLANNED' AND plan = {}", quoted(id));
    let found =
        entries(service, archive, &condition).await?.into_iter().find_map(|entry| match entry.event {
            JournalEvent::Planned(planned) => Some(*planned),
            _ => None,
        });
    let recorded = match found {
        Some(recorded) if !has_inputs(&recorded) => recorded,
        whole => return Ok(whole),
    };
    match archive.read(id) {
        Ok(Some(archived)) if archived.plan == recorded.plan => Ok(Some(archived)),
        Ok(Some(_)) => {
            tracing::warn!("the archived inputs of plan {id} are of another plan and not used");
            Ok(Some(recorded))
        }
        Ok(None) => Ok(Some(recorded)),
        Err(error) => {
            tracing::warn!("the archived inputs of plan {id} cannot be read: {error}");
            Ok(Some(recorded))
        }
    }
}

/// Whether a plan can be made again from its record.
pub fn has_inputs(planned: &PlanRecord) -> bool {
    !planned.state.cluster.is_empty() || !planned.state.nodes.is_empty()
}

/// Steps of an action, in order.
///
/// # Errors
/// The tables cannot be read.
pub async fn steps(service: &QueryService, action: &str) -> Result<Vec<ActionStep>, CommandError> {
    ask(
        service,
        &format!(
            "SELECT cluster, event_time, kind, holder, generation, rule, why FROM autopilot_events WHERE action = {} ORDER BY epoch, seq",
            quoted(action)
        ),
    )
    .await
}
