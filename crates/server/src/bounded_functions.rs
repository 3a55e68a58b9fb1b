//! Functions whose result may be far larger than what they are given: it is reckoned before they
//! are called.
//!
//! A step of an operator is not interrupted, and `repeat('x', 1000000000)` is one. A call that
//! would make more than a step may make is worked on in fewer rows at a time, and refused if one
//! row alone makes more.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, IntervalMonthDayNanoType, Schema, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, DataFusionError};
use datafusion::error::Result as EngineResult;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};

use crate::row_width::{TooWide, value_bytes};

/// Puts [`Bounded`] functions in place of those that have no bound.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Bytes that one call may make.
    pub(crate) step_bytes: usize,
}

impl FunctionRewrite for Bounds {
    fn name(&self) -> &str {
        "bounds of functions"
    }

    fn rewrite(&self, expr: Expr, _: &DFSchema, _: &ConfigOptions) -> EngineResult<Transformed<Expr>> {
        let bounded = |inner: Arc<ScalarUDF>, makes: OutputGrowth, args: Vec<Expr>| {
            let function = Bounded { inner, makes, step_bytes: self.step_bytes };
            Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(
                Arc::new(ScalarUDF::new_from_impl(function)),
                args,
            )))
        };
        Ok(match expr {
            Expr::ScalarFunction(call) => match OutputGrowth::of(call.func.name()) {
                Some(makes) if call.func.inner().downcast_ref::<Bounded>().is_none() => {
                    bounded(call.func, makes, call.args)
                }
                _ => Transformed::no(Expr::ScalarFunction(call)),
            },
            Expr::BinaryExpr(binary) if binary.op == Operator::StringConcat => {
                let both = Arc::new(ScalarUDF::new_from_impl(ConcatOperator::default()));
                bounded(both, OutputGrowth::AllItIsGiven, vec![*binary.left, *binary.right])
            }
            other => Transformed::no(other),
        })
    }
}

/// Inputs that determine the size of a function's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum OutputGrowth {
    /// The first argument, repeated as often as the second says.
    Copies,
    /// As many characters as the second argument says.
    Characters,
    /// The first argument with the third in each place of the second; at every character if that is
    /// a pattern.
    Replaced { pattern: bool },
    /// Numbers or times from the first argument to the second, in steps of the third.
    Range,
    /// As many items as the second argument says, each a copy of the third.
    Items,
    /// Times from the first argument to the second within the fourth and fifth, in steps of so
    /// many milliseconds as the third says.
    Windows,
    /// All arguments put together.
    AllItIsGiven,
    /// All other arguments, with the first one between each two; `concat_ws`.
    Separated,
    /// The items of the first argument with the second between each two, and the third for missing
    /// ones.
    Text,
}

impl OutputGrowth {
    fn of(function: &str) -> Option<Self> {
        Some(match function {
            "repeat" | "array_repeat" => Self::Copies,
            "lpad" | "rpad" => Self::Characters,
            "replace" => Self::Replaced { pattern: false },
            "regexp_replace" => Self::Replaced { pattern: true },
            "range" | "generate_series" | "gen_series" => Self::Range,
            "array_resize" => Self::Items,
            "window_starts" => Self::Windows,
            "concat" | "make_array" | "array_concat" => Self::AllItIsGiven,
            "concat_ws" => Self::Separated,
            "array_to_string" | "array_replace_all" | "array_replace_n" => Self::Text,
            _ => return None,
        })
    }

    /// Bytes that each row makes, or a little more.
    fn row_bytes(self, args: &[ArrayRef], rows: usize) -> EngineResult<Vec<usize>> {
        let bytes: Vec<Rows<usize>> = args.iter().map(|arg| Rows(value_bytes(arg))).collect();
        let bytes_of = |arg: usize, row: usize| bytes.get(arg).map_or(0, |of| of.at(row));
        let number = |arg: usize| args.get(arg).map_or_else(|| Ok(Rows(vec![])), numbers);
        Ok(match self {
            Self::Copies => {
                let times = number(1)?;
                (0..rows).map(|row| bytes_of(0, row).saturating_mul(times.at(row).max(0) as usize)).collect()
            }
            Self::Characters => {
                let characters = number(1)?;
                (0..rows).map(|row| (characters.at(row).max(0) as usize).saturating_mul(4)).collect()
            }
            Self::Replaced { pattern } => {
                let made = |row| {
                    let piece = if pattern { 1 } else { bytes_of(1, row).max(1) };
                    let places = bytes_of(0, row) / piece + 1;
                    bytes_of(0, row).saturating_add(places.saturating_mul(bytes_of(2, row)))
                };
                (0..rows).map(made).collect()
            }
            Self::Range => {
                let (from, to) = match args {
                    [to] => (Rows(vec![0]), numbers(to)?),
                    _ => (number(0)?, number(1)?),
                };
                let step = args.get(2).map_or_else(|| Ok(Rows(vec![1])), |step| steps(step, &args[0]))?;
                let items = |row| from.at(row).abs_diff(to.at(row)) / step.at(row).unsigned_abs().max(1) + 1;
                (0..rows).map(|row| (items(row) as usize).saturating_mul(8)).collect()
            }
            Self::Items => {
                let items = number(1)?;
                let made = |row| (items.at(row).max(0) as usize).saturating_mul(bytes_of(2, row).max(8));
                (0..rows).map(made).collect()
            }
            Self::Windows => {
                let time = |arg: usize| args.get(arg).map_or_else(|| Ok(Rows(vec![])), micros);
                let (from, to, low, high) = (time(0)?, time(1)?, time(3)?, time(4)?);
                let width_ms = number(2)?;
                let made = |row| {
                    let (from, to) = (from.at(row).max(low.at(row)), to.at(row).min(high.at(row)));
                    let width_us = width_ms.at(row).max(1).unsigned_abs().saturating_mul(1_000);
                    let windows = if from < to { from.abs_diff(to) / width_us + 2 } else { 0 };
                    (windows as usize).saturating_mul(8)
                };
                (0..rows).map(made).collect()
            }
            Self::AllItIsGiven => {
                (0..rows).map(|row| (0..args.len()).map(|arg| bytes_of(arg, row)).sum()).collect()
            }
            Self::Separated => {
                let between = |row| bytes_of(0, row).saturating_mul(args.len());
                (0..rows)
                    .map(|row| between(row) + (1..args.len()).map(|arg| bytes_of(arg, row)).sum::<usize>())
                    .collect()
            }
            Self::Text => {
                // Even an empty item has a place of its own.
                let between = |row| (1..args.len()).map(|arg| bytes_of(arg, row)).max().unwrap_or(0);
                (0..rows).map(|row| bytes_of(0, row).saturating_mul(1 + between(row).div_ceil(4))).collect()
            }
        })
    }
}

/// A value per row; one value may stand for all.
struct Rows<T>(Vec<T>);

impl<T: Copy + Default> Rows<T> {
    fn at(&self, row: usize) -> T {
        let row = if self.0.len() == 1 { 0 } else { row };
        self.0.get(row).copied().unwrap_or_default()
    }
}

/// Whole numbers, or times in nanoseconds; 0 where there is none.
fn numbers(column: &ArrayRef) -> EngineResult<Rows<i64>> {
    let times = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let column = match column.data_type() {
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
            cast(&cast(column, &times)?, &DataType::Int64)?
        }
        _ => cast(column, &DataType::Int64)?,
    };
    Ok(Rows(column.as_primitive::<Int64Type>().iter().map(Option::unwrap_or_default).collect()))
}

/// Times in microseconds, which reach further than nanoseconds do; 0 where there is none.
fn micros(column: &ArrayRef) -> EngineResult<Rows<i64>> {
    let times = cast(&cast(column, &DataType::Timestamp(TimeUnit::Microsecond, None))?, &DataType::Int64)?;
    Ok(Rows(times.as_primitive::<Int64Type>().iter().map(Option::unwrap_or_default).collect()))
}

/// Steps of a range, in the terms of [`numbers`]. Months are taken as the shortest.
fn steps(step: &ArrayRef, of: &ArrayRef) -> EngineResult<Rows<i64>> {
    const DAY: i64 = 86_400_000_000_000;
    let DataType::Interval(_) = step.data_type() else { return numbers(step) };
    let interval = DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano);
    let step = cast(step, &interval)?;
    let steps = step.as_primitive::<IntervalMonthDayNanoType>().iter().map(|step| {
        let step = step.unwrap_or_default();
        let days = i64::from(step.months) * 28 + i64::from(step.days);
        days.saturating_mul(DAY).saturating_add(step.nanoseconds)
    });
    let least = if of.data_type() == &DataType::Date32 { DAY } else { 1 };
    Ok(Rows(steps.map(|step| step.abs().max(least)).collect()))
}

/// A function that is called only if its result fits.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    inner: Arc<ScalarUDF>,
    makes: OutputGrowth,
    step_bytes: usize,
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_name(&self, args: &[Expr]) -> EngineResult<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, args: &[DataType]) -> EngineResult<DataType> {
        self.inner.return_type(args)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> EngineResult<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn coerce_types(&self, args: &[DataType]) -> EngineResult<Vec<DataType>> {
        self.inner.coerce_types(args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> EngineResult<ColumnarValue> {
        let given = args.args.iter().map(|arg| arg.to_array(1)).collect::<EngineResult<Vec<_>>>()?;
        // What has no column is called once, whatever the number of rows.
        let columns = args.args.iter().any(|arg| matches!(arg, ColumnarValue::Array(_)));
        let rows = if columns { args.number_rows } else { 1 };
        let made = self.makes.row_bytes(&given, rows)?;
        let widest = made.iter().copied().max().unwrap_or(0);
        if widest > self.step_bytes {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{} would make a value of {} KiB; one may have {}",
                self.name(),
                widest >> 10,
                self.step_bytes >> 10
            )));
        }
        let all = made.iter().fold(0_usize, |sum, bytes| sum.saturating_add(*bytes));
        if all > self.step_bytes {
            return Err(DataFusionError::External(Box::new(TooWide { bytes: widest })));
        }
        self.inner.invoke_with_args(args)
    }
}

/// The operator `||` of text as a function.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ConcatOperator {
    signature: Signature,
}

impl Default for ConcatOperator {
    fn default() -> Self {
        Self { signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for ConcatOperator {
    fn name(&self) -> &str {
        "||"
    }

    fn schema_name(&self, args: &[Expr]) -> EngineResult<String> {
        let names: Vec<String> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
        Ok(names.join(" || "))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> EngineResult<DataType> {
        BinaryTypeCoercer::new(&args[0], &Operator::StringConcat, &args[1]).get_result_type()
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> EngineResult<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, nullable)))
    }

    fn coerce_types(&self, args: &[DataType]) -> EngineResult<Vec<DataType>> {
        let (left, right) =
            BinaryTypeCoercer::new(&args[0], &Operator::StringConcat, &args[1]).get_input_types()?;
        Ok(vec![left, right])
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> EngineResult<ColumnarValue> {
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        let mut sides = args.args.iter().map(|arg| -> Arc<dyn PhysicalExpr> {
            match arg {
                ColumnarValue::Scalar(value) => Arc::new(Literal::new(value.clone())),
                ColumnarValue::Array(column) => {
                    fields.push(Field::new("side", column.data_type().clone(), true));
                    columns.push(Arc::clone(column));
                    Arc::new(Column::new("side", columns.len() - 1))
                }
            }
        });
        let (Some(left), Some(right)) = (sides.next(), sides.next()) else {
            return Err(DataFusionError::Internal("|| has two sides".into()));
        };
        drop(sides);
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(args.number_rows));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?;
        BinaryExpr::new(left, Operator::StringConcat, right).evaluate(&batch)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_lake::catalog::Catalog;
    use tidegate_lake::catalog::CatalogSource;

    use crate::{Encoded, Format, Overrides, QueryError, QueryLimits, QueryService};

    /// The answer to a query that may hold so many MiB.
    async fn ask(sql: &str, mib: usize, format: Format) -> Result<String, QueryError> {
        let limits = QueryLimits { memory_bytes: mib << 20, threads: 2, ..QueryLimits::default() };
        let service = QueryService::new(CatalogSource::fixed(Catalog::default()), limits)?;
        let mut encoded = Encoded::new(service.query(sql, Overrides::default()).await?, format)?;
        let mut answer = Vec::new();
        while let Some(piece) = encoded.next().await? {
            answer.extend(piece);
        }
        Ok(String::from_utf8(answer).unwrap())
    }

    #[tokio::test]
    async fn a_call_that_would_make_too_much_is_refused() {
        for call in [
            "repeat('x', 1000000000)",
            "lpad('x', 1000000000)",
            "rpad('x', value * 1000000000, 'y')",
            "replace(repeat('x', 100000), 'x', repeat('y', 100000))",
            "regexp_replace(repeat('x', 100000), 'x', repeat('y', 100000), 'g')",
            "range(0, value * 10000000000)",
            "generate_series(timestamp '2020-01-01', timestamp '2030-01-01', interval '1 microsecond')",
            "array_repeat(value, 1000000000)",
            "array_resize(make_array(value), 1000000000, 0)",
            "window_starts(timestamp '1970-01-01', timestamp '2262-01-01', 1, timestamp '1970-01-01', timestamp '2262-01-01')",
            "window_starts(timestamp '1970-01-01', timestamp '1971-01-01', value, timestamp '1970-01-01', timestamp '2262-01-01')",
            "lpad('x', 2147483647)",
            "array_to_string(range(0, 100000), repeat('x', 100000))",
            "concat_ws(repeat('x', 1000000), 'a', 'b', 'c', 'd')",
            "repeat('x', 1000000) || repeat('x', 1000000) || repeat('x', 1000000)",
        ] {
            let refused = ask(&format!("SELECT {call} FROM generate_series(1, 2)"), 32, Format::Json).await;
            let refused = refused.expect_err(call);
            let function = call.split_once('(').map_or(call, |(name, _)| name);
            let named = if call.contains("||") { "||" } else { function };
            assert_eq!(refused.code(), "memory_limit", "{call}: {refused}");
            assert!(refused.to_string().contains(&format!("{named} would make a value")), "{refused}");
            assert!(refused.hint().unwrap().contains("--query-memory"));
        }
    }

    #[tokio::test]
    async fn wide_rows_are_processed_in_smaller_batches() {
        for (sql, right) in [
            ("SELECT sum(length(repeat('x', value))) FROM generate_series(1, 5000)", "12502500"),
            (
                "SELECT count(*), max(length(a.s)) FROM (SELECT repeat('x', 50000) s) a, generate_series(1, 9000) g",
                "9000,50000",
            ),
            (
                "SELECT count(*), sum(array_length(a.list)) FROM (SELECT array_agg(value) list FROM generate_series(1, 9000)) a, \
                 generate_series(1, 100) g",
                "100,900000",
            ),
            (
                "SELECT count(*), sum(item) FROM (SELECT unnest(range(1, 1001)) item, value FROM generate_series(1, 9000)) x",
                "9000000,4504500000",
            ),
            (
                "SELECT sum(length(s || s)) FROM (SELECT repeat('x', value) s FROM generate_series(1, 5000)) a",
                "25005000",
            ),
        ] {
            let answer = ask(sql, 32, Format::Csv).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
            assert_eq!(answer.lines().nth(1), Some(right), "{sql}");
        }
    }

    #[tokio::test]
    async fn bounded_functions_return_the_same_values() {
        let sql = "SELECT t || '-' || value || t, NULL || t, concat(t, NULL, value), lpad(t, 3, '.'), \
                   replace(t, 'a', 'bb'), array_to_string(range(1, 4), ','), [value] || [2] \
                   FROM (SELECT 'a' AS t, value FROM generate_series(1, 1))";
        let answer = ask(sql, 64, Format::Json).await.unwrap();
        let values: Vec<serde_json::Value> = serde_json::from_str(&answer).unwrap();
        let values: Vec<String> = values[0].as_object().unwrap().values().map(ToString::to_string).collect();
        let mut expected = ["\"a-1a\"", "null", "\"a1\"", "\"..a\"", "\"bb\"", "\"1,2,3\"", "[1,2]"];
        let mut values: Vec<&str> = values.iter().map(String::as_str).collect();
        values.sort_unstable();
        expected.sort_unstable();
        assert_eq!(values, expected);
    }

    #[tokio::test]
    async fn rows_that_exceed_the_bounds_are_refused() {
        let long = "SELECT repeat('x', 10000000) a, repeat('y', 10000000) b";
        let refused = ask(long, 1024, Format::Json).await.unwrap_err();
        assert_eq!(refused.code(), "row_limit", "{refused}");
        let wide = "SELECT CASE WHEN value = 1 THEN repeat('x', 100000) END FROM generate_series(1, 1000)";
        let refused = ask(wide, 1024, Format::Table).await.unwrap_err();
        assert_eq!(refused.code(), "encode", "{refused}");
        assert_eq!(ask(wide, 1024, Format::Csv).await.unwrap().lines().map(str::len).max(), Some(100_000));
    }
}
