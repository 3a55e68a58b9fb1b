//! Occupancy rules as SQL functions over collected facts: `gathered(named_struct('kind', …))`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, Int64Builder, ListArray, StringViewArray, StringViewBuilder,
    StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::fact::{Fact, Kind};
use super::minute::minute;
use super::stretches::stretches;

/// `occupancy(facts, from_ms, to_ms)` and `idle_stretches(facts, from_ms)`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Occupancy {
    name: &'static str,
    signature: Signature,
}

const MINUTE: &str = "occupancy";
const STRETCHES: &str = "idle_stretches";

impl Occupancy {
    pub fn minute() -> ScalarUDF {
        ScalarUDF::from(Self { name: MINUTE, signature: Signature::any(3, Volatility::Immutable) })
    }

    pub fn stretches() -> ScalarUDF {
        ScalarUDF::from(Self { name: STRETCHES, signature: Signature::any(2, Volatility::Immutable) })
    }

    /// Columns of a result row: text columns, then integer columns.
    fn columns(&self) -> (&'static [&'static str], &'static [&'static str]) {
        match self.name {
            MINUTE => (&["node", "gpu_uuid", "mig_uuid", "job_id", "class", "formula"], &["gpu_ms"]),
            _ => (&["class", "formula", "pool", "gpu_model"], &["gpus_milli", "from_ms", "to_ms"]),
        }
    }

    fn item(&self) -> FieldRef {
        let (text, numbers) = self.columns();
        let text = text.iter().map(|name| Field::new(*name, DataType::Utf8View, false));
        let numbers = numbers.iter().map(|name| Field::new(*name, DataType::Int64, false));
        let fields: Fields = text.chain(numbers).collect();
        Arc::new(Field::new("item", DataType::Struct(fields), false))
    }
}

impl ScalarUDFImpl for Occupancy {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _args: &[DataType]) -> Result<DataType> {
        Ok(DataType::List(self.item()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arguments = ColumnarValue::values_to_arrays(&args.args)?;
        let Some(lists) = arguments[0].as_list_opt::<i32>() else {
            return exec_err!("{}() takes a list of facts: gathered(named_struct('kind', …))", self.name);
        };
        let (mut rows, mut lengths) = (Rows::new(self.columns()), Vec::with_capacity(lists.len()));
        for group in 0..lists.len() {
            let columns = Columns::read(self.name, &lists.value(group))?;
            let mut facts = columns.facts(self.name)?;
            facts.sort_unstable();
            let bound = |place: usize| arguments[place].as_primitive::<Int64Type>().value(group);
            lengths.push(match self.name {
                MINUTE => rows.minute(&facts, bound(1), bound(2)),
                _ => rows.stretches(&facts, bound(1)),
            });
        }
        let list = ListArray::try_new(
            self.item(),
            OffsetBuffer::from_lengths(lengths),
            rows.finish(self.item())?,
            None,
        )?;
        Ok(ColumnarValue::Array(Arc::new(list)))
    }
}

/// The columns of facts, cast to their types.
struct Columns {
    text: [StringViewArray; 9],
    numbers: [Int64Array; 8],
}

const TEXT: [&str; 9] = ["kind", "node", "job", "pool", "team", "user_name", "gpu", "mig", "word"];
const NUMBERS: [&str; 8] = ["gpus", "a", "b", "c", "d", "e", "from_ms", "to_ms"];

impl Columns {
    fn read(function: &str, facts: &ArrayRef) -> Result<Self> {
        let Some(facts) = facts.as_struct_opt() else {
            return exec_err!("{function}() takes a list of facts: gathered(named_struct('kind', …))");
        };
        let column = |name: &str, data_type: &DataType| match facts.column_by_name(name) {
            Some(column) => Ok(cast(column, data_type)?),
            None => exec_err!("{function}(): a fact has no {name}; it has {}", names(facts)),
        };
        let text = TEXT.map(|name| column(name, &DataType::Utf8View).map(|c| c.as_string_view().clone()));
        let numbers =
            NUMBERS.map(|name| column(name, &DataType::Int64).map(|c| c.as_primitive::<Int64Type>().clone()));
        Ok(Self { text: all(text)?, numbers: all(numbers)? })
    }

    fn facts(&self, function: &str) -> Result<Vec<Fact<'_>>> {
        let fact = |row: usize| {
            let [kind, node, job, pool, team, user, gpu, mig, word] =
                self.text.each_ref().map(|c| if c.is_valid(row) { c.value(row) } else { "" });
            let [gpus, a, b, c, d, e, from, to] =
                self.numbers.each_ref().map(|c| if c.is_valid(row) { c.value(row) } else { 0 });
            let Some(kind) = Kind::parse(kind) else {
                return exec_err!("{function}(): {kind:?} is not a kind of fact");
            };
            Ok(Fact { kind, node, job, pool, team, user, gpu, mig, word, gpus, a, b, c, d, e, from, to })
        };
        (0..self.text[0].len()).map(fact).collect()
    }
}

fn names(facts: &StructArray) -> String {
    facts.column_names().join(", ")
}

fn all<T: std::fmt::Debug, const N: usize>(found: [Result<T>; N]) -> Result<[T; N]> {
    let found = found.into_iter().collect::<Result<Vec<T>>>()?;
    Ok(found.try_into().expect("as many as were asked for"))
}

/// Result rows of all groups, by column.
struct Rows {
    text: Vec<StringViewBuilder>,
    numbers: Vec<Int64Builder>,
}

impl Rows {
    fn new((text, numbers): (&[&str], &[&str])) -> Self {
        Self {
            text: text.iter().map(|_| StringViewBuilder::new()).collect(),
            numbers: numbers.iter().map(|_| Int64Builder::new()).collect(),
        }
    }

    fn minute(&mut self, facts: &[Fact<'_>], begin: i64, end: i64) -> usize {
        let rows = minute(facts, begin, end);
        for row in &rows {
            self.push(&[row.node, row.gpu, row.mig, row.job, row.class, row.formula], &[row.gpu_ms]);
        }
        rows.len()
    }

    fn stretches(&mut self, facts: &[Fact<'_>], begin: i64) -> usize {
        let rows = stretches(facts, begin);
        for row in &rows {
            let text = [row.class, row.formula, row.pool, row.gpu_model];
            self.push(&text, &[row.gpus_milli, row.from, row.to]);
        }
        rows.len()
    }

    fn push(&mut self, text: &[&str], numbers: &[i64]) {
        self.text.iter_mut().zip(text).for_each(|(column, value)| column.append_value(value));
        self.numbers.iter_mut().zip(numbers).for_each(|(column, value)| column.append_value(*value));
    }

    fn finish(self, item: FieldRef) -> Result<ArrayRef> {
        let DataType::Struct(fields) = item.data_type() else { unreachable!("rows are structs") };
        let text = self.text.into_iter().map(|mut column| Arc::new(column.finish()) as ArrayRef);
        let numbers = self.numbers.into_iter().map(|mut column| Arc::new(column.finish()) as ArrayRef);
        Ok(Arc::new(StructArray::try_new(fields.clone(), text.chain(numbers).collect(), None)?))
    }
}
