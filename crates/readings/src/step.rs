//! Parser of step reports in JSON. Every number is checked and becomes an integer of
//! `schemas/step_report.proto`.

use serde_json::{Map, Value};
use tidegate_events::v1;

use crate::gpu_name::GpuName;
use crate::json_fields::Fields;

/// Largest count of operations or squared tokens: beyond it table columns are not exact.
const MAX_WHOLE: u64 = i64::MAX as u64;
/// Most ranks of a job, and of its stages and groups: ten times the largest training runs.
const MAX_RANKS: u64 = 1 << 20;
/// Most tokens that a rank trains in a step; a step of the largest runs has some 10^8 in all.
const MAX_TOKENS: u64 = 1_000_000_000_000;
/// Largest number of a step, attempt or epoch, and most reports dropped.
const MAX_COUNT: u64 = 1_000_000_000_000;
/// Largest loss in millionths.
const MAX_LOSS_PPM: f64 = 9e15;

/// Parses one step report. Also returns the names of unknown fields.
///
/// `node` is the name of this node; a report of another one is refused. `observed_ms` is when it
/// was taken, ms since the epoch.
///
/// # Errors
/// What is missing or wrong, for who sent it.
pub fn from_json(
    fields: Map<String, Value>,
    node: &str,
    observed_ms: i64,
) -> Result<(v1::StepReport, Vec<String>), String> {
    let mut fields = Fields::new(fields);
    let start_s = fields.time_ms("start", 1_000.0)?;
    let start_ms = fields.time_ms("start_ms", 1.0)?;
    let start = match (start_s, start_ms) {
        (Some(_), Some(_)) => return Err("start and start_ms are both given; send one of them".into()),
        (None, None) => return Err("start is missing; send when the step began, seconds since 1970".into()),
        (start_s, start_ms) => start_s.or(start_ms).unwrap_or_default(),
    };
    let (mut gpu_uuid, mut gpu_index) = (None, None);
    if let Some(gpu) = fields.name("gpu")? {
        match GpuName::parse(&gpu).map_err(|what| format!("gpu: {what}"))? {
            GpuName::Index(index) => gpu_index = Some(index),
            GpuName::Uuid(uuid) => gpu_uuid = Some(uuid),
        }
    }
    if let Some(named) = fields.name("node")?.filter(|named| named != node) {
        return Err(format!(
            "node is {named}, and this is {node}; leave it out, or send the report to that node's agent"
        ));
    }
    let report = v1::StepReport {
        envelope: Some(v1::Envelope {
            event_time_ms: start,
            observed_time_ms: observed_ms,
            ..Default::default()
        }),
        job_id: fields.name("job")?.ok_or("job is missing; send the job's id as its scheduler writes it")?,
        attempt_id: fields.whole("attempt", MAX_COUNT)?.map(|attempt| attempt as i64),
        rank: fields.whole("rank", MAX_RANKS - 1)?.ok_or("rank is missing; the only process has rank 0")?
            as u32,
        world_size: fields.whole("world_size", MAX_RANKS)?.map(|size| size as u32),
        step: fields
            .whole("step", MAX_COUNT)?
            .ok_or("step is missing; send its number in the training run")?,
        duration_us: fields
            .duration_us("duration")?
            .ok_or("duration_s is missing; send how long the step took")?,
        compute_us: fields.duration_us("compute")?,
        communication_us: fields.duration_us("communication")?,
        data_wait_us: fields.duration_us("data_wait")?,
        checkpoint_us: fields.duration_us("checkpoint")?,
        restore_us: fields.duration_us("restore")?,
        tokens: fields.whole("tokens", MAX_TOKENS)?,
        model_flops: fields.whole("model_flops", MAX_WHOLE)?,
        flops_convention: fields.name("flops_convention")?,
        precision: fields.name("precision")?,
        loss_ppm: loss_ppm(&mut fields)?,
        node: Some(node.to_owned()).filter(|node| !node.is_empty()),
        gpu_uuid,
        gpu_index,
        dropped: fields.whole("dropped", MAX_COUNT)?,
        data_epoch: fields.whole("epoch", MAX_COUNT)?,
        pipeline_stage: fields.whole("pipeline_stage", MAX_RANKS - 1)?.map(|stage| stage as u32),
        pipeline_stages: fields.whole("pipeline_stages", MAX_RANKS)?.map(|stages| stages as u32),
        micro_batches: fields.whole("micro_batches", MAX_RANKS)?.map(|many| many as u32),
        expert_group: fields.whole("expert_group", MAX_RANKS - 1)?.map(|group| group as u32),
        squared_tokens: fields.whole("squared_tokens", MAX_WHOLE)?,
    };
    if report.world_size.is_some_and(|size| report.rank >= size) {
        return Err(format!(
            "rank {} is not below world_size {}",
            report.rank,
            report.world_size.unwrap_or(0)
        ));
    }
    if let (Some(stage), Some(stages)) = (report.pipeline_stage, report.pipeline_stages)
        && stage >= stages
    {
        return Err(format!(
            "pipeline_stage {stage} is not below pipeline_stages {stages}; count stages from 0"
        ));
    }
    Ok((report, fields.rest()))
}

fn loss_ppm(fields: &mut Fields) -> Result<Option<i64>, String> {
    let Some(loss) = fields.number("loss")? else { return Ok(None) };
    let ppm = (loss * 1e6).round();
    match ppm.abs() <= MAX_LOSS_PPM {
        true => Ok(Some(ppm as i64)),
        false => Err(format!("loss is {loss:?}; it must be between -9e9 and 9e9")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate_events::Event;

    use super::*;

    fn read(line: &str) -> Result<(v1::StepReport, Vec<String>), String> {
        from_json(serde_json::from_str(line).unwrap(), "n1", 5)
    }

    #[test]
    fn a_full_report_becomes_integers() {
        let (report, ignored) = read(
            r#"{"job":"4711_3","rank":1,"step":12,"start":1763712000.1234,"duration_s":0.5000004,"compute_s":0.4,
                "communication_ms":80.5,"data_wait_us":7,"checkpoint_s":0,"restore_ms":1.5,"tokens":8192,"model_flops":1.5e15,
                "flops_convention":"palm","precision":"bf16","loss":2.3456789,"world_size":8,"gpu":"GPU-1","dropped":3,
                "los":1,"attempt":0,"epoch":2,"pipeline_stage":1,"pipeline_stages":4,"micro_batches":16,"expert_group":0,
                "squared_tokens":33554432}"#,
        )
        .unwrap();
        assert_eq!(report.envelope.unwrap().event_time_ms, 1_763_712_000_123);
        assert_eq!(
            (report.job_id.as_str(), report.rank, report.step, report.duration_us),
            ("4711_3", 1, 12, 500_000)
        );
        assert_eq!((report.compute_us, report.communication_us), (Some(400_000), Some(80_500)));
        assert_eq!((report.data_wait_us, report.checkpoint_us), (Some(7), Some(0)));
        assert_eq!((report.restore_us, report.data_epoch), (Some(1_500), Some(2)));
        assert_eq!((report.tokens, report.model_flops), (Some(8192), Some(1_500_000_000_000_000)));
        assert_eq!((report.loss_ppm, report.dropped, report.attempt_id), (Some(2_345_679), Some(3), Some(0)));
        assert_eq!((report.gpu_uuid.as_deref(), report.gpu_index), (Some("GPU-1"), None));
        assert_eq!((report.node.as_deref(), report.world_size), (Some("n1"), Some(8)));
        let place =
            (report.pipeline_stage, report.pipeline_stages, report.micro_batches, report.expert_group);
        assert_eq!(place, (Some(1), Some(4), Some(16), Some(0)));
        assert_eq!(report.squared_tokens, Some(33_554_432));
        assert_eq!(ignored, ["los"]);
    }

    #[test]
    fn what_is_not_known_stays_unknown() {
        let (report, _) =
            read(r#"{"job":7,"rank":0,"step":0,"start_ms":1763712000000,"duration_ms":1,"loss":null,"node":"n1","gpu":3}"#)
                .unwrap();
        assert_eq!((report.job_id.as_str(), report.duration_us, report.gpu_index), ("7", 1_000, Some(3)));
        assert_eq!(
            (report.compute_us, report.tokens, report.loss_ppm, report.dropped),
            (None, None, None, None)
        );
        assert_eq!(report.node.as_deref(), Some("n1"));
        assert_eq!((report.pipeline_stage, report.pipeline_stages, report.expert_group), (None, None, None));
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        let cases = [
            (json!({"duration_s": -1}), "duration_s is -1"),
            (json!({"duration_s": 40_000_000}), "duration_s is 40000000"),
            (json!({"duration_s": "1"}), "duration_s is \"1\""),
            (json!({"duration_ms": 1}), "duration is given twice"),
            (json!({"duration_s": null}), "duration_s is missing"),
            (json!({"compute_s": 1e300}), "compute_s is 1e300"),
            (json!({"rank": 1.5}), "rank is 1.5"),
            (json!({"rank": 4, "world_size": 4}), "rank 4 is not below world_size 4"),
            (json!({"rank": null}), "rank is missing"),
            (
                json!({"pipeline_stage": 2, "pipeline_stages": 2}),
                "pipeline_stage 2 is not below pipeline_stages 2",
            ),
            (json!({"pipeline_stage": -1}), "pipeline_stage is -1"),
            (json!({"micro_batches": 0.5}), "micro_batches is 0.5"),
            (json!({"step": -1}), "step is -1"),
            (json!({"tokens": 1e15}), "tokens is 1000000000000000.0; it must be a whole number from 0 to"),
            (json!({"tokens": 1_000_000_000_001_u64}), "tokens is 1000000000001"),
            (json!({"world_size": 1_048_577}), "world_size is 1048577"),
            (json!({"rank": 1_048_576}), "rank is 1048576"),
            (json!({"pipeline_stages": u32::MAX}), "pipeline_stages is 4294967295"),
            (json!({"step": u64::MAX}), "step is 18446744073709551615"),
            (json!({"node": "n2"}), "node is n2, and this is n1"),
            (json!({"loss": 1e30}), "loss is 1"),
            (json!({"loss": [1]}), "loss is [1]"),
            (json!({"start": 1_763_712_000_000_i64}), "start is 1763712000000"),
            (json!({"start": null}), "start is missing"),
            (json!({"start_ms": 1_763_712_000_000_i64}), "both given"),
            (json!({"job": ""}), "job is missing"),
            (json!({"job": {"a": 1}}), "job is {"),
            (json!({"job": "a\nb"}), "control characters"),
            (json!({"gpu": "zero"}), "gpu: \"zero\" is no GPU"),
            (json!({"precision": "x".repeat(300)}), "precision is longer"),
        ];
        for (change, expected) in cases {
            let mut line = json!({"job": "1", "rank": 0, "step": 1, "start": 1_763_712_000, "duration_s": 1});
            line.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let error = read(&line.to_string()).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn the_same_line_is_the_same_event() {
        let line = r#"{"job":"1","rank":0,"step":5,"start":1763712000.5,"duration_s":1}"#;
        let id = |node| {
            let (report, _) = from_json(serde_json::from_str(line).unwrap(), node, 5).unwrap();
            let mut event = Event::Step(report);
            event.envelope_mut().cluster = "c".into();
            event.content_id()
        };
        assert_eq!(id("n1"), id("n1"));
        assert_ne!(id("n1"), id("n2"));
    }
}
