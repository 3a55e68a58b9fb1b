//! Texts of attempts that users choose: the name of the job or step, and the account.
//!
//! Slurm takes any byte in them and prints it as it is, line breaks and delimiters too. So they are
//! asked for apart from everything else, between delimiters that nobody can know beforehand, and
//! are tied to attempts that are known already: no text makes an attempt.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::job_id::JobId;

/// The columns that are asked for: the key of an attempt and its texts.
pub(super) const COLUMNS: [&str; 5] = ["JobID", "Submit", "Start", "JobName", "Account"];

/// Id, submission and start of an attempt as sacct prints them. Several records may have one key:
/// parts of a job that was resized in the second in which it started.
pub(super) type Key = (String, String, String);

/// What a user chose for an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Texts {
    pub name: String,
    pub account: String,
}

/// The texts of an answer, by attempt.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<Key, Option<Texts>>);

/// A delimiter of 128 random bits. A name that holds it was not given before the question.
pub(super) fn delimiter() -> String {
    format!("<{:032x}>", rand::random::<u128>())
}

impl Names {
    /// Parses an answer of `sacct --parsable --noheader` with [`COLUMNS`], in which this delimiter
    /// ends each value and a line break each record. Records that are not of that form are left
    /// out.
    pub(super) fn parse(answer: &str, delimiter: &str) -> Self {
        // Of the last record only its line break is left behind the last delimiter.
        let values: Vec<&str> = answer.split(delimiter).collect();
        let mut names = Self::default();
        let mut at = 0;
        while let Some([id, submit, start, name, account]) = values.get(at..at + COLUMNS.len()) {
            match key(id, submit, start, at == 0) {
                Some(key) => {
                    names.add(key, Texts { name: (*name).to_owned(), account: (*account).to_owned() });
                    at += COLUMNS.len();
                }
                None => at += 1,
            }
        }
        names
    }

    /// Of an attempt with two different texts one is not its own: then neither counts.
    fn add(&mut self, key: Key, texts: Texts) {
        match self.0.entry(key) {
            Entry::Vacant(place) => {
                place.insert(Some(texts));
            }
            Entry::Occupied(mut known) if known.get().as_ref() != Some(&texts) => {
                known.insert(None);
            }
            Entry::Occupied(_) => {}
        }
    }

    /// The texts of an attempt; `None` if the answer has none for it, or contradicts itself.
    pub(super) fn of(&self, key: &Key) -> Option<&Texts> {
        self.0.get(key)?.as_ref()
    }
}

/// The key of a record, whose first value follows the line break of the record before it.
fn key(id: &str, submit: &str, start: &str, is_first: bool) -> Option<Key> {
    let id = if is_first { id } else { id.strip_prefix('\n')? };
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (JobId::parse(id).is_ok() && is_plain(submit) && is_plain(start))
        .then(|| (id.to_owned(), submit.to_owned(), start.to_owned()))
}
