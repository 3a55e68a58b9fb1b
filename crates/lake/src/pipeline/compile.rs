//! Compiles pipelines to a plan: infers schemas, sorts by dependency and forms groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use crate::engine::{self, Limits};
use crate::error::{LakeError, Result};
use crate::pipeline::check;
use crate::pipeline::definition::{Extent, Pipeline, Shape};
use crate::pipeline::partials::partial_merges;
use crate::pipeline::pass_through::pass_through_columns;
use crate::pipeline::plan::{AS_OF, Group, Plan, Planned, added_columns, added_to_joined};
use crate::pipeline::plan_cache::PlanCache;
use crate::pipeline::rollup::Rollup;
use crate::raw::raw_tables;
use crate::raw::samples::metrics::{derived_column, derived_columns};
use crate::table::{Column, Layout, TableSpec, timestamp_type};

impl Plan {
    /// Checks all pipelines and sorts them by dependency. Fails at the first pipeline that breaks a
    /// rule.
    pub async fn compile(pipelines: Vec<Pipeline>) -> Result<Self> {
        let raws = raw_tables();
        let mut known: BTreeMap<String, Source> = raws
            .iter()
            .map(|raw| {
                (
                    raw.spec.name.clone(),
                    Source {
                        spec: Arc::clone(&raw.spec),
                        roots: BTreeSet::from([raw.spec.name.clone()]),
                        is_joined: false,
                    },
                )
            })
            .collect();
        let mut groups: Vec<Group> = raws
            .into_iter()
            .map(|raw| Group { raw, keyed: Vec::new(), windowed: Vec::new(), feeds_joined: false })
            .collect();
        let (mut joined, mut views) = (Vec::new(), Vec::new());
        let limits = Limits::default();
        let ctx = engine::session(&engine::runtime(limits)?, limits);
        for pipeline in in_order(pipelines)? {
            let planned = plan_pipeline(&ctx, pipeline, &known).await?;
            let is_joined = matches!(planned.pipeline.shape, Shape::Joined { .. });
            known.insert(
                planned.pipeline.name.clone(),
                Source { spec: Arc::clone(&planned.spec), roots: planned.roots.clone(), is_joined },
            );
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

/// A table that pipelines can read, while they are compiled.
struct Source {
    spec: Arc<TableSpec>,
    roots: BTreeSet<String>,
    is_joined: bool,
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

/// Plans a pipeline over empty tables, which are registered in `ctx` meanwhile.
async fn plan_pipeline(
    ctx: &SessionContext,
    pipeline: Pipeline,
    known: &BTreeMap<String, Source>,
) -> Result<Planned> {
    let refuse = |message: String| LakeError::Pipeline { file: pipeline.file.clone(), message };
    let mut roots = BTreeSet::new();
    for name in &pipeline.sources {
        let source = known.get(name).ok_or_else(|| {
            refuse(format!(
                "source {name:?} is not a table; there are: {}",
                known.keys().cloned().collect::<Vec<_>>().join(", ")
            ))
        })?;
        let schema = source_schema(&pipeline.shape, name, &source.spec);
        ctx.register_table(name.as_str(), Arc::new(MemTable::try_new(schema, vec![vec![]])?))?;
        roots.extend(source.roots.iter().cloned());
        if source.is_joined && matches!(pipeline.shape, Shape::Windowed { .. } | Shape::Keyed { .. }) {
            return Err(refuse(format!(
                "{name} is a joined table, so a pipeline that reads it must be joined too; write `[extents]` instead of `extent`"
            )));
        }
    }
    if let Shape::Keyed { per } = &pipeline.shape {
        let expected = roots.first().and_then(|root| known.get(root)).map(|raw| &raw.spec.key);
        if expected != Some(per) {
            return Err(refuse(format!(
                "`per` must be {expected:?}, the key of the raw table it is computed from, but is {per:?}"
            )));
        }
    }
    let logical = check::check(ctx, &pipeline).await?;
    let partials = match (&pipeline.shape, pipeline.sources.as_slice()) {
        (Shape::Windowed { extent: Extent::Instant { .. }, .. }, [source]) => {
            let spec = &known[source].spec;
            let with_partials = spec.layout != Layout::Keyed
                && (spec.layout != Layout::Windowed || !spec.partials.is_empty());
            with_partials.then(|| partial_merges(&logical, &pipeline.key, spec)).flatten().unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let columns =
        logical.schema().fields().iter().map(|f| column(f, &pipeline)).collect::<Result<Vec<_>>>()?;
    let spec = TableSpec {
        name: pipeline.name.clone(),
        version: pipeline.version,
        doc: pipeline.doc.clone(),
        layout: match pipeline.shape {
            Shape::Windowed { .. } | Shape::Joined { .. } => Layout::Windowed,
            _ => Layout::Keyed,
        },
        columns,
        key: pipeline.key.clone(),
        partials,
    };
    // Finding the columns takes longer than everything else, and only windows over one source need
    // them.
    let mut columns_read = Vec::new();
    if let Shape::Windowed { extent, .. } = &pipeline.shape {
        columns_read = check::columns_read(ctx, &logical)?;
        columns_read.retain(|column| !added_columns(extent).contains(&column.as_str()));
    }
    if let Some(column) =
        columns_read.iter().find(|column| spec.partials.is_empty() && derived_column(column).is_some())
    {
        return Err(refuse(format!(
            "column {column} is computed from samples as they come in and stands in no file; the SELECT must group the rows of \
             gpu_samples by the pipeline's key, and give out nothing else but sum(), count(), min() and max() of them"
        )));
    }
    let mut pass_through = pass_through_columns(&logical);
    pass_through.retain(|column| columns_read.contains(column));
    let width_ms = pipeline.shape.width_ms().filter(|_| pipeline.rolls_up.is_some());
    let rollup = width_ms.map(|width_ms| Rollup::from_pipeline(&pipeline, width_ms, &logical));
    for name in &pipeline.sources {
        ctx.deregister_table(name.as_str())?;
    }
    let plan_cache = PlanCache::default();
    Ok(Planned { spec: Arc::new(spec), roots, columns_read, pass_through, rollup, plan_cache, pipeline })
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

fn column(field: &Field, pipeline: &Pipeline) -> Result<Column> {
    let refuse = |message: String| LakeError::Pipeline { file: pipeline.file.clone(), message };
    let data_type = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8View,
        t if t.is_integer() => DataType::Int64,
        t @ DataType::Timestamp(_, Some(_)) if *t == timestamp_type() => timestamp_type(),
        t @ DataType::Float64 if pipeline.shape == Shape::View => t.clone(),
        other => {
            let message =
                format!("column {} has type {other}; tables hold text, integers and UTC times", field.name());
            return Err(refuse(message));
        }
    };
    let undocumented = || (!pipeline.stored).then(String::new);
    let doc = pipeline.columns.get(field.name()).cloned().or_else(undocumented).ok_or_else(|| {
        refuse(format!(
            "column {0} has no description; add `--! {0} = \"…\"` under `--! [columns]`",
            field.name()
        ))
    })?;
    Ok(Column { name: field.name().clone(), data_type, doc })
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
