//! Who may do what: the one table that the doors ask, and that docs/reference/permissions.md and
//! the tests are made of.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_events::v1::{CapacityEventKind, JobEventKind};
use tidegate_events::{Event, SchemaId};

/// What a principal is to the site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A collector on nodes. It tells of its own nodes only.
    Agent,
    /// A watcher beside a scheduler. It tells of its own cluster only.
    Watcher,
    /// A process of Tidegate itself: signals, forecasts, the autopilot.
    Service,
    /// A person or dashboard that asks. It may be bound to teams.
    Viewer,
    /// A person who enters prices and steers the autopilot.
    Operator,
    /// A person who runs the site.
    Administrator,
    /// Whoever reaches a loopback address that asks for no token: the one person of a machine.
    #[serde(skip)]
    Local,
}

impl Role {
    /// Every role, those of people last.
    pub const ALL: [Self; 7] = [
        Self::Agent,
        Self::Watcher,
        Self::Service,
        Self::Viewer,
        Self::Operator,
        Self::Administrator,
        Self::Local,
    ];

    /// As token files, messages and the reference write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Watcher => "watcher",
            Self::Service => "service",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Administrator => "administrator",
            Self::Local => "local",
        }
    }

    /// Whether a principal of this role may do it, within what the principal is bound to.
    pub fn may(self, action: Action) -> bool {
        action.roles().contains(&self)
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let given: Vec<Self> = Self::ALL.into_iter().filter(|role| *role != Self::Local).collect();
        given.iter().copied().find(|role| role.name() == text).ok_or_else(|| {
            let names: Vec<&str> = given.into_iter().map(Self::name).collect();
            format!("{text:?} is no role; write one of: {}", names.join(", "))
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that a door lets a principal do, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask the tables.
    Query,
    /// Read metrics and progress.
    Status,
    /// List the topics of the log and read its clock.
    Topics,
    /// Append GPU samples.
    Samples,
    /// Append step reports.
    Steps,
    /// Append events of nodes.
    Nodes,
    /// Append which job holds which device.
    Holds,
    /// Append every other event of jobs.
    Jobs,
    /// Append quotas, reservations, limits, partitions and samples of pools.
    Capacity,
    /// Append input that could not become an event.
    DeadLetters,
    /// Append prices.
    Prices,
    /// Append findings: stragglers, health, scaling curves, sizing.
    Signals,
    /// Append forecasts.
    Forecasts,
    /// Append entries of the autopilot's journal.
    Journal,
    /// Ask for what people did.
    Audit,
    /// Append records of what people did.
    AuditRecords,
    /// Read the autopilot's switch and what waits for people.
    Autopilot,
    /// Read the last rehearsal of the autopilot, of one's own teams.
    Rehearsal,
    /// Approve and reject actions of the autopilot.
    Decide,
    /// Pause the autopilot.
    Pause,
    /// Let the autopilot act again.
    Resume,
}

impl Action {
    /// Every action, in the order of the reference.
    pub const ALL: [Self; 21] = [
        Self::Query,
        Self::Status,
        Self::Topics,
        Self::Samples,
        Self::Steps,
        Self::Nodes,
        Self::Holds,
        Self::Jobs,
        Self::Capacity,
        Self::DeadLetters,
        Self::Prices,
        Self::Signals,
        Self::Forecasts,
        Self::Journal,
        Self::Audit,
        Self::AuditRecords,
        Self::Autopilot,
        Self::Rehearsal,
        Self::Decide,
        Self::Pause,
        Self::Resume,
    ];

    /// The permissions themselves.
    pub const fn roles(self) -> &'static [Role] {
        use Role::{Administrator, Agent, Local, Operator, Service, Viewer, Watcher};
        match self {
            Self::Query | Self::Status | Self::Autopilot | Self::Rehearsal => {
                &[Service, Viewer, Operator, Administrator, Local]
            }
            Self::Topics => &[Agent, Watcher, Service, Operator, Administrator, Local],
            Self::Samples | Self::Steps => &[Agent, Service, Local],
            Self::Nodes | Self::Holds | Self::DeadLetters => &[Agent, Watcher, Service, Local],
            Self::Jobs | Self::Capacity => &[Watcher, Service, Local],
            Self::Prices => &[Service, Operator, Administrator, Local],
            // Not `local`: what is computed here is appended by this process itself, and a journal
            // that other users of a machine could write would act on the cluster.
            Self::Signals | Self::Forecasts | Self::Journal | Self::AuditRecords => &[Service],
            // Not `local`: on a machine of several people one would read what the others ask.
            Self::Audit => &[Administrator],
            // Not `local`: every user of a machine reaches an open loopback port, and would act on
            // a real cluster. See [`Principal::check_steering`](super::Principal::check_steering).
            Self::Decide | Self::Pause | Self::Resume => &[Operator, Administrator],
        }
    }

    /// Whether it tells the autopilot what to do.
    pub const fn is_steering(self) -> bool {
        matches!(self, Self::Decide | Self::Pause | Self::Resume)
    }

    /// Appending this event.
    pub fn appending(event: &Event) -> Self {
        match event {
            Event::GpuSamples(_) => Self::Samples,
            Event::Step(_) => Self::Steps,
            Event::Node(_) => Self::Nodes,
            Event::Job(job) => match job.kind() {
                JobEventKind::DeviceHeld | JobEventKind::DeviceReleased => Self::Holds,
                _ => Self::Jobs,
            },
            Event::Capacity(capacity) if capacity.kind() == CapacityEventKind::PriceSet => Self::Prices,
            Event::Capacity(_) | Event::PoolSample(_) => Self::Capacity,
            Event::DeadLetter(_) => Self::DeadLetters,
            Event::Straggler(_)
            | Event::NodeHealth(_)
            | Event::Coverage(_)
            | Event::JobEnd(_)
            | Event::Scaling(_)
            | Event::Sizing(_) => Self::Signals,
            Event::Forecast(_) => Self::Forecasts,
            Event::Autopilot(_) => Self::Journal,
            Event::Audit(_) => Self::AuditRecords,
        }
    }

    /// The topic that it appends to; `None` where it appends nothing.
    pub const fn topic(self) -> Option<&'static str> {
        let schema = match self {
            Self::Query | Self::Status | Self::Topics | Self::Audit => return None,
            Self::Autopilot | Self::Rehearsal | Self::Decide | Self::Pause | Self::Resume => return None,
            Self::Samples => SchemaId::GpuSampleBatch,
            Self::Steps => SchemaId::StepReport,
            Self::Nodes => SchemaId::NodeEvent,
            Self::Holds | Self::Jobs => SchemaId::JobEvent,
            Self::Capacity | Self::Prices => SchemaId::CapacityEvent,
            Self::DeadLetters => SchemaId::DeadLetter,
            Self::Signals => SchemaId::NodeSignal,
            Self::Forecasts => SchemaId::Forecast,
            Self::Journal => SchemaId::AutopilotEvent,
            Self::AuditRecords => SchemaId::AuditEvent,
        };
        Some(schema.topic())
    }

    /// What messages and the reference call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Query => "query tables",
            Self::Status => "read status and metrics",
            Self::Topics => "list topics",
            Self::Samples => "append GPU samples",
            Self::Steps => "append step reports",
            Self::Nodes => "append node events",
            Self::Holds => "append holds of devices",
            Self::Jobs => "append job events",
            Self::Capacity => "append capacity events",
            Self::DeadLetters => "append dead letters",
            Self::Prices => "append prices",
            Self::Signals => "append signals",
            Self::Forecasts => "append forecasts",
            Self::Journal => "append to the autopilot's journal",
            Self::Audit => "query what people did (audit)",
            Self::AuditRecords => "append audit records",
            Self::Autopilot => "read what the autopilot waits for",
            Self::Rehearsal => "read the last rehearsal",
            Self::Decide => "approve and reject actions of the autopilot",
            Self::Pause => "pause the autopilot",
            Self::Resume => "resume the autopilot",
        }
    }

    /// Where it is done: paths of HTTP, `postgres` and `flight`.
    pub const fn door(self) -> &'static str {
        match self {
            Self::Query | Self::Audit => "/v1/sql, /v1/tables, /v1/changes, postgres, flight",
            Self::Status => "/v1/status, /metrics, /metrics/cluster, /metrics/gpus",
            Self::Topics => "/v1/log",
            Self::Autopilot => "/v1/autopilot, /v1/autopilot/statement",
            Self::Rehearsal => "/v1/autopilot/rehearsal",
            Self::Decide => "/v1/autopilot/approve, /v1/autopilot/reject",
            Self::Pause => "/v1/autopilot/pause",
            Self::Resume => "/v1/autopilot/resume",
            _ => "/v1/events",
        }
    }
}

/// The table of permissions as a page of Markdown.
pub fn permissions_page() -> String {
    let mut page = String::from(
        "<!-- Generated from crates/server/src/access/permission.rs; do not edit. -->\n\n# Permissions\n\n\
         What each role may do, and at which door. Agents are bound to their nodes and watchers to\n\
         their cluster; viewers may be bound to teams, and then see neither metrics nor progress\n\
         nor what the autopilot waits for, and of a rehearsal their teams alone. `local` is whoever reaches a loopback address of a server\n\
         without a token file; on a simulated cluster it may steer the autopilot too. Everybody may read\n\
         `/`, `/page/…`, `/healthz` and `/readyz`. `tidegate token` makes principals\n\
         ([guide](../guide/access.md)).\n\n",
    );
    let names: Vec<&str> = Role::ALL.into_iter().map(Role::name).collect();
    page.push_str(&format!("| action | door | {} |\n", names.join(" | ")));
    page.push_str(&format!("|---|---|{}\n", "---|".repeat(Role::ALL.len())));
    for action in Action::ALL {
        let cells: Vec<&str> =
            Role::ALL.into_iter().map(|role| if role.may(action) { "yes" } else { "" }).collect();
        page.push_str(&format!("| {} | `{}` | {} |\n", action.name(), action.door(), cells.join(" | ")));
    }
    page
}
