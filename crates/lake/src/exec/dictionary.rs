//! Dictionary encoding of text that a windowed pipeline only passes through.
//!
//! One interval becomes a row for every hour it lasts. Grouping and sorting those rows by team,
//! user, pool and so on compares the same few texts over and over. So a column that the SQL only
//! groups by and outputs is replaced by the rank of its text among all texts of the column, and
//! decoded in the result. Equal ranks are equal texts, and ranks sort as their texts do, so the
//! result is the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringViewArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::error::ArrowError;
use hashbrown::HashMap;

/// The texts behind the ranks, sorted, per column.
#[derive(Debug, Default)]
pub struct Dictionary {
    texts: BTreeMap<String, StringViewArray>,
}

impl Dictionary {
    /// Replaces the text of the columns by ranks. NULL stays NULL.
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

    /// Replaces ranks by their text.
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

/// Rank of each text among the column's texts, and the texts in order of rank.
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
    use super::*;

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
        let (ranked, ranks) = Dictionary::encode(&batch, &["team".into()]).unwrap();
        let numbers: Vec<Option<i64>> = ranked.column(0).as_primitive::<Int64Type>().iter().collect();
        assert_eq!(numbers, [Some(2), None, Some(0), Some(1), Some(2)]);
        assert_eq!(ranks.decode(&ranked).unwrap(), batch);
    }
}
