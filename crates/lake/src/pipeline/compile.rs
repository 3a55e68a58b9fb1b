//! Compiles pipelines to a plan: infers schemas, sorts by dependency and forms groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use crate::engine::{self, Limits};
use crate::error::{LakeError, Result};
use crate::pipeline::definition::{Pipeline, Shape};
use crate::pipeline::findings::{ColumnType, Findings, shipped_findings};
use crate::pipeline::plan::{AS_OF, Group, Plan, Planned, added_columns, added_to_joined};
use crate::pipeline::plan_cache::PlanCache;
use crate::pipeline::rollup::{self, Rollup};
use crate::raw::raw_tables;
use crate::raw::samples::metrics::derived_columns;
use crate::raw::table::RawTable;
use crate::table::{Column, Layout, TableSpec, timestamp_type};

impl Plan {
    /// Checks all pipelines and sorts them by dependency. Fails at the first pipeline that breaks a
    /// rule.
    pub async fn compile(pipelines: Vec<Pipeline>) -> Result<Self> {
        let mut compiler = Compiler::new(true);
        let mut groups: Vec<Group> = raw_tables()
            .into_iter()
            .map(|raw| Group { raw, keyed: Vec::new(), windowed: Vec::new(), feeds_joined: false })
            .collect();
        let (mut joined, mut views) = (Vec::new(), Vec::new());
        for pipeline in in_order(pipelines)? {
            let planned = compiler.plan(pipeline).await?;
            let group = groups.iter_mut().find(|g| Some(&g.raw.spec.name) == planned.root());
            match (&planned.pipeline.shape, group) {
                (Shape::View, _) => views.push(planned),
                (Shape::Joined { .. }, _) => {
                    let of_it = |group: &&mut Group| planned.roots.contains(&group.raw.spec.name);
                    groups.iter_mut().filter(of_it).for_each(|group| group.feeds_joined = true);
                    joined.push(planned);
                }
                (Shape::Keyed { .. }, Some(group)) if group.raw.has_endless_keys() => {
                    let message = format!(
                        "{} cannot be folded per key: nothing says that a key is finished, so all history would stay in memory; \
                         use a window of event_time, or a view",
                        group.raw.spec.name
                    );
                    return Err(LakeError::Pipeline { file: planned.pipeline.file, message });
                }
                (Shape::Keyed { .. }, Some(group)) => group.keyed.push(planned),
                (Shape::Windowed { .. }, Some(group)) => group.windowed.push(planned),
                (_, None) => {
                    let message =
                        "its sources come from more than one raw table; give each an extent in `[extents]`"
                            .into();
                    return Err(LakeError::Pipeline { file: planned.pipeline.file, message });
                }
            }
        }
        groups.iter_mut().filter(|group| !group.keyed.is_empty()).for_each(Group::disable_partials);
        Ok(Self { groups, joined, views })
    }
}

/// Sorts pipelines so that each comes after those it reads.
pub(crate) fn in_order(mut waiting: Vec<Pipeline>) -> Result<Vec<Pipeline>> {
    waiting.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = waiting.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let message = format!("the name {:?} is taken by {}; choose another", pair[1].name, pair[0].file);
        return Err(LakeError::Pipeline { file: pair[1].file.clone(), message });
    }
    let mut ordered: Vec<Pipeline> = Vec::new();
    while !waiting.is_empty() {
        let (ready, blocked): (Vec<_>, Vec<_>) = waiting
            .iter()
            .cloned()
            .partition(|p| !p.sources.iter().any(|s| waiting.iter().any(|w| w.name == *s)));
        if ready.is_empty() {
            let names: Vec<_> = blocked.iter().map(|p| p.name.as_str()).collect();
            let message = format!(
                "{} depend on each other in a cycle; remove one of the dependencies",
                names.join(", ")
            );
            return Err(LakeError::Pipeline { file: blocked[0].file.clone(), message });
        }
        ordered.extend(ready);
        waiting = blocked;
    }
    Ok(ordered)
}

/// A table that pipelines can read, while they are compiled.
struct Source {
    spec: Arc<TableSpec>,
    roots: BTreeSet<String>,
    is_joined: bool,
}

/// Plans pipelines one after the other, each after those it reads.
pub(super) struct Compiler {
    known: BTreeMap<String, Source>,
    /// Made for the first pipeline that must be planned.
    ctx: Option<SessionContext>,
    /// Whether shipped pipelines are planned from their stored findings.
    reuses_findings: bool,
}

impl Compiler {
    pub(super) fn new(reuses_findings: bool) -> Self {
        let raw = |raw: RawTable| {
            let roots = BTreeSet::from([raw.spec.name.clone()]);
            (raw.spec.name.clone(), Source { spec: raw.spec, roots, is_joined: false })
        };
        Self { known: raw_tables().into_iter().map(raw).collect(), ctx: None, reuses_findings }
    }

    /// Plans a pipeline, which later ones can then read.
    pub(super) async fn plan(&mut self, pipeline: Pipeline) -> Result<Planned> {
        let roots = self.roots(&pipeline)?;
        let stored = self.reuses_findings.then(|| shipped_findings(&pipeline, &self.sources(&pipeline)));
        let findings = match stored.flatten() {
            Some(findings) => findings.clone(),
            None => self.find(&pipeline).await?,
        };
        let columns = findings.columns.into_iter();
        let spec = TableSpec {
            name: pipeline.name.clone(),
            version: pipeline.version,
            doc: pipeline.doc.clone(),
            layout: match pipeline.shape {
                Shape::Windowed { .. } | Shape::Joined { .. } => Layout::Windowed,
                _ => Layout::Keyed,
            },
            columns: columns
                .map(|(name, of_type)| column(name, of_type, &pipeline))
                .collect::<Result<_>>()?,
            key: pipeline.key.clone(),
            partials: findings.partials,
        };
        let rollup = pipeline.shape.width_ms().zip(findings.rollup).map(|(width_ms, (sums, maxima))| {
            let keys = pipeline.key.iter().filter(|key| *key != rollup::START).cloned().collect();
            Rollup { table: pipeline.name.clone(), width_ms, keys, sums, maxima }
        });
        let planned = Planned {
            spec: Arc::new(spec),
            roots,
            columns_read: findings.columns_read,
            pass_through: findings.pass_through,
            rollup,
            plan_cache: PlanCache::default(),
            pipeline,
        };
        let source = Source {
            spec: Arc::clone(&planned.spec),
            roots: planned.roots.clone(),
            is_joined: matches!(planned.pipeline.shape, Shape::Joined { .. }),
        };
        self.known.insert(planned.pipeline.name.clone(), source);
        Ok(planned)
    }

    /// The raw tables that a pipeline is computed from. Checks that it can read its sources.
    fn roots(&self, pipeline: &Pipeline) -> Result<BTreeSet<String>> {
        let refuse = |message: String| LakeError::Pipeline { file: pipeline.file.clone(), message };
        let mut roots = BTreeSet::new();
        for name in &pipeline.sources {
            let source = self.known.get(name).ok_or_else(|| {
                refuse(format!(
                    "source {name:?} is not a table; there are: {}",
                    self.known.keys().cloned().collect::<Vec<_>>().join(", ")
                ))
            })?;
            roots.extend(source.roots.iter().cloned());
            if source.is_joined && matches!(pipeline.shape, Shape::Windowed { .. } | Shape::Keyed { .. }) {
                return Err(refuse(format!(
                    "{name} is a joined table, so a pipeline that reads it must be joined too; write `[extents]` instead of `extent`"
                )));
            }
        }
        if let Shape::Keyed { per } = &pipeline.shape {
            let expected = roots.first().and_then(|root| self.known.get(root)).map(|raw| &raw.spec.key);
            if expected != Some(per) {
                return Err(refuse(format!(
                    "`per` must be {expected:?}, the key of the raw table it is computed from, but is {per:?}"
                )));
            }
        }
        Ok(roots)
    }

    /// Sources of a pipeline, each with the schema that its SQL sees.
    pub(super) fn sources(&self, pipeline: &Pipeline) -> Vec<(SchemaRef, &TableSpec)> {
        let source = |name: &String| {
            let spec = self.known[name].spec.as_ref();
            (source_schema(&pipeline.shape, name, spec), spec)
        };
        pipeline.sources.iter().map(source).collect()
    }

    /// Plans the SQL of a pipeline over empty tables.
    pub(super) async fn find(&mut self, pipeline: &Pipeline) -> Result<Findings> {
        if self.ctx.is_none() {
            let limits = Limits::default();
            self.ctx = Some(engine::session(&engine::runtime(limits)?, limits));
        }
        let ctx = self.ctx.as_ref().expect("it was just made");
        let sources = self.sources(pipeline);
        for (name, (schema, _)) in pipeline.sources.iter().zip(&sources) {
            let empty = MemTable::try_new(Arc::clone(schema), vec![vec![]])?;
            ctx.register_table(name.as_str(), Arc::new(empty))?;
        }
        let findings = Findings::of(ctx, pipeline, &sources).await?;
        for name in &pipeline.sources {
            ctx.deregister_table(name.as_str())?;
        }
        Ok(findings)
    }
}

/// Schema of a source as the SQL of a pipeline sees it: public columns and those added at run time.
pub fn source_schema(shape: &Shape, name: &str, source: &TableSpec) -> SchemaRef {
    let mut fields: Vec<Field> =
        source.columns.iter().map(|c| Field::new(&c.name, c.data_type.clone(), true)).collect();
    let added: &[&str] = match shape {
        Shape::Keyed { .. } if source.layout == Layout::Raw => &[AS_OF],
        Shape::Windowed { extent, .. } => added_columns(extent),
        Shape::Joined { extents, .. } => extents.get(name).map_or(&[], added_to_joined),
        Shape::Keyed { .. } | Shape::View => &[],
    };
    if matches!(shape, Shape::Windowed { .. }) && source.layout == Layout::Samples {
        fields.extend(derived_columns().map(|(name, _)| Field::new(name, DataType::Int64, true)));
    }
    let missing = added.iter().filter(|name| !source.columns.iter().any(|c| c.name == **name));
    let missing: Vec<Field> = missing.map(|name| Field::new(*name, timestamp_type(), true)).collect();
    fields.extend(missing);
    Arc::new(Schema::new(fields))
}

fn column(name: String, of_type: ColumnType, pipeline: &Pipeline) -> Result<Column> {
    let undocumented = || (!pipeline.stored).then(String::new);
    let doc = pipeline.columns.get(&name).cloned().or_else(undocumented).ok_or_else(|| {
        let message =
            format!("column {name} has no description; add `--! {name} = \"…\"` under `--! [columns]`");
        LakeError::Pipeline { file: pipeline.file.clone(), message }
    })?;
    Ok(Column { name, data_type: of_type.arrow(), doc })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::load_folder;

    #[tokio::test]
    async fn shipped_pipelines_compile() {
        let pipelines = load_folder(std::path::Path::new("../../pipelines")).unwrap();
        let plan = Plan::compile(pipelines).await.unwrap();
        let jobs = plan.groups.iter().find(|g| g.raw.spec.name == "job_events").unwrap();
        let keyed: Vec<_> = jobs.keyed.iter().map(|p| p.spec.name.as_str()).collect();
        assert!(keyed.iter().position(|n| *n == "job_facts") < keyed.iter().position(|n| *n == "attempts"));
        assert!(jobs.windowed.iter().any(|p| p.spec.name == "usage_1d"));
        let usage = jobs.windowed.iter().find(|p| p.spec.name == "usage_1h").unwrap();
        assert_eq!(
            usage.columns_read,
            ["cluster", "final_state", "from_time", "gpus_milli", "kind", "pool", "team", "user_name"]
        );
        assert_eq!(
            usage.pass_through,
            ["cluster", "final_state", "pool", "team", "user_name"],
            "kind is compared"
        );
    }

    /// All pipelines are planned in one session, so one must not see what another registered.
    #[tokio::test]
    async fn a_pipeline_sees_only_the_sources_it_names() {
        let text = "\
--! name = \"zz_undeclared\"
--! doc = \"Reads a table that others name as a source, and it does not.\"
--! sources = [\"job_events\"]
--! [columns]
--! events = \"Number of events.\"
SELECT count(*) AS events FROM node_events";
        let mut pipelines = crate::pipeline::shipped();
        assert!(pipelines.iter().any(|p| p.sources.iter().any(|source| source == "node_events")));
        pipelines.push(Pipeline::parse("zz_undeclared.sql", text).unwrap());
        let refused = Plan::compile(pipelines).await.unwrap_err().to_string();
        assert!(refused.contains("zz_undeclared.sql") && refused.contains("node_events"), "{refused}");
    }
}
