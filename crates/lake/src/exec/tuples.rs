//! Numbers tuples of text, such as cluster, pool, team and job of a row.
//!
//! Rows of windows repeat the same few texts: an interval becomes a row for every hour it lasts.
//! Each text is looked up only where it differs from the one in the row before, and rows are
//! grouped and sorted by the numbers.

use std::hash::BuildHasher;

use arrow::array::{Array, ArrayRef, StringViewArray, UInt32Array};
use arrow::compute::take;
use arrow::error::ArrowError;
use hashbrown::{DefaultHashBuilder, HashTable};

/// Number of NULL among the texts of a column.
const NULL: u32 = 0;

/// Different tuples, numbered from 0 in the order in which they came.
#[derive(Debug)]
pub(super) struct Tuples {
    columns: Vec<Texts>,
    hasher: DefaultHashBuilder,
    table: HashTable<u32>,
    /// Numbers of the texts of each tuple, one tuple after the other.
    texts: Vec<u32>,
}

impl Tuples {
    /// Of that many columns, without tuples.
    pub fn new(width: usize) -> Self {
        Self {
            columns: (0..width).map(|_| Texts::default()).collect(),
            hasher: DefaultHashBuilder::default(),
            table: HashTable::new(),
            texts: Vec::new(),
        }
    }

    /// Number of each row's tuple.
    pub fn numbers(&mut self, columns: &[&StringViewArray], rows: usize) -> Vec<u32> {
        let mut tuple = vec![NULL; columns.len()];
        let (mut numbers, mut number) = (Vec::with_capacity(rows), 0);
        for row in 0..rows {
            let mut differs = row == 0;
            for ((column, texts), current) in columns.iter().zip(&mut self.columns).zip(&mut tuple) {
                let is_null = column.is_null(row);
                // Equal views into one array are equal texts.
                let repeats = row > 0
                    && is_null == column.is_null(row - 1)
                    && (is_null || column.views()[row] == column.views()[row - 1]);
                if !repeats {
                    let text = if is_null { NULL } else { texts.number(column.value(row)) };
                    differs |= text != *current;
                    *current = text;
                }
            }
            if differs {
                number = self.number(&tuple);
            }
            numbers.push(number);
        }
        numbers
    }

    fn number(&mut self, tuple: &[u32]) -> u32 {
        let (hasher, texts, width) = (&self.hasher, &mut self.texts, tuple.len());
        let at = |number: u32| number as usize * width..(number as usize + 1) * width;
        let hash = hasher.hash_one(tuple);
        if let Some(number) = self.table.find(hash, |number| texts[at(*number)] == *tuple) {
            return *number;
        }
        let number = self.table.len() as u32;
        texts.extend_from_slice(tuple);
        self.table.insert_unique(hash, number, |number| hasher.hash_one(&texts[at(*number)]));
        number
    }

    /// Place of each tuple in their order: by the first column, then the next; NULL first.
    pub fn ranks(&self) -> Vec<u32> {
        let width = self.columns.len();
        let of_texts: Vec<Vec<u32>> = self.columns.iter().map(Texts::ranks).collect();
        let keys: Vec<u32> = (self.texts.iter().enumerate())
            .map(|(place, text)| of_texts[place % width][*text as usize])
            .collect();
        let mut order: Vec<u32> = (0..self.table.len() as u32).collect();
        order.sort_unstable_by_key(|number| &keys[*number as usize * width..][..width]);
        let mut ranks = vec![0; order.len()];
        for (number, rank) in order.into_iter().zip(0..) {
            ranks[number as usize] = rank;
        }
        ranks
    }

    /// The columns of the tuples with these numbers, in this order.
    pub fn columns(&self, numbers: &[u32]) -> Result<Vec<ArrayRef>, ArrowError> {
        let width = self.columns.len();
        let column = |(place, texts): (usize, &Texts)| {
            let text = |number: &u32| self.texts[*number as usize * width + place].checked_sub(1);
            let places: UInt32Array = numbers.iter().map(text).collect();
            take(&texts.array(), &places, None)
        };
        self.columns.iter().enumerate().map(column).collect()
    }

    /// Bytes held, about.
    pub fn bytes(&self) -> usize {
        let texts = self.columns.iter().map(Texts::bytes).sum::<usize>();
        texts + (self.texts.capacity() + 2 * self.table.capacity()) * size_of::<u32>()
    }
}

/// Different texts of one column, numbered from 1 in the order in which they came.
#[derive(Debug, Default)]
struct Texts {
    hasher: DefaultHashBuilder,
    table: HashTable<u32>,
    /// One text after the other, and where each ends.
    text: String,
    ends: Vec<usize>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        let hash = self.hasher.hash_one(text);
        if let Some(number) = self.table.find(hash, |number| self.get(*number) == text) {
            return *number;
        }
        self.text.push_str(text);
        self.ends.push(self.text.len());
        let number = self.ends.len() as u32;
        let Self { hasher, table, text, ends } = self;
        table.insert_unique(hash, number, |number| hasher.hash_one(text_of(text, ends, *number)));
        number
    }

    fn get(&self, number: u32) -> &str {
        text_of(&self.text, &self.ends, number)
    }

    /// By number: place in the order of the texts, 0 for NULL.
    fn ranks(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (1..=self.ends.len() as u32).collect();
        order.sort_unstable_by_key(|number| self.get(*number));
        let mut ranks = vec![0; order.len() + 1];
        for (number, rank) in order.into_iter().zip(1..) {
            ranks[number as usize] = rank;
        }
        ranks
    }

    fn array(&self) -> StringViewArray {
        StringViewArray::from_iter_values((1..=self.ends.len() as u32).map(|number| self.get(number)))
    }

    fn bytes(&self) -> usize {
        self.text.capacity()
            + self.ends.capacity() * size_of::<usize>()
            + 2 * self.table.capacity() * size_of::<u32>()
    }
}

fn text_of<'a>(text: &'a str, ends: &[usize], number: u32) -> &'a str {
    let last = number as usize - 1;
    let begin = last.checked_sub(1).map_or(0, |before| ends[before]);
    &text[begin..ends[last]]
}
