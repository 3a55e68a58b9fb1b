//! [`InvalidEvent`]: why a message is not an event.

use crate::wire::{MAX_SAMPLES, TooMuch};

/// What a message lacks to be an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum InvalidEvent {
    /// There is no envelope.
    #[error("it has no envelope; fill in cluster, source and event_time_ms")]
    MissingEnvelope,
    /// The id is not of 16 bytes.
    #[error("event_id has {len} bytes instead of 16; let Event::seal fill it in")]
    EventIdLength { len: usize },
    /// A field that must be set is empty.
    #[error("`{field}` is empty; fill it in")]
    MissingField { field: &'static str },
    /// The kind is unspecified or not known to this build.
    #[error(
        "kind {kind} is unspecified or of a newer version; set a kind of the schema or upgrade this reader"
    )]
    UnknownKind { kind: i32 },
    /// A column has neither no value nor one per device and tick.
    #[error(
        "column `{column}` has {values} values instead of {devices} devices × {ticks} ticks; \
         send one value per device and tick, or none"
    )]
    ColumnLength { column: String, values: usize, devices: usize, ticks: usize },
    /// A column has neither no first growth nor one per device.
    #[error(
        "column `{column}` has {values} values of first_growth for {devices} devices; send one per device, or none"
    )]
    GrowthLength { column: String, values: usize, devices: usize },
    /// A run of missing values goes past the end of its column.
    #[error(
        "column `{column}` marks values {first}..{end} as missing but has only {values}; \
         keep each run inside the column"
    )]
    MissingOutOfRange { column: String, first: u64, end: u64, values: usize },
    /// Two runs mark the same value as missing.
    #[error("column `{column}` marks value {at} as missing twice; give it one reason")]
    MissingTwice { column: String, at: usize },
    /// A value is marked as missing and present.
    #[error("column `{column}` marks value {at} as missing but holds one there; write a difference of 0")]
    MissingHasValue { column: String, at: usize },
    /// A column has a name that cannot name a metric.
    #[error(
        "{name:?} is no name of a metric; use at most 64 lower-case letters, digits and underscores, with the unit at the \
         end, e.g. power_mw"
    )]
    ColumnName { name: String },
    /// Two columns have the same name.
    #[error("column `{column}` stands twice in the batch; send one of them")]
    ColumnTwice { column: String },
    /// A device is listed twice.
    #[error("device `{device}` stands twice in the batch; send each device once, with all its ticks")]
    DeviceTwice { device: String },
    /// A tick is outside the years 1 to 9999.
    #[error("tick {tick} is at {at_ms} ms since 1970, outside the years 1 to 9999; correct the node's clock")]
    TickOutOfRange { tick: usize, at_ms: i64 },
    /// A process refers to a device or tick that the batch lacks.
    #[error("process {pid} was on a device or at a tick that the batch does not have; number both from 0")]
    ProcessOutside { pid: u32 },
    /// Levels and values of a forecast do not match, or levels do not rise.
    #[error(
        "{levels} levels and {values} values; send one value for each level, and levels that rise from 1 to 999999"
    )]
    ForecastLevels { levels: usize, values: usize },
    /// Rules and regrets do not match.
    #[error("{rules} rules and {values} regrets; send one value for each rule")]
    Regrets { rules: usize, values: usize },
    /// A repeated field or a text is over its bound.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// The batch has more than [`MAX_SAMPLES`] samples.
    #[error("{devices} devices × {ticks} ticks are more than {MAX_SAMPLES} samples; send smaller batches")]
    TooManySamples { devices: usize, ticks: usize },
}

/// # Errors
/// [`InvalidEvent::MissingField`] if the value is empty.
pub(crate) fn filled(field: &'static str, value: &str) -> Result<(), InvalidEvent> {
    if value.is_empty() { Err(InvalidEvent::MissingField { field }) } else { Ok(()) }
}
