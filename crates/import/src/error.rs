//! Errors of imports, mappings and node declarations.

use tidegate_log::LogError;

/// Failure of an import. If it concerns the columns of the file, nothing was written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum ImportError {
    #[error("cannot open {file}: {source}; check the path and its permissions")]
    Open { file: String, source: std::io::Error },
    #[error("cannot read {file} after line {line}: {source}")]
    Read { file: String, line: u64, source: std::io::Error },
    #[error("{file} ends in the middle of its compressed data, after line {line}; fetch or export it again")]
    TruncatedGzip { file: String, line: u64 },
    #[error(
        "{file} shrank while it was read: {read} of {expected} bytes; import it again when it is complete"
    )]
    Shrank { file: String, read: u64, expected: u64 },
    #[error("{file} is not a readable Parquet file: {what}; fetch or export it again")]
    ParquetHead { file: String, what: String },
    #[error(
        "{file} cannot be read on in row group {group}, after row {row}: {what}; what was written stays; fetch or export \
         the file again and import it whole"
    )]
    Parquet { file: String, group: usize, row: u64, what: String },
    #[error("parquet cannot be read from standard input; give the file's path instead")]
    ParquetFromStdin,
    #[error("{file} is a Parquet file; this import reads lines of JSON")]
    NotLines { file: String },
    #[error("{file} is empty: its first line must name the columns")]
    Empty { file: String },
    #[error("{file}: the header (line 1) cannot be used: {what}")]
    Header { file: String, what: String },
    #[error(transparent)]
    MissingColumn(Box<MissingColumn>),
    #[error(transparent)]
    ColumnType(Box<ColumnType>),
    #[error("{file}: mapping {mapping} names no cluster; pass --cluster NAME")]
    NoCluster { file: String, mapping: String },
    #[error("--nodes declares nodes for jobs, and mapping {mapping} is of another kind")]
    NodesWithoutJobs { mapping: String },
    #[error("{url}: {what}")]
    Server { url: String, what: String },
    #[error("{0}")]
    Span(String),
    #[error(transparent)]
    Nodes(#[from] FleetError),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// The file lacks a column of the mapping.
#[derive(Debug, thiserror::Error)]
#[error("{file} has no column {column}, which mapping {mapping} needs for {field}; it has: {found}{hint}")]
pub struct MissingColumn {
    /// Name of the file.
    pub file: String,
    /// The missing column.
    pub column: String,
    /// Name of the mapping.
    pub mapping: String,
    /// Event field that needs it.
    pub field: String,
    /// The existing columns.
    pub found: String,
    /// How to produce the file, on a line of its own; empty if the mapping does not say.
    pub hint: String,
}

/// A column of a Parquet file has another type than the mapping needs.
#[derive(Debug, thiserror::Error)]
#[error("{file}: column {column} is {found}, but mapping {mapping} needs {wanted} for {field}")]
pub struct ColumnType {
    /// Name of the file.
    pub file: String,
    /// The column.
    pub column: String,
    /// Name of the mapping.
    pub mapping: String,
    /// Event field that needs it.
    pub field: String,
    /// Its type in the file.
    pub found: String,
    /// What the mapping needs.
    pub wanted: &'static str,
}

/// Failure to load a mapping.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum MappingError {
    #[error(
        "no mapping named {name}; shipped are {shipped}; for a file of your own give a path ending in .toml"
    )]
    Unknown { name: String, shipped: String },
    #[error("cannot read mapping {file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error("mapping {file} is not valid: {what}")]
    Parse { file: String, what: String },
    #[error("mapping {file}, key {key}: {what}")]
    Invalid { file: String, key: String, what: String },
}

/// Invalid declaration of nodes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum FleetError {
    #[error(
        "--nodes {spec}: {what}; write [CLUSTER/]NAMES:GPUS[:MODEL[:POOLS]], e.g. gpu[01-64]:8:a100:batch"
    )]
    Spec { spec: String, what: String },
    #[error("{file}, line {line}: {what}")]
    Line { file: String, line: u64, what: String },
    #[error(
        "{file} has no column {column}; its columns are node and gpus, and if you have them gpu_model, pool, cluster"
    )]
    Column { file: String, column: &'static str },
    #[error("node {node} is declared twice")]
    Twice { node: String },
    #[error(
        "nodes were declared without a cluster, and the history has several: {found}; write CLUSTER/ before the names, or a \
         column cluster in the table"
    )]
    WhichCluster { found: String },
    #[error("nodes were declared for cluster {cluster}, and the history has {found}")]
    NoSuchCluster { cluster: String, found: String },
}

/// Reason for rejecting a row. The names are stable: they are the `code` of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectCode {
    /// A required value is missing.
    MissingValue,
    /// A number cannot be parsed or does not fit.
    BadNumber,
    /// A time cannot be parsed, does not exist in its zone, or is out of range.
    BadTime,
    /// A time has another form than the first one of the file.
    TimeZoneMixed,
    /// The end is before the start.
    EndBeforeStart,
    /// The start is before the submission.
    StartBeforeSubmit,
    /// A negative number of GPUs.
    NegativeGpus,
    /// More GPUs than any cluster has.
    TooManyGpus,
    /// A state that the mapping does not list.
    UnknownState,
    /// A job id that cannot be parsed.
    BadJobId,
    /// An earlier row has the same id and other values.
    DuplicateId,
    /// The line exceeds the limit.
    LineTooLong,
    /// The line has another number of fields than the header.
    FieldCount,
    /// The line is not UTF-8.
    BadEncoding,
    /// The line is no report as a training job sends it.
    BadReport,
    /// A kind of fault that is not known.
    UnknownKind,
    /// The labels of a time series do not name a GPU on a node.
    BadSeries,
    /// A name is too long.
    BadName,
    /// The metric of a sample is not known.
    UnknownMetric,
    /// A file too large to be read in any order has a row of an hour that was written.
    OutOfOrder,
}

impl RejectCode {
    /// The stable spelling, e.g. `END_BEFORE_START`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingValue => "MISSING_VALUE",
            Self::BadNumber => "BAD_NUMBER",
            Self::BadTime => "BAD_TIME",
            Self::TimeZoneMixed => "TIME_ZONE_MIXED",
            Self::EndBeforeStart => "END_BEFORE_START",
            Self::StartBeforeSubmit => "START_BEFORE_SUBMIT",
            Self::NegativeGpus => "NEGATIVE_GPUS",
            Self::TooManyGpus => "TOO_MANY_GPUS",
            Self::UnknownState => "UNKNOWN_STATE",
            Self::BadJobId => "BAD_JOB_ID",
            Self::DuplicateId => "DUPLICATE_ID",
            Self::LineTooLong => "LINE_TOO_LONG",
            Self::FieldCount => "FIELD_COUNT",
            Self::BadEncoding => "BAD_ENCODING",
            Self::BadReport => "BAD_REPORT",
            Self::UnknownKind => "UNKNOWN_KIND",
            Self::BadSeries => "BAD_SERIES",
            Self::BadName => "BAD_NAME",
            Self::UnknownMetric => "UNKNOWN_METRIC",
            Self::OutOfOrder => "OUT_OF_ORDER",
        }
    }
}

/// A rejected row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// Kind of the error.
    pub code: RejectCode,
    /// What is wrong with the row and how to mend it.
    pub reason: String,
}

impl Reject {
    pub(crate) fn new(code: RejectCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }
}

impl From<tidegate_slurm::ParseError> for Reject {
    fn from(error: tidegate_slurm::ParseError) -> Self {
        let code = match error.kind {
            tidegate_slurm::ParseErrorKind::JobId => RejectCode::BadJobId,
            tidegate_slurm::ParseErrorKind::Number => RejectCode::BadNumber,
        };
        Self::new(code, error.message)
    }
}
