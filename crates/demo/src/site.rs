//! The site: advances step by step, and says what its collectors observe meanwhile.

mod beside;
mod collectors;

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_collect::slurm::AnswerWatcher;
use tidegate_events::{Event, FinalState};
use tidegate_sim::target::{ControlFaults, SimTarget};
use tidegate_sim::{AttemptEnd, Place, Recording, SimEvent};

use crate::DemoError;
use crate::agent::Agent;
use crate::draw::Draw;
use crate::feed::Observation;
use crate::habits::habit;
use crate::levels::Load;
use crate::plan::{self, NODES, POOLS, Times, node_name, pool_of};
use crate::queue::{Job, Queue};
use crate::script::{self, Does, Incident, Mishap, Scripted};
use crate::slurm::{Limits, NodeShown};
use crate::training::{Progress, Training};

const SEED: u64 = 12;
const WATCHER: &str = "watch/slurm/demo";
/// Who reports quotas and faults that no collector sees.
const REGISTER: &str = "register/demo";
/// Id of the first replica of the service.
const FIRST_REPLICA: u64 = 46_001;
/// Interval of the watcher's heartbeats in the past, and of samples of the pools, ms.
const QUIET_MS: i64 = 600_000;
/// A batch of an agent spans this in the past, ms.
const PAST_BATCH_MS: i64 = 600_000;
const PRESENT_BATCH_MS: i64 = 10_000;

/// What a job does, and how it loads its GPUs.
#[derive(Debug)]
struct Working {
    does: Does,
    load: Load,
    /// Its attempt, while it trains.
    training: Option<Training>,
    /// Start of its attempt.
    since_ms: i64,
}

/// One coherent site.
pub struct Site {
    times: Times,
    now_ms: i64,
    target: SimTarget,
    queue: Queue,
    watcher: AnswerWatcher,
    agents: Vec<Agent>,
    working: BTreeMap<u64, Working>,
    /// What training jobs keep over their attempts.
    progress: BTreeMap<u64, Progress>,
    /// By node of the service: the replica on it.
    replicas: Vec<Option<u64>>,
    next_replica: u64,
    script: Vec<Scripted>,
    /// What is still to happen, last first.
    incidents: Vec<Incident>,
    mishaps: Vec<(i64, Mishap)>,
    /// The GPU that is too hot.
    hot: Option<(usize, u32)>,
    /// What the scheduler showed last of nodes and limits.
    shown: Option<(Vec<NodeShown>, Limits)>,
    asked_ms: i64,
    sampled_ms: i64,
    draw: Draw,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site")
            .field("times", &self.times)
            .field("now_ms", &self.now_ms)
            .finish_non_exhaustive()
    }
}

impl Site {
    /// The site at its beginning. `folder` holds the traces, named as published.
    ///
    /// # Errors
    /// A trace cannot be used.
    pub fn new(folder: &Path, times: Times) -> Result<Self, DemoError> {
        let mut target = SimTarget::new(plan::simulation(folder, &times)?, ControlFaults::default(), SEED);
        target.set_recording(Recording::On);
        let (nodes, draw) = (NODES.iter().sum(), Draw::new(SEED));
        let mut script = script::jobs(&times);
        script.reverse();
        let mut incidents = script::incidents(&times);
        incidents.extend((0..nodes).map(|node| script::agent_started(node, times.watched_ms)));
        incidents.sort_by_key(|incident| -incident.at_ms);
        let mut site = Self {
            times,
            now_ms: times.start_ms,
            target,
            queue: Queue::new(nodes),
            watcher: AnswerWatcher::new(plan::CLUSTER),
            agents: (0..nodes).map(|node| Agent::new(draw.of(1), node, PAST_BATCH_MS)).collect(),
            working: BTreeMap::new(),
            progress: BTreeMap::new(),
            replicas: vec![None; NODES[1]],
            next_replica: FIRST_REPLICA,
            script,
            incidents,
            mishaps: script::mishaps(&times).into_iter().rev().collect(),
            hot: None,
            shown: None,
            asked_ms: i64::MIN,
            sampled_ms: i64::MIN,
            draw,
        };
        (NODES[0]..NODES[0] + NODES[1])
            .for_each(|node| site.follow_service(node, true, Place::Home, times.start_ms));
        Ok(site)
    }

    /// Where its time has come to, ms since the epoch.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Its moments.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// The simulated part, for an autopilot to act on.
    pub fn target(&mut self) -> &mut SimTarget {
        &mut self.target
    }

    /// Advances to a time, at which agents read their devices. Returns what was observed meanwhile.
    ///
    /// # Errors
    /// The product refuses what the site reports.
    pub fn advance(&mut self, to_ms: i64) -> Result<Vec<Observation>, DemoError> {
        let mut seen = Vec::new();
        self.now_ms = to_ms;
        self.target.run_until((to_ms - self.times.start_ms) * 1_000);
        for (at_us, event) in self.target.take_events() {
            self.take(self.times.start_ms + at_us / 1_000, event, &mut seen)?;
        }
        self.follow_script(&mut seen)?;
        self.let_happen();
        self.report_incidents(&mut seen);
        self.ask_scheduler(&mut seen)?;
        self.sample_pools(&mut seen);
        self.report_steps(&mut seen)?;
        self.read_devices(&mut seen);
        Ok(seen)
    }

    /// From now on agents send each reading at once.
    pub fn go_live(&mut self) -> Vec<Observation> {
        let now_ms = self.now_ms;
        let flush = |agent: &mut Agent| {
            let source = source_of(agent.node);
            let batches = agent.flush(PRESENT_BATCH_MS).into_iter();
            batches
                .map(|batch| Observation {
                    source: source.clone(),
                    at_ms: now_ms,
                    event: Event::GpuSamples(batch),
                })
                .collect::<Vec<_>>()
        };
        self.agents.iter_mut().flat_map(flush).collect()
    }

    /// Carries a change of the simulation over to the scheduler's queue.
    fn take(&mut self, at_ms: i64, event: SimEvent, seen: &mut Vec<Observation>) -> Result<(), DemoError> {
        match event {
            SimEvent::Submitted { job } => self.submitted(job, at_ms),
            SimEvent::Started { job, attempt: _, held } => {
                let counts: Vec<(usize, u32)> =
                    held.iter().map(|(node, gpus)| (*node as usize, *gpus)).collect();
                let id = self.id_of(job);
                let resized = self.queue.get(id).is_some_and(|job| job.hold.is_some());
                self.queue.start(id, at_ms, &counts, resized);
                self.begins(id, at_ms);
            }
            SimEvent::Ended { job, attempt: _, how } => {
                let state = match how {
                    AttemptEnd::Completed => FinalState::Completed,
                    AttemptEnd::Preempted => FinalState::Preempted,
                    AttemptEnd::NodeFailed => FinalState::NodeFail,
                    AttemptEnd::Resized => FinalState::Resized,
                };
                let id = self.id_of(job);
                self.ends(id, at_ms, state, seen)?;
            }
            SimEvent::NodeMoved { node, place } => {
                let up = self.target.sim().nodes()[node as usize].up;
                self.follow_service(node as usize, up, place, at_ms);
            }
            SimEvent::NodeUp { node, up } => {
                let place = self.target.sim().nodes()[node as usize].place;
                self.follow_service(node as usize, up, place, at_ms);
            }
            // Nodes and limits are shown as they are when the scheduler is asked.
            SimEvent::NodeDrained { .. } | SimEvent::LimitSet { .. } | SimEvent::Reserved { .. } => {}
        }
        Ok(())
    }

    fn id_of(&self, job: u32) -> u64 {
        plan::FIRST_JOB + u64::from(job)
    }

    fn submitted(&mut self, job: u32, at_ms: i64) {
        let id = self.id_of(job);
        let sim = self.target.sim();
        let spec = &sim.jobs()[job as usize].spec;
        let team = sim.spec().teams[spec.team].name.clone();
        let draw = self.draw.of(2).of(id);
        let (name, user, does) = habit(draw, &team, spec, id);
        let mut load = Load::new(draw.of(3));
        load.full.tensor_active = load.full.tensor_active.max(250_000.0);
        self.working.insert(id, Working { does, load, training: None, since_ms: at_ms });
        self.queue.submit(
            id,
            Job {
                name: name.into(),
                user,
                team,
                pool: POOLS[0],
                gpus: spec.gpus,
                priority: 100_000 + i64::from(spec.priority) * 10_000 - (id - plan::FIRST_JOB) as i64,
                limit_ms: (spec.estimate_us / 1_000).min(45 * plan::DAY_MS),
                submit_ms: at_ms,
                hold: None,
            },
        );
    }

    /// An attempt of a job begins.
    fn begins(&mut self, id: u64, at_ms: i64) {
        let ranks = self.queue.get(id).and_then(|job| job.hold.as_ref()).map_or(0, |hold| hold.gpus());
        let Some(working) = self.working.get_mut(&id) else { return };
        working.since_ms = at_ms;
        if working.does == Does::Trains {
            let progress = self.progress.get(&id).copied().unwrap_or_default();
            let training = Training::new(self.draw.of(4).of(id), &working.load, ranks, at_ms, progress);
            working.training = Some(if id < plan::FIRST_JOB { training.small() } else { training });
        }
    }

    fn ends(
        &mut self,
        id: u64,
        at_ms: i64,
        state: FinalState,
        seen: &mut Vec<Observation>,
    ) -> Result<(), DemoError> {
        self.report_steps_of(id, at_ms, seen)?;
        if let Some(training) = self.working.get_mut(&id).and_then(|working| working.training.take()) {
            self.progress.insert(id, training.progress);
        }
        self.queue.end(id, at_ms, state);
        if self.queue.get(id).is_none() {
            self.working.remove(&id);
            self.progress.remove(&id);
        }
        Ok(())
    }

    /// A replica runs on each node of the service that is at home.
    fn follow_service(&mut self, node: usize, up: bool, place: Place, at_ms: i64) {
        if pool_of(node) != 1 {
            return;
        }
        let is_home = up && matches!(place, Place::Home | Place::Loading);
        let replica = &mut self.replicas[node - NODES[0]];
        match (is_home, *replica) {
            (true, None) => {
                let id = self.next_replica;
                self.next_replica += 1;
                *replica = Some(id);
                self.queue.submit(id, job_of_service(at_ms));
                self.queue.start(id, at_ms, &[(node, plan::GPUS_PER_NODE)], false);
                let mut load = Load::new(self.draw.of(5));
                load.memory_bytes = 66 << 30;
                self.working
                    .insert(id, Working { does: Does::Serves, load, training: None, since_ms: at_ms });
            }
            (false, Some(id)) => {
                *replica = None;
                self.queue.end(id, at_ms, FinalState::Cancelled);
                self.working.remove(&id);
            }
            _ => {}
        }
    }
}

/// Source of a node's agent.
fn source_of(node: usize) -> String {
    format!("agent/{}", node_name(node))
}

fn job_of_service(now_ms: i64) -> Job {
    Job {
        name: "chat-serve".into(),
        team: "serving".into(),
        user: "serving-ops".into(),
        pool: POOLS[1],
        gpus: plan::GPUS_PER_NODE,
        priority: 900_000,
        limit_ms: 45 * plan::DAY_MS,
        submit_ms: now_ms,
        hold: None,
    }
}
