//! An interval times a number, as in Postgres: `INTERVAL '5 minutes' * 3`. The engine has none, and
//! BI tools round times to 5 or 15 minutes with it.

use std::sync::Arc;

use arrow::array::{AsArray, IntervalMonthDayNanoArray};
use arrow::datatypes::{DataType, Float64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit};
use datafusion::common::{DFSchema, ScalarValue, exec_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    cast,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);
const DAY_NS: f64 = 86_400e9;
/// Days of a part of a month.
const MONTH_DAYS: f64 = 30.0;

/// Plans the product of an interval and a number, in either order.
#[derive(Debug)]
pub(crate) struct IntervalProducts;

impl ExprPlanner for IntervalProducts {
    fn plan_binary_op(
        &self,
        binary: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        if binary.op != BinaryOperator::Multiply {
            return Ok(PlannerResult::Original(binary));
        }
        // A parameter has no type yet.
        let types = (binary.left.get_type(schema), binary.right.get_type(schema));
        let (interval, number) = match types {
            (Ok(DataType::Interval(_)), Ok(of)) if of.is_numeric() => (binary.left, binary.right),
            (Ok(of), Ok(DataType::Interval(_))) if of.is_numeric() => (binary.right, binary.left),
            _ => return Ok(PlannerResult::Original(binary)),
        };
        let function = ScalarUDF::from(Product(Signature::exact(
            vec![INTERVAL, DataType::Float64],
            Volatility::Immutable,
        )));
        let args = vec![cast(interval, INTERVAL), cast(number, DataType::Float64)];
        Ok(PlannerResult::Planned(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), args))))
    }
}

/// The product. SQL cannot name it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Product(Signature);

impl ScalarUDFImpl for Product {
    fn name(&self) -> &'static str {
        "interval * number"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let intervals = arrays[0].as_primitive::<IntervalMonthDayNanoType>();
        let numbers = arrays[1].as_primitive::<Float64Type>();
        let products: IntervalMonthDayNanoArray = intervals
            .iter()
            .zip(numbers)
            .map(|pair| match pair {
                (Some(interval), Some(number)) => product(interval, number).map(Some),
                _ => Ok(None),
            })
            .collect::<Result<_>>()?;
        Ok(match is_constant && products.len() == 1 {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&products, 0)?),
            false => ColumnarValue::Array(Arc::new(products)),
        })
    }
}

/// What is left of a month becomes days, and what is left of a day becomes time.
///
/// # Errors
/// It is longer than an interval can be.
fn product(interval: IntervalMonthDayNano, number: f64) -> Result<IntervalMonthDayNano> {
    let out_of_range =
        || exec_datafusion_err!("{number} times this interval is out of the range of intervals");
    let months = f64::from(interval.months) * number;
    let days = f64::from(interval.days) * number + months.fract() * MONTH_DAYS;
    // Exact below 104 days, and to the microsecond below 285 years.
    let nanoseconds = (interval.nanoseconds as f64 * number + days.fract() * DAY_NS).round();
    let fits = |value: f64, most: f64| value.is_finite() && value.abs() < most;
    if !fits(months, 2_147_483_648.0) || !fits(days, 2_147_483_648.0) || !fits(nanoseconds, i64::MAX as f64) {
        return Err(out_of_range());
    }
    Ok(IntervalMonthDayNano::new(months.trunc() as i32, days.trunc() as i32, nanoseconds as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: i64 = 60_000_000_000;

    #[test]
    fn parts_of_months_and_days_go_on() {
        let of = IntervalMonthDayNano::new;
        for (interval, number, wanted) in [
            (of(0, 0, 5 * MINUTE_NS), 11.0, of(0, 0, 55 * MINUTE_NS)),
            (of(0, 0, 5 * MINUTE_NS), -0.5, of(0, 0, -150_000_000_000)),
            (of(1, 0, 0), 1.5, of(1, 15, 0)),
            (of(0, 1, 0), 1.25, of(0, 1, 360 * MINUTE_NS)),
            (of(-2, 3, 1), 0.0, of(0, 0, 0)),
        ] {
            assert_eq!(product(interval, number).unwrap(), wanted, "{interval:?} times {number}");
        }
        for number in [f64::NAN, f64::INFINITY, 1e300, -2_147_483_648.0] {
            assert!(product(of(1, 0, 1), number).is_err(), "{number}");
        }
    }

    #[tokio::test]
    async fn products_are_planned_in_both_orders() {
        use datafusion::execution::FunctionRegistry;
        use datafusion::prelude::SessionContext;

        let ctx = SessionContext::new();
        ctx.state_ref().write().register_expr_planner(Arc::new(IntervalProducts)).unwrap();
        let sql = "SELECT TIMESTAMP '2024-03-01T10:00:00' + INTERVAL '15 minutes' * floor(47 / 15), \
                   TIMESTAMP '2024-03-01T10:00:00' + n * INTERVAL '1 day', INTERVAL '1 day' * NULL::bigint \
                   FROM (VALUES (1), (NULL)) AS t (n)";
        let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
        let shown = arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string();
        assert_eq!(shown.matches("2024-03-01T10:45:00").count(), 2, "{shown}");
        assert_eq!(shown.matches("2024-03-02T10:00:00").count(), 1, "{shown}");
        assert!(ctx.sql("SELECT INTERVAL '1 day' * 'x'").await.is_err());
    }
}
