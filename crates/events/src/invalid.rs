//! [`InvalidEvent`]: why a message is not an event.

/// Most samples (devices × ticks) of one batch: an hour of a node with 16 GPUs at 1 Hz.
///
/// It bounds what a reader allocates. A batch of a few bytes may claim any number of ticks and devices
/// for columns that it does not hold.
pub const MAX_SAMPLES: usize = 1 << 16;

/// What a message lacks to be an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEvent {
    #[error("it has no envelope; fill in cluster, source and event_time_ms")]
    MissingEnvelope,
    #[error("event_id has {len} bytes instead of 16; let Event::seal fill it in")]
    EventIdLength { len: usize },
    #[error("`{field}` is empty; fill it in")]
    MissingField { field: &'static str },
    #[error(
        "kind {kind} is unspecified or of a newer version; set a kind of the schema or upgrade this reader"
    )]
    UnknownKind { kind: i32 },
    #[error(
        "column `{column}` has {values} values instead of {devices} devices × {ticks} ticks; \
         send one value per device and tick, or none"
    )]
    ColumnLength { column: String, values: usize, devices: usize, ticks: usize },
    #[error(
        "column `{column}` has {values} values of first_growth for {devices} devices; send one per device, or none"
    )]
    GrowthLength { column: String, values: usize, devices: usize },
    #[error(
        "column `{column}` marks values {first}..{end} as missing but has only {values}; \
         keep each run inside the column"
    )]
    MissingOutOfRange { column: String, first: u64, end: u64, values: usize },
    #[error("column `{column}` marks value {at} as missing twice; give it one reason")]
    MissingTwice { column: String, at: usize },
    #[error("column `{column}` marks value {at} as missing but holds one there; write a difference of 0")]
    MissingHasValue { column: String, at: usize },
    #[error(
        "{name:?} is no name of a metric; use at most 64 lower-case letters, digits and underscores, with the unit at the \
         end, e.g. power_mw"
    )]
    ColumnName { name: String },
    #[error("column `{column}` stands twice in the batch; send one of them")]
    ColumnTwice { column: String },
    #[error("device `{device}` stands twice in the batch; send each device once, with all its ticks")]
    DeviceTwice { device: String },
    #[error("tick {tick} is at {at_ms} ms since 1970, outside the years 1 to 9999; correct the node's clock")]
    TickOutOfRange { tick: usize, at_ms: i64 },
    #[error("process {pid} was on a device or at a tick that the batch does not have; number both from 0")]
    ProcessOutside { pid: u32 },
    #[error(
        "{levels} levels and {values} values; send one value for each level, and levels that rise from 1 to 999999"
    )]
    ForecastLevels { levels: usize, values: usize },
    #[error("{rules} rules and {values} regrets; send one value for each rule")]
    Regrets { rules: usize, values: usize },
    #[error("{devices} devices × {ticks} ticks are more than {MAX_SAMPLES} samples; send smaller batches")]
    TooManySamples { devices: usize, ticks: usize },
}

/// # Errors
/// [`InvalidEvent::MissingField`] if the value is empty.
pub(crate) fn filled(field: &'static str, value: &str) -> Result<(), InvalidEvent> {
    if value.is_empty() { Err(InvalidEvent::MissingField { field }) } else { Ok(()) }
}
