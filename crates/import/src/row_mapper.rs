//! Maps rows to events: the choice between kinds, and all kinds except jobs.

use std::borrow::Cow;

use tidegate_events::{Event, SchemaId, v1};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::accepted_row::AcceptedRow;
use crate::error::{ImportError, Reject, RejectCode};
use crate::fields::{ColumnBinder, NumberField, Row, TextField, TimeField, missing};
use crate::jobs::{JobMapper, JobScratch};
use crate::mapping::{Kind, Unit};
use crate::outbox::Outbox;
use crate::time::TimeReader;

/// A mapping bound to the columns of one file.
pub(crate) enum RowMapper {
    Jobs(Box<JobMapper>),
    Quotas(QuotaMapper),
    PoolSamples(Box<SampleMapper>),
    Nodes(Box<NodeMapper>),
    Faults(FaultMapper),
}

impl RowMapper {
    pub(crate) fn new(binder: &ColumnBinder<'_>, cluster: Option<&str>) -> Result<Self, ImportError> {
        let cluster = match cluster {
            Some(name) => TextField::constant(name),
            None => binder.text("cluster")?,
        };
        if !cluster.is_given() {
            let (file, mapping) = (binder.file.into(), binder.mapping.name.clone());
            return Err(ImportError::NoCluster { file, mapping });
        }
        Ok(match binder.mapping.kind {
            Kind::Jobs => Self::Jobs(Box::new(JobMapper::new(binder, cluster)?)),
            Kind::Quotas => Self::Quotas(QuotaMapper::new(binder, cluster)?),
            Kind::PoolSamples => Self::PoolSamples(Box::new(SampleMapper::new(binder, cluster)?)),
            Kind::Nodes => Self::Nodes(Box::new(NodeMapper::new(binder, cluster)?)),
            Kind::NodeFaults => Self::Faults(FaultMapper::new(binder, cluster)?),
        })
    }

    pub(crate) fn schema(&self) -> SchemaId {
        match self {
            Self::Jobs(_) => SchemaId::JobEvent,
            Self::Quotas(_) => SchemaId::CapacityEvent,
            Self::PoolSamples(_) => SchemaId::PoolSample,
            Self::Nodes(_) | Self::Faults(_) => SchemaId::NodeEvent,
        }
    }

    /// Adds the row's events to the outbox.
    pub(crate) fn row<'r>(
        &'r self,
        row: Row<'r>,
        times: &mut TimeReader,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
    ) -> Result<AcceptedRow<'r>, Reject> {
        match self {
            Self::Jobs(plan) => plan.row(row, times, scratch, out),
            Self::Quotas(plan) => plan.row(row, times, out),
            Self::PoolSamples(plan) => plan.row(row, times, out),
            Self::Nodes(plan) => plan.row(row, times, out),
            Self::Faults(plan) => plan.row(row, times, out),
        }
    }
}

/// The number as an unsigned value; `None` if mapping or row lack it.
fn unsigned(number: Option<&NumberField>, row: Row<'_>) -> Result<Option<u64>, Reject> {
    let Some(value) = number.map_or(Ok(None), |number| number.read(row))? else {
        return Ok(None);
    };
    let negative =
        |_| Reject::new(RejectCode::BadNumber, format!("{value} is negative, and a capacity cannot be"));
    u64::try_from(value).map(Some).map_err(negative)
}

fn owned(text: &TextField, row: Row<'_>) -> Option<String> {
    text.read(row).map(Cow::into_owned)
}

fn envelope(cluster: &str, event_time_ms: i64) -> Option<v1::Envelope> {
    Some(v1::Envelope { cluster: cluster.to_owned(), event_time_ms, ..v1::Envelope::default() })
}

fn facts<'r>(cluster: Cow<'r, str>, name: &str, first_ms: i64, last_ms: i64, part: &str) -> AcceptedRow<'r> {
    let seed = xxh3_64_with_seed(cluster.as_bytes(), first_ms.cast_unsigned());
    let identity = xxh3_64_with_seed(part.as_bytes(), xxh3_64_with_seed(name.as_bytes(), seed));
    AcceptedRow { cluster, identity, unique: true, first_ms, last_ms }
}

/// The columns that say what a row of quotas, pool samples or nodes is about.
struct SubjectColumns {
    cluster: TextField,
    name: TextField,
    /// Name of the column `name`, for refusals.
    column: &'static str,
    pool: TextField,
    time: TimeField,
}

/// What a row is about.
struct Subject<'r> {
    cluster: Cow<'r, str>,
    name: Cow<'r, str>,
    pool: Option<String>,
    time_ms: i64,
}

impl SubjectColumns {
    fn new(binder: &ColumnBinder<'_>, cluster: TextField, column: &'static str) -> Result<Self, ImportError> {
        let (name, pool) = (binder.text(column)?, binder.text("pool")?);
        Ok(Self { cluster, name, column, pool, time: binder.required_time("time")? })
    }

    fn read<'r>(&'r self, row: Row<'r>, times: &mut TimeReader) -> Result<Subject<'r>, Reject> {
        Ok(Subject {
            cluster: self.cluster.required("cluster", row)?,
            time_ms: self.time.read(row, times)?.ok_or_else(|| missing("time"))?,
            name: self.name.required(self.column, row)?,
            pool: owned(&self.pool, row),
        })
    }
}

/// Maps quotas: an owner's quota from a time on.
pub(crate) struct QuotaMapper {
    subject: SubjectColumns,
    gpu_model: TextField,
    gpus: Option<NumberField>,
}

impl QuotaMapper {
    fn new(binder: &ColumnBinder<'_>, cluster: TextField) -> Result<Self, ImportError> {
        Ok(Self {
            subject: SubjectColumns::new(binder, cluster, "owner")?,
            gpu_model: binder.text("gpu_model")?,
            gpus: binder.number("gpus", Unit::Gpus)?,
        })
    }

    fn row<'r>(
        &'r self,
        row: Row<'r>,
        times: &mut TimeReader,
        out: &mut Outbox<'_>,
    ) -> Result<AcceptedRow<'r>, Reject> {
        let Subject { cluster, name: owner, pool, time_ms } = self.subject.read(row, times)?;
        let gpus_milli = unsigned(self.gpus.as_ref(), row)?.ok_or_else(|| missing("gpus"))?;
        let facts = facts(cluster, &owner, time_ms, time_ms, pool.as_deref().unwrap_or_default());
        out.add(&mut Event::Capacity(v1::CapacityEvent {
            envelope: envelope(&facts.cluster, time_ms),
            kind: v1::CapacityEventKind::QuotaSet.into(),
            owner: owner.into_owned(),
            pool,
            gpu_model: owned(&self.gpu_model, row),
            gpus_milli: Some(gpus_milli),
            ..v1::CapacityEvent::default()
        }))?;
        Ok(facts)
    }
}

/// Maps pool samples: GPUs held and queued by a pool, valid for an interval.
pub(crate) struct SampleMapper {
    subject: SubjectColumns,
    interval_ms: u64,
    quota_gpus: Option<NumberField>,
    held_gpus: Option<NumberField>,
    queued_gpus: Option<NumberField>,
    running_jobs: Option<NumberField>,
    pending_jobs: Option<NumberField>,
}

impl SampleMapper {
    fn new(binder: &ColumnBinder<'_>, cluster: TextField) -> Result<Self, ImportError> {
        Ok(Self {
            subject: SubjectColumns::new(binder, cluster, "owner")?,
            interval_ms: binder.mapping.interval_ms.unwrap_or_default(),
            quota_gpus: binder.number("quota_gpus", Unit::Gpus)?,
            held_gpus: binder.number("held_gpus", Unit::Gpus)?,
            queued_gpus: binder.number("queued_gpus", Unit::Gpus)?,
            running_jobs: binder.number("running_jobs", Unit::Count)?,
            pending_jobs: binder.number("pending_jobs", Unit::Count)?,
        })
    }

    fn row<'r>(
        &'r self,
        row: Row<'r>,
        times: &mut TimeReader,
        out: &mut Outbox<'_>,
    ) -> Result<AcceptedRow<'r>, Reject> {
        let Subject { cluster, name: owner, pool, time_ms } = self.subject.read(row, times)?;
        let until_ms = time_ms.saturating_add_unsigned(self.interval_ms);
        let facts = facts(cluster, &owner, time_ms, until_ms, pool.as_deref().unwrap_or_default());
        let read = |number: &Option<NumberField>| unsigned(number.as_ref(), row);
        out.add(&mut Event::PoolSample(v1::PoolSample {
            envelope: envelope(&facts.cluster, time_ms),
            owner: owner.into_owned(),
            pool,
            interval_ms: self.interval_ms,
            quota_gpus_milli: read(&self.quota_gpus)?,
            held_gpus_milli: read(&self.held_gpus)?,
            queued_gpus_milli: read(&self.queued_gpus)?,
            running_jobs: read(&self.running_jobs)?,
            pending_jobs: read(&self.pending_jobs)?,
        }))?;
        Ok(facts)
    }
}

/// Maps nodes and their devices.
pub(crate) struct NodeMapper {
    subject: SubjectColumns,
    gpu_model: TextField,
    gpus: Option<NumberField>,
    cpus: Option<NumberField>,
    memory: Option<NumberField>,
}

impl NodeMapper {
    fn new(binder: &ColumnBinder<'_>, cluster: TextField) -> Result<Self, ImportError> {
        Ok(Self {
            subject: SubjectColumns::new(binder, cluster, "node")?,
            gpu_model: binder.text("gpu_model")?,
            gpus: binder.number("gpus", Unit::Gpus)?,
            cpus: binder.number("cpus", Unit::Cpus)?,
            memory: binder.number("memory", Unit::Bytes)?,
        })
    }

    fn row<'r>(
        &'r self,
        row: Row<'r>,
        times: &mut TimeReader,
        out: &mut Outbox<'_>,
    ) -> Result<AcceptedRow<'r>, Reject> {
        let Subject { cluster, name: node, pool, time_ms } = self.subject.read(row, times)?;
        let facts = facts(cluster, &node, time_ms, time_ms, "");
        let read = |number: &Option<NumberField>| unsigned(number.as_ref(), row);
        out.add(&mut Event::Node(v1::NodeEvent {
            envelope: envelope(&facts.cluster, time_ms),
            kind: v1::NodeEventKind::NodeRegistered.into(),
            node: node.into_owned(),
            pool,
            gpu_model: owned(&self.gpu_model, row),
            gpus_milli: read(&self.gpus)?,
            cpus_milli: read(&self.cpus)?,
            memory_bytes: read(&self.memory)?,
            ..v1::NodeEvent::default()
        }))?;
        Ok(facts)
    }
}

/// Maps faults of nodes. A fault without an end is still open.
pub(crate) struct FaultMapper {
    cluster: TextField,
    node: TextField,
    fault_id: TextField,
    fault_level: TextField,
    fault_class: TextField,
    description: TextField,
    start_time: TimeField,
    end_time: Option<TimeField>,
}

impl FaultMapper {
    fn new(binder: &ColumnBinder<'_>, cluster: TextField) -> Result<Self, ImportError> {
        Ok(Self {
            cluster,
            node: binder.text("node")?,
            fault_id: binder.text("fault_id")?,
            fault_level: binder.text("fault_level")?,
            fault_class: binder.text("fault_class")?,
            description: binder.text("description")?,
            start_time: binder.required_time("start_time")?,
            end_time: binder.time("end_time")?,
        })
    }

    fn row<'r>(
        &'r self,
        row: Row<'r>,
        times: &mut TimeReader,
        out: &mut Outbox<'_>,
    ) -> Result<AcceptedRow<'r>, Reject> {
        let cluster = self.cluster.required("cluster", row)?;
        let node = self.node.required("node", row)?;
        let start_ms = self.start_time.read(row, times)?.ok_or_else(|| missing("start_time"))?;
        let end_ms = self.end_time.as_ref().map_or(Ok(None), |time| time.read(row, times))?;
        if let Some(gap_ms) = end_ms.map(|end_ms| start_ms - end_ms).filter(|gap_ms| *gap_ms > 0) {
            let reason = format!("the fault ends {gap_ms} ms before it starts");
            return Err(Reject::new(RejectCode::EndBeforeStart, reason));
        }
        let fault_id = self.fault_id.read(row).map_or_else(|| start_ms.to_string(), Cow::into_owned);
        let facts = facts(cluster, &node, start_ms, end_ms.unwrap_or(start_ms), &fault_id);
        let mut event = v1::NodeEvent {
            envelope: envelope(&facts.cluster, start_ms),
            kind: v1::NodeEventKind::FaultStarted.into(),
            node: node.into_owned(),
            fault_id: Some(fault_id),
            fault_level: owned(&self.fault_level, row),
            fault_class: owned(&self.fault_class, row),
            description: owned(&self.description, row),
            ..v1::NodeEvent::default()
        };
        out.add(&mut Event::Node(event.clone()))?;
        if let Some(end_ms) = end_ms {
            event.envelope = envelope(&facts.cluster, end_ms);
            event.kind = v1::NodeEventKind::FaultEnded.into();
            out.add(&mut Event::Node(event))?;
        }
        Ok(facts)
    }
}
