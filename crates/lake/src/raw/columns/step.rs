//! Columns of `steps`: training steps.

use tidegate_events::v1::StepReport;

use super::{CLUSTER_DOC, Columns, EPOCH_DOC, Read, SEQ_DOC, SOURCE_DOC, env, int};

pub(in crate::raw) const STEP: Columns<StepReport> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    ("job_id", Read::Text(|e| Some(&e.job_id)), "Job that reports."),
    ("attempt_id", Read::Int(|e| e.attempt_id), "Attempt of the job, as in attempts, if the job knows it."),
    ("rank", Read::Int(|e| Some(e.rank.into())), "Rank of the process in the job."),
    ("world_size", Read::Int(|e| e.world_size.map(i64::from)), "Number of ranks."),
    (
        "step",
        Read::Int(|e| int(Some(e.step))),
        "Number of the step; a repeated number is a step redone after a restart.",
    ),
    ("event_time", Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)), "When the step began."),
    ("duration_us", Read::Int(|e| int(Some(e.duration_us))), "How long it took, µs."),
    (
        "compute_us",
        Read::Int(|e| int(e.compute_us)),
        "Of it computing, before collectives wait for others, µs. Parts may overlap.",
    ),
    (
        "communication_us",
        Read::Int(|e| int(e.communication_us)),
        "Of it in collectives, waiting included, µs.",
    ),
    ("data_wait_us", Read::Int(|e| int(e.data_wait_us)), "Of it waiting for input, µs."),
    ("checkpoint_us", Read::Int(|e| int(e.checkpoint_us)), "Of it saving or loading a checkpoint, µs."),
    ("restore_us", Read::Int(|e| int(e.restore_us)), "Of it loading a checkpoint, if reported apart, µs."),
    ("tokens", Read::Int(|e| int(e.tokens)), "Tokens of this rank in this step."),
    (
        "model_flops",
        Read::Int(|e| int(e.model_flops)),
        "Floating-point operations of the model, of this rank in this step, by flops_convention.",
    ),
    (
        "flops_convention",
        Read::Text(|e| e.flops_convention.as_deref()),
        "How model_flops are counted, e.g. palm, megatron, 6n.",
    ),
    ("precision", Read::Text(|e| e.precision.as_deref()), "Precision of the multiplications, e.g. bf16."),
    (
        "data_epoch",
        Read::Int(|e| int(e.data_epoch)),
        "Pass over the training data that the step is in, from 0 on.",
    ),
    (
        "pipeline_stage",
        Read::Int(|e| e.pipeline_stage.map(i64::from)),
        "Stage of the pipeline that the rank works in, from 0.",
    ),
    ("pipeline_stages", Read::Int(|e| e.pipeline_stages.map(i64::from)), "Stages of the pipeline."),
    ("micro_batches", Read::Int(|e| e.micro_batches.map(i64::from)), "Micro-batches of a step, per replica."),
    (
        "expert_group",
        Read::Int(|e| e.expert_group.map(i64::from)),
        "Group of experts that the rank computes, from 0.",
    ),
    (
        "squared_tokens",
        Read::Int(|e| int(e.squared_tokens)),
        "Sum of the squares of its sequences' lengths, in tokens.",
    ),
    ("loss_ppm", Read::Int(|e| e.loss_ppm), "Loss, millionths."),
    ("node", Read::Text(|e| e.node.as_deref()), "Node the rank ran on."),
    ("gpu_uuid", Read::Text(|e| e.gpu_uuid.as_deref()), "Device the rank ran on, by its UUID."),
    ("gpu_index", Read::Int(|e| e.gpu_index.map(i64::from)), "Number of the device in its node."),
    (
        "dropped",
        Read::Int(|e| int(e.dropped)),
        "Reports of this rank that its client dropped before this one.",
    ),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];
