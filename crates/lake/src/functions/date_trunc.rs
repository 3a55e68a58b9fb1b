//! `date_trunc()`: the engine's function, which asks for the rules of the time zone at every value.
//! In UTC there are none, so times of UTC go there without a zone and are divided instead.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, make_array};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::functions::datetime;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// The function under the engine's name, which rewrites onto rollups go by.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct DateTrunc {
    engine: Arc<ScalarUDF>,
}

impl DateTrunc {
    pub fn udf() -> ScalarUDF {
        ScalarUDF::from(Self { engine: datetime::date_trunc() })
    }
}

impl ScalarUDFImpl for DateTrunc {
    fn name(&self) -> &str {
        self.engine.name()
    }
    fn aliases(&self) -> &[String] {
        self.engine.aliases()
    }
    fn signature(&self) -> &Signature {
        self.engine.signature()
    }
    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        self.engine.return_type(args)
    }
    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.engine.return_field_from_args(args)
    }
    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.engine.output_ordering(inputs)
    }
    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(ColumnarValue::Array(times)) = args.args.get(1) else {
            return self.engine.invoke_with_args(args);
        };
        let zoned = times.data_type().clone();
        match &zoned {
            DataType::Timestamp(unit, Some(zone)) if is_utc(zone) => {
                args.args[1] = ColumnarValue::Array(retyped(times, DataType::Timestamp(*unit, None))?);
                match self.engine.invoke_with_args(args)? {
                    ColumnarValue::Array(begun) => Ok(ColumnarValue::Array(retyped(&begun, zoned)?)),
                    begun @ ColumnarValue::Scalar(_) => begun.cast_to(&zoned, None),
                }
            }
            _ => self.engine.invoke_with_args(args),
        }
    }
}

fn is_utc(zone: &str) -> bool {
    matches!(zone, "UTC" | "+00:00" | "Z")
}

/// The same values under another type of the same layout.
fn retyped(times: &ArrayRef, data_type: DataType) -> Result<ArrayRef> {
    Ok(make_array(times.to_data().into_builder().data_type(data_type).build()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{AsArray, TimestampMicrosecondArray};
    use arrow::datatypes::TimestampMicrosecondType;
    use datafusion::prelude::SessionContext;

    use crate::table::timestamp_type;

    /// The engine's own function and this one, of the same times.
    async fn both(part: &str, times: &TimestampMicrosecondArray) -> [ArrayRef; 2] {
        let mut found = Vec::new();
        for own in [false, true] {
            let ctx = SessionContext::new();
            if own {
                crate::functions::register(&ctx);
            }
            let rows = arrow::array::RecordBatch::try_from_iter([("t", Arc::new(times.clone()) as ArrayRef)]);
            ctx.register_batch("rows", rows.unwrap()).unwrap();
            let sql = format!("SELECT date_trunc('{part}', t) AS begun FROM rows");
            let batches = ctx.sql(&sql).await.unwrap().collect().await.unwrap();
            found.push(Arc::clone(batches[0].column(0)));
        }
        found.try_into().expect("two")
    }

    #[tokio::test]
    async fn it_begins_where_the_engines_own_does_before_and_after_1970() {
        let odd = 7_777_777_777_777_i64;
        let times = (-300..300).map(|n| (n % 7 != 0).then_some(n * odd + n % 13));
        for zone in ["UTC", "+00:00", "Europe/Berlin"] {
            let times = times.clone().collect::<TimestampMicrosecondArray>().with_timezone(zone);
            for part in ["second", "minute", "hour", "day", "week", "month", "quarter", "year"] {
                let [engine, own] = both(part, &times).await;
                assert_eq!(&engine, &own, "{part} in {zone}");
                assert_eq!(own.null_count(), times.null_count());
            }
        }
    }

    #[tokio::test]
    async fn a_day_begins_at_midnight_and_keeps_its_type() {
        // 2026-11-25 17:45:12.5 and 1969-12-31 23:59:59.
        let times =
            TimestampMicrosecondArray::from(vec![1_795_628_712_500_000, -1_000_000]).with_timezone("UTC");
        let [_, days] = both("day", &times).await;
        assert_eq!(days.data_type(), &timestamp_type());
        assert_eq!(
            days.as_primitive::<TimestampMicrosecondType>().values()[..],
            [1_795_564_800_000_000, -86_400_000_000]
        );
    }
}
