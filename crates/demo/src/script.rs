//! What happens beside the simulation: the pool for notebooks, and faults of devices.

use tidegate_events::{FinalState, v1};
use v1::NodeEventKind as Kind;

use crate::plan::{HOUR_MS, Times, node_name};

/// The node of the pool for notebooks.
pub(crate) const DEV_NODE: usize = 10;
/// The GPU that falls off the bus there, and how long ago, ms.
const LOST_GPU: u32 = 1;
const LOST_FOR_MS: i64 = 200 * MINUTE_MS;
const MINUTE_MS: i64 = 60_000;
const GIB: i64 = 1 << 30;
/// How much slower a job is beside another on its GPU.
pub(crate) const CROWDED: f64 = 1.5;

/// What a job of the script does with its device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Does {
    /// Computes for some minutes of each hour, between these hours at the site, and is idle
    /// otherwise.
    Notebook(i64, i64),
    /// Answers requests.
    Serves,
    /// Computes, and takes ever more memory: bytes per hour.
    Leaks(i64),
    /// Holds the device and runs nothing.
    Nothing,
    /// Trains and reports its steps.
    Trains,
}

/// A job of the script.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scripted {
    pub id: u64,
    pub name: &'static str,
    pub team: &'static str,
    pub user: &'static str,
    pub from_ms: i64,
    pub to_ms: i64,
    pub state: FinalState,
    pub gpu: u32,
    /// Number of the slice on a GPU that is cut.
    pub slice: Option<usize>,
    /// Its share of a GPU that jobs use by turns, thousandths.
    pub share_milli: Option<u32>,
    pub does: Does,
}

/// The jobs of the pool for notebooks, in order of their start.
pub(crate) fn jobs(times: &Times) -> Vec<Scripted> {
    let now_ms = times.present_ms;
    let job = |id, name, team, user, hours: f64, gpu, does| Scripted {
        id,
        name,
        team,
        user,
        from_ms: now_ms - (hours * HOUR_MS as f64) as i64,
        to_ms: i64::MAX,
        state: FinalState::Completed,
        gpu,
        slice: None,
        share_milli: None,
        does,
    };
    let slice = |slice, it: Scripted| Scripted { slice: Some(slice), ..it };
    let half = |it: Scripted| Scripted { share_milli: Some(500), ..it };
    let notebook = |from_hour, to_hour| Does::Notebook(from_hour, to_hour);
    let mut jobs = vec![
        job(4_601, "notebook", "vision", "vision-ann", 11.0, 0, notebook(7, 17)),
        job(4_602, "notebook", "vision", "vision-ann", 10.0, 2, notebook(19, 24)),
        job(4_603, "debug-shell", "research", "research-bo", 9.0, 3, Does::Nothing),
        job(4_604, "eval-loop", "language", "language-eve", 5.5, 4, Does::Leaks(8 * GIB)),
        half(job(4_605, "finetune-lora", "speech", "speech-kim", 6.0, 5, Does::Trains)),
        half(job(4_606, "batch-embed", "vision", "vision-raj", 2.2, 5, Does::Serves)),
        slice(0, job(4_607, "serve-small", "language", "language-eve", 12.0, 6, Does::Serves)),
        slice(1, job(4_608, "notebook", "speech", "speech-lin", 9.5, 6, notebook(8, 16))),
        slice(0, job(4_609, "notebook", "research", "research-mia", 8.5, 7, notebook(6, 20))),
        Scripted {
            to_ms: now_ms - LOST_FOR_MS,
            state: FinalState::Failed,
            ..job(4_610, "finetune-7b", "vision", "vision-raj", 8.0, LOST_GPU, Does::Trains)
        },
    ];
    jobs.sort_by_key(|job| job.from_ms);
    jobs
}

/// The slice that a job of the script holds.
pub(crate) fn slice_of(times: &Times, id: u64) -> Option<usize> {
    jobs(times).into_iter().find(|job| job.id == id).and_then(|job| job.slice)
}

/// Whether a GPU has fallen off the bus.
pub(crate) fn is_lost(times: &Times, node: usize, gpu: u32, at_ms: i64) -> bool {
    (node, gpu) == (DEV_NODE, LOST_GPU) && at_ms >= times.present_ms - LOST_FOR_MS
}

/// What happens to nodes that train, by how long before the present, ms. Which node it is follows
/// from where jobs run then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// A node of the job that always trains fails.
    FirstJobLosesNode,
    /// A GPU falls off the bus on a node of another job, and the node is restarted.
    GpuLost,
    /// A GPU of the job that always trains gets too hot and slows down.
    TooHot,
}

/// How long a node is away, ms.
pub(crate) const REPAIR_MS: i64 = 35 * MINUTE_MS;
/// Speed of a hot GPU, and so of the whole job, millionths.
pub(crate) const HOT_PPM: u32 = 840_000;

/// All mishaps, in order of time.
pub(crate) fn mishaps(times: &Times) -> Vec<(i64, Mishap)> {
    let at = |ago_ms: i64, what| (times.present_ms - ago_ms, what);
    vec![
        at(20 * HOUR_MS, Mishap::FirstJobLosesNode),
        at(4 * HOUR_MS, Mishap::GpuLost),
        at(100 * MINUTE_MS, Mishap::TooHot),
    ]
}

/// An event of a node, and who reports it.
#[derive(Debug, Clone)]
pub(crate) struct Incident {
    pub at_ms: i64,
    pub node: usize,
    /// The GPU that it is about.
    pub gpu: Option<u32>,
    /// Whether its agent reports it, or the register of faults.
    pub by_agent: bool,
    pub event: v1::NodeEvent,
}

/// What agents and the register of faults report, in order of time.
pub(crate) fn incidents(times: &Times) -> Vec<Incident> {
    let now_ms = times.present_ms;
    let lost_ms = now_ms - LOST_FOR_MS;
    let xid = |node, gpu, ago_ms: i64, code| xid(node, gpu, now_ms - ago_ms, code);
    let of_node = |node, at_ms, event| Incident { at_ms, node, gpu: None, by_agent: true, event };
    let mut all = vec![
        xid(5, 2, 280 * MINUTE_MS, 63),
        xid(5, 2, 150 * MINUTE_MS, 63),
        xid(DEV_NODE, LOST_GPU, LOST_FOR_MS + 3_000, 79),
        Incident {
            gpu: Some(LOST_GPU),
            ..of_node(
                DEV_NODE,
                lost_ms,
                v1::NodeEvent { evidence: Some("nvml".into()), ..of_kind(Kind::DeviceLost) },
            )
        },
        of_node(5, now_ms - 2 * HOUR_MS, v1::NodeEvent { count: Some(12), ..of_kind(Kind::RecordsDropped) }),
    ];
    all.retain(|incident| !incident.by_agent || incident.at_ms > times.watched_ms);
    all.sort_by_key(|incident| incident.at_ms);
    all
}

/// An XID error of a GPU, as the kernel's log reports it.
pub(crate) fn xid(node: usize, gpu: u32, at_ms: i64, code: u32) -> Incident {
    let known = tidegate_collect::xid::xid(code);
    let event = v1::NodeEvent {
        xid: Some(code),
        fault_level: known.map(|xid| xid.severity.as_str().into()),
        fault_class: known.map(|xid| xid.name.into()),
        description: known.map(|xid| xid.meaning.into()),
        evidence: Some("kmsg".into()),
        ..of_kind(Kind::Xid)
    };
    Incident { at_ms, node, gpu: Some(gpu), by_agent: true, event }
}

/// The repair of a node that failed, in the register of faults.
pub(crate) fn repair(node: usize, from_ms: i64) -> [Incident; 2] {
    [(Kind::FaultStarted, from_ms), (Kind::FaultEnded, from_ms + REPAIR_MS)].map(|(kind, at_ms)| {
        let event = v1::NodeEvent {
            fault_id: Some(format!("ticket-{}-{from_ms}", node_name(node))),
            fault_class: Some("GPU off the bus".into()),
            fault_level: Some("node".into()),
            ..of_kind(kind)
        };
        Incident { at_ms, node, gpu: None, by_agent: false, event }
    })
}

/// The start of a node's agent.
pub(crate) fn agent_started(node: usize, at_ms: i64) -> Incident {
    let event = v1::NodeEvent {
        program_version: Some(env!("CARGO_PKG_VERSION").into()),
        driver_version: Some("580.95.05".into()),
        ..of_kind(Kind::CollectorStarted)
    };
    Incident { at_ms, node, gpu: None, by_agent: true, event }
}

fn of_kind(kind: Kind) -> v1::NodeEvent {
    v1::NodeEvent { kind: kind.into(), ..v1::NodeEvent::default() }
}

impl Incident {
    /// The event with its node and time; `uuid`: of the GPU that it is about.
    pub fn into_event(self, uuid: Option<&str>) -> v1::NodeEvent {
        let envelope = v1::Envelope { event_time_ms: self.at_ms, ..v1::Envelope::default() };
        v1::NodeEvent {
            envelope: Some(envelope),
            node: node_name(self.node),
            gpu_uuid: uuid.map(str::to_owned),
            gpu_index: self.gpu,
            ..self.event
        }
    }
}
