//! SQL functions of the lake. All are immutable: same arguments, same result, on any machine at any time.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, ListBuilder, TimestampMicrosecondArray, TimestampMicrosecondBuilder,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Int64Type, TimestampMicrosecondType};
use datafusion::common::{Result, cast::as_int64_array, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use crate::latest::Latest;
use crate::table::timestamp_type;
use crate::window::{MICROS_PER_MS, floor_to};

/// Name, usage and meaning of every function added to SQL, for `describe functions` and the reference.
pub const DOCS: [(&str, &str, &str); 9] = [
    (
        "gpu_ms",
        "gpu_ms(gpus_milli, begin, from, to)",
        "GPU-milliseconds of a hold of gpus_milli that began at `begin`, inside [from, to). Parts of one hold add up to the whole exactly.",
    ),
    ("ms_between", "ms_between(from, to)", "Whole milliseconds from one time to another."),
    ("plus_ms", "plus_ms(time, ms)", "The time that many milliseconds later."),
    (
        "millionths",
        "millionths(n, of)",
        "n / 1,000,000 of `of`, rounded half up: of a ratio in ppm and a time, the time; of bytes per second and a time in µs, the bytes.",
    ),
    (
        "us_known",
        "us_known(value, us)",
        "The time where both are known, else 0: sums of it are the time for which the value was known.",
    ),
    (
        "log_bucket",
        "log_bucket(n)",
        "Lower bound of the bucket n falls into; buckets grow by an eighth of a power of two, so a quantile read from them is at most 12.5 % low.",
    ),
    ("window_of", "window_of(time, width_ms)", "Start of the window of that width that holds the time."),
    (
        "window_starts",
        "window_starts(from, to, width_ms, low, high)",
        "Starts of the windows of that width that [from, to) touches, between low and high.",
    ),
    (
        "latest",
        "latest(value, time)",
        "Aggregate: the value with the greatest time, NULLs left out; of equal times the greatest value.",
    ),
];

/// Adds the lake's functions to a session.
pub fn register(ctx: &SessionContext) {
    let time = timestamp_type();
    let int = DataType::Int64;
    let functions = [
        Function::new(
            "gpu_ms",
            vec![int.clone(), time.clone(), time.clone(), time.clone()],
            int.clone(),
            gpu_ms,
        ),
        Function::new("ms_between", vec![time.clone(), time.clone()], int.clone(), ms_between),
        Function::new("plus_ms", vec![time.clone(), int.clone()], time.clone(), plus_ms),
        Function::new("window_of", vec![time.clone(), int.clone()], time.clone(), window_of),
        Function::new("millionths", vec![int.clone(), int.clone()], int.clone(), millionths),
        Function::new("us_known", vec![int.clone(), int.clone()], int.clone(), us_known),
        Function::new("log_bucket", vec![int.clone()], int.clone(), log_bucket),
        Function::new(
            "window_starts",
            vec![time.clone(), time.clone(), int, time.clone(), time.clone()],
            DataType::List(Arc::new(Field::new("item", time, true))),
            window_starts,
        ),
    ];
    for function in functions {
        ctx.register_udf(ScalarUDF::from(function));
    }
    ctx.register_udaf(Latest::udaf());
}

/// A function over whole columns with fixed argument types.
#[derive(Debug, Clone)]
struct Function {
    name: &'static str,
    signature: Signature,
    returns: DataType,
    body: fn(&[ArrayRef]) -> Result<ArrayRef>,
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
impl Eq for Function {}
impl std::hash::Hash for Function {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Function {
    fn new(
        name: &'static str,
        args: Vec<DataType>,
        returns: DataType,
        body: fn(&[ArrayRef]) -> Result<ArrayRef>,
    ) -> Self {
        Self { name, signature: Signature::exact(args, Volatility::Immutable), returns, body }
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _args: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        Ok(ColumnarValue::Array((self.body)(&arrays)?))
    }
}

fn times(array: &ArrayRef) -> &TimestampMicrosecondArray {
    array.as_primitive::<TimestampMicrosecondType>()
}

fn gpu_ms(args: &[ArrayRef]) -> Result<ArrayRef> {
    let gpus = as_int64_array(&args[0])?;
    let (begin, from, to) = (times(&args[1]), times(&args[2]), times(&args[3]));
    let rows = (0..gpus.len()).map(|i| {
        let known = gpus.is_valid(i) && begin.is_valid(i) && from.is_valid(i) && to.is_valid(i);
        known.then(|| {
            let ms = |t: &TimestampMicrosecondArray| t.value(i).div_euclid(MICROS_PER_MS);
            tidegate_events::gpu_ms_between(gpus.value(i).max(0) as u64, ms(begin), ms(from), ms(to))
        })
    });
    Ok(Arc::new(rows.collect::<Int64Array>()))
}

fn ms_between(args: &[ArrayRef]) -> Result<ArrayRef> {
    let out: Int64Array = arrow::compute::binary(times(&args[0]), times(&args[1]), |a, b| {
        b.div_euclid(MICROS_PER_MS) - a.div_euclid(MICROS_PER_MS)
    })?;
    Ok(Arc::new(out))
}

fn plus_ms(args: &[ArrayRef]) -> Result<ArrayRef> {
    let ms = args[1].as_primitive::<Int64Type>();
    let out: TimestampMicrosecondArray =
        arrow::compute::binary(times(&args[0]), ms, |t, ms| t + ms * MICROS_PER_MS)?;
    Ok(Arc::new(out.with_timezone("UTC")))
}

fn window_of(args: &[ArrayRef]) -> Result<ArrayRef> {
    let width_ms = args[1].as_primitive::<Int64Type>();
    let out: TimestampMicrosecondArray =
        arrow::compute::binary(times(&args[0]), width_ms, |t, ms| floor_to(t, ms.max(1) * MICROS_PER_MS))?;
    Ok(Arc::new(out.with_timezone("UTC")))
}

fn millionths(args: &[ArrayRef]) -> Result<ArrayRef> {
    let (n, of) = (args[0].as_primitive::<Int64Type>(), args[1].as_primitive::<Int64Type>());
    let exact = |n: i64, of: i64| {
        let product = n.checked_mul(of).and_then(|p| p.checked_add(500_000));
        product.map_or_else(
            || (i128::from(n) * i128::from(of) + 500_000).div_euclid(1_000_000) as i64,
            |p| p.div_euclid(1_000_000),
        )
    };
    let out: Int64Array = arrow::compute::binary(n, of, exact)?;
    Ok(Arc::new(out))
}

fn us_known(args: &[ArrayRef]) -> Result<ArrayRef> {
    let (value, us) = (&args[0], args[1].as_primitive::<Int64Type>());
    let known = NullBuffer::union(value.logical_nulls().as_ref(), us.nulls());
    let out = match known {
        None => us.values().clone(),
        Some(known) => {
            us.values().iter().zip(&known).map(|(us, known)| if known { *us } else { 0 }).collect()
        }
    };
    Ok(Arc::new(Int64Array::new(out, None)))
}

/// Eight buckets per power of two: 0..8 exact, then lower bounds with three significant bits after the leading one.
fn log_bucket(args: &[ArrayRef]) -> Result<ArrayRef> {
    let out: Int64Array = args[0].as_primitive::<Int64Type>().unary(|n| {
        let n = n.max(0);
        let shift = (64 - n.leading_zeros()).saturating_sub(4);
        (n >> shift) << shift
    });
    Ok(Arc::new(out))
}

fn window_starts(args: &[ArrayRef]) -> Result<ArrayRef> {
    let (from, to, low, high) = (times(&args[0]), times(&args[1]), times(&args[3]), times(&args[4]));
    let width_ms = as_int64_array(&args[2])?;
    let item = Arc::new(Field::new("item", timestamp_type(), true));
    let mut lists =
        ListBuilder::new(TimestampMicrosecondBuilder::new().with_timezone("UTC")).with_field(item);
    for i in 0..from.len() {
        if from.is_valid(i) && to.is_valid(i) {
            let width = width_ms.value(i) * MICROS_PER_MS;
            if width <= 0 {
                return exec_err!("window width must be positive, got {} ms", width_ms.value(i));
            }
            let (begin, end) = (from.value(i).max(low.value(i)), to.value(i).min(high.value(i)));
            let mut start = floor_to(begin, width);
            while start < end {
                lists.values().append_value(start);
                start += width;
            }
        }
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}
