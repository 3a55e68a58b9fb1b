//! Maps rows to events: the choice between kinds, and all kinds except jobs and faults.

use std::borrow::Cow;

use tidegate_events::{Event, SchemaId, v1};

use crate::accepted_row::{AcceptedRow, envelope, facts};
use crate::error::{ImportError, Reject};
use crate::faults::FaultMapper;
use crate::fields::{
    ColumnBinder, NumberField, Row, TextField, TimeField, cluster_field, missing, owned, unsigned,
};
use crate::jobs::{JobMapper, JobScratch};
use crate::mapping::{Kind, Unit};
use crate::outbox::Outbox;
use crate::time::TimeReader;

/// A mapping bound to the columns of one file.
pub(crate) enum RowMapper {
    Jobs(Box<JobMapper>),
    Quotas(Box<QuotaMapper>),
    PoolSamples(Box<SampleMapper>),
    Nodes(Box<NodeMapper>),
    Faults(Box<FaultMapper>),
}

impl RowMapper {
    pub(crate) fn new(binder: &ColumnBinder<'_>, cluster: Option<&str>) -> Result<Self, ImportError> {
        let cluster = cluster_field(binder, cluster)?;
        Ok(match binder.mapping.kind {
            Kind::Jobs => Self::Jobs(Box::new(JobMapper::new(binder, cluster)?)),
            Kind::Quotas => Self::Quotas(Box::new(QuotaMapper::new(binder, cluster)?)),
            Kind::PoolSamples => Self::PoolSamples(Box::new(SampleMapper::new(binder, cluster)?)),
            Kind::Nodes => Self::Nodes(Box::new(NodeMapper::new(binder, cluster)?)),
            Kind::NodeFaults => Self::Faults(Box::new(FaultMapper::new(binder, cluster)?)),
            Kind::GpuSamples => unreachable!("samples::file imports them"),
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
