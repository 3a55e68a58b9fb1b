//! Scalar functions.

use std::cell::Cell;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, ListBuilder, TimestampMicrosecondArray, TimestampMicrosecondBuilder,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, TimestampMicrosecondType};
use datafusion::common::{Result, cast::as_int64_array, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use super::split_step::{parts_type, split_step};
use crate::batch::null_integers;
use crate::table::timestamp_type;
use crate::window::{MICROS_PER_MS, floor_to};

const FIRST_KNOWN: &str = "first_known";

/// All scalar functions.
pub(super) fn functions() -> [Function; 15] {
    let time = timestamp_type();
    let int = DataType::Int64;
    [
        Function::new(
            "gpu_ms",
            vec![int.clone(), time.clone(), time.clone(), time.clone()],
            int.clone(),
            gpu_ms,
        ),
        Function::new("ms_between", vec![time.clone(), time.clone()], int.clone(), ms_between),
        Function::new("unix_ms", vec![time.clone()], int.clone(), unix_ms),
        Function::new("share_of", vec![int.clone(); 4], int.clone(), share_of),
        Function::new("plus_ms", vec![time.clone(), int.clone()], time.clone(), plus_ms),
        Function::new("window_of", vec![time.clone(), int.clone()], time.clone(), window_of),
        Function::new("millionths", vec![int.clone(), int.clone()], int.clone(), millionths),
        Function::new("us_known", vec![int.clone(), int.clone()], int.clone(), us_known),
        Function::new("part_of", vec![int.clone(); 4], int.clone(), part_of),
        Function::new("cost_micros", vec![int.clone(), int.clone()], int.clone(), cost_micros),
        Function::new(
            "gpu_cost_micros",
            vec![int.clone(), time.clone(), time.clone(), time.clone(), int.clone()],
            int.clone(),
            gpu_cost_micros,
        ),
        Function::new("split_step", vec![int.clone(); 7], parts_type(), split_step),
        Function::new("pinball", vec![int.clone(); 3], int.clone(), pinball),
        Function::new("log_bucket", vec![int.clone()], int.clone(), log_bucket),
        Function::new(
            "window_starts",
            vec![time.clone(), time.clone(), int, time.clone(), time.clone()],
            DataType::List(Arc::new(Field::new("item", time, true))),
            window_starts,
        ),
    ]
}

/// Its first argument, or where that is NULL the second one; both are integers.
pub(super) fn first_known() -> Function {
    Function::new(FIRST_KNOWN, vec![DataType::Int64; 2], DataType::Int64, either_known)
}

/// A function over whole columns with fixed argument types.
#[derive(Debug, Clone)]
pub(super) struct Function {
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
    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        // It stands in for `coalesce` in optimised plans, whose schema must not change.
        let is_coalesce = self.name == FIRST_KNOWN;
        let nullable = !is_coalesce || args.arg_fields.iter().all(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name, self.returns.clone(), nullable)))
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
        known.then(|| gpu_ms_of(gpus.value(i), begin.value(i), from.value(i), to.value(i)))
    });
    Ok(Arc::new(rows.collect::<Int64Array>()))
}

/// GPU x ms of thousandths of a GPU; times in µs.
fn gpu_ms_of(gpus_milli: i64, begin: i64, from: i64, to: i64) -> i64 {
    let ms = |time: i64| time.div_euclid(MICROS_PER_MS);
    tidegate_events::gpu_ms_between(gpus_milli.max(0) as u64, ms(begin), ms(from), ms(to))
}

fn ms_between(args: &[ArrayRef]) -> Result<ArrayRef> {
    let out: Int64Array = arrow::compute::binary(times(&args[0]), times(&args[1]), |a, b| {
        b.div_euclid(MICROS_PER_MS) - a.div_euclid(MICROS_PER_MS)
    })?;
    Ok(Arc::new(out))
}

fn unix_ms(args: &[ArrayRef]) -> Result<ArrayRef> {
    let out: Int64Array = times(&args[0]).unary(|time| time.div_euclid(MICROS_PER_MS));
    Ok(Arc::new(out))
}

/// The difference of two rounded-down products, so that adjacent shares leave no gap.
fn share_of(args: &[ArrayRef]) -> Result<ArrayRef> {
    let column = |place: usize| as_int64_array(&args[place]);
    let (whole, before, part, total) = (column(0)?, column(1)?, column(2)?, column(3)?);
    let rows = (0..whole.len()).map(|i| {
        let all = [whole, before, part, total];
        all.iter().all(|column| column.is_valid(i)).then(|| {
            let total = i128::from(total.value(i));
            if total <= 0 {
                return 0;
            }
            let up_to = |n: i128| (i128::from(whole.value(i)) * n).div_euclid(total);
            let before = i128::from(before.value(i));
            (up_to(before + i128::from(part.value(i))) - up_to(before)) as i64
        })
    });
    Ok(Arc::new(rows.collect::<Int64Array>()))
}

/// The value under a NULL is arbitrary and must not overflow.
fn plus_ms(args: &[ArrayRef]) -> Result<ArrayRef> {
    let ms = args[1].as_primitive::<Int64Type>();
    let out: TimestampMicrosecondArray = arrow::compute::binary(times(&args[0]), ms, |t, ms| {
        t.saturating_add(ms.saturating_mul(MICROS_PER_MS))
    })?;
    Ok(Arc::new(out.with_timezone("UTC")))
}

fn window_of(args: &[ArrayRef]) -> Result<ArrayRef> {
    let width_ms = args[1].as_primitive::<Int64Type>();
    // Most rows fall into the window of the row before, which saves them a division.
    let before = Cell::new((0_i64, 0_i64));
    let out: TimestampMicrosecondArray = arrow::compute::binary(times(&args[0]), width_ms, |t, ms| {
        let width = ms.max(1).saturating_mul(MICROS_PER_MS);
        let (mut start, last) = before.get();
        if width != last || !(0..width).contains(&t.wrapping_sub(start)) {
            start = floor_to(t, width);
            before.set((start, width));
        }
        start
    })?;
    Ok(Arc::new(out.with_timezone("UTC")))
}

fn millionths(args: &[ArrayRef]) -> Result<ArrayRef> {
    // Of a metric that was not collected.
    if args.iter().any(|arg| arg.null_count() == arg.len()) {
        return Ok(null_integers(args[0].len()));
    }
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
    let out = match known.filter(|known| known.null_count() > 0) {
        None => us.values().clone(),
        Some(known) if known.null_count() == known.len() => vec![0; known.len()].into(),
        Some(known) => {
            us.values().iter().zip(&known).map(|(us, known)| if known { *us } else { 0 }).collect()
        }
    };
    Ok(Arc::new(Int64Array::new(out, None)))
}

fn either_known(args: &[ArrayRef]) -> Result<ArrayRef> {
    let (first, second) = (args[0].as_primitive::<Int64Type>(), args[1].as_primitive::<Int64Type>());
    let known = match first.nulls() {
        Some(nulls) if nulls.null_count() == nulls.len() => return Ok(Arc::clone(&args[1])),
        Some(nulls) if nulls.null_count() > 0 => nulls,
        _ => return Ok(Arc::clone(&args[0])),
    };
    let both = first.values().iter().zip(second.values()).zip(known);
    let values = both.map(|((first, second), known)| if known { *first } else { *second }).collect();
    let nulls = second.nulls().map(|second| NullBuffer::new(known.inner() | second.inner()));
    Ok(Arc::new(Int64Array::new(values, nulls)))
}

fn part_of(args: &[ArrayRef]) -> Result<ArrayRef> {
    let arg = |i: usize| args[i].as_primitive::<Int64Type>();
    let (n, from, to, whole) = (arg(0), arg(1), arg(2), arg(3));
    let rows = (0..n.len()).map(|i| {
        let known = [n, from, to, whole].iter().all(|a| a.is_valid(i)) && whole.value(i) != 0;
        known.then(|| {
            let of = i128::from(whole.value(i));
            let up_to = |at: i64| (i128::from(n.value(i)) * i128::from(at)).div_euclid(of);
            held(up_to(to.value(i)) - up_to(from.value(i)))
        })
    });
    Ok(Arc::new(rows.collect::<Int64Array>()))
}

const MS_PER_HOUR: i128 = 3_600_000;

fn cost_micros(args: &[ArrayRef]) -> Result<ArrayRef> {
    let (gpu_ms, price) = (args[0].as_primitive::<Int64Type>(), args[1].as_primitive::<Int64Type>());
    let out: Int64Array = arrow::compute::binary(gpu_ms, price, cost_of)?;
    Ok(Arc::new(out))
}

/// Cost in millionths of the currency, rounded half up.
fn cost_of(gpu_ms: i64, price_micros_per_gpu_hour: i64) -> i64 {
    let product = i128::from(gpu_ms) * i128::from(price_micros_per_gpu_hour);
    held((product + MS_PER_HOUR / 2).div_euclid(MS_PER_HOUR))
}

/// The difference of two rounded costs from the same start, so that adjacent parts leave no gap.
fn gpu_cost_micros(args: &[ArrayRef]) -> Result<ArrayRef> {
    let (gpus, price) = (as_int64_array(&args[0])?, as_int64_array(&args[4])?);
    let (begin, from, to) = (times(&args[1]), times(&args[2]), times(&args[3]));
    let rows = (0..gpus.len()).map(|i| {
        let known = args.iter().all(|arg| arg.is_valid(i));
        known.then(|| {
            let begin = begin.value(i);
            let up_to = |time: i64| cost_of(gpu_ms_of(gpus.value(i), begin, begin, time), price.value(i));
            up_to(to.value(i)).saturating_sub(up_to(from.value(i)))
        })
    });
    Ok(Arc::new(rows.collect::<Int64Array>()))
}

/// Saturates at the bounds of `i64`.
fn held(n: i128) -> i64 {
    n.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// Wraps as the SQL operators do, so that no input panics.
fn pinball(args: &[ArrayRef]) -> Result<ArrayRef> {
    let arg = |i: usize| args[i].as_primitive::<Int64Type>();
    let (actual, bound, permille) = (arg(0), arg(1), arg(2));
    let rows = (0..actual.len()).map(|i| {
        let known = [actual, bound, permille].iter().all(|a| a.is_valid(i));
        known.then(|| {
            let (above, level) = (actual.value(i).wrapping_sub(bound.value(i)), permille.value(i));
            let below = level.wrapping_sub(1_000);
            level.wrapping_mul(above).max(below.wrapping_mul(above))
        })
    });
    Ok(Arc::new(rows.collect::<Int64Array>()))
}

/// Eight buckets per power of two: 0..8 exact, then lower bounds with three significant bits after
/// the leading one.
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
            let width = width_ms.value(i).checked_mul(MICROS_PER_MS).filter(|width| *width > 0);
            let Some(width) = width else {
                return exec_err!(
                    "window width must be positive and less than 292,000 years, got {} ms",
                    width_ms.value(i)
                );
            };
            let (begin, end) = (from.value(i).max(low.value(i)), to.value(i).min(high.value(i)));
            let mut start = floor_to(begin, width);
            while start < end {
                lists.values().append_value(start);
                let Some(next) = start.checked_add(width) else { break };
                start = next;
            }
        }
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(function: fn(&[ArrayRef]) -> Result<ArrayRef>, args: &[i64]) -> Option<i64> {
        let args: Vec<ArrayRef> =
            args.iter().map(|n| Arc::new(Int64Array::from(vec![*n])) as ArrayRef).collect();
        let out = function(&args).unwrap();
        let out = out.as_primitive::<Int64Type>();
        out.is_valid(0).then(|| out.value(0))
    }

    #[test]
    fn costs_are_rounded_half_up_and_do_not_overflow() {
        // 1 GPU-ms at 1.80 an hour costs half a millionth.
        assert_eq!(of(cost_micros, &[1, 1_800_000]), Some(1));
        assert_eq!(of(cost_micros, &[1, 1_799_999]), Some(0));
        assert_eq!(of(cost_micros, &[-1, 1_800_000]), Some(0));
        assert_eq!(of(cost_micros, &[3_600_000, 2_100_000]), Some(2_100_000));
        // 100,000 GPUs for a year of 8766 h at 10 an hour: 10^5 x 8766 x 10^7.
        assert_eq!(of(cost_micros, &[3_155_760_000_000_000, 10_000_000]), Some(8_766_000_000_000_000));
        assert_eq!(of(cost_micros, &[i64::MAX, i64::MAX]), Some(i64::MAX));
    }

    #[test]
    fn costs_of_parts_of_a_hold_add_up() {
        let time = |ms: i64| {
            let us = TimestampMicrosecondArray::from(vec![ms * MICROS_PER_MS]).with_timezone("UTC");
            Arc::new(us) as ArrayRef
        };
        let int = |n: i64| Arc::new(Int64Array::from(vec![n])) as ArrayRef;
        let cost = |from: i64, to: i64| {
            let args = [int(1_000), time(7), time(from), time(to), int(1_800_000)];
            gpu_cost_micros(&args).unwrap().as_primitive::<Int64Type>().value(0)
        };
        // Each GPU-ms costs half a millionth; every other one is rounded up.
        let parts: Vec<_> = (7..13).map(|ms| cost(ms, ms + 1)).collect();
        assert_eq!(parts, [1, 0, 1, 0, 1, 0]);
        assert_eq!(cost(7, 13), 3);
        assert_eq!((cost(7, 9), cost(9, 13)), (1, 2));
    }

    #[test]
    fn pinball_loss_weighs_what_lies_above_by_the_level() {
        assert_eq!(of(pinball, &[12, 10, 900]), Some(1_800));
        assert_eq!(of(pinball, &[8, 10, 900]), Some(200));
        assert_eq!(of(pinball, &[10, 10, 500]), Some(0));
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let cuts = [0, 1, 2, 50, 333, 334, 999, 1_001];
        let parts =
            cuts.windows(2).map(|cut| of(part_of, &[10_000_000_000_000_007, cut[0], cut[1], 1_001]).unwrap());
        assert_eq!(parts.sum::<i64>(), 10_000_000_000_000_007);
        assert_eq!(of(part_of, &[7, 0, 1, 2]), Some(3));
        assert_eq!(of(part_of, &[7, 1, 2, 2]), Some(4));
        assert_eq!(of(part_of, &[7, 0, 1, 0]), None);
    }
}
