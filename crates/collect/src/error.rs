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
    pub fn new(code: RejectCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }
}
