//! One entry of `[columns]`: where an event field comes from.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Where one field comes from: a column's name, or a table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub(crate) struct FieldSpec {
    /// The column that holds it.
    pub column: Option<String>,
    /// Text put together from columns: `"{date}-{vc}"`.
    pub template: Option<String>,
    /// The same for every row.
    pub value: Option<String>,
    /// Numbers only: the columns' product, or their sum.
    pub product: Option<Vec<String>>,
    pub sum: Option<Vec<String>>,
    /// Times only: a column with a duration to add, and its unit.
    pub plus: Option<String>,
    pub plus_unit: Option<Unit>,
    /// Unit of the numbers; each field has a default.
    pub unit: Option<Unit>,
    /// Times only: instead of the format of `[time]`.
    pub format: Option<TimeFormat>,
    /// How to read a value that holds more than one thing.
    pub decode: Option<Decode>,
    /// The file may lack the column.
    #[serde(default)]
    pub optional: bool,
}

impl<'de> Deserialize<'de> for FieldSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrTable;
        impl<'de> Visitor<'de> for NameOrTable {
            type Value = FieldSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a column name or a table such as { column = \"name\", unit = \"s\" }")
            }

            fn visit_str<E: de::Error>(self, column: &str) -> Result<FieldSpec, E> {
                Ok(FieldSpec { column: Some(column.into()), ..FieldSpec::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FieldSpec, A::Error> {
                FieldSpec::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(NameOrTable)
    }
}

/// How times are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TimeFormat {
    /// `YYYY-MM-DD`, `YYYY-MM-DD HH:MM:SS`, RFC 3339, or a number of 9 digits and more: seconds
    /// since 1970 (12 and more: milliseconds). The first time of the file fixes which.
    #[default]
    Auto,
    EpochS,
    EpochMs,
    Days,
}

/// Units of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    Gpus,
    GpusMilli,
    Cpus,
    CpusMilli,
    Ms,
    S,
    Min,
    H,
    Days,
    Bytes,
    Kib,
    Mib,
    Gib,
    Count,
}

/// What a unit measures, which says for which fields it is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dimension {
    Gpus,
    Cpus,
    Time,
    Memory,
    Count,
}

impl Unit {
    pub(crate) fn dimension(self) -> Dimension {
        match self {
            Self::Gpus | Self::GpusMilli => Dimension::Gpus,
            Self::Cpus | Self::CpusMilli => Dimension::Cpus,
            Self::Ms | Self::S | Self::Min | Self::H | Self::Days => Dimension::Time,
            Self::Bytes | Self::Kib | Self::Mib | Self::Gib => Dimension::Memory,
            Self::Count => Dimension::Count,
        }
    }

    /// How many of the event's unit (thousandths, ms, bytes) one of these is.
    pub(crate) fn scale(self) -> i64 {
        match self {
            Self::GpusMilli | Self::CpusMilli | Self::Ms | Self::Bytes | Self::Count => 1,
            Self::Gpus | Self::Cpus | Self::S => 1_000,
            Self::Min => 60_000,
            Self::H => 3_600_000,
            Self::Days => 86_400_000,
            Self::Kib => 1 << 10,
            Self::Mib => 1 << 20,
            Self::Gib => 1 << 30,
        }
    }
}

/// Values of one text that hold several things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decode {
    /// `123`, `123_4`, `123_[1-10%3]`, `123+1`, `123.batch`: job, array job and task, step.
    SlurmJobId,
    /// `cpu=8,gres/gpu=4,gres/gpu:a100=4`: GPUs and their model.
    SlurmTresGpus,
    /// `gpu[01-04,07],x1`: host names.
    SlurmHostlist,
    /// `['a', 'b']`: host names in a list as Python or JSON print it.
    QuotedList,
    /// `1:9`: exit code and signal.
    SlurmExitCode,
    /// `256`: exit code and signal in one number, as `wait` returns it and Slurm's database keeps
    /// it.
    WaitStatus,
    /// `1-02:00:00`, `UNLIMITED`: a duration.
    SlurmTimeLimit,
}
