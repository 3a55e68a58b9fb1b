//! An entry of `[columns]`: the source of an event field.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Source of one field: a column name, or a table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub(crate) struct FieldSpec {
    /// The column.
    pub column: Option<String>,
    /// Text composed of columns: `"{date}-{vc}"`.
    pub template: Option<String>,
    /// A constant.
    pub value: Option<String>,
    /// Numbers only: product or sum of columns.
    pub product: Option<Vec<String>>,
    pub sum: Option<Vec<String>>,
    /// Times only: a column with a duration to add, and its unit.
    pub plus: Option<String>,
    pub plus_unit: Option<Unit>,
    /// Unit of the numbers; each field has a default.
    pub unit: Option<Unit>,
    /// Times only: overrides the format of `[time]`.
    pub format: Option<TimeFormat>,
    /// Decoder of a value that holds several things.
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

/// Format of times.
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
    Ppm,
    Percent,
    Ratio,
    Mw,
    W,
    Mj,
    J,
    Count,
}

/// Dimension of a unit, which determines the fields it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dimension {
    Gpus,
    Cpus,
    Time,
    Memory,
    Share,
    Power,
    Energy,
    Count,
}

impl Unit {
    /// The unit of a metric of GPU samples, by the end of its name.
    pub(crate) fn of_metric(name: &str) -> Self {
        match name.rsplit('_').next() {
            Some("ppm") => Self::Ppm,
            Some("mw") => Self::Mw,
            Some("mj") => Self::Mj,
            Some("bytes") => Self::Bytes,
            _ => Self::Count,
        }
    }

    pub(crate) fn dimension(self) -> Dimension {
        match self {
            Self::Gpus | Self::GpusMilli => Dimension::Gpus,
            Self::Cpus | Self::CpusMilli => Dimension::Cpus,
            Self::Ms | Self::S | Self::Min | Self::H | Self::Days => Dimension::Time,
            Self::Bytes | Self::Kib | Self::Mib | Self::Gib => Dimension::Memory,
            Self::Ppm | Self::Percent | Self::Ratio => Dimension::Share,
            Self::Mw | Self::W => Dimension::Power,
            Self::Mj | Self::J => Dimension::Energy,
            Self::Count => Dimension::Count,
        }
    }

    /// Factor to the event's unit (thousandths, ms, bytes, ppm, mW, mJ).
    pub(crate) fn scale(self) -> i64 {
        match self {
            Self::GpusMilli | Self::CpusMilli | Self::Ms | Self::Bytes | Self::Count => 1,
            Self::Ppm | Self::Mw | Self::Mj => 1,
            Self::Gpus | Self::Cpus | Self::S | Self::W | Self::J => 1_000,
            Self::Percent => 10_000,
            Self::Ratio => 1_000_000,
            Self::Min => 60_000,
            Self::H => 3_600_000,
            Self::Days => 86_400_000,
            Self::Kib => 1 << 10,
            Self::Mib => 1 << 20,
            Self::Gib => 1 << 30,
        }
    }
}

/// Decoders of text that holds several things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decode {
    /// `123`, `123_4`, `123_[1-10%3]`, `123+1`, `123.batch`: job, array job and task, step.
    SlurmJobId,
    /// `cpu=8,gres/gpu=4,gres/gpu:a100=4`: GPUs and their model.
    SlurmTresGpus,
    /// `gpu[01-04,07],x1`: host names.
    SlurmHostlist,
    /// `['a', 'b']`: host names, as Python or JSON print a list.
    QuotedList,
    /// `1:9`: exit code and signal.
    SlurmExitCode,
    /// `256`: exit code and signal in one number, as `wait` returns it and Slurm's database stores
    /// it.
    WaitStatus,
    /// `1-02:00:00`, `UNLIMITED`: a duration.
    SlurmTimeLimit,
}
