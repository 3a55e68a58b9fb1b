//! Results of planning a pipeline. Those of the shipped pipelines are stored in a file.
//!
//! Planning all shipped pipelines takes most of the time of a short command: the optimizer runs on
//! each. Their text changes only between releases, so `shipped_findings.json` holds what planning
//! finds about each, with a fingerprint of the parsed file and of its sources. A pipeline whose
//! fingerprint differs (a user's own, or one that reads a user's) is planned.
//!
//! A test plans all of them anew and fails if the file is out of date. To update it, run
//! `TIDEGATE_BLESS=1 cargo test -p tidegate-lake findings`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{LakeError, Result};
use crate::pipeline::check;
use crate::pipeline::definition::{Extent, Pipeline, Shape};
use crate::pipeline::partials::partial_merges;
use crate::pipeline::pass_through::pass_through_columns;
use crate::pipeline::plan::added_columns;
use crate::pipeline::rollup::sums_and_maxima;
use crate::raw::samples::metrics::derived_column;
use crate::table::{Layout, Merge, TableSpec, timestamp_type};

/// What planning finds out about a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Findings {
    /// Output columns, in order.
    pub columns: Vec<(String, ColumnType)>,
    /// How the columns of partial aggregates merge, see [`TableSpec::partials`].
    pub partials: Vec<Merge>,
    /// Columns that the SQL reads, sorted, if it is windowed.
    pub columns_read: Vec<String>,
    /// Those of `columns_read` that are text and only passed through.
    pub pass_through: Vec<String>,
    /// Of a rollup: columns that are sums, and columns that are maxima.
    pub rollup: Option<(BTreeSet<String>, BTreeSet<String>)>,
}

/// Type of a table's column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ColumnType {
    Text,
    Integer,
    Time,
    /// Only in views.
    Float,
}

impl ColumnType {
    pub(crate) fn arrow(self) -> DataType {
        match self {
            Self::Text => DataType::Utf8View,
            Self::Integer => DataType::Int64,
            Self::Time => timestamp_type(),
            Self::Float => DataType::Float64,
        }
    }
}

impl Findings {
    /// Plans the SQL of a pipeline over its sources, which `ctx` holds, and checks every rule.
    pub(crate) async fn of(
        ctx: &SessionContext,
        pipeline: &Pipeline,
        sources: &[(SchemaRef, &TableSpec)],
    ) -> Result<Self> {
        let logical = check::check(ctx, pipeline).await?;
        let fields = logical.schema().fields().iter();
        let columns = fields.map(|field| column_type(field, pipeline)).collect::<Result<_>>()?;
        let partials = partials(pipeline, &logical, sources);
        // Finding the columns takes longer than everything else, and only windows over one source
        // need them.
        let mut columns_read = Vec::new();
        if let Shape::Windowed { extent, .. } = &pipeline.shape {
            columns_read = check::columns_read(ctx, &logical)?;
            columns_read.retain(|column| !added_columns(extent).contains(&column.as_str()));
        }
        let derived = columns_read.iter().find(|column| derived_column(column).is_some());
        if let Some(column) = derived.filter(|_| partials.is_empty()) {
            let message = format!(
                "column {column} is computed from samples as they come in and stands in no file; the SELECT must group the rows \
                 of gpu_samples by the pipeline's key, and give out nothing else but sum(), count(), min() and max() of them"
            );
            return Err(LakeError::Pipeline { file: pipeline.file.clone(), message });
        }
        let mut pass_through = pass_through_columns(&logical);
        pass_through.retain(|column| columns_read.contains(column));
        let rollup = pipeline.rolls_up.is_some().then(|| sums_and_maxima(&logical));
        Ok(Self { columns, partials, columns_read, pass_through, rollup })
    }
}

fn partials(pipeline: &Pipeline, logical: &LogicalPlan, sources: &[(SchemaRef, &TableSpec)]) -> Vec<Merge> {
    let Shape::Windowed { extent: Extent::Instant { .. }, .. } = pipeline.shape else { return Vec::new() };
    let [(_, source)] = sources else { return Vec::new() };
    let mergeable = match source.layout {
        Layout::Raw | Layout::Samples => true,
        Layout::Windowed => !source.partials.is_empty(),
        Layout::Keyed => false,
    };
    mergeable.then(|| partial_merges(logical, &pipeline.key, source)).flatten().unwrap_or_default()
}

fn column_type(field: &Field, pipeline: &Pipeline) -> Result<(String, ColumnType)> {
    let of_type = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ColumnType::Text,
        t if t.is_integer() => ColumnType::Integer,
        t if *t == timestamp_type() => ColumnType::Time,
        DataType::Float64 if pipeline.shape == Shape::View => ColumnType::Float,
        other => {
            let message =
                format!("column {} has type {other}; tables hold text, integers and UTC times", field.name());
            return Err(LakeError::Pipeline { file: pipeline.file.clone(), message });
        }
    };
    Ok((field.name().clone(), of_type))
}

/// Findings about one shipped pipeline, and what they hold for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Shipped {
    fingerprint: String,
    findings: Findings,
}

static SHIPPED: LazyLock<BTreeMap<String, Shipped>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("shipped_findings.json")).expect("the tests below read it")
});

/// The findings about a shipped pipeline over sources of these schemas; `None` if it must be
/// planned.
pub(crate) fn shipped_findings(
    pipeline: &Pipeline,
    sources: &[(SchemaRef, &TableSpec)],
) -> Option<&'static Findings> {
    let shipped = SHIPPED.get(&pipeline.name)?;
    (shipped.fingerprint == fingerprint(pipeline, sources)).then_some(&shipped.findings)
}

/// Hash of all that planning reads: the parsed file, and of each source the schema that the SQL
/// sees and how the table is kept.
fn fingerprint(pipeline: &Pipeline, sources: &[(SchemaRef, &TableSpec)]) -> String {
    let mut hash = Xxh3::new();
    hash.update(format!("{pipeline:?}").as_bytes());
    for (schema, spec) in sources {
        let fields = schema.fields().iter().map(|field| (field.name(), field.data_type()));
        let layout: Layout = spec.layout;
        hash.update(format!("{:?} {layout:?} {:?}", fields.collect::<Vec<_>>(), spec.partials).as_bytes());
    }
    format!("{:032x}", hash.digest128())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::compile::{Compiler, in_order};
    use crate::pipeline::shipped;

    const FILE: &str = "src/pipeline/shipped_findings.json";

    /// What planning all shipped pipelines anew finds.
    async fn found() -> BTreeMap<String, Shipped> {
        let (mut compiler, mut found) = (Compiler::new(false), BTreeMap::new());
        for pipeline in in_order(shipped()).unwrap() {
            let fingerprint = fingerprint(&pipeline, &compiler.sources(&pipeline));
            let findings = compiler.find(&pipeline).await.unwrap();
            found.insert(pipeline.name.clone(), Shipped { fingerprint, findings });
            compiler.plan(pipeline).await.unwrap();
        }
        found
    }

    #[tokio::test]
    async fn the_stored_findings_are_those_of_planning() {
        let found = found().await;
        if std::env::var_os("TIDEGATE_BLESS").is_some() {
            // A line per pipeline, so that a change of one is a change of one line.
            let line = |(name, shipped)| format!("\"{name}\":{}", serde_json::to_string(shipped).unwrap());
            let lines: Vec<String> = found.iter().map(line).collect();
            std::fs::write(FILE, format!("{{\n{}\n}}\n", lines.join(",\n"))).unwrap();
            return;
        }
        let hint = "run `TIDEGATE_BLESS=1 cargo test -p tidegate-lake findings` after a pipeline changed";
        let differs: Vec<&String> = found
            .iter()
            .filter(|(name, new)| SHIPPED.get(*name) != Some(new))
            .map(|(name, _)| name)
            .collect();
        assert!(differs.is_empty() && SHIPPED.len() == found.len(), "{differs:?} differ; {hint}");
    }

    #[test]
    fn a_changed_pipeline_or_source_is_planned() {
        let pipeline = shipped().into_iter().find(|p| p.name == "job_facts").unwrap();
        let compiler = Compiler::new(true);
        let sources = compiler.sources(&pipeline);
        assert!(shipped_findings(&pipeline, &sources).is_some());
        let changed = Pipeline { sql: format!("{} ", pipeline.sql), ..pipeline.clone() };
        assert!(shipped_findings(&changed, &sources).is_none());
        let (schema, spec) = &sources[0];
        let narrower = std::sync::Arc::new(arrow::datatypes::Schema::new(schema.fields()[1..].to_vec()));
        assert!(shipped_findings(&pipeline, &[(narrower, spec)]).is_none());
    }
}
