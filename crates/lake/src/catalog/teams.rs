//! A catalog as members of some teams see it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::provider_as_source;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, Operator, TableProviderFilterPushDown, TableType, col, lit,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::Catalog;
use crate::engine::view_cache::QueryViews;
use crate::error::Result;

/// The column that says whose a row is.
const TEAM: &str = "team";
/// Tables whose rows of one team tell of another one's: facts by which jobs are compared, with
/// accounts in lists.
const OF_SEVERAL_TEAMS: [&str; 1] = ["occupancy_facts"];

impl Catalog {
    /// The tables that have a column `team`, each with the rows of these teams alone. Rows without
    /// a team, and tables that cannot be cut, are not there: neither for queries nor for `describe`
    /// and messages. Sums over windows are not answered from rollups, which are not cut.
    ///
    /// # Errors
    /// If a table cannot be planned.
    pub(super) fn of_teams(&self, teams: &[String]) -> Result<Self> {
        let mut tables: BTreeMap<String, Arc<dyn TableProvider>> = BTreeMap::new();
        for (name, whole) in &self.tables {
            let has_team = whole.schema().field_with_name(TEAM).is_ok();
            if has_team && !OF_SEVERAL_TEAMS.contains(&name.as_str()) {
                tables.insert(name.clone(), Arc::new(TeamRows::of(name, whole, teams)?));
            }
        }
        let is_there = |name: &String| tables.contains_key(name);
        let questions = self.questions.iter().filter(|(name, _)| is_there(name));
        let specs = self.specs.iter().filter(|(name, _)| is_there(name));
        Ok(Self {
            specs: specs.map(|(name, spec)| (name.clone(), Arc::clone(spec))).collect(),
            views: self.views.iter().filter(|name| is_there(name)).cloned().collect(),
            questions: questions.map(|(name, question)| (name.clone(), question.clone())).collect(),
            tables,
            ..Self::default()
        })
    }
}

/// A table's rows of some teams.
///
/// It is no view that the planner may look into: a query's own conditions must never be evaluated
/// on rows that are not there, since a cast that fails tells their values in its message.
#[derive(Debug)]
struct TeamRows {
    schema: SchemaRef,
    rows: LogicalPlan,
}

impl TeamRows {
    fn of(name: &str, whole: &Arc<dyn TableProvider>, teams: &[String]) -> Result<Self> {
        let own = teams.iter().map(|team| lit(team.as_str())).collect();
        let rows = LogicalPlanBuilder::scan(name, provider_as_source(Arc::clone(whole)), None)?;
        let rows = rows.filter(col(TEAM).in_list(own, false))?.build()?;
        Ok(Self { schema: whole.schema(), rows })
    }
}

#[async_trait]
impl TableProvider for TeamRows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    /// Conditions that cannot fail may skip files and rows early.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>, DataFusionError> {
        let support = |filter: &&Expr| match cannot_fail(filter) {
            true => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let mut rows = LogicalPlanBuilder::from(self.rows.clone());
        for filter in filters.iter().filter(|filter| cannot_fail(filter)) {
            rows = rows.filter(filter.clone())?;
        }
        if let Some(columns) = projection {
            let column =
                |at: &usize| col(datafusion::common::Column::from_name(self.schema.field(*at).name()));
            rows = rows.project(columns.iter().map(column))?;
        }
        let mut input = state.create_physical_plan(&rows.build()?).await?;
        // As for a materialized view: the query's own guard does not see into the barrier.
        if let Some(guard) =
            state.config().get_extension::<QueryViews>().as_ref().and_then(|views| views.guard())
        {
            input = guard.guard(input)?;
        }
        Ok(Arc::new(TeamBarrier { input }))
    }
}

/// Whether a condition compares a column with a value, both of one type as the planner left them.
fn cannot_fail(filter: &Expr) -> bool {
    let Expr::BinaryExpr(comparison) = filter else { return false };
    let is_comparison = matches!(
        comparison.op,
        Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq
    );
    is_comparison
        && matches!(
            (&*comparison.left, &*comparison.right),
            (Expr::Column(_), Expr::Literal(..)) | (Expr::Literal(..), Expr::Column(_))
        )
}

/// Passes rows on. To the plan above it is a leaf: nothing is pushed below it, its plan is not
/// optimized a second time, and `EXPLAIN` shows neither files nor numbers of rows of other teams.
#[derive(Debug)]
struct TeamBarrier {
    input: Arc<dyn ExecutionPlan>,
}

impl DisplayAs for TeamBarrier {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TeamBarrier")
    }
}

impl ExecutionPlan for TeamBarrier {
    fn name(&self) -> &str {
        "TeamBarrier"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion, DataFusionError>,
    ) -> Result<TreeNodeRecursion, DataFusionError> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        Ok(self)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream, DataFusionError> {
        self.input.execute(partition, context)
    }
}
