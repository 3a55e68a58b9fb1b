//! Observer: turns a simulation into the events that collectors would send of a real cluster.

use tidegate_events::{
    Event, FinalState, GPU_MILLI, JobFamily,
    v1::{
        CapacityEvent, CapacityEventKind, Envelope, JobEvent, JobEventKind, NodeEvent, NodeEventKind,
        PoolSample,
    },
};

use crate::{AttemptEnd, Held, Place, Sim, SimEvent};

/// Owner of capacity that has no owner.
const EVERYBODY: &str = "total";

/// Observes one simulated cluster. Its events are numbered without gaps; the recorder seals them.
#[derive(Debug, Clone)]
pub struct Observer {
    source: String,
    epoch: u64,
    seq: u64,
}

impl Observer {
    /// An observer with a source name; `epoch` counts its lives.
    pub fn new(source: impl Into<String>, epoch: u64) -> Self {
        Self { source: source.into(), epoch, seq: 0 }
    }

    /// Events of the initial state: nodes with racks, partitions, quotas.
    pub fn opening(&mut self, sim: &Sim) -> Vec<Event> {
        self.number(sim, sim.now_us(), opening(sim))
    }

    /// Events since the last call (see [`Sim::set_recording`]), and a heartbeat up to now.
    pub fn follow(&mut self, sim: &mut Sim) -> Vec<Event> {
        let mut out = Vec::new();
        for (at_us, what) in sim.take_events() {
            let events = events_of(sim, &what);
            out.extend(self.number(sim, at_us, events));
        }
        let heartbeat = JobEvent { kind: JobEventKind::Observed.into(), ..JobEvent::default() };
        out.extend(self.number(sim, sim.now_us(), vec![Event::Job(heartbeat)]));
        out
    }

    /// Samples of what each owner is entitled to, holds and asks for, valid for `interval_ms`. The
    /// queued GPUs of a service are its unmet demand.
    pub fn sample(&mut self, sim: &Sim, interval_ms: u64) -> Vec<Event> {
        let milli = |gpus: u32| Some(u64::from(gpus) * GPU_MILLI);
        let mut waiting = vec![(0u32, 0u64); sim.spec().teams.len()];
        for job in sim.waiting() {
            let spec = &sim.jobs()[job as usize].spec;
            waiting[spec.team].0 += spec.gpus;
            waiting[spec.team].1 += 1;
        }
        let mut running = vec![0u64; sim.spec().teams.len()];
        sim.running().for_each(|job| running[sim.jobs()[job as usize].spec.team] += 1);
        let team = |(t, team): (usize, &crate::TeamSpec)| PoolSample {
            owner: team.name.clone(),
            pool: Some(sim.spec().pools[team.pool].name.clone()),
            interval_ms,
            quota_gpus_milli: sim.limit_gpus(t).and_then(milli),
            held_gpus_milli: milli(sim.held_gpus(t)),
            queued_gpus_milli: milli(waiting[t].0),
            running_jobs: Some(running[t]),
            pending_jobs: Some(waiting[t].1),
            ..PoolSample::default()
        };
        let service = |(s, service): (usize, &crate::ServiceSpec)| {
            let (need, ready) = (sim.demand_gpus(s), sim.serving_gpus(service.pool));
            let pool = &sim.spec().pools[service.pool].name;
            PoolSample {
                owner: pool.clone(),
                pool: Some(pool.clone()),
                interval_ms,
                quota_gpus_milli: milli(sim.spec().pool_gpus(service.pool)),
                held_gpus_milli: milli(need.min(ready)),
                queued_gpus_milli: milli(need.saturating_sub(ready)),
                ..PoolSample::default()
            }
        };
        let teams = sim.spec().teams.iter().enumerate().map(team);
        let services = sim.services().iter().enumerate().map(service);
        let events = teams.chain(services).map(Event::PoolSample).collect();
        self.number(sim, sim.now_us(), events)
    }

    fn number(&mut self, sim: &Sim, at_us: i64, mut events: Vec<Event>) -> Vec<Event> {
        let time_ms = (sim.spec().epoch_us + at_us).div_euclid(1_000);
        for event in &mut events {
            self.seq += 1;
            *event.envelope_mut() = Envelope {
                cluster: sim.spec().name.clone(),
                source: self.source.clone(),
                epoch: self.epoch,
                seq: self.seq,
                event_time_ms: time_ms,
                observed_time_ms: time_ms,
                ..Envelope::default()
            };
        }
        events
    }
}

/// The initial state: nodes with racks, partitions, quotas. Without envelopes.
pub(crate) fn opening(sim: &Sim) -> Vec<Event> {
    let mut events = Vec::new();
    for (i, node) in sim.spec().nodes.iter().enumerate() {
        events.push(registered(sim, i as u32, node.pool));
        let label = NodeEvent {
            rack: Some(format!("rack-{}", node.rack)),
            ..on_node(sim, i as u32, NodeEventKind::NodeLabeled)
        };
        events.push(Event::Node(label));
        events.push(state_of(sim, i as u32));
    }
    events.extend((0..sim.spec().pools.len()).map(|pool| partition(sim, pool)));
    for (t, team) in sim.spec().teams.iter().enumerate() {
        events.extend(team.quota_gpus.map(|gpus| quota(sim, t, Some(gpus), CapacityEventKind::QuotaSet)));
    }
    events
}

/// Team and program of a job. Elastic jobs with one curve are runs of one program.
pub(crate) fn family(sim: &Sim, job: u32) -> JobFamily {
    let spec = &sim.jobs()[job as usize].spec;
    JobFamily {
        team: Some(sim.spec().teams[spec.team].name.clone()),
        job_name: spec.elastic.map(|elastic| format!("model-{}", elastic.curve)),
        ..JobFamily::default()
    }
}

/// What collectors report of an event. Without envelopes.
pub(crate) fn events_of(sim: &Sim, what: &SimEvent) -> Vec<Event> {
    match what {
        SimEvent::Submitted { job } => {
            vec![asked(sim, *job, JobEventKind::Submitted), asked(sim, *job, JobEventKind::Eligible)]
        }
        SimEvent::Started { job, attempt, held } => vec![started(sim, *job, *attempt, held)],
        SimEvent::Ended { job, attempt, how } => vec![ended(sim, *job, *attempt, *how)],
        SimEvent::NodeUp { node, up } => {
            let kind = if *up { NodeEventKind::FaultEnded } else { NodeEventKind::FaultStarted };
            let fault = NodeEvent { fault_class: Some("simulated".into()), ..on_node(sim, *node, kind) };
            vec![Event::Node(fault), node_state(sim, *node, *up, sim.nodes()[*node as usize].drained)]
        }
        SimEvent::NodeDrained { node, drained } => {
            vec![node_state(sim, *node, sim.nodes()[*node as usize].up, *drained)]
        }
        SimEvent::NodeMoved { node, place } => moved(sim, *node, *place),
        SimEvent::LimitSet { team, gpus } => vec![quota(sim, *team, *gpus, CapacityEventKind::LimitSet)],
        SimEvent::Reserved { name, team, gpus } => vec![reserved(sim, name, *team, *gpus)],
    }
}

fn job_event(sim: &Sim, job: u32, kind: JobEventKind) -> JobEvent {
    let (spec, family) = (&sim.jobs()[job as usize].spec, family(sim, job));
    JobEvent {
        kind: kind.into(),
        job_id: sim.spec().job_id(job),
        team: family.team,
        job_name: family.job_name,
        pool: Some(sim.spec().pools[sim.pool_of(job)].name.clone()),
        priority: Some(i64::from(spec.priority)),
        time_limit_ms: Some((spec.estimate_us / 1_000) as u64),
        ..JobEvent::default()
    }
}

fn asked(sim: &Sim, job: u32, kind: JobEventKind) -> Event {
    let spec = &sim.jobs()[job as usize].spec;
    Event::Job(JobEvent {
        gpus_milli: Some(u64::from(spec.gpus) * GPU_MILLI),
        gpu_model: spec.model.map(|m| sim.spec().models[usize::from(m)].clone()),
        ..job_event(sim, job, kind)
    })
}

fn started(sim: &Sim, job: u32, attempt: u32, held: &Held) -> Event {
    let names: Vec<&str> = held.iter().map(|h| sim.spec().nodes[h.0 as usize].name.as_str()).collect();
    let gpus: u32 = held.iter().map(|h| h.1).sum();
    let model = held.first().map(|h| sim.nodes()[h.0 as usize].model);
    Event::Job(JobEvent {
        attempt_id: Some(i64::from(attempt)),
        gpus_milli: Some(u64::from(gpus) * GPU_MILLI),
        gpu_model: model.map(|m| sim.spec().models[usize::from(m)].clone()),
        node_count: Some(names.len() as u32),
        nodes: Some(names.join(",")),
        ..job_event(sim, job, JobEventKind::Started)
    })
}

fn ended(sim: &Sim, job: u32, attempt: u32, how: AttemptEnd) -> Event {
    let state = match how {
        AttemptEnd::Completed => FinalState::Completed,
        AttemptEnd::Preempted => FinalState::Preempted,
        AttemptEnd::NodeFailed => FinalState::NodeFail,
        AttemptEnd::Resized => FinalState::Resized,
    };
    Event::Job(JobEvent {
        attempt_id: Some(i64::from(attempt)),
        final_state: Some(state.to_string()),
        ..job_event(sim, job, JobEventKind::Ended)
    })
}

fn on_node(sim: &Sim, node: u32, kind: NodeEventKind) -> NodeEvent {
    NodeEvent {
        kind: kind.into(),
        node: sim.spec().nodes[node as usize].name.clone(),
        ..NodeEvent::default()
    }
}

fn registered(sim: &Sim, node: u32, pool: usize) -> Event {
    let spec = &sim.spec().nodes[node as usize];
    Event::Node(NodeEvent {
        pool: Some(sim.spec().pools[pool].name.clone()),
        gpu_model: Some(sim.spec().models[usize::from(spec.model)].clone()),
        gpus_milli: Some(u64::from(spec.gpus) * GPU_MILLI),
        ..on_node(sim, node, NodeEventKind::NodeRegistered)
    })
}

fn state_of(sim: &Sim, node: u32) -> Event {
    let n = &sim.nodes()[node as usize];
    node_state(sim, node, n.up, n.drained)
}

fn node_state(sim: &Sim, node: u32, up: bool, drained: bool) -> Event {
    let state = [if up { "UP" } else { "DOWN" }, if drained { "+DRAIN" } else { "" }].concat();
    Event::Node(NodeEvent { state: Some(state), ..on_node(sim, node, NodeEventKind::StateChanged) })
}

/// A lent node is in the borrowing pool; in transit it stays where it was.
fn moved(sim: &Sim, node: u32, place: Place) -> Vec<Event> {
    let home = sim.nodes()[node as usize].pool;
    let pool = match place {
        Place::Home => home,
        Place::Lent { to } => to,
        Place::Leaving { .. } | Place::Called { .. } | Place::Handover | Place::Loading => return Vec::new(),
    };
    vec![registered(sim, node, pool)]
}

fn partition(sim: &Sim, pool: usize) -> Event {
    let nodes = sim.spec().nodes.iter().filter(|n| n.pool == pool);
    let names: Vec<&str> = nodes.map(|n| n.name.as_str()).collect();
    Event::Capacity(CapacityEvent {
        kind: CapacityEventKind::PartitionSet.into(),
        owner: EVERYBODY.into(),
        pool: Some(sim.spec().pools[pool].name.clone()),
        gpus_milli: Some(u64::from(sim.spec().pool_gpus(pool)) * GPU_MILLI),
        nodes: Some(names.join(",")),
        state: Some("UP".into()),
        ..CapacityEvent::default()
    })
}

fn quota(sim: &Sim, team: usize, gpus: Option<u32>, kind: CapacityEventKind) -> Event {
    let spec = &sim.spec().teams[team];
    Event::Capacity(CapacityEvent {
        kind: kind.into(),
        owner: spec.name.clone(),
        pool: Some(sim.spec().pools[spec.pool].name.clone()),
        gpus_milli: gpus.map(|gpus| u64::from(gpus) * GPU_MILLI),
        ..CapacityEvent::default()
    })
}

fn reserved(sim: &Sim, name: &str, team: usize, gpus: u32) -> Event {
    let kind = match gpus {
        0 => CapacityEventKind::ReservationRemoved,
        _ => CapacityEventKind::ReservationSet,
    };
    let Event::Capacity(event) = quota(sim, team, Some(gpus), kind) else { unreachable!("a quota") };
    let ms = |us: i64| (sim.spec().epoch_us + us) / 1_000;
    let found = sim.reservations().get(name);
    Event::Capacity(CapacityEvent {
        name: Some(name.to_owned()),
        start_ms: found.map(|found| ms(found.start_us)),
        end_ms: found.map(|found| ms(found.end_us)),
        ..event
    })
}
