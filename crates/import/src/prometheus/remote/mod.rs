//! Remote read: raw samples of series, sampled or as a stream of the server's own chunks.
//! <https://prometheus.io/docs/prometheus/latest/querying/remote_read_api/>
//!
//! The server evaluates nothing, so neither its limit of samples in a query nor its time limit
//! applies. The last sample of each step is kept, and the rest is dropped as it comes.

mod frames;
pub(super) mod matchers;
pub(super) mod message;
mod steps;
mod xor;

use std::io::Read;

use prost::Message;
use ureq::Body;
use ureq::http::Response;

use super::refusal::Refusal;
use message::{ChunkedReadResponse, LabelMatcher, MatchType, Query, ReadRequest, ReadResponse, ResponseType};
use steps::Steps;

pub(super) use steps::StepSeries;

/// The path behind the server's address.
pub(super) const PATH: &str = "/api/v1/read";
/// Headers of a request.
pub(super) const HEADERS: [(&str, &str); 3] = [
    ("Content-Type", "application/x-protobuf"),
    ("Content-Encoding", "snappy"),
    ("X-Prometheus-Remote-Read-Version", "0.1.0"),
];
/// Longest sampled answer, bytes, when it is decompressed.
const SAMPLED_BYTES: usize = 64 << 20;
/// Longest stream, bytes. Little of it is held at a time.
const STREAM_BYTES: u64 = 1 << 30;
/// Number of the encoding of floats.
const XOR: i32 = 1;

/// The series of a name, from begin to end in steps, ms.
#[derive(Debug, Clone)]
pub(super) struct SeriesQuery<'a> {
    pub name: &'a str,
    pub matchers: &'a [LabelMatcher],
    pub span: (i64, i64, i64),
}

impl SeriesQuery<'_> {
    /// The body of the request.
    ///
    /// # Errors
    /// It is too long to be compressed.
    pub(super) fn body(&self) -> Result<Vec<u8>, Refusal> {
        let (from_ms, to_ms, step_ms) = self.span;
        let kind = MatchType::Equal.into();
        let name = LabelMatcher { kind, name: "__name__".to_owned(), value: self.name.to_owned() };
        let query = Query {
            // The first step has the samples that came within it.
            start_timestamp_ms: from_ms - step_ms + 1,
            end_timestamp_ms: to_ms,
            matchers: [&[name][..], self.matchers].concat(),
        };
        let types = [ResponseType::StreamedXorChunks, ResponseType::Samples];
        let request =
            ReadRequest { queries: vec![query], accepted_response_types: types.map(i32::from).to_vec() };
        let packed = snap::raw::Encoder::new().compress_vec(&request.encode_to_vec());
        packed.map_err(|error| Refusal::Failed(error.to_string()))
    }

    /// The series of a successful answer.
    ///
    /// # Errors
    /// It is none of remote read, damaged or too long.
    pub(super) fn series(&self, response: Response<Body>) -> Result<Vec<StepSeries>, Refusal> {
        let form = response.headers().get("content-type").and_then(|form| form.to_str().ok());
        let mut steps = Steps::new(self.span);
        match form.unwrap_or_default().split(';').next().unwrap_or_default().trim() {
            "application/x-streamed-protobuf" => {
                let mut stream = response.into_body().into_with_config().limit(STREAM_BYTES).reader();
                read_stream(&mut stream, &mut steps)?;
            }
            "application/x-protobuf" => {
                let mut packed = Vec::new();
                let body = response.into_body().into_with_config().limit(SAMPLED_BYTES as u64);
                body.reader().read_to_end(&mut packed).map_err(cut)?;
                read_sampled(&packed, &mut steps)?;
            }
            form => {
                let form: String = form.chars().filter(|letter| !letter.is_control()).take(80).collect();
                return Err(Refusal::Failed(format!(
                    "the answer is {form:?} and none of remote read; leave out --remote-read"
                )));
            }
        }
        steps.finish()
    }
}

/// Why a body was not read to its end.
fn cut(error: std::io::Error) -> Refusal {
    let source = error.get_ref().and_then(|source| source.downcast_ref::<ureq::Error>());
    match source {
        Some(ureq::Error::BodyExceedsLimit(_)) => Refusal::TooMuch("the answer is too long".to_owned()),
        Some(ureq::Error::Timeout(_)) => Refusal::TooMuch("the answer does not end in time".to_owned()),
        _ => Refusal::Failed(format!("the answer is cut or damaged: {error}")),
    }
}

fn read_stream(stream: &mut impl Read, steps: &mut Steps) -> Result<(), Refusal> {
    while let Some(frame) = frames::next(stream).map_err(cut)? {
        let frame = ChunkedReadResponse::decode(&frame[..])
            .map_err(|error| Refusal::Failed(format!("a frame of the answer cannot be read: {error}")))?;
        for series in frame.chunked_series {
            steps.begin(series.labels)?;
            for chunk in series.chunks {
                if chunk.encoding != XOR {
                    let what = format!("a chunk has encoding {}, and floats have {XOR}", chunk.encoding);
                    return Err(Refusal::Failed(what));
                }
                xor::samples(&chunk.data, &mut |at_ms, value| steps.add(at_ms, value))
                    .map_err(|xor::Cut| Refusal::Failed("a chunk of the answer is damaged".to_owned()))?;
            }
        }
    }
    Ok(())
}

fn read_sampled(packed: &[u8], steps: &mut Steps) -> Result<(), Refusal> {
    let damaged = |what: &dyn std::fmt::Display| Refusal::Failed(format!("the answer is damaged: {what}"));
    let bytes = snap::raw::decompress_len(packed).map_err(|error| damaged(&error))?;
    if bytes > SAMPLED_BYTES {
        return Err(Refusal::TooMuch(format!("the answer is longer than {} MiB", SAMPLED_BYTES >> 20)));
    }
    let plain = snap::raw::Decoder::new().decompress_vec(packed).map_err(|error| damaged(&error))?;
    let answer = ReadResponse::decode(&plain[..]).map_err(|error| damaged(&error))?;
    for series in answer.results.into_iter().flat_map(|result| result.timeseries) {
        steps.begin(series.labels)?;
        series.samples.iter().for_each(|sample| steps.add(sample.timestamp, sample.value));
    }
    Ok(())
}
