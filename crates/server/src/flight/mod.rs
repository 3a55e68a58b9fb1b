//! Arrow Flight SQL: for ADBC, JDBC and others that want columns.
//!
//! Each call is a query or a question about the tables. A worker streams Arrow, and its messages go
//! on in the frames of gRPC as they are (`messages.rs`). The server remembers nothing between
//! calls: tickets and handles hold the query (`handle.rs`).

mod handle;
mod messages;
mod metadata;
mod rows;
pub(crate) mod service;
mod status;
pub(crate) mod values;

use std::pin::Pin;

use arrow_flight::FlightData;
use futures::Stream;
use tonic::Status;

/// Longest message of a client, bytes: the text of a query, and values.
const MAX_MESSAGE_BYTES: usize = 256 << 10;

/// Messages to a client.
type Data = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;
