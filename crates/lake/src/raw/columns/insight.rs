//! Columns of what Tidegate infers: signals, forecasts and scaling curves.

use tidegate_events::v1::{
    CoverageSignal, CoverageState, Forecast, ForecastReach, JobEndSignal, NodeHealthState, NodeSignal,
    ScalingCurve, SeriesKind, SignalState, StragglerSignal,
};

use super::{CLUSTER_DOC, Columns, EPOCH_DOC, Read, SEQ_DOC, SOURCE_DOC, TIME_DOC, env, int};

pub(in crate::raw) const STRAGGLER: Columns<StragglerSignal> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    ("job_id", Read::Text(|e| Some(&e.job_id)), "Job that is slowed down."),
    (
        "event_time",
        Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)),
        "Event time of the report that decided it.",
    ),
    (
        "state",
        Read::Text(|e| Some(SignalState::try_from(e.state).map_or("", |k| k.as_str_name()))),
        "SUSPECT, CONFIRMED, CLEARED, or CORRECTED: reports that came late changed what was said before.",
    ),
    ("attempt_id", Read::Int(|e| e.attempt_id), "Attempt of the job, where a report named it."),
    ("episode", Read::Int(|e| int(Some(e.episode))), "Number of the episode in the job, from 1."),
    (
        "revision",
        Read::Int(|e| Some(e.revision.into())),
        "Number of the statement in the episode, from 0; the greatest holds.",
    ),
    (
        "blame",
        Read::Text(|e| Some(&e.blame)),
        "Whom it blames: RANK, NODE, ROLE, FABRIC or NOBODY (the job's own shape).",
    ),
    ("node", Read::Text(|e| e.node.as_deref()), "Node that is blamed, or of the rank."),
    (
        "gpu_uuid",
        Read::Text(|e| e.gpu_uuid.as_deref()),
        "Device of the rank, by its UUID, where it is known.",
    ),
    ("gpu_index", Read::Int(|e| e.gpu_index.map(i64::from)), "Number of the device in its node."),
    ("rank", Read::Int(|e| e.rank.map(i64::from)), "Rank that is blamed."),
    ("role", Read::Int(|e| e.role.map(i64::from)), "Role that is blamed, e.g. a stage of a pipeline."),
    (
        "class",
        Read::Text(|e| Some(&e.class)),
        "COMPUTE_THERMAL, COMPUTE_SILENT, LINK, HOST, DATA, COMMUNICATION, or STRUCTURAL (nobody's fault).",
    ),
    (
        "cause",
        Read::Text(|e| e.cause.as_deref()),
        "Of STRUCTURAL: LONG_STAGE, SEQUENCE_IMBALANCE, EXPERT_IMBALANCE or SLOWER_FROM_THE_START, whichever weighs most.",
    ),
    (
        "pipeline_stage",
        Read::Int(|e| e.pipeline_stage.map(i64::from)),
        "Stage of the pipeline: of the rank or role that is blamed, or the long one.",
    ),
    ("posterior_ppm", Read::Int(|e| Some(e.posterior_ppm.into())), "Probability of the class, millionths."),
    ("onset_time", Read::Time(|e| Some(e.onset_ms)), "Since when the part is slow."),
    ("detected_time", Read::Time(|e| Some(e.detected_ms)), "When it was suspected first, by event time."),
    ("said_time", Read::Time(|e| Some(e.said_ms)), "When this was said, by event time."),
    (
        "slowdown_ppm",
        Read::Int(|e| Some(e.slowdown_ppm)),
        "How much longer the part takes than before: 200000 is 20 %.",
    ),
    ("lost_gpu_ms", Read::Int(|e| int(Some(e.lost_gpu_ms))), "GPU x ms lost so far by the whole job."),
    (
        "evidence",
        Read::Lines(|e| &e.evidence),
        "What it rests on: rule, value and weight in log odds, `; ` between.",
    ),
    ("model", Read::Text(|e| Some(&e.model)), "Version of the detector."),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];

pub(in crate::raw) const NODE_SIGNAL: Columns<NodeSignal> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    ("node", Read::Text(|e| Some(&e.node)), "Node."),
    ("event_time", Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)), TIME_DOC),
    (
        "state",
        Read::Text(|e| Some(NodeHealthState::try_from(e.state).map_or("", |k| k.as_str_name()))),
        "HEALTHY, WATCH, BAD, or FAILED (a device is lost or must be reset).",
    ),
    ("bad_ppm", Read::Int(|e| Some(e.bad_ppm.into())), "Probability that the node is bad, millionths."),
    ("gpu_uuid", Read::Text(|e| e.gpu_uuid.as_deref()), "Device of the strongest evidence, by its UUID."),
    ("gpu_index", Read::Int(|e| e.gpu_index.map(i64::from)), "Number of the device in its node."),
    (
        "evidence",
        Read::Lines(|e| &e.evidence),
        "What speaks against it, strongest first: rule, value and weight in log odds, `; ` between.",
    ),
    ("model", Read::Text(|e| Some(&e.model)), "Version of the rules."),
    (
        "lemon_ppm",
        Read::Int(|e| e.lemon_ppm.map(i64::from)),
        "Probability that its rate of bad hours is above three times the fleet's, millionths; NULL if it never was a lemon.",
    ),
    (
        "lemon_least_milli",
        Read::Int(|e| int(e.lemon_least_milli)),
        "With a probability of 0.95 its rate of bad hours is at least so many thousandths of the fleet's.",
    ),
    ("used_hours", Read::Int(|e| e.used_hours.map(i64::from)), "Hours of 28 days in which it held work."),
    (
        "bad_hours",
        Read::Int(|e| e.bad_hours.map(i64::from)),
        "Of these, hours in which something bad happened.",
    ),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];

pub(in crate::raw) const JOB_END: Columns<JobEndSignal> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    ("job_id", Read::Text(|e| Some(&e.job_id)), "Job."),
    ("event_time", Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)), TIME_DOC),
    ("attempt_id", Read::Int(|e| e.attempt_id), "Attempt, as in attempts."),
    ("end_time", Read::Time(|e| Some(e.end_ms)), "When the attempt ended."),
    ("final_state", Read::Text(|e| Some(&e.final_state)), "How it ended, as the scheduler says."),
    (
        "cause",
        Read::Text(|e| Some(&e.cause)),
        "DEVICE_LOST, MEMORY, LINK, FIRMWARE, HOST, NODE (it went down), APPLICATION (the program's own mistake), or UNKNOWN (of an XID).",
    ),
    ("node", Read::Text(|e| Some(&e.node)), "Node of the fault."),
    ("gpu_uuid", Read::Text(|e| e.gpu_uuid.as_deref()), "Device of the fault, by its UUID."),
    ("gpu_index", Read::Int(|e| e.gpu_index.map(i64::from)), "Number of the device in its node."),
    ("xid", Read::Int(|e| e.xid.map(i64::from)), "NVIDIA's code, where it was an XID."),
    ("fault_time", Read::Time(|e| Some(e.fault_ms)), "When the fault was reported."),
    (
        "probability_ppm",
        Read::Int(|e| Some(e.probability_ppm.into())),
        "Probability that this ended it, against the other faults and none of them, millionths.",
    ),
    (
        "lost_gpu_ms",
        Read::Int(|e| int(e.lost_gpu_ms)),
        "GPU x ms from the last checkpoint that was reported to the end; NULL if none was.",
    ),
    (
        "evidence",
        Read::Lines(|e| &e.evidence),
        "What the probability rests on: rule, value and weight in log odds, `; ` between.",
    ),
    ("model", Read::Text(|e| Some(&e.model)), "Version of the rules."),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];

pub(in crate::raw) const FORECAST: Columns<Forecast> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    (
        "kind",
        Read::Text(|e| Some(SeriesKind::try_from(e.kind).map_or("", |k| k.as_str_name()))),
        "TOTAL, POOL, TEAM, or CLASS (jobs by size in GPUs).",
    ),
    ("name", Read::Text(|e| Some(&e.name)), "Name of the series: pool, team, class as 5-8, or total."),
    (
        "event_time",
        Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)),
        "When it was issued: what happened up to then is known to it.",
    ),
    ("target_time", Read::Time(|e| Some(e.target_ms)), "Start of the step that is foreseen."),
    ("step_ms", Read::Int(|e| int(Some(e.step_ms))), "Length of the step, ms: its mean demand is foreseen."),
    ("horizon", Read::Int(|e| Some(e.horizon.into())), "Steps ahead, from 1."),
    ("p01_gpus_milli", Read::Int(|e| quantile(e, 10_000)), "Quantile 0.01, thousandths of a GPU."),
    ("p05_gpus_milli", Read::Int(|e| quantile(e, 50_000)), "Quantile 0.05, thousandths of a GPU."),
    ("p10_gpus_milli", Read::Int(|e| quantile(e, 100_000)), "Quantile 0.10, thousandths of a GPU."),
    ("p15_gpus_milli", Read::Int(|e| quantile(e, 150_000)), "Quantile 0.15, thousandths of a GPU."),
    ("p20_gpus_milli", Read::Int(|e| quantile(e, 200_000)), "Quantile 0.20, thousandths of a GPU."),
    ("p25_gpus_milli", Read::Int(|e| quantile(e, 250_000)), "Quantile 0.25, thousandths of a GPU."),
    ("p30_gpus_milli", Read::Int(|e| quantile(e, 300_000)), "Quantile 0.30, thousandths of a GPU."),
    ("p35_gpus_milli", Read::Int(|e| quantile(e, 350_000)), "Quantile 0.35, thousandths of a GPU."),
    ("p40_gpus_milli", Read::Int(|e| quantile(e, 400_000)), "Quantile 0.40, thousandths of a GPU."),
    ("p45_gpus_milli", Read::Int(|e| quantile(e, 450_000)), "Quantile 0.45, thousandths of a GPU."),
    ("p50_gpus_milli", Read::Int(|e| quantile(e, 500_000)), "Quantile 0.50, thousandths of a GPU."),
    ("p55_gpus_milli", Read::Int(|e| quantile(e, 550_000)), "Quantile 0.55, thousandths of a GPU."),
    ("p60_gpus_milli", Read::Int(|e| quantile(e, 600_000)), "Quantile 0.60, thousandths of a GPU."),
    ("p65_gpus_milli", Read::Int(|e| quantile(e, 650_000)), "Quantile 0.65, thousandths of a GPU."),
    ("p70_gpus_milli", Read::Int(|e| quantile(e, 700_000)), "Quantile 0.70, thousandths of a GPU."),
    ("p75_gpus_milli", Read::Int(|e| quantile(e, 750_000)), "Quantile 0.75, thousandths of a GPU."),
    ("p80_gpus_milli", Read::Int(|e| quantile(e, 800_000)), "Quantile 0.80, thousandths of a GPU."),
    ("p85_gpus_milli", Read::Int(|e| quantile(e, 850_000)), "Quantile 0.85, thousandths of a GPU."),
    ("p90_gpus_milli", Read::Int(|e| quantile(e, 900_000)), "Quantile 0.90, thousandths of a GPU."),
    ("p95_gpus_milli", Read::Int(|e| quantile(e, 950_000)), "Quantile 0.95, thousandths of a GPU."),
    ("p99_gpus_milli", Read::Int(|e| quantile(e, 990_000)), "Quantile 0.99, thousandths of a GPU."),
    ("model", Read::Text(|e| Some(&e.model)), "Version of the forecaster."),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];

pub(in crate::raw) const COVERAGE: Columns<CoverageSignal> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    (
        "kind",
        Read::Text(|e| Some(SeriesKind::try_from(e.kind).map_or("", |k| k.as_str_name()))),
        "TOTAL, POOL, TEAM, or CLASS (jobs by size in GPUs).",
    ),
    ("name", Read::Text(|e| Some(&e.name)), "Name of the series, as in forecasts."),
    (
        "reach",
        Read::Text(|e| Some(ForecastReach::try_from(e.reach).map_or("", |k| k.as_str_name()))),
        "How far ahead: NEXT_STEP, WITHIN_DAY, WITHIN_WEEK or BEYOND_WEEK.",
    ),
    (
        "event_time",
        Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)),
        "When it was said: forecasts of what was over by then are scored in it.",
    ),
    (
        "state",
        Read::Text(|e| Some(CoverageState::try_from(e.state).map_or("", |k| k.as_str_name()))),
        "HOLDS, TOO_LOW, TOO_NARROW or TOO_WIDE.",
    ),
    ("since_time", Read::Time(|e| Some(e.since_ms)), "Since when it is in this state."),
    ("scores", Read::Int(|e| int(Some(e.scores))), "Forecasts held against the truth so far."),
    (
        "inside80_ppm",
        Read::Int(|e| Some(e.inside80_ppm.into())),
        "Share of the truths from quantile 0.1 to 0.9, millionths; older ones fade by half in two weeks.",
    ),
    ("below95_ppm", Read::Int(|e| Some(e.below95_ppm.into())), "The same at or below quantile 0.95."),
    ("model", Read::Text(|e| Some(&e.model)), "Version of the forecaster."),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];

pub(in crate::raw) const SCALING: Columns<ScalingCurve> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    (
        "family",
        Read::Text(|e| Some(&e.family)),
        "Jobs that scale alike: team/user/name/GPU model, `-` for what is not known, or job/ and the id of a job without a name.",
    ),
    (
        "event_time",
        Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)),
        "When it was said; the latest statement of a family holds.",
    ),
    ("team", Read::Text(|e| e.team.as_deref()), "Team of the jobs."),
    ("user_name", Read::Text(|e| e.user_name.as_deref()), "User of the jobs."),
    ("job_name", Read::Text(|e| e.job_name.as_deref()), "Name of the jobs."),
    ("gpu_model", Read::Text(|e| e.gpu_model.as_deref()), "GPU model."),
    (
        "job_id",
        Read::Text(|e| e.job_id.as_deref()),
        "The job, where it has no name and is a family of its own.",
    ),
    (
        "unit",
        Read::Text(|e| Some(&e.unit)),
        "What is counted: TOKENS, or STEPS of one GPU where reports tell no tokens.",
    ),
    ("form", Read::Text(|e| Some(&e.form)), "What was fitted: POLLUX or AMDAHL."),
    ("local_batch", Read::Int(|e| int(Some(e.local_batch))), "Units that each GPU works through in a step."),
    ("gpus", Read::Int(|e| Some(e.gpus.into())), "GPUs."),
    ("nodes", Read::Int(|e| Some(e.nodes.into())), "Nodes they are spread over."),
    ("rate_milli", Read::Int(|e| int(Some(e.rate_milli))), "Expected, thousandths of a unit a second."),
    ("low_milli", Read::Int(|e| int(Some(e.low_milli))), "Quantile 10 %, the same way."),
    ("high_milli", Read::Int(|e| int(Some(e.high_milli))), "Quantile 90 %, the same way."),
    (
        "seen_steps",
        Read::Int(|e| int(Some(e.seen_steps))),
        "Steps seen with so many GPUs; 0 where the curve foretells it.",
    ),
    ("points", Read::Int(|e| Some(e.points.into())), "Points that the statement has."),
    ("model", Read::Text(|e| Some(&e.model)), "Version of the fit."),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];

/// Demand at one quantile of the forecast.
fn quantile(forecast: &Forecast, level_ppm: u32) -> Option<i64> {
    let at = forecast.level_ppm.iter().position(|level| *level == level_ppm)?;
    int(forecast.gpus_milli.get(at).copied())
}
