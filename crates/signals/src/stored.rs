//! How parts of the state are stored in a snapshot that serde cannot derive: messages of the event
//! contract, and what is made of them.
//!
//! Messages are stored as Protobuf, so a field that the contract gains does not change the layout.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A message, boxed, as Protobuf.
pub mod message {
    use prost::Message;

    use super::*;

    pub fn serialize<M: Message, S: Serializer>(message: &M, to: S) -> Result<S::Ok, S::Error> {
        message.encode_to_vec().serialize(to)
    }

    pub fn deserialize<'de, M: Message + Default, D: Deserializer<'de>>(from: D) -> Result<Box<M>, D::Error> {
        let bytes = Vec::<u8>::deserialize(from)?;
        M::decode(bytes.as_slice()).map(Box::new).map_err(D::Error::custom)
    }
}

/// Step reports with their ends, µs since 1970.
pub mod reports {
    use prost::Message;
    use tidegate_events::v1::StepReport;

    use super::*;

    pub fn serialize<S: Serializer>(reports: &[(StepReport, i64)], to: S) -> Result<S::Ok, S::Error> {
        let reports: Vec<(Vec<u8>, i64)> =
            reports.iter().map(|(report, end_us)| (report.encode_to_vec(), *end_us)).collect();
        reports.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(StepReport, i64)>, D::Error> {
        let reports = Vec::<(Vec<u8>, i64)>::deserialize(from)?;
        let report = |(bytes, end_us): (Vec<u8>, i64)| {
            StepReport::decode(bytes.as_slice()).map(|report| (report, end_us)).map_err(D::Error::custom)
        };
        reports.into_iter().map(report).collect()
    }
}

/// The kind of a job event, by its number.
pub mod job_event_kind {
    use tidegate_events::v1::JobEventKind;

    use super::*;

    pub fn serialize<S: Serializer>(kind: &JobEventKind, to: S) -> Result<S::Ok, S::Error> {
        i32::from(*kind).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<JobEventKind, D::Error> {
        JobEventKind::try_from(i32::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A job's family, boxed or not.
pub mod family {
    use std::borrow::Borrow;

    use tidegate_events::JobFamily;

    use super::*;

    type Fields = (Option<String>, Option<String>, Option<String>, Option<String>);

    pub fn serialize<S: Serializer>(family: &impl Borrow<JobFamily>, to: S) -> Result<S::Ok, S::Error> {
        let JobFamily { team, user_name, job_name, gpu_model } = family.borrow();
        (team, user_name, job_name, gpu_model).serialize(to)
    }

    pub fn deserialize<'de, F: From<JobFamily>, D: Deserializer<'de>>(from: D) -> Result<F, D::Error> {
        let (team, user_name, job_name, gpu_model) = Fields::deserialize(from)?;
        Ok(JobFamily { team, user_name, job_name, gpu_model }.into())
    }
}
