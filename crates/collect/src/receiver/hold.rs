//! Parser of hold and release lines, as prologs and epilogs send them.

use serde_json::{Map, Value};
pub use tidegate_readings::GpuName;
use tidegate_readings::json_fields::Fields;

/// Most devices that one line may name: more than a node has.
const MAX_GPUS: usize = 64;

/// A hold or release reported by a prolog or epilog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldEvent {
    /// Hold or release.
    pub kind: HoldKind,
    /// As in `JobEvent.job_id`.
    pub job_id: String,
    /// Step of the job, if the line is about a step.
    pub step_id: Option<String>,
    /// Node it is about; `None` for the agent's own.
    pub node: Option<String>,
    /// Devices. A release without any releases all devices of the job.
    pub gpus: Vec<GpuName>,
    /// Time, ms since the epoch; `None` for now.
    pub time_ms: Option<i64>,
    /// Slurm's restart count of the job.
    pub restart: Option<u32>,
    /// Thousandths of each device, if it is shared.
    pub share_milli: Option<u32>,
    /// User that owns the job, if the reporter names it.
    pub uid: Option<u32>,
    /// Reporter: prolog, epilog.
    pub source: String,
}

/// Begin or end of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldKind {
    /// The job gets the devices.
    Hold,
    /// The job gives them back.
    Release,
}

/// Parses one line. Also returns the names of unknown fields.
pub(super) fn from_json(fields: Map<String, Value>) -> Result<(HoldEvent, Vec<String>), String> {
    let mut fields = Fields::new(fields);
    let kind = match fields.text("event")?.as_deref() {
        Some("hold") => HoldKind::Hold,
        Some("release") => HoldKind::Release,
        other => return Err(format!("event is {:?}; write hold or release", other.unwrap_or(""))),
    };
    let gpus = match fields.take("gpus") {
        None => Vec::new(),
        Some(Value::String(list)) => parse_all(list.split(',').filter(|name| !name.trim().is_empty()))?,
        Some(Value::Array(list)) => {
            let names: Vec<String> = list
                .iter()
                .map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned))
                .collect();
            parse_all(names.iter().map(String::as_str))?
        }
        Some(other) => return Err(format!("gpus is {other}; write e.g. \"0,1\" or a list of UUIDs")),
    };
    if kind == HoldKind::Hold && gpus.is_empty() {
        return Err("a hold names no gpus; write e.g. \"gpus\":\"0,1\"".into());
    }
    let event = HoldEvent {
        kind,
        job_id: fields.name("job_id")?.ok_or("job_id is missing")?,
        step_id: fields.name("step_id")?,
        node: fields.name("node")?,
        gpus,
        time_ms: fields.time_ms("time_ms", 1.0)?,
        restart: fields.whole("restart", u64::from(u32::MAX))?.map(|count| count as u32),
        share_milli: fields.whole("share_milli", 1000)?.map(|share| share as u32),
        uid: fields.whole("uid", u64::from(u32::MAX))?.map(|uid| uid as u32),
        source: fields.name("source")?.unwrap_or_else(|| "prolog".into()),
    };
    Ok((event, fields.rest()))
}

fn parse_all<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<GpuName>, String> {
    let gpus: Vec<_> = names.map(GpuName::parse).collect::<Result<_, _>>()?;
    match gpus.len() {
        0..=MAX_GPUS => Ok(gpus),
        count => Err(format!("{count} GPUs are more than {MAX_GPUS}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(line: Value) -> Result<(HoldEvent, Vec<String>), String> {
        from_json(line.as_object().unwrap().clone())
    }

    #[test]
    fn holds_name_devices_in_any_spelling() {
        let expected = vec![GpuName::Index(0), GpuName::Uuid("GPU-ab".into())];
        for gpus in [json!("0,GPU-ab"), json!([0, "GPU-ab"]), json!(["0", " GPU-ab"]), json!("0, GPU-ab,")] {
            let (event, ignored) = read(
                json!({"event": "hold", "job_id": "12_3", "gpus": gpus, "time_ms": 1_763_712_000_123_i64, "restart": 2, "x": 1}),
            )
            .unwrap();
            assert_eq!(event.gpus, expected);
            assert_eq!((event.kind, event.job_id.as_str(), event.restart), (HoldKind::Hold, "12_3", Some(2)));
            assert_eq!((event.time_ms, event.source.as_str()), (Some(1_763_712_000_123), "prolog"));
            assert_eq!(ignored, ["x"]);
        }
        let (event, _) = read(json!({"event": "release", "job_id": "1", "source": "epilog"})).unwrap();
        assert_eq!((event.kind, event.gpus.len(), event.time_ms), (HoldKind::Release, 0, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (json!({"event": "take", "job_id": "1"}), "event is \"take\""),
            (json!({"event": "hold", "gpus": "0"}), "job_id is missing"),
            (json!({"event": "hold", "job_id": "1"}), "names no gpus"),
            (json!({"event": "hold", "job_id": "1", "gpus": "a"}), "\"a\" is no GPU"),
            (json!({"event": "hold", "job_id": "1", "gpus": {"a": 1}}), "gpus is {"),
            (json!({"event": "hold", "job_id": "1", "gpus": "0", "time_ms": 5}), "time_ms is 5"),
            (json!({"event": "hold", "job_id": "1", "gpus": "0", "restart": -1}), "restart is -1"),
            (json!({"event": "hold", "job_id": "1", "gpus": (0..65).collect::<Vec<_>>()}), "65 GPUs"),
        ];
        for (line, expected) in cases {
            let error = read(line.clone()).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
