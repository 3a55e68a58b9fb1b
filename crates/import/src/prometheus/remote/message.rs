//! Messages of remote read, as far as they are needed: of Prometheus' `remote.proto` and
//! `types.proto`.

/// What is asked for.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ReadRequest {
    #[prost(message, repeated, tag = "1")]
    pub queries: Vec<Query>,
    /// Forms of an answer that are read, the preferred one first.
    #[prost(enumeration = "ResponseType", repeated, tag = "2")]
    pub accepted_response_types: Vec<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ResponseType {
    /// One message with all samples, compressed as a whole.
    Samples = 0,
    /// A stream of frames with chunks as the server stores them.
    StreamedXorChunks = 1,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Query {
    #[prost(int64, tag = "1")]
    pub start_timestamp_ms: i64,
    #[prost(int64, tag = "2")]
    pub end_timestamp_ms: i64,
    #[prost(message, repeated, tag = "3")]
    pub matchers: Vec<LabelMatcher>,
}

/// A label that must be, or must not be, equal to a value or match a regular expression.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LabelMatcher {
    #[prost(enumeration = "MatchType", tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum MatchType {
    Equal = 0,
    NotEqual = 1,
    Regex = 2,
    NotRegex = 3,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ReadResponse {
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<QueryResult>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct QueryResult {
    #[prost(message, repeated, tag = "1")]
    pub timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    pub labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Sample {
    #[prost(double, tag = "1")]
    pub value: f64,
    /// Milliseconds since the epoch.
    #[prost(int64, tag = "2")]
    pub timestamp: i64,
}

/// A frame of a streamed answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ChunkedReadResponse {
    #[prost(message, repeated, tag = "1")]
    pub chunked_series: Vec<ChunkedSeries>,
}

/// Chunks of a series, in order of time. A series may go on in the next frame.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ChunkedSeries {
    #[prost(message, repeated, tag = "1")]
    pub labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub chunks: Vec<Chunk>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Chunk {
    #[prost(int32, tag = "3")]
    pub encoding: i32,
    #[prost(bytes = "vec", tag = "4")]
    pub data: Vec<u8>,
}
