//! `wait_pieces(facts, from, to)`: the sweep as an SQL function over collected facts,
//! `gathered(named_struct('kind', …))`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, ListArray, StringViewArray, StructArray, TimestampMicrosecondArray,
    UInt32Array, new_empty_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Int64Type, TimestampMicrosecondType};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::class::Fit;
use super::fact::{Facts, Node, Quota, Wait};
use super::sweep::{Piece, pieces};
use crate::table::timestamp_type;

const NAME: &str = "wait_pieces";

/// Text columns of a fact. Of a node `name` is not used, of a quota it is the owner.
const TEXT: [&str; 8] = ["kind", "name", "pool", "team", "user_name", "qos", "reason", "reason_constraint"];
/// Integer columns of a fact. Of a node `a` is what is free and `b` what is assumed held, `is_open`
/// whether it is usable; of a quota `a` is what is held.
const NUMBERS: [&str; 7] = ["attempt", "gpus_milli", "a", "b", "is_open", "in_line", "priority"];
/// Time columns of a fact.
const TIMES: [&str; 5] = ["waited_from", "eligible_from", "from_time", "to_time", "known_to"];

/// Columns of the result that are those of the fact, and their names there.
const PASSED_TEXT: [(&str, &str); 6] = [
    ("name", "job_id"),
    ("pool", "pool"),
    ("team", "team"),
    ("user_name", "user_name"),
    ("qos", "qos"),
    ("reason", "reason"),
];
const PASSED_NUMBERS: [(&str, &str); 5] = [
    ("attempt", "attempt"),
    ("gpus_milli", "gpus_milli"),
    ("a", "asked_nodes"),
    ("b", "asked_gpus_per_node_milli"),
    ("is_open", "is_open"),
];
/// Columns of the result that the sweep finds.
const FOUND_TIMES: [&str; 3] = ["since", "until", "known_to"];
const FOUND_NUMBERS: [&str; 10] = [
    "lasts",
    "quota_gpus_milli",
    "quota_held_gpus_milli",
    "fitting_nodes",
    "free_gpus_milli",
    "largest_free_gpus",
    "free_nodes",
    "usable_gpus_milli",
    "present_gpus_milli",
    "assumed_gpus_milli",
];

/// A number that the sweep found.
type Number = Box<dyn Fn(&Piece<'_>) -> Option<i64>>;

/// The function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct WaitPieces {
    signature: Signature,
}

impl WaitPieces {
    pub fn udf() -> ScalarUDF {
        ScalarUDF::from(Self { signature: Signature::any(3, Volatility::Immutable) })
    }
}

fn item() -> FieldRef {
    let text = PASSED_TEXT.iter().map(|(_, name)| *name).chain(["constraint"]);
    let text = text.map(|name| Field::new(name, DataType::Utf8View, true));
    let numbers = PASSED_NUMBERS.iter().map(|(_, name)| *name).chain(FOUND_NUMBERS);
    let numbers = numbers.map(|name| Field::new(name, DataType::Int64, true));
    let times = ["waited_from"].into_iter().chain(FOUND_TIMES);
    let times = times.map(|name| Field::new(name, timestamp_type(), true));
    let fields: Fields = text.chain(numbers).chain(times).collect();
    Arc::new(Field::new("item", DataType::Struct(fields), true))
}

impl ScalarUDFImpl for WaitPieces {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _args: &[DataType]) -> Result<DataType> {
        Ok(DataType::List(item()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arguments = ColumnarValue::values_to_arrays(&args.args)?;
        let Some(lists) = arguments[0].as_list_opt::<i32>() else { return refused() };
        let bounds = [1, 2].map(|place| cast(&arguments[place], &timestamp_type()));
        let [from, to] = bounds;
        let (from, to) = (from?, to?);
        let time = |of: &ArrayRef, group| of.as_primitive::<TimestampMicrosecondType>().value(group);
        let (mut groups, mut lengths) = (Vec::new(), Vec::with_capacity(lists.len()));
        for group in 0..lists.len() {
            if lists.is_null(group) {
                lengths.push(0);
                continue;
            }
            let columns = Columns::read(&lists.value(group))?;
            let pieces = pieces(&columns.facts()?, time(&from, group), time(&to, group));
            lengths.push(pieces.len());
            groups.push(columns.rows(&pieces)?);
        }
        let values = match groups.is_empty() {
            true => new_empty_array(item().data_type()),
            false => concat(&groups.iter().map(|group| group as &dyn Array).collect::<Vec<_>>())?,
        };
        let list = ListArray::try_new(item(), OffsetBuffer::from_lengths(lengths), values, None)?;
        Ok(ColumnarValue::Array(Arc::new(list)))
    }
}

fn refused<T>() -> Result<T> {
    exec_err!("{NAME}() takes a list of facts: gathered(named_struct('kind', …))")
}

/// The columns of facts, cast to their types.
struct Columns {
    text: Vec<StringViewArray>,
    numbers: Vec<Int64Array>,
    times: Vec<TimestampMicrosecondArray>,
}

impl Columns {
    fn read(facts: &ArrayRef) -> Result<Self> {
        let Some(facts) = facts.as_struct_opt() else { return refused() };
        let column = |name: &str, data_type: &DataType| match facts.column_by_name(name) {
            Some(column) => Ok(cast(column, data_type)?),
            None => {
                exec_err!("{NAME}(): a fact has no {name}; it has {}", facts.column_names().join(", "))
            }
        };
        let text = TEXT.map(|name| Ok(column(name, &DataType::Utf8View)?.as_string_view().clone()));
        let numbers =
            NUMBERS.map(|name| Ok(column(name, &DataType::Int64)?.as_primitive::<Int64Type>().clone()));
        let times = TIMES.map(|name| {
            Ok(column(name, &timestamp_type())?.as_primitive::<TimestampMicrosecondType>().clone())
        });
        Ok(Self {
            text: text.into_iter().collect::<Result<_>>()?,
            numbers: numbers.into_iter().collect::<Result<_>>()?,
            times: times.into_iter().collect::<Result<_>>()?,
        })
    }

    fn text(&self, name: &str, row: usize) -> Option<&str> {
        let column = &self.text[place(&TEXT, name)];
        column.is_valid(row).then(|| column.value(row))
    }

    fn number(&self, name: &str, row: usize) -> Option<i64> {
        let column = &self.numbers[place(&NUMBERS, name)];
        column.is_valid(row).then(|| column.value(row))
    }

    fn time(&self, name: &str, row: usize) -> Option<i64> {
        let column = &self.times[place(&TIMES, name)];
        column.is_valid(row).then(|| column.value(row))
    }

    fn facts(&self) -> Result<Facts<'_>> {
        let mut facts = Facts::default();
        for row in 0..self.text[0].len() {
            let Some(from) = self.time("from_time", row) else { continue };
            let (to, pool) = (self.time("to_time", row), self.text("pool", row));
            let number = |name| self.number(name, row).unwrap_or(0);
            match self.text("kind", row).unwrap_or_default() {
                "wait" => facts.waits.push(self.wait(row, from)),
                "node" => facts.nodes.push(Node {
                    pools: pool.unwrap_or_default(),
                    gpus: number("gpus_milli"),
                    free: number("a"),
                    assumed: number("b"),
                    is_usable: number("is_open") == 1,
                    from,
                    to,
                }),
                "quota" => facts.quotas.push(Quota {
                    owner: self.text("name", row).unwrap_or_default(),
                    pool,
                    gpus: number("gpus_milli"),
                    held: number("a"),
                    from,
                    to,
                }),
                "known" => facts.known.push((pool.unwrap_or_default(), from)),
                kind => return exec_err!("{NAME}(): {kind:?} is not a kind of fact"),
            }
        }
        Ok(facts)
    }

    fn wait(&self, row: usize, from: i64) -> Wait<'_> {
        Wait {
            row,
            job: self.text("name", row).unwrap_or_default(),
            pool: self.text("pool", row).unwrap_or_default(),
            team: self.text("team", row),
            qos: self.text("qos", row),
            reason: self.text("reason", row),
            reason_constraint: self.text("reason_constraint", row),
            is_open: self.number("is_open", row) == Some(1),
            in_line: self.number("in_line", row) == Some(1),
            gpus: self.number("gpus_milli", row).unwrap_or(0),
            nodes: self.number("a", row),
            per_node: self.number("b", row),
            priority: self.number("priority", row),
            waited_from: self.time("waited_from", row).unwrap_or(from),
            eligible_from: self.time("eligible_from", row),
            from,
            to: self.time("to_time", row),
            known_to: self.time("known_to", row).unwrap_or(from),
        }
    }

    /// The result of a group.
    fn rows(&self, pieces: &[Piece<'_>]) -> Result<StructArray> {
        let rows: UInt32Array = pieces.iter().map(|piece| Some(piece.row as u32)).collect();
        let mut columns = Vec::new();
        for (name, _) in PASSED_TEXT {
            columns.push(take(&self.text[place(&TEXT, name)], &rows, None)?);
        }
        columns.push(Arc::new(pieces.iter().map(|piece| piece.constraint).collect::<StringViewArray>()));
        for (name, _) in PASSED_NUMBERS {
            columns.push(take(&self.numbers[place(&NUMBERS, name)], &rows, None)?);
        }
        let fit = |get: fn(&Fit) -> i64| move |piece: &Piece<'_>| piece.fit.as_ref().map(get);
        let numbers: [Number; FOUND_NUMBERS.len()] = [
            Box::new(|piece| Some(i64::from(piece.lasts))),
            Box::new(|piece| Some(piece.quota?.0)),
            Box::new(|piece| Some(piece.quota?.1)),
            Box::new(fit(|fit| fit.fitting)),
            Box::new(fit(|fit| fit.free)),
            Box::new(fit(|fit| fit.largest)),
            Box::new(fit(|fit| fit.free_nodes)),
            Box::new(fit(|fit| fit.usable)),
            Box::new(fit(|fit| fit.present)),
            Box::new(fit(|fit| fit.assumed)),
        ];
        for number in numbers {
            columns.push(Arc::new(pieces.iter().map(number).collect::<Int64Array>()));
        }
        let times = |times: TimestampMicrosecondArray| Arc::new(times.with_data_type(timestamp_type()));
        columns.push(take(&self.times[place(&TIMES, "waited_from")], &rows, None)?);
        columns.push(times(pieces.iter().map(|piece| Some(piece.since)).collect()));
        columns.push(times(pieces.iter().map(|piece| piece.until).collect()));
        columns.push(times(pieces.iter().map(|piece| Some(piece.end)).collect()));
        let DataType::Struct(fields) = item().data_type().clone() else { unreachable!("rows are structs") };
        Ok(StructArray::try_new(fields, columns, None)?)
    }
}

fn place(names: &[&str], name: &str) -> usize {
    names.iter().position(|known| *known == name).expect("a column of facts")
}
