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
        "SUSPECT, CONFIRMED, CLEARED, or CORRECTED: late reports changed an earlier signal.",
    ),
    ("attempt_id", Read::Int(|e| e.attempt_id), "Attempt of the job, where a report named it."),
    ("episode", Read::Int(|e| int(Some(e.episode))), "Number of the episode in the job, from 1."),
    (
        "revision",
        Read::Int(|e| Some(e.revision.into())),
        "Revision of the signal in the episode, from 0; the greatest one holds.",
    ),
    (
        "blame",
        Read::Text(|e| Some(&e.blame)),
        "What it blames: RANK, NODE, ROLE, FABRIC or NOBODY (the job's own shape).",
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
        "COMPUTE_THERMAL, COMPUTE_SILENT, LINK, HOST, DATA, COMMUNICATION, or STRUCTURAL (no fault).",
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
    ("onset_time", Read::Time(|e| Some(e.onset_ms)), "When the part became slow."),
    ("detected_time", Read::Time(|e| Some(e.detected_ms)), "When it was first suspected, by event time."),
    ("said_time", Read::Time(|e| Some(e.said_ms)), "When the signal was issued, by event time."),
    (
        "slowdown_ppm",
        Read::Int(|e| Some(e.slowdown_ppm)),
        "How much longer the part takes than before, millionths: 200000 is 20 %.",
    ),
    ("lost_gpu_ms", Read::Int(|e| int(Some(e.lost_gpu_ms))), "GPU x ms lost so far by the whole job."),
    (
        "evidence",
        Read::Lines(|e| &e.evidence),
        "Evidence: rule, value and weight in log odds, separated by `; `.",
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
        "Evidence against the node, strongest first: rule, value and weight in log odds, separated by `; `.",
    ),
    ("model", Read::Text(|e| Some(&e.model)), "Version of the rules."),
    (
        "lemon_ppm",
        Read::Int(|e| e.lemon_ppm.map(i64::from)),
        "Probability that its rate of bad hours is above three times the fleet's, millionths; NULL if it was never a lemon.",
    ),
    (
        "lemon_least_milli",
        Read::Int(|e| int(e.lemon_least_milli)),
        "Lower 95 % bound of its rate of bad hours, thousandths of the fleet's rate.",
    ),
    (
        "used_hours",
        Read::Int(|e| e.used_hours.map(i64::from)),
        "Hours of the last 28 days in which it was in use.",
    ),
    ("bad_hours", Read::Int(|e| e.bad_hours.map(i64::from)), "Those of the used hours that were bad."),
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
    ("final_state", Read::Text(|e| Some(&e.final_state)), "How it ended, as reported by the scheduler."),
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
        "Probability that this fault ended it, rather than another fault or none, millionths.",
    ),
    (
        "lost_gpu_ms",
        Read::Int(|e| int(e.lost_gpu_ms)),
        "GPU x ms from the last reported checkpoint to the end; NULL without a checkpoint.",
    ),
    (
        "evidence",
        Read::Lines(|e| &e.evidence),
        "Evidence of the probability: rule, value and weight in log odds, separated by `; `.",
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
        "When it was issued. It uses what happened until then.",
    ),
    ("target_time", Read::Time(|e| Some(e.target_ms)), "Start of the step that is forecast."),
    (
        "step_ms",
        Read::Int(|e| int(Some(e.step_ms))),
        "Length of the step, ms. The forecast is of its mean demand.",
    ),
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
        "When it was issued. Forecasts whose target was over by then are scored in it.",
    ),
    (
        "state",
        Read::Text(|e| Some(CoverageState::try_from(e.state).map_or("", |k| k.as_str_name()))),
        "HOLDS, TOO_LOW, TOO_NARROW or TOO_WIDE.",
    ),
    ("since_time", Read::Time(|e| Some(e.since_ms)), "Start of this state."),
    ("scores", Read::Int(|e| int(Some(e.scores))), "Forecasts scored so far."),
    (
        "inside80_ppm",
        Read::Int(|e| Some(e.inside80_ppm.into())),
        "Share of outcomes between quantiles 0.1 and 0.9, millionths; the weight of older ones halves in two weeks.",
    ),
    (
        "below95_ppm",
        Read::Int(|e| Some(e.below95_ppm.into())),
        "Share of outcomes at or below quantile 0.95, the same way.",
    ),
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
        "Jobs that scale alike: team/user/name/GPU model, `-` for an unknown part; or job/ and the id of a job without a name.",
    ),
    (
        "event_time",
        Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)),
        "When it was issued; the latest curve of a family holds.",
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
        "What is counted: TOKENS, or STEPS of one GPU if reports have no tokens.",
    ),
    ("form", Read::Text(|e| Some(&e.form)), "Form of the curve: POLLUX or AMDAHL."),
    ("local_batch", Read::Int(|e| int(Some(e.local_batch))), "Units per GPU and step."),
    ("gpus", Read::Int(|e| Some(e.gpus.into())), "GPUs."),
    ("nodes", Read::Int(|e| Some(e.nodes.into())), "Nodes they are spread over."),
    (
        "rate_milli",
        Read::Int(|e| int(Some(e.rate_milli))),
        "Expected rate, thousandths of a unit per second.",
    ),
    ("low_milli", Read::Int(|e| int(Some(e.low_milli))), "10 % quantile of the rate."),
    ("high_milli", Read::Int(|e| int(Some(e.high_milli))), "90 % quantile of the rate."),
    (
        "seen_steps",
        Read::Int(|e| int(Some(e.seen_steps))),
        "Steps observed with this number of GPUs; 0 if extrapolated.",
    ),
    ("points", Read::Int(|e| Some(e.points.into())), "Points of the curve."),
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
