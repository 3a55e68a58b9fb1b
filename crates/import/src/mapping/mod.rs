//! Mapping files: they declare how columns of an export become event fields.

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

/// Built-in mappings: name and text.
const SHIPPED: &[(&str, &str)] = shipped![
    "alibaba_openb_nodes",
    "alibaba_openb_pods",
    "dcgm_long",
    "faults_csv",
    "gpu_samples_csv",
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

/// What a row of the file describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A job, or one attempt or step of one.
    Jobs,
    /// An owner's quota from a time on.
    Quotas,
    /// GPUs held and queued by a pool at a time.
    PoolSamples,
    /// A node with its devices.
    Nodes,
    /// A fault of a node, with start and end, or what the driver reported of a GPU.
    NodeFaults,
    /// Values of a GPU at a time.
    GpuSamples,
}

/// Meaning of a second row with an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDuplicateId {
    /// Ids are unique: a second row with other values is rejected.
    #[default]
    Reject,
    /// Each row is an attempt, identified by its start.
    Attempt,
}

/// A declarative import format.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Name in `--map NAME`, in event sources and in messages.
    pub name: String,
    /// Description of the file, in one or two sentences.
    pub doc: String,
    /// What a row describes.
    pub kind: Kind,
    /// Origin of such files, and the attribution that their licence asks for.
    pub source: String,
    /// Licence of the data.
    #[serde(default)]
    pub licence: Option<String>,
    /// Assumptions that the file does not state, one sentence each.
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
    /// The file must have at least one column of each group.
    #[serde(default)]
    pub(crate) require_one_of: Vec<Vec<String>>,
    /// State names of the source, mapped to a canonical final state, PENDING or RUNNING.
    #[serde(default)]
    pub(crate) states: BTreeMap<String, String>,
    /// Final state of an ended job when there is no state column.
    #[serde(default)]
    pub(crate) final_state: Option<String>,
    /// Final state of attempts followed by another one, without a state column.
    #[serde(default)]
    pub(crate) non_final_state: Option<String>,
    #[serde(default)]
    pub(crate) on_duplicate_id: OnDuplicateId,
    #[serde(default)]
    pub(crate) allow_start_before_submit: bool,
    /// Wait reasons that keep a job from being eligible. They apply before it is eligible, all
    /// others after.
    #[serde(default)]
    pub(crate) reasons_before_eligible: Vec<String>,
    /// Rows to skip; they are counted, not rejected.
    #[serde(default)]
    pub(crate) skip: Vec<SkipSpec>,
    /// The time that a sample stands for, ms.
    #[serde(default)]
    pub(crate) interval_ms: Option<u64>,
    /// DCGM's fields `..._UTIL_RATIO` are from 0 to 1, as since DCGM 4.7; otherwise percent.
    #[serde(default)]
    pub(crate) dcgm_base_units: bool,
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
    /// Origin of numeric times; an RFC 3339 time.
    pub base: Option<String>,
    /// IANA time zone of wall times; `--timezone` overrides it.
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
    /// Names of the built-in mappings.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Loads a built-in mapping by name, or a user's by a path ending in `.toml`.
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

    /// Parses a mapping from TOML; `file` is its name in messages.
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
