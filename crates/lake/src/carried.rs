//! Text that a window pipeline only carries along travels as whole numbers.
//!
//! One interval becomes a row for every hour it lasts. Grouping and sorting those rows by team,
//! user, pool, … compares the same few texts over and over. A column the SQL does nothing with but
//! group by it and give it out is replaced by the rank of its text among all texts of the column,
//! and put back in the result: equal ranks are equal texts, and ranks sort as their texts do, so
//! the result is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringViewArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::error::ArrowError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};
use hashbrown::HashMap;

/// Text columns of the sources that the plan only groups by and gives out under their own names,
/// sorted.
pub fn carried_columns(plan: &LogicalPlan) -> Vec<String> {
    let (mut text, mut used, mut simple) = (BTreeSet::new(), BTreeSet::new(), true);
    let walked = plan.apply_with_subqueries(|node| {
        let bare: &[Expr] = match node {
            LogicalPlan::TableScan(scan) => {
                let is_text = |f: &&Arc<Field>| f.data_type() == &DataType::Utf8View;
                text.extend(scan.projected_schema.fields().iter().filter(is_text).map(|f| f.name().clone()));
                &[]
            }
            LogicalPlan::Projection(projection) => &projection.expr,
            LogicalPlan::Aggregate(aggregate) => &aggregate.group_expr,
            LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => &[],
            _ => {
                simple = false;
                &[]
            }
        };
        for expr in node.expressions() {
            if matches!(expr, Expr::Column(_)) && bare.contains(&expr) {
                continue;
            }
            if let Expr::Alias(alias) = &expr {
                used.insert(alias.name.clone());
            }
            used.extend(expr.column_refs().iter().map(|c| c.name.clone()));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    if walked.is_err() || !simple {
        return Vec::new();
    }
    text.difference(&used).cloned().collect()
}

/// The texts behind the ranks, per column, sorted.
#[derive(Debug, Default)]
pub struct Ranks {
    texts: BTreeMap<String, StringViewArray>,
}

impl Ranks {
    /// Replaces the columns' text by ranks; NULL stays NULL.
    pub fn encode(batch: &RecordBatch, columns: &[String]) -> Result<(RecordBatch, Self), ArrowError> {
        let mut ranks = Self::default();
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
            if columns.contains(field.name()) {
                let (numbers, texts) = rank(array.as_string_view());
                ranks.texts.insert(field.name().clone(), texts);
                fields.push(Arc::new(Field::new(field.name(), DataType::Int64, true)));
                arrays.push(Arc::new(numbers) as ArrayRef);
            } else {
                fields.push(Arc::clone(field));
                arrays.push(Arc::clone(array));
            }
        }
        Ok((RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?, ranks))
    }

    /// Puts the texts back.
    pub fn decode(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
            if let Some(texts) = self.texts.get(field.name()) {
                let at: UInt32Array = array.as_primitive::<Int64Type>().unary(|rank| rank as u32);
                fields.push(Arc::new(Field::new(field.name(), DataType::Utf8View, true)));
                arrays.push(take(texts, &at, None)?);
            } else {
                fields.push(Arc::clone(field));
                arrays.push(Arc::clone(array));
            }
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
    }
}

/// Each text's rank among the column's texts, and the texts in order of rank.
fn rank(column: &StringViewArray) -> (Int64Array, StringViewArray) {
    let mut numbers: HashMap<&str, i64> = HashMap::new();
    column.iter().flatten().for_each(|text| _ = numbers.entry(text).or_insert(0));
    let mut texts: Vec<&str> = numbers.keys().copied().collect();
    texts.sort_unstable();
    for (text, number) in texts.iter().zip(0..) {
        numbers.insert(text, number);
    }
    let ranked = column.iter().map(|text| text.map(|text| numbers[text])).collect();
    (ranked, StringViewArray::from_iter_values(texts))
}

#[cfg(test)]
mod tests {
    use datafusion::datasource::MemTable;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// Text that is compared, computed with, renamed or met in another row stays text.
    #[tokio::test]
    async fn only_text_that_is_passed_on_is_carried() {
        let ctx = SessionContext::new();
        let fields = ["a", "b", "c"].map(|name| Field::new(name, DataType::Utf8View, true)).to_vec();
        let table = MemTable::try_new(Arc::new(Schema::new(fields)), vec![vec![]]).unwrap();
        ctx.register_table("t", Arc::new(table)).unwrap();
        for (sql, expected) in [
            ("SELECT a, b, count(*) AS n FROM t GROUP BY a, b", "a b c"),
            ("SELECT a, b, count(*) AS n FROM t WHERE b = 'x' GROUP BY a, b", "a c"),
            ("SELECT a, b, count(c) AS n FROM t GROUP BY a, b", "a b"),
            ("SELECT a, upper(b) AS b, count(*) AS n FROM t GROUP BY a, upper(b)", "a c"),
            ("SELECT a, b AS c, count(*) AS n FROM t GROUP BY a, b", "a"),
            ("SELECT a, count(*) AS n FROM t GROUP BY a HAVING a > 'x'", "b c"),
            ("SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b) AS n FROM t", ""),
            ("SELECT t.a, u.b FROM t JOIN t u ON t.a = u.a", ""),
            ("SELECT a FROM t WHERE b IN (SELECT c FROM t)", ""),
        ] {
            let plan = ctx.state().create_logical_plan(sql).await.unwrap();
            assert_eq!(carried_columns(&plan).join(" "), expected, "{sql}");
        }
    }

    #[test]
    fn ranks_sort_as_their_texts_and_come_back() {
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec![
            Some("b"),
            None,
            Some(""),
            Some("a-longer-text-than-12"),
            Some("b"),
        ]));
        let batch = RecordBatch::try_from_iter_with_nullable([("team", Arc::clone(&texts), true)]).unwrap();
        let (ranked, ranks) = Ranks::encode(&batch, &["team".into()]).unwrap();
        let numbers: Vec<Option<i64>> = ranked.column(0).as_primitive::<Int64Type>().iter().collect();
        assert_eq!(numbers, [Some(2), None, Some(0), Some(1), Some(2)]);
        assert_eq!(ranks.decode(&ranked).unwrap(), batch);
    }
}
