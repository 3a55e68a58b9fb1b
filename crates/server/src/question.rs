//! What a door asks: a text, values for its parameters, and how the answer is written.

use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

use crate::format::Format;

/// A query as a door was asked it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Question {
    pub query: Query,
    pub encoding: Encoding,
    /// Not its rows are wanted, but its [`Description`].
    pub only_describe: bool,
}

/// The text of a query, and values for the parameters in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Query {
    pub sql: String,
    pub parameters: Parameters,
    /// Its client takes this server for Postgres, and may ask for Postgres' catalogue.
    pub of_postgres: bool,
}

impl Question {
    /// A text without parameters, to be answered in this format.
    pub fn plain(sql: impl Into<String>, format: Format) -> Self {
        Self { query: Query::plain(sql), encoding: Encoding::Format(format), only_describe: false }
    }
}

impl Query {
    /// A text without parameters.
    pub fn plain(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), parameters: Parameters::None, of_postgres: false }
    }
}

/// Values for the parameters `$1`, `$2`, … of a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Parameters {
    None,
    /// As Postgres' message `Bind` has them.
    Postgres(Bound),
    /// A stream of Arrow with one row.
    Arrow(Vec<u8>),
}

/// Values as Postgres' messages have them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Bound {
    /// Object identifiers of their types; 0, or none, where the client leaves it to the server.
    pub types: Vec<u32>,
    /// 0 for text and 1 for binary: one for each value, or one or none for all.
    pub formats: Vec<i16>,
    pub values: Vec<Option<Vec<u8>>>,
}

/// How an answer is written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Encoding {
    Format(Format),
    /// Postgres' messages: one that describes the columns, and one for each row. 0 for text and 1
    /// for binary: one for each column, or one or none for all.
    Postgres {
        formats: Vec<i16>,
    },
    /// A stream of Arrow, in messages that clients of Flight take.
    Flight,
}

impl Encoding {
    /// The format whose reader this is for, as errors name it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Format(format) => format.name(),
            Self::Postgres { .. } => "postgres",
            Self::Flight => "arrow",
        }
    }
}

/// What a query takes and gives.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    /// Types of its parameters, in their order; `Null` where any will do.
    pub parameters: SchemaRef,
    pub columns: SchemaRef,
}
