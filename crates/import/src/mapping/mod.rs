//! Mapping files: how the columns of somebody's export become event fields.
//! `schemas/imports/README.md` describes the vocabulary for users; this module is its definition.

mod check;
mod column;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::MappingError;
pub(crate) use check::FieldKind;
pub(crate) use column::{Decode, FieldSpec, TimeFormat, Unit};

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../schemas/imports/", $name, ".toml")))),*]
    };
}

/// The mappings compiled into the program: name and text.
const SHIPPED: &[(&str, &str)] = shipped![
    "alibaba_openb_nodes",
    "alibaba_openb_pods",
    "helios_earth_vc_1min",
    "helios_vc_gpus_daily",
    "jobs_csv",
    "mit_supercloud_slurm_sample",
    "ms_itp_jobs",
    "philly_jobs",
    "philly_multigpu_attempts",
    "sacct",
    "stepfun_node_faults",
];

/// What a row of the file is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A job, or one attempt or step of one.
    Jobs,
    /// An owner's quota from a time on.
    Quotas,
    /// What a pool held and queued at a time.
    PoolSamples,
    /// A node with its devices.
    Nodes,
    /// A fault of a node, from when to when.
    NodeFaults,
}

/// What a second row with the id of an earlier one means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDuplicateId {
    /// Ids are unique: a second row that says something else is refused.
    #[default]
    Reject,
    /// Each row is an attempt, told apart by its start.
    Attempt,
}

/// A declarative import format.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Name in `--map NAME`, in event sources and in messages.
    pub name: String,
    /// One or two sentences: what the file is.
    pub doc: String,
    pub kind: Kind,
    /// Where such files come from, and the attribution their licence asks for.
    pub source: String,
    #[serde(default)]
    pub licence: Option<String>,
    /// What the mapping takes for granted that the file does not say; each entry is a sentence.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// How to produce the file; printed when a column is missing.
    #[serde(default)]
    pub hint: Option<String>,
    #[serde(default)]
    pub(crate) csv: CsvSpec,
    #[serde(default)]
    pub(crate) time: TimeSpec,
    /// Cells that mean "not known", in any column.
    #[serde(default = "empty_is_null")]
    pub(crate) null: Vec<String>,
    pub(crate) columns: BTreeMap<String, FieldSpec>,
    /// Values of text fields whose column is absent or empty.
    #[serde(default)]
    pub(crate) defaults: BTreeMap<String, String>,
    /// Of each group at least one column must be in the file.
    #[serde(default)]
    pub(crate) require_one_of: Vec<Vec<String>>,
    /// State names of the source: a canonical final state, PENDING or RUNNING.
    #[serde(default)]
    pub(crate) states: BTreeMap<String, String>,
    /// Final state of an ended job when there is no state column.
    #[serde(default)]
    pub(crate) final_state: Option<String>,
    /// Final state of attempts that another attempt followed, when there is no state column.
    #[serde(default)]
    pub(crate) non_final_state: Option<String>,
    #[serde(default)]
    pub(crate) on_duplicate_id: OnDuplicateId,
    #[serde(default)]
    pub(crate) allow_start_before_submit: bool,
    /// Reasons of a wait that keep a job from being eligible: they bound before it was, all others
    /// after.
    #[serde(default)]
    pub(crate) reasons_before_eligible: Vec<String>,
    /// Rows that are none of the import's business; they are counted, not refused.
    #[serde(default)]
    pub(crate) skip: Vec<SkipSpec>,
    /// How long a pool sample is valid, ms.
    #[serde(default)]
    pub(crate) interval_ms: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CsvSpec {
    pub delimiter: char,
    pub quoted: bool,
}

impl Default for CsvSpec {
    fn default() -> Self {
        Self { delimiter: ',', quoted: true }
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TimeSpec {
    pub format: TimeFormat,
    /// Numbers count from here; an RFC 3339 time.
    pub base: Option<String>,
    /// IANA name of the zone of wall times; `--timezone` overrides it.
    pub zone: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SkipSpec {
    pub column: String,
    pub values: Vec<String>,
}

fn empty_is_null() -> Vec<String> {
    vec![String::new()]
}

impl Mapping {
    /// Names of the shipped mappings.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Loads a shipped mapping by name, or a user's own by a path ending in `.toml`.
    ///
    /// # Errors
    /// [`MappingError`] names the file, the key and what would be right.
    pub fn load(name_or_path: &str) -> Result<Self, MappingError> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(text, name);
        }
        let path = Path::new(name_or_path);
        if path.extension().is_none_or(|extension| extension != "toml") {
            let shipped = Self::shipped().collect::<Vec<_>>().join(", ");
            return Err(MappingError::Unknown { name: name_or_path.into(), shipped });
        }
        let text = std::fs::read_to_string(path)
            .map_err(|source| MappingError::Read { file: name_or_path.into(), source })?;
        Self::parse(&text, name_or_path)
    }

    /// Reads a mapping from TOML text; `file` is its name in messages.
    ///
    /// # Errors
    /// [`MappingError`] names the file, the key and what would be right.
    pub fn parse(text: &str, file: &str) -> Result<Self, MappingError> {
        let mapping: Self = toml::from_str(text).map_err(|error| MappingError::Parse {
            file: file.into(),
            what: error.to_string().trim_end().to_owned(),
        })?;
        mapping.check(file)?;
        Ok(mapping)
    }
}
