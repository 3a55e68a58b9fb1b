//! What the log tells of the cluster: health of nodes, scaling of jobs, forecasts, prices, racks.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tidegate_autopilot::forecast::SelectedForecast;
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::state::{ClusterState, ForecastOrigin, Job};
use tidegate_autopilot::target::{Capabilities, Target};
use tidegate_events::{Event, Micros, SchemaId};
use tidegate_log::{EventLog, LogError, TopicPartition};

use super::{Check, listed};
use crate::enriched_target::EnrichedTarget;
use crate::forecast_reader::ForecastReader;
use crate::newest_plan::newest_plan;
use crate::service::STEPS_MS;
use crate::service::config::ServiceConfig;
use crate::service::saved::{Saved, Snapshots};
use crate::slurm::{SlurmConfig, SlurmTarget};

/// How far back readings of agents are looked for, ms.
const AGENTS_MS: i64 = 60_000;
/// Most bytes of readings that are looked through.
const AGENTS_BYTES: usize = 64 << 20;

/// The cluster as the autopilot sees it.
pub(super) struct SiteKnowledge {
    pub state: ClusterState,
    pub capabilities: Capabilities,
    /// Whether the log holds any step report.
    pub has_steps: bool,
    /// Nodes whose agents reported within the last minute; `None`: the log is not at hand.
    pub agents: Option<BTreeSet<String>>,
}

/// Observes the cluster with what the log adds to it.
pub(super) fn gather(
    config: &ServiceConfig,
    policy: Option<&Policy>,
    data: &Path,
    log: Result<&Arc<dyn EventLog>, &str>,
    mut target: SlurmTarget,
    checks: &mut Vec<Check>,
) -> Option<SiteKnowledge> {
    let capabilities = target.capabilities();
    let observed = match log {
        Ok(log) => from_log(config, policy, data, log, target),
        Err(why) => match target.observe() {
            Ok(state) => {
                checks.push(Check::warning(
                    "log",
                    why,
                    "--log URL, or --data DIR while no other process has the folder open; what the log told is taken from \
                     the newest plan, if there is one",
                ));
                Ok((from_plan(data, state), false, None))
            }
            Err(error) => Err(error.to_string()),
        },
    };
    match observed {
        Ok((state, has_steps, agents)) => {
            if log.is_ok() {
                checks.push(Check::ok("log", "it can be read"));
            }
            Some(SiteKnowledge { state, capabilities, has_steps, agents })
        }
        Err(error) => {
            checks.push(Check::missing("log", error, "`tidegate status` says more of the log"));
            None
        }
    }
}

type Observed = (ClusterState, bool, Option<BTreeSet<String>>);

fn from_log(
    config: &ServiceConfig,
    policy: Option<&Policy>,
    data: &Path,
    log: &Arc<dyn EventLog>,
    target: SlurmTarget,
) -> Result<Observed, String> {
    let text = |error: LogError| error.to_string();
    let now_ms = chrono::Utc::now().timestamp_millis();
    // The snapshot saves reading all of the past; nothing is written to it.
    let saved = Snapshots::in_data(data, config.cluster(), "").restore(log.as_ref()).map_err(text)?;
    let Saved { read, positions, .. } = saved;
    let steps_since_ms = Some(now_ms - STEPS_MS);
    let target =
        EnrichedTarget::new(target, Arc::clone(log), config.cluster(), steps_since_ms).map_err(text)?;
    let mut state = target.resumed(read, &positions).observe().map_err(|error| error.to_string())?;
    if let Some(policy) = policy {
        let names = config.slurm.as_ref().map(SlurmConfig::series_names).unwrap_or_default();
        let mut forecast = SelectedForecast::new(policy, names);
        let mut reader = ForecastReader::new(Arc::clone(log), config.cluster(), now_ms).map_err(text)?;
        reader.read(forecast.published()).map_err(text)?;
        forecast.observe(&state);
        forecast.annotate(&mut state);
    }
    let has_steps = partitions(log, SchemaId::StepReport)
        .and_then(|all| all.iter().try_fold(false, |has, at| Ok(has || log.extent(at)?.end > 0)))
        .map_err(text)?;
    let agents = agents(config.cluster(), log, now_ms, state.nodes.len()).map_err(text)?;
    Ok((state, has_steps, Some(agents)))
}

/// The state with what the newest plan knew from the log.
fn from_plan(data: &Path, mut state: ClusterState) -> ClusterState {
    let Ok(Some(newest)) = newest_plan(data) else { return state };
    let before = newest.planned.state;
    for (name, node) in &mut state.nodes {
        if let Some(known) = before.nodes.get(name) {
            node.health = known.health.clone();
            node.rack = node.rack.take().or_else(|| known.rack.clone());
        }
    }
    for (id, job) in &mut state.jobs {
        if let Some(known) = before.jobs.get(id) {
            job.curve = job.curve.take().or_else(|| known.curve.clone());
            job.checkpoint.resumes = job.checkpoint.resumes.or(known.checkpoint.resumes);
        }
    }
    state.forecast_origins = before.forecast_origins;
    state
}

fn partitions(log: &Arc<dyn EventLog>, schema: SchemaId) -> Result<Vec<TopicPartition>, LogError> {
    let topic = schema.topic();
    let found = log.topics()?.into_iter().find(|(name, _)| name == topic);
    let count = found.map_or(0, |(_, layout)| layout.partitions);
    Ok((0..count).map(|partition| TopicPartition { topic: topic.into(), partition }).collect())
}

/// Nodes that sent readings within the last minute, looked for within a bound.
fn agents(
    cluster: &str,
    log: &Arc<dyn EventLog>,
    now_ms: i64,
    nodes: usize,
) -> Result<BTreeSet<String>, LogError> {
    let (mut found, mut read_bytes) = (BTreeSet::new(), 0);
    for at in partitions(log, SchemaId::GpuSampleBatch)? {
        let mut next = log.offset_for_time(&at, now_ms - AGENTS_MS)?;
        while found.len() < nodes && read_bytes < AGENTS_BYTES {
            let records = log.read(&at, next, 4 << 20)?;
            let Some(last) = records.last() else { break };
            next = last.offset + 1;
            for stored in &records {
                read_bytes += stored.record.payload.len();
                let Ok(Event::GpuSamples(batch)) =
                    Event::decode(stored.record.schema, &stored.record.payload)
                else {
                    continue;
                };
                if batch.envelope.as_ref().is_some_and(|envelope| envelope.cluster == cluster) {
                    found.insert(batch.node);
                }
            }
        }
    }
    Ok(found)
}

/// Checks what is known.
pub(super) fn check(known: &SiteKnowledge, checks: &mut Vec<Check>) {
    let state = &known.state;
    let share = |found: usize| format!("{found} of {} nodes", state.nodes.len());
    if let Some(agents) = &known.agents {
        let silent = listed(state.nodes.keys().filter(|name| !agents.contains(*name)));
        let reporting = share(state.nodes.keys().filter(|name| agents.contains(*name)).count());
        checks.push(match silent.is_empty() {
            true => Check::ok("agents", format!("{reporting} sent readings within a minute")),
            false => Check::warning(
                "agents",
                format!("{reporting} sent readings within a minute; not {silent}"),
                "an agent on each GPU node (guide/agents.md); `tidegate doctor` checks one there",
            ),
        });
    }
    let is_known = |node: &&tidegate_autopilot::state::Node| node.health.bad_ppm.is_some();
    let healthy = state.nodes.values().filter(is_known).count();
    checks.push(match healthy == state.nodes.len() {
        true => Check::ok("health", format!("known of {}", share(healthy))),
        false => Check::warning(
            "health",
            format!("known of {}: no other is drained or returned", share(healthy)),
            "agents, and the signals: `tidegate up`, or `tidegate insight run` beside the log (guide/signals.md)",
        ),
    });
    restarts(state, checks);
    forecasts(state, checks);
    let unpriced = listed(
        state.pools.iter().filter(|(_, pool)| pool.price_micros_per_gpu_hour.is_none()).map(|(name, _)| name),
    );
    checks.push(match unpriced.is_empty() {
        true => Check::ok("prices", "every pool has one"),
        false => Check::warning(
            "prices",
            format!("pools {unpriced} have none: no purchase is proposed for them"),
            "price_micros_per_gpu_hour in [slurm.pools.POOL]",
        ),
    });
    let racks: BTreeSet<&String> = state.nodes.values().filter_map(|node| node.rack.as_ref()).collect();
    checks.push(match racks.is_empty() {
        true => Check::warning(
            "topology",
            "no rack is known: each node counts as its own, and no placement is advised",
            "topology.conf of Slurm, or racks of the log",
        ),
        false => Check::ok("topology", format!("{} racks or switches", racks.len())),
    });
    let disagreements = state.disagreements.iter().map(|it| &it.object);
    if !state.disagreements.is_empty() {
        let found = format!("log and scheduler disagree about {}", listed(disagreements));
        checks.push(Check::warning("log", found, "is the watcher running, and of this cluster?"));
    }
}

/// Owners whose jobs may be stopped, report no checkpoints, and do not resume.
fn restarts(state: &ClusterState, checks: &mut Vec<Check>) {
    let loses = |job: &&Job| {
        job.preemptible && job.checkpoint.resumes == Some(false) && job.checkpoint.save_ms.is_none()
    };
    let owners: BTreeSet<&String> = state.jobs.values().filter(loses).map(|job| &job.owner).collect();
    if !owners.is_empty() {
        checks.push(Check::warning(
            "restarts",
            format!("jobs of {} start over after a stop: each loses all that it did", listed(owners)),
            "write checkpoints (more often, if they do) and load them at the start, or do not declare the jobs preemptible",
        ));
    }
}

/// Where the forecast of each owner that may lend comes from.
fn forecasts(state: &ClusterState, checks: &mut Vec<Check>) {
    let before = checks.len();
    let mut lenders = 0;
    for (owner, of) in &state.owners {
        for pool in of.shares.iter().filter(|(_, share)| share.lendable).map(|(pool, _)| pool) {
            lenders += 1;
            let origin = state.forecast_origins.get(owner).and_then(|pools| pools.get(pool));
            let why = match origin {
                Some(ForecastOrigin::Published { .. } | ForecastOrigin::Past { held_ppm: Some(_), .. }) => {
                    continue;
                }
                Some(ForecastOrigin::Past { why, .. } | ForecastOrigin::Nobody { why }) => why.as_str(),
                None => "nothing was read",
            };
            checks.push(Check::warning(
                "forecasts",
                format!("{owner} in {pool} may lend, and nothing foresees its demand: {why}"),
                "history: import of accounting (guide/import.md), and the signals that publish forecasts (guide/signals.md); the \
                 autopilot learns from its own tables and observations as well",
            ));
        }
    }
    if checks.len() == before {
        let found = match lenders {
            0 => "no owner lends: no share has lendable = true".to_owned(),
            _ => format!("of {lenders} shares that may be lent"),
        };
        checks.push(Check::ok("forecasts", found));
    }
    let stale = state.sources.iter().filter_map(|(name, source)| {
        let age_s = Micros(state.at_us.saturating_sub(source.last_event_us?)).floor_secs();
        (age_s > 120).then(|| format!("{name} ({age_s} s)"))
    });
    let stale = listed(stale);
    if !stale.is_empty() {
        checks.push(Check::warning("sources", format!("old: {stale}"), "is what reports them running?"));
    }
}
