//! From pipeline files to an executable order: schemas are inferred, dependencies sorted, groups
//! formed.
//!
//! A *group* is one raw table with every keyed and windowed pipeline that is computed from it.
//! Groups are independent: each has its own place in the log and its own state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use crate::carried::carried_columns;
use crate::catalog::window_revisions;
use crate::check;
use crate::error::{LakeError, Result};
use crate::exec::{self, Limits};
use crate::level::Level;
use crate::parts::parts_of;
use crate::pipeline::{Extent, Pipeline, Shape};
use crate::prepared::Prepared;
use crate::raw::{RawTable, raw_tables};
use crate::samples::metrics::{derived, derived_columns};
use crate::table::{Column, Layout, TableSpec, timestamp_type};

/// Up to when the row's cluster was observed; a column of every raw table as keyed pipelines see
/// it.
pub const AS_OF: &str = "as_of";

/// A pipeline with the table it fills.
#[derive(Debug, Clone)]
pub struct Planned {
    pub pipeline: Pipeline,
    /// Output table; for views its public columns only matter.
    pub spec: Arc<TableSpec>,
    /// Raw tables everything is computed from.
    pub roots: BTreeSet<String>,
    /// Of windows of one source: the columns that the SQL reads, without those the runner adds.
    pub reads: Vec<String>,
    /// Of them, text that the SQL only carries along.
    pub carried: Vec<String>,
    /// What it is to the table that it rolls up.
    pub level: Option<Level>,
    pub(crate) prepared: Prepared,
}

/// A raw table and what is computed from it, each list in order of dependency.
#[derive(Debug, Clone)]
pub struct Group {
    pub raw: RawTable,
    pub keyed: Vec<Planned>,
    pub windowed: Vec<Planned>,
    /// Windows of several raw tables are put together from it among others, so what its events
    /// touch is noted.
    pub is_joined: bool,
}

/// Everything the lake computes.
#[derive(Debug, Clone)]
pub struct Plan {
    pub groups: Vec<Group>,
    /// Windows of several raw tables, in order of dependency; those that are not stored are steps
    /// on the way to others. They may read views, and views may read them.
    pub joined: Vec<Planned>,
    /// Views in order of dependency.
    pub views: Vec<Planned>,
}

impl Planned {
    /// The raw table everything is computed from; `None` if there are several.
    pub fn root(&self) -> Option<&String> {
        self.roots.first().filter(|_| self.roots.len() == 1)
    }
}

impl Plan {
    /// Checks all pipelines and puts them in order. Fails on the first pipeline that breaks a rule.
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
            .map(|raw| Group { raw, keyed: Vec::new(), windowed: Vec::new(), is_joined: false })
            .collect();
        let (mut joined, mut views) = (Vec::new(), Vec::new());
        let limits = Limits::default();
        let ctx = exec::session(&exec::runtime(limits)?, limits);
        for pipeline in in_order(pipelines)? {
            let planned = plan_one(&ctx, pipeline, &known).await?;
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
                    groups.iter_mut().filter(of_it).for_each(|group| group.is_joined = true);
                    joined.push(planned);
                }
                (Shape::Keyed { .. }, Some(group)) if group.raw.is_endless() => {
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
                        "its sources lead to more than one raw table; give each its place in time with `[extents]`"
                            .into();
                    return Err(LakeError::Pipeline { file: planned.pipeline.file, message });
                }
            }
        }
        groups.iter_mut().filter(|group| !group.keyed.is_empty()).for_each(Group::keep_no_parts);
        Ok(Self { groups, joined, views })
    }

    /// The same plan with only these pipelines, and only the raw tables that feed them. `names` must
    /// include every pipeline that one of them reads. Both plans share the cache of optimized SQL.
    pub fn only(&self, names: &BTreeSet<&str>) -> Self {
        let mut only = self.clone();
        let is_left = |planned: &Planned| names.contains(planned.pipeline.name.as_str());
        only.joined.retain(is_left);
        only.views.retain(is_left);
        let roots: BTreeSet<String> =
            self.pipelines().filter(|p| is_left(p)).flat_map(|planned| planned.roots.clone()).collect();
        only.groups.retain(|group| roots.contains(&group.raw.spec.name));
        for group in &mut only.groups {
            group.keyed.retain(is_left);
            group.windowed.retain(is_left);
            group.is_joined = only.joined.iter().any(|p| p.roots.contains(&group.raw.spec.name));
        }
        only
    }

    /// Joined pipelines whose result is a table.
    pub fn stored_joined(&self) -> impl Iterator<Item = &Planned> {
        self.joined.iter().filter(|p| p.pipeline.stored)
    }

    /// Every table with its description, raw tables first.
    pub fn tables(&self) -> Vec<Arc<TableSpec>> {
        let raw = self.groups.iter().map(|g| Arc::clone(&g.raw.spec));
        let computed = self.pipelines().filter(|p| p.pipeline.stored).map(|p| Arc::clone(&p.spec));
        raw.chain(computed).chain([window_revisions()]).collect()
    }

    /// Per table the wider levels of it, the narrowest first.
    pub fn levels(&self) -> BTreeMap<String, Vec<Level>> {
        let next = |table: &str| {
            let mut levels =
                self.pipelines().filter(|planned| planned.pipeline.rolls_up.as_deref() == Some(table));
            levels.find_map(|planned| planned.level.clone())
        };
        let rolled_up = self.pipelines().filter_map(|planned| planned.pipeline.rolls_up.clone());
        let levels = |table: String| {
            let wider = std::iter::successors(next(&table), |level| next(&level.table));
            // Levels in a circle end where they widen no more.
            let mut width_ms = 0;
            let wider =
                wider.take_while(|level| std::mem::replace(&mut width_ms, level.width_ms) < level.width_ms);
            let wider = wider.collect();
            (table, wider)
        };
        rolled_up.map(levels).collect()
    }

    /// Every pipeline, keyed ones first, views last.
    pub fn pipelines(&self) -> impl Iterator<Item = &Planned> {
        let computed = self.groups.iter().flat_map(|g| g.keyed.iter().chain(&g.windowed));
        computed.chain(&self.joined).chain(&self.views)
    }
}

impl Group {
    /// Where events are held until their key is finished, the new ones are not apart from those
    /// before.
    fn keep_no_parts(&mut self) {
        for planned in &mut self.windowed {
            Arc::make_mut(&mut planned.spec).parts.clear();
        }
    }

    /// Keyed pipelines whose result is a table.
    pub fn stored_keyed(&self) -> impl Iterator<Item = &Planned> {
        self.keyed.iter().filter(|p| p.pipeline.stored)
    }

    /// Windowed pipelines whose windows are kept in parts.
    pub fn in_parts(&self) -> impl Iterator<Item = &Planned> {
        self.windowed.iter().filter(|p| !p.spec.parts.is_empty())
    }

    /// Windowed pipelines whose windows are computed anew from all their rows when one is touched.
    pub fn computed_anew(&self) -> impl Iterator<Item = &Planned> {
        self.windowed.iter().filter(|p| p.spec.parts.is_empty())
    }

    /// Tables that hold the group's state in the lake, in the order in which they are committed.
    /// The last one is the anchor: when a crash interrupts the row of commits, the anchor is behind
    /// and tells where to resume.
    pub fn commit_order(&self) -> Vec<Arc<TableSpec>> {
        let windowed = self.windowed.iter().map(|p| Arc::clone(&p.spec));
        let raw = std::iter::once(Arc::clone(&self.raw.spec));
        windowed.chain(raw).chain(self.stored_keyed().map(|p| Arc::clone(&p.spec))).collect()
    }
}

struct Source {
    spec: Arc<TableSpec>,
    roots: BTreeSet<String>,
    is_joined: bool,
}

/// Sorts pipelines so that each comes after the ones it reads.
fn in_order(mut waiting: Vec<Pipeline>) -> Result<Vec<Pipeline>> {
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
            let message = format!("{} read each other in a circle; break it", names.join(", "));
            return Err(LakeError::Pipeline { file: blocked[0].file.clone(), message });
        }
        ordered.extend(ready);
        waiting = blocked;
    }
    Ok(ordered)
}

/// Plans a pipeline over empty tables, registered in `ctx` while it does.
async fn plan_one(
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
        let schema = seen_schema(&pipeline.shape, name, &source.spec);
        ctx.register_table(name.as_str(), Arc::new(MemTable::try_new(schema, vec![vec![]])?))?;
        roots.extend(source.roots.iter().cloned());
        if source.is_joined && matches!(pipeline.shape, Shape::Windowed { .. } | Shape::Keyed { .. }) {
            return Err(refuse(format!(
                "{name} is put together from several topics, so what is computed from it is too; write `[extents]` in place of \
                 `extent`"
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
    let parts = match (&pipeline.shape, pipeline.sources.as_slice()) {
        (Shape::Windowed { extent: Extent::Instant { .. }, .. }, [source]) => {
            let spec = &known[source].spec;
            let in_parts =
                spec.layout != Layout::Keyed && (spec.layout != Layout::Windowed || !spec.parts.is_empty());
            in_parts.then(|| parts_of(&logical, &pipeline.key, spec)).flatten().unwrap_or_default()
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
        parts,
    };
    // To find them takes longer than all the rest, and only windows of one source are asked.
    let mut reads = Vec::new();
    if let Shape::Windowed { extent, .. } = &pipeline.shape {
        reads = check::columns_read(ctx, &logical)?;
        reads.retain(|column| !added_columns(extent).contains(&column.as_str()));
    }
    if let Some(column) = reads.iter().find(|column| spec.parts.is_empty() && derived(column).is_some()) {
        return Err(refuse(format!(
            "column {column} is computed from samples as they come in and stands in no file; the SELECT must group the rows of \
             gpu_samples by the pipeline's key, and give out nothing else but sum(), count(), min() and max() of them"
        )));
    }
    let mut carried = carried_columns(&logical);
    carried.retain(|column| reads.contains(column));
    let width_ms = pipeline.shape.width_ms().filter(|_| pipeline.rolls_up.is_some());
    let level = width_ms.map(|width_ms| Level::of(&pipeline, width_ms, &logical));
    for name in &pipeline.sources {
        ctx.deregister_table(name.as_str())?;
    }
    let prepared = Prepared::default();
    Ok(Planned { spec: Arc::new(spec), roots, reads, carried, level, prepared, pipeline })
}

/// What the SQL of a pipeline of this shape sees of a source: its public columns and what the
/// runner adds.
pub fn seen_schema(shape: &Shape, name: &str, source: &TableSpec) -> SchemaRef {
    let mut fields: Vec<Field> =
        source.columns.iter().map(|c| Field::new(&c.name, c.data_type.clone(), true)).collect();
    let added: &[&str] = match shape {
        Shape::Keyed { .. } if source.layout == Layout::Raw => &[AS_OF],
        Shape::Windowed { extent, .. } => added_columns(extent),
        Shape::Joined { extents, .. } => extents.get(name).map_or(&[], added_columns),
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

/// What the runner adds to the rows of a window. A windowed source has a `window_start` of its own,
/// which the wider window's replaces.
pub fn added_columns(extent: &Extent) -> &'static [&'static str] {
    match extent {
        Extent::Interval { .. } => &["window_start", "clip_from", "clip_to"],
        Extent::Instant { .. } => &["window_start"],
    }
}

fn column(field: &Field, pipeline: &Pipeline) -> Result<Column> {
    let refuse = |message: String| LakeError::Pipeline { file: pipeline.file.clone(), message };
    let data_type = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8View,
        t if t.is_integer() => DataType::Int64,
        t @ DataType::Timestamp(_, Some(_)) if *t == timestamp_type() => timestamp_type(),
        t @ DataType::Float64 if pipeline.shape == Shape::View => t.clone(),
        other => {
            let message = format!(
                "column {} has type {other}; tables hold text, whole numbers and UTC times",
                field.name()
            );
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

    #[tokio::test]
    async fn shipped_pipelines_compile() {
        let folder = std::path::Path::new("../../pipelines");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == "sql"));
        let pipelines = files.iter().map(|f| Pipeline::load(f).unwrap()).collect();
        let plan = Plan::compile(pipelines).await.unwrap();
        let jobs = plan.groups.iter().find(|g| g.raw.spec.name == "job_events").unwrap();
        let keyed: Vec<_> = jobs.keyed.iter().map(|p| p.spec.name.as_str()).collect();
        assert!(keyed.iter().position(|n| *n == "job_facts") < keyed.iter().position(|n| *n == "attempts"));
        assert!(jobs.windowed.iter().any(|p| p.spec.name == "usage_1d"));
        let usage = jobs.windowed.iter().find(|p| p.spec.name == "usage_1h").unwrap();
        assert_eq!(
            usage.reads,
            ["cluster", "final_state", "from_time", "gpus_milli", "kind", "pool", "team", "user_name"]
        );
        assert_eq!(
            usage.carried,
            ["cluster", "final_state", "pool", "team", "user_name"],
            "kind is compared"
        );
    }

    /// All pipelines are planned in one session, so one must not see what another one registered.
    #[tokio::test]
    async fn a_pipeline_sees_only_the_sources_it_names() {
        let text = "\
--! name = \"zz_undeclared\"
--! doc = \"Reads a table that others name as a source, and it does not.\"
--! sources = [\"job_events\"]
--! [columns]
--! events = \"Number of events.\"
SELECT count(*) AS events FROM node_events";
        let mut pipelines = crate::shipped::shipped();
        assert!(pipelines.iter().any(|p| p.sources.iter().any(|source| source == "node_events")));
        pipelines.push(Pipeline::parse("zz_undeclared.sql", text).unwrap());
        let refused = Plan::compile(pipelines).await.unwrap_err().to_string();
        assert!(refused.contains("zz_undeclared.sql") && refused.contains("node_events"), "{refused}");
    }
}
