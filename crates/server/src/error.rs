//! Why a query was refused or failed, for its author.

use std::time::Duration;

use datafusion::common::utils::datafusion_strsim::normalized_levenshtein;
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::parser::ParserError;
use serde::{Deserialize, Serialize};

use crate::row_width::TooWide;

/// Everything a query can end with besides rows. [`QueryError::code`] is stable, for programs;
/// [`QueryError::hint`] says what to do.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum QueryError {
    /// The text does not parse as SQL.
    #[error("syntax error{}: {message}", at(.position))]
    Syntax {
        message: String,
        /// Line and column, both from 1.
        position: Option<(u64, u64)>,
    },
    /// The text holds no statement.
    #[error("there is no query")]
    Empty,
    /// The text holds this many statements.
    #[error("the text holds {0} statements; one at a time")]
    SeveralStatements(usize),
    /// The statement would change something; holds its name.
    #[error("{0} is refused: queries only read")]
    NotReadOnly(String),
    /// No table has this name; `tables` are those that exist.
    #[error("no table named {name}")]
    UnknownTable { name: String, tables: Vec<String> },
    /// No column has this name; `columns` are those that can be used there.
    #[error("no column named {name}")]
    UnknownColumn { name: String, columns: Vec<String> },
    /// No function has this name; `nearest` is the most similar one.
    #[error("no function named {name}")]
    UnknownFunction { name: String, nearest: Option<String> },
    /// The query parses but means nothing, such as a column that is not grouped.
    #[error("invalid query: {0}")]
    Invalid(String),
    /// The engine lacks the feature.
    #[error("not supported: {0}")]
    NotSupported(String),
    /// A computation failed on a value, such as a division by zero.
    #[error("the query failed on its data: {0}")]
    Failed(String),
    /// A column's type cannot be written in the format of this name.
    #[error("the result cannot be written as {format}: {message}")]
    Encode { format: String, message: String },
    /// A single row exceeds what is written of one, bytes.
    #[error("a row of the result has more than {} MiB, which is the most that is written of one", .most >> 20)]
    RowTooLarge { most: usize },
    /// The result exceeds the row limit.
    #[error("the result has more than {limit} rows, the limit of this query")]
    TooManyRows { limit: u64 },
    /// The query exceeded its time limit.
    #[error("the query ran longer than {} s, its time limit", .limit.as_secs_f64())]
    TooSlow { limit: Duration },
    /// The request asked for a longer time limit than the service allows.
    #[error("a time limit of {} s was asked for; at most {} s are allowed here", .asked.as_secs_f64(), .most.as_secs_f64())]
    TimeNotAllowed { asked: Duration, most: Duration },
    /// The query needs more memory than the limit, even after spilling.
    #[error("the query needs more memory than is allowed: {0}")]
    OutOfMemory(String),
    /// The plan repeats or joins rows that are too wide for the limit on memory.
    #[error("the query needs more memory than is allowed: it repeats or puts together rows of {} KiB", .bytes / 1024)]
    RowsTooWide { bytes: usize },
    /// A file of a table could not be read.
    #[error("reading the tables failed: {0}")]
    Storage(String),
    /// So many queries wait already.
    #[error("{waiting} queries wait to be run, and no more may")]
    Busy { waiting: usize },
    /// The process that ran the query ended; says how.
    #[error("the process that ran the query ended: {0}")]
    Died(String),
    /// The engine failed in a way that is no fault of the query.
    #[error("the query engine failed: {0}")]
    Internal(String),
}

fn at(position: &Option<(u64, u64)>) -> String {
    position.map_or_else(String::new, |(line, column)| format!(" at line {line}, column {column}"))
}

impl QueryError {
    /// Stable name of the kind of error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Syntax { .. } => "syntax",
            Self::Empty => "empty",
            Self::SeveralStatements(_) => "several_statements",
            Self::NotReadOnly(_) => "read_only",
            Self::UnknownTable { .. } => "unknown_table",
            Self::UnknownColumn { .. } => "unknown_column",
            Self::UnknownFunction { .. } => "unknown_function",
            Self::Invalid(_) => "invalid",
            Self::NotSupported(_) => "not_supported",
            Self::Failed(_) => "failed",
            Self::Encode { .. } => "encode",
            Self::RowTooLarge { .. } => "row_limit",
            Self::TooManyRows { .. } => "rows_limit",
            Self::TooSlow { .. } => "time_limit",
            Self::TimeNotAllowed { .. } => "time_not_allowed",
            Self::OutOfMemory(_) | Self::RowsTooWide { .. } => "memory_limit",
            Self::Storage(_) => "storage",
            Self::Busy { .. } => "busy",
            Self::Died(_) => "query_died",
            Self::Internal(_) => "internal",
        }
    }

    /// How to fix it, where there is advice.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Empty => "write a SELECT, or `describe` to see the tables".into(),
            Self::NotReadOnly(_) => "tables are filled by pipelines from imported and collected events".into(),
            Self::UnknownTable { name, tables } => match nearest(name, tables) {
                Some(near) => format!("did you mean {near}? `describe` lists the tables: {}", tables.join(", ")),
                None => format!("there are: {}", tables.join(", ")),
            },
            Self::UnknownColumn { name, columns } => match (nearest(name, columns), columns.is_empty()) {
                (Some(near), _) => format!("did you mean {near}? there are: {}", columns.join(", ")),
                (None, false) => format!("there are: {}", columns.join(", ")),
                (None, true) => return None,
            },
            Self::UnknownFunction { nearest, .. } => {
                let near = nearest.as_ref().map_or_else(String::new, |near| format!("did you mean {near}? "));
                format!("{near}`describe functions` lists those that tidegate adds")
            }
            Self::Encode { .. } => "cast the column to text, or ask for json or arrow".into(),
            Self::RowTooLarge { .. } => {
                "select fewer columns of it, or a part of the long ones: substr(…), array_slice(…)".into()
            }
            Self::TooManyRows { .. } => {
                "add LIMIT or aggregate; or raise the limit: --max-rows on the command line, \"max_rows\" over HTTP".into()
            }
            Self::TooSlow { .. } => {
                "narrow the time range; or raise the limit: --timeout on the command line, \"timeout_ms\" over HTTP".into()
            }
            Self::OutOfMemory(_) | Self::RowsTooWide { .. } => {
                "select fewer columns, narrow the time range, or raise the limit: --memory of tidegate sql, --query-memory of \
                 tidegate up"
                    .into()
            }
            Self::Busy { .. } => "ask again in a moment, and fewer at a time".into(),
            Self::Died(_) => {
                "only this query is lost: everything else went on; ask for less at a time, and report it if it repeats".into()
            }
            _ => return None,
        })
    }

    /// Translates an error of the engine into the query's terms. `tables` are the existing names.
    pub(crate) fn from_engine(error: &DataFusionError, tables: impl Iterator<Item = String>) -> Self {
        // A collection reports every wrong item of a SELECT; the first one is enough to go on with.
        let error = match error.find_root() {
            DataFusionError::Collection(errors) if !errors.is_empty() => errors[0].find_root(),
            other => other,
        };
        if let DataFusionError::External(cause) = error
            && let Some(TooWide { bytes }) = cause.downcast_ref()
        {
            return Self::RowsTooWide { bytes: *bytes };
        }
        // Some builds append a backtrace to the message.
        let text = error
            .message()
            .split(DataFusionError::BACK_TRACE_SEP)
            .next()
            .unwrap_or_default()
            .trim_end()
            .to_owned();
        match error {
            DataFusionError::SQL(parser, _) => syntax(parser),
            DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
                SchemaError::FieldNotFound { field, valid_fields } => Self::UnknownColumn {
                    name: field.flat_name(),
                    columns: valid_fields.iter().map(|c| short_name(c, valid_fields)).collect(),
                },
                _ => Self::Invalid(text),
            },
            DataFusionError::Plan(_) | DataFusionError::Configuration(_) => plan(text, tables),
            DataFusionError::NotImplemented(_) => Self::NotSupported(text),
            DataFusionError::ResourcesExhausted(_) => Self::OutOfMemory(first_line(&text)),
            // The hard limit of a worker.
            DataFusionError::Execution(_) | DataFusionError::ArrowError(..)
                if text.contains("memory allocator returned an error") =>
            {
                Self::OutOfMemory(first_line(&text))
            }
            DataFusionError::Execution(_) | DataFusionError::ArrowError(..) => Self::Failed(text),
            DataFusionError::IoError(_)
            | DataFusionError::ObjectStore(_)
            | DataFusionError::ParquetError(_) => Self::Storage(text),
            DataFusionError::External(_) => Self::Storage(text),
            _ => Self::Internal(first_line(&text)),
        }
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The parser's message ends with the place: `… at Line: 1, Column: 8`.
fn syntax(error: &ParserError) -> QueryError {
    let text = match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text.clone(),
        ParserError::RecursionLimitExceeded => "the query is nested too deeply".into(),
    };
    let place = text.rsplit_once(" at Line: ").and_then(|(message, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        Some((message.to_owned(), (line.trim().parse().ok()?, column.trim().parse().ok()?)))
    });
    match place {
        Some((message, position)) => QueryError::Syntax { message, position: Some(position) },
        None => QueryError::Syntax { message: text, position: None },
    }
}

fn plan(text: String, tables: impl Iterator<Item = String>) -> QueryError {
    let missing = text.strip_prefix("table '").and_then(|rest| rest.strip_suffix("' not found"));
    if let Some(name) = missing {
        let name = name.strip_prefix("datafusion.").unwrap_or(name);
        let name = name.strip_prefix("public.").unwrap_or(name);
        return QueryError::UnknownTable { name: name.to_owned(), tables: tables.collect() };
    }
    if let Some((name, rest)) = text.strip_prefix("Invalid function '").and_then(|rest| rest.split_once('\''))
    {
        let nearest = rest.split('\'').nth(1).map(str::to_owned);
        return QueryError::UnknownFunction { name: name.to_owned(), nearest };
    }
    for refused in ["DDL not supported: ", "DML not supported: ", "Statement not supported: "] {
        if let Some(what) = text.strip_prefix(refused) {
            return QueryError::NotReadOnly(what.to_owned());
        }
    }
    QueryError::Invalid(text)
}

/// The column's name, with its table only where the name alone is ambiguous.
fn short_name(column: &Column, all: &[Column]) -> String {
    match all.iter().filter(|c| c.name == column.name).count() {
        1 => column.name.clone(),
        _ => column.flat_name(),
    }
}

/// The most similar name, if at least half of it is the same.
fn nearest<'a>(name: &str, names: &'a [String]) -> Option<&'a str> {
    let name = name.rsplit('.').next().unwrap_or(name).to_lowercase();
    let rated = names.iter().map(|other| (normalized_levenshtein(&name, &other.to_lowercase()), other));
    let (likeness, best) = rated.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness >= 0.5).then_some(best.as_str())
}
