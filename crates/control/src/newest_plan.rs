//! The newest plan with all its inputs, as one file that each plan replaces.
//!
//! The journal records plans that decide or say something new, within a budget. People ask for the
//! newest plan there is, so it stands here whether or not it is recorded. A plan that says exactly
//! what the one in the file says only notes its time beside it. Nothing else depends on the files:
//! they are written without waiting for the disk, and one that cannot be written costs a warning.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_autopilot::executor::{MadePlan, PlanRecord};

use crate::authority::hash;

/// Largest plan that is read, bytes before compression.
const MAX_BYTES: u64 = 256 << 20;
/// Largest note of the time that is read, bytes.
const MAX_NOTE_BYTES: u64 = 4 << 10;
const LEVEL: i32 = 1;

/// The newest plan of the process that plans in this data folder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct NewestPlan {
    /// Process that made it: host, process id and start.
    pub holder: String,
    /// Generation of the lease under which it was made.
    pub generation: u64,
    /// Whether the journal has it.
    pub is_recorded: bool,
    /// The plan with its inputs.
    pub planned: PlanRecord,
    /// When the last plan was made that says the same, µs since 1970.
    #[serde(skip)]
    pub same_until_us: i64,
}

#[derive(Serialize)]
struct NewestPlanRef<'a> {
    holder: &'a str,
    generation: u64,
    is_recorded: bool,
    planned: &'a MadePlan<'a>,
}

/// Time of the last plan that says the same as the one in the file.
#[derive(Debug, Serialize, Deserialize)]
struct SameUntil {
    plan: String,
    at_us: i64,
}

/// The files of the newest plan.
#[derive(Debug)]
pub(crate) struct NewestPlanFile {
    folder: PathBuf,
    /// The plan in the file, what it says, and whether it is recorded.
    written: Option<(String, String, bool)>,
}

impl NewestPlanFile {
    /// The files in a data folder.
    pub fn in_data(data: &Path) -> Self {
        Self { folder: data.join("autopilot"), written: None }
    }

    /// Writes a plan, or the time alone if it says the same as the one in the file.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&mut self, holder: &str, made: &MadePlan<'_>) -> io::Result<()> {
        let says = says(made)?;
        if let Some((plan, _, _)) = self
            .written
            .as_ref()
            .filter(|(_, before, is_recorded)| *before == says && is_recorded >= &made.is_recorded)
        {
            let note = SameUntil { plan: plan.clone(), at_us: made.plan.made_us };
            return replace(&note_path(&self.folder), &serde_json::to_vec(&note)?);
        }
        fs::create_dir_all(&self.folder)?;
        let newest = NewestPlanRef {
            holder,
            generation: made.generation,
            is_recorded: made.is_recorded,
            planned: made,
        };
        let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
        encoder.include_checksum(true)?;
        serde_json::to_writer(&mut encoder, &newest)?;
        replace(&plan_path(&self.folder), &encoder.finish()?)?;
        self.written = Some((made.plan.id.clone(), says, made.is_recorded));
        Ok(())
    }
}

/// Reads the newest plan in a data folder; `None`: no process plans there.
///
/// # Errors
/// The file is damaged, too long or cannot be read.
pub fn newest_plan(data: &Path) -> io::Result<Option<NewestPlan>> {
    let folder = data.join("autopilot");
    let file = match fs::File::open(plan_path(&folder)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    zstd::Decoder::new(file)?.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is longer than a plan can be"));
    }
    let mut newest: NewestPlan = serde_json::from_slice(&text)?;
    let plan = &newest.planned.plan;
    let later = read_note(&folder).filter(|note| note.plan == plan.id).map(|note| note.at_us);
    newest.same_until_us = later.unwrap_or(plan.made_us).max(plan.made_us);
    Ok(Some(newest))
}

/// The note of the time; `None`: there is none, or it cannot be read, and the plan's own time
/// stands.
fn read_note(folder: &Path) -> Option<SameUntil> {
    let mut text = Vec::new();
    fs::File::open(note_path(folder)).ok()?.take(MAX_NOTE_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn plan_path(folder: &Path) -> PathBuf {
    folder.join("newest-plan.json.zst")
}

fn note_path(folder: &Path) -> PathBuf {
    folder.join("newest-plan-time.json")
}

/// Hash of what a plan says and of how much it was made from, numbers and all.
fn says(made: &MadePlan<'_>) -> io::Result<String> {
    let (report, state) = (made.report, made.state);
    let counts = (state.nodes.len(), state.jobs.len(), state.owners.len(), state.loans.len());
    let decided: Vec<_> = made.plan.decisions.iter().map(|it| (&it.action.id, it.mode)).collect();
    let names = (&made.plan.policy_hash, &made.plan.canary_hash, made.generation);
    let text =
        serde_json::to_vec(&(&report.considered, &report.advice, &report.looked_at, decided, counts, names))?;
    Ok(hash(&text))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = path.with_extension("unfinished");
    let mut file = fs::File::create(&aside)?;
    file.write_all(bytes)?;
    fs::rename(&aside, path)
}

#[cfg(test)]
mod tests;
