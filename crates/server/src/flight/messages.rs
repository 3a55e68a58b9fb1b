//! Arrow's messages, as a worker streams them and Flight carries them: the same bytes in other
//! frames. Neither rows nor schemas are decoded here.

use arrow::ipc::root_as_message;
use arrow_flight::FlightData;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::Status;

/// Begins a message of a stream, before its length.
const CONTINUED: u32 = u32::MAX;
/// The two of them.
const HEAD_BYTES: usize = 8;
/// Longest head of a message: a schema of many columns.
const MAX_HEADER_BYTES: usize = 16 << 20;
/// Longest rest of a message: a row is no longer.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Messages of a stream that comes in pieces.
#[derive(Debug, Default)]
pub(super) struct Messages(BytesMut);

impl Messages {
    pub fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    /// The next message; `None` until it is there as a whole, and at the end of the stream.
    ///
    /// # Errors
    /// What comes is no stream of Arrow.
    pub fn next(&mut self) -> Result<Option<FlightData>, Status> {
        let wrong =
            |what: &str| Status::internal(format!("what a worker sent is no stream of Arrow: {what}"));
        let header = loop {
            let Some(head) = self.0.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
            let [a, b, c, d, e, f, g, h] = *head;
            if u32::from_le_bytes([a, b, c, d]) != CONTINUED {
                return Err(wrong("a message does not begin as one"));
            }
            match u32::from_le_bytes([e, f, g, h]) as usize {
                // A stream ends; another one may follow.
                0 => self.0.advance(HEAD_BYTES),
                header if header > MAX_HEADER_BYTES => return Err(wrong("a head is too long")),
                header => break header,
            }
        };
        let Some(metadata) = self.0.get(HEAD_BYTES..HEAD_BYTES + header) else { return Ok(None) };
        let message = root_as_message(metadata).map_err(|error| wrong(&error.to_string()))?;
        let body = usize::try_from(message.bodyLength()).ok().filter(|length| *length <= MAX_BODY_BYTES);
        let body = body.ok_or_else(|| wrong("a message is too long"))?;
        if self.0.len() < HEAD_BYTES + header + body {
            return Ok(None);
        }
        self.0.advance(HEAD_BYTES);
        let data_header = self.0.split_to(header).freeze();
        let data_body = self.0.split_to(body).freeze();
        Ok(Some(FlightData { data_header, data_body, ..FlightData::default() }))
    }

    /// The next message as it was streamed, without the end of its stream: a schema, as Flight
    /// names one.
    ///
    /// # Errors
    /// What comes is no stream of Arrow, or ends.
    pub fn next_framed(&mut self) -> Result<Bytes, Status> {
        let data = self.next()?.ok_or_else(|| Status::internal("a worker described nothing"))?;
        let mut framed = BytesMut::new();
        frame(&data, &mut framed);
        Ok(framed.freeze())
    }
}

/// Writes a message as a stream has it.
pub(super) fn frame(data: &FlightData, to: &mut BytesMut) {
    let padding = data.data_header.len().next_multiple_of(8) - data.data_header.len();
    to.put_u32_le(CONTINUED);
    to.put_u32_le(u32::try_from(data.data_header.len() + padding).unwrap_or(u32::MAX));
    to.put_slice(&data.data_header);
    to.put_bytes(0, padding);
    to.put_slice(&data.data_body);
}

/// Ends a stream.
pub(super) fn frame_end(to: &mut BytesMut) {
    to.put_u32_le(CONTINUED);
    to.put_u32_le(0);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use arrow::ipc::reader::StreamReader;
    use arrow::ipc::writer::StreamWriter;

    use super::*;

    #[test]
    fn a_stream_in_pieces_is_the_same_in_other_frames() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
        let rows = RecordBatch::try_from_iter([("n", numbers), ("s", names)]).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema()).unwrap();
        writer.write(&rows).unwrap();
        writer.write(&rows.slice(1, 1)).unwrap();
        writer.finish().unwrap();
        let (mut messages, mut framed, mut count) = (Messages::default(), BytesMut::new(), 0);
        for piece in writer.into_inner().unwrap().chunks(7) {
            messages.push(piece);
            while let Some(data) = messages.next().unwrap() {
                frame(&data, &mut framed);
                count += 1;
            }
        }
        frame_end(&mut framed);
        let read: Vec<RecordBatch> =
            StreamReader::try_new(&framed[..], None).unwrap().map(Result::unwrap).collect();
        assert_eq!((read, count), (vec![rows.clone(), rows.slice(1, 1)], 3));
    }

    #[test]
    fn what_is_no_stream_is_an_error() {
        for bytes in [
            &b"PAR1PAR1"[..],
            b"\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\xff\xff\xff\xff\x08\0\0\0\xff\xff\xff\xff\0\0\0\0",
        ] {
            let mut messages = Messages::default();
            messages.push(bytes);
            assert!(messages.next().is_err(), "{bytes:?}");
        }
    }
}
