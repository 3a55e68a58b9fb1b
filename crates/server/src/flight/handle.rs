//! Handles of queries. They hold the query itself, so that the server remembers nothing for its
//! clients; one that was made up is a query like any other.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::question::{Encoding, Parameters, Query, Question};

/// A query that a client is about to ask.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Handle {
    pub sql: String,
    /// Values of its parameters, as a stream of Arrow with one row.
    pub values: Option<Vec<u8>>,
}

impl Handle {
    pub fn new(sql: String) -> Self {
        Self { sql, values: None }
    }

    /// Reads what the server gave, or somebody made up.
    ///
    /// # Errors
    /// It is no handle.
    pub fn read(handle: &[u8]) -> Result<Self, Status> {
        serde_json::from_slice(handle).map_err(|_| Status::invalid_argument("there is no such statement"))
    }

    pub fn bytes(&self) -> Result<Bytes, Status> {
        let bytes = serde_json::to_vec(self).map_err(|error| Status::internal(error.to_string()))?;
        Ok(bytes.into())
    }

    pub fn question(self, only_describe: bool) -> Question {
        let parameters = self.values.map_or(Parameters::None, Parameters::Arrow);
        let query = Query { sql: self.sql, parameters, of_postgres: false };
        Question { query, encoding: Encoding::Flight, only_describe }
    }
}
