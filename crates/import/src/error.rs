use tidegate_log::LogError;

/// Why an import stopped. Nothing of the file has been written when the error is about its columns.
#[derive(Debug, thiserror::Error)]
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
    #[error("{file} is not a readable Parquet file (row {row}): {what}; fetch or export it again")]
    Parquet { file: String, row: u64, what: String },
    #[error("parquet cannot be read from standard input; give the file's path instead")]
    ParquetFromStdin,
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
    #[error("--nodes tells of the nodes of jobs, and mapping {mapping} is of something else")]
    NodesWithoutJobs { mapping: String },
    #[error(transparent)]
    Nodes(#[from] FleetError),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// The file lacks a column of the mapping.
#[derive(Debug, thiserror::Error)]
#[error("{file} has no column {column}, which mapping {mapping} needs for {field}; it has: {found}{hint}")]
pub struct MissingColumn {
    pub file: String,
    pub column: String,
    pub mapping: String,
    pub field: String,
    /// The columns there are.
    pub found: String,
    /// How to print the file, on a line of its own; empty if the mapping does not say.
    pub hint: String,
}

/// A column of a Parquet file holds something else than the mapping takes from it.
#[derive(Debug, thiserror::Error)]
#[error("{file}: column {column} is {found}, but mapping {mapping} needs {wanted} for {field}")]
pub struct ColumnType {
    pub file: String,
    pub column: String,
    pub mapping: String,
    pub field: String,
    pub found: String,
    pub wanted: &'static str,
}

/// Why a mapping file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    #[error(
        "no mapping named {name}; shipped are {shipped}; a file of your own is named by a path ending in .toml"
    )]
    Unknown { name: String, shipped: String },
    #[error("cannot read mapping {file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error("mapping {file} is not valid: {what}")]
    Parse { file: String, what: String },
    #[error("mapping {file}, key {key}: {what}")]
    Invalid { file: String, key: String, what: String },
}

/// Why nodes cannot be taken as they were declared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
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
        "nodes were declared without a cluster, and the history is of several: {found}; write CLUSTER/ before the names, or a \
         column cluster in the table"
    )]
    WhichCluster { found: String },
    #[error("nodes were declared of cluster {cluster}, and the history is of {found}")]
    NoSuchCluster { cluster: String, found: String },
}

/// Why a row did not become events. The names are stable; they are the `code` of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RejectCode {
    MissingValue,
    BadNumber,
    BadTime,
    TimeZoneMixed,
    EndBeforeStart,
    StartBeforeSubmit,
    NegativeGpus,
    TooManyGpus,
    UnknownState,
    BadJobId,
    DuplicateId,
    LineTooLong,
    FieldCount,
    BadEncoding,
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
        }
    }
}

/// One row's refusal: what is wrong with it and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    pub code: RejectCode,
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
