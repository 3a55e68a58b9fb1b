//! The last rehearsal of the autopilot, as `tidegate autopilot rehearse` saves it in the data
//! folder, and as readers get it: whole, or cut to their teams.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::Principal;
use crate::http_error::HttpError;

/// Version of the file. A newer one is refused; fields may be added within one.
const VERSION: u32 = 1;
/// Longest file that is read, bytes.
const FILE_BYTES: u64 = 1 << 20;
/// Most owners that are kept: those with the most jobs.
const MOST_OWNERS: usize = 1_000;
/// Longest name that is kept, bytes.
const NAME_BYTES: usize = 256;

/// What a policy would have changed in a past time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Rehearsal {
    /// Version of the form.
    pub version: u32,
    /// When it was made, RFC 3339.
    pub made: String,
    /// Name of the policy.
    pub policy: String,
    /// Kinds of decisions that acted.
    pub acts: Vec<String>,
    /// The cluster whose time it was.
    pub cluster: String,
    /// The time that was rehearsed, RFC 3339.
    pub from: String,
    /// See `from`.
    pub to: String,
    /// Seeds: what the log lacks is drawn anew for each.
    pub seeds: u64,
    /// What jobs reported of their steps: `none`, `durations` or `all`.
    pub reports: String,
    /// Minutes that an owner's 95th percentile of the wait may grow.
    pub longer_at_most_minutes: u32,
    /// What changed for each owner, in the order of their names.
    pub owners: Vec<OwnerChange>,
    /// Owners with the fewest jobs that were left out.
    #[serde(default)]
    pub owners_left_out: usize,
    /// The cluster as a whole; none for readers who see some teams alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<WholeChange>,
}

/// What changed for one owner: means over seeds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OwnerChange {
    /// Name of the team.
    pub owner: String,
    /// How many jobs the team submitted during the rehearsed period.
    pub jobs: f64,
    /// 95th percentile of the time in the queue under the policy, hours.
    pub wait_p95_hours: Option<Spread>,
    /// How much longer that is than today, hours.
    pub longer_hours: Option<Spread>,
    /// How much more work is done, GPU-hours.
    pub more_gpu_hours: Option<Spread>,
    /// Preemptions under the policy.
    pub preemptions: f64,
    /// How many more these are than today.
    pub more_preemptions: Option<Spread>,
    /// Whether it would have waited longer than is allowed.
    pub harmed: bool,
}

/// What changed for the cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WholeChange {
    /// Minutes of online demand that was unmet, more than today.
    pub unmet_minutes: f64,
}

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the mean, and the ends of the interval")]
pub struct Spread {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// `None` where a number is not known.
    pub fn new(value: f64, low: f64, high: f64) -> Option<Self> {
        [value, low, high].iter().all(|number| number.is_finite()).then_some(Self { value, low, high })
    }
}

impl Rehearsal {
    /// Where it is in a data folder.
    pub fn file(data: &Path) -> PathBuf {
        data.join("autopilot").join("rehearsal.json")
    }

    /// Saves it in place of the one before, whole or not at all.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn save(mut self, file: &Path) -> io::Result<()> {
        self.version = VERSION;
        let left_out = self.owners.len().saturating_sub(MOST_OWNERS);
        if left_out > 0 {
            self.owners.sort_by(|one, other| other.jobs.total_cmp(&one.jobs));
            self.owners.truncate(MOST_OWNERS);
            self.owners_left_out += left_out;
        }
        self.owners
            .iter_mut()
            .for_each(|owner| owner.owner.truncate(owner.owner.floor_char_boundary(NAME_BYTES)));
        self.owners.sort_by(|one, other| one.owner.cmp(&other.owner));
        let folder = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        new.write_all(&serde_json::to_vec(&self)?)?;
        new.as_file().sync_all()?;
        new.persist(file).map(|_| ()).map_err(|error| error.error)
    }

    /// Reads it; `None` if nothing was rehearsed yet.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or of a newer version. The text says what to do.
    pub fn read(file: &Path) -> Result<Option<Self>, String> {
        let failed = |what: String| {
            format!("{}: {what}; `tidegate autopilot rehearse` writes a new one", file.display())
        };
        let opened = match File::open(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| failed(error.to_string()))?,
        };
        let mut text = Vec::new();
        opened.take(FILE_BYTES + 1).read_to_end(&mut text).map_err(|error| failed(error.to_string()))?;
        if text.len() as u64 > FILE_BYTES {
            return Err(failed(format!("it is longer than {FILE_BYTES} bytes")));
        }
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        match serde_json::from_slice::<Head>(&text) {
            Ok(head) if head.version > VERSION => {
                return Err(failed(format!("a newer program wrote it, version {}", head.version)));
            }
            Ok(_) => {}
            Err(error) => return Err(failed(format!("it is damaged: {error}"))),
        }
        serde_json::from_slice(&text).map(Some).map_err(|error| failed(format!("it is damaged: {error}")))
    }

    /// What a reader of these teams may see.
    fn of_teams(mut self, teams: &[String]) -> Self {
        self.owners.retain(|owner| teams.contains(&owner.owner));
        Self { whole: None, owners_left_out: 0, ..self }
    }
}

/// The route. Without a data folder nothing was rehearsed.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(file: Option<PathBuf>) -> Router<S> {
    Router::new().route("/v1/autopilot/rehearsal", get(last)).with_state(file)
}

async fn last(
    State(file): State<Option<PathBuf>>,
    Extension(principal): Extension<Principal>,
) -> Result<Json<Value>, HttpError> {
    let internal = |why: String| HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, "rehearsal", why);
    let Some(file) = file else { return Ok(Json(json!({"rehearsal": null}))) };
    let read = tokio::task::spawn_blocking(move || Rehearsal::read(&file)).await;
    let read = read.map_err(|error| internal(error.to_string()))?.map_err(internal)?;
    let seen = read.map(|rehearsal| match principal.teams() {
        Some(teams) => rehearsal.of_teams(teams),
        None => rehearsal,
    });
    Ok(Json(json!({"rehearsal": seen})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str, jobs: f64) -> OwnerChange {
        let longer_hours = Spread::new(0.5, 0.25, 0.75);
        OwnerChange { owner: name.to_owned(), jobs, longer_hours, ..OwnerChange::default() }
    }

    fn made(owners: Vec<OwnerChange>) -> Rehearsal {
        let whole = Some(WholeChange { unmet_minutes: 1.0 });
        Rehearsal { policy: "site".to_owned(), owners, whole, ..Rehearsal::default() }
    }

    #[test]
    fn it_is_saved_whole_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = Rehearsal::file(folder.path());
        assert_eq!(Rehearsal::read(&file), Ok(None));
        made(vec![owner("vision", 3.0), owner("audio", 1.0)]).save(&file).unwrap();
        let read = Rehearsal::read(&file).unwrap().unwrap();
        let names: Vec<&str> = read.owners.iter().map(|owner| owner.owner.as_str()).collect();
        assert_eq!((names, read.owners_left_out, read.version), (vec!["audio", "vision"], 0, 1));

        let long = "ä".repeat(NAME_BYTES);
        let many = (0..MOST_OWNERS)
            .map(|n| owner(&format!("o{n}"), 5.0))
            .chain([owner("few", 1.0), owner(&long, 9.0)]);
        made(many.collect()).save(&file).unwrap();
        let read = Rehearsal::read(&file).unwrap().unwrap();
        assert_eq!((read.owners.len(), read.owners_left_out), (MOST_OWNERS, 2));
        assert!(read.owners.iter().all(|owner| owner.owner != "few" && owner.owner.len() <= NAME_BYTES));
        assert!(fs::metadata(&file).unwrap().len() < FILE_BYTES);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_read_is_said_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rehearsal.json");
        for (text, expected) in [
            ("{", "it is damaged"),
            ("{\"version\": 1}", "it is damaged"),
            ("{\"version\": 2}", "a newer program wrote it, version 2"),
            (&" ".repeat(2 << 20), "longer than"),
        ] {
            fs::write(&file, text).unwrap();
            let why = Rehearsal::read(&file).unwrap_err();
            assert!(why.contains(expected) && why.contains("tidegate autopilot rehearse"), "{why}");
        }
    }

    #[test]
    fn a_reader_of_teams_sees_these_alone() {
        let all = Rehearsal { owners_left_out: 3, ..made(vec![owner("audio", 1.0), owner("vision", 3.0)]) };
        let seen = all.of_teams(&["vision".to_owned(), "other".to_owned()]);
        assert_eq!((seen.owners.len(), seen.owners[0].owner.as_str()), (1, "vision"));
        assert_eq!((seen.whole, seen.owners_left_out), (None, 0));
    }

    #[test]
    fn unknown_numbers_are_none() {
        assert_eq!(Spread::new(f64::NAN, 0.0, 1.0), None);
        assert_eq!(Spread::new(0.0, -1.0, 1.0).map(|spread| spread.low), Some(-1.0));
    }
}
