//! The value of a message: a frame that names the schema, and the record's payload.
//!
//! The frame is the one that Confluent's serializers write in front of a Protobuf message, so that
//! what knows that convention reads our topics, and what writes it can be read by us: a zero, the
//! schema's number as four bytes, the highest first, and where in its `.proto` file the message
//! stands. Ours all stand first, which is written as a single zero.

/// What a framed value begins with. No Protobuf message does, and no JSON.
const MAGIC: u8 = 0;
/// Schema number of a message without one. No decoder accepts it, so the message becomes a dead
/// letter and stops no reader.
pub(super) const FOREIGN_SCHEMA: u32 = 0;

/// Puts the frame before a payload.
pub(super) fn frame(schema: u32, payload: &[u8], value: &mut Vec<u8>) {
    value.clear();
    value.push(MAGIC);
    value.extend_from_slice(&schema.to_be_bytes());
    value.push(0);
    value.extend_from_slice(payload);
}

/// Schema and payload of a value; `header` is the schema that the message's header names.
///
/// One of the two is enough: producers that follow the convention write no header, and a value
/// without a frame is what this program wrote before there was one. Where frame and header
/// disagree, or the frame is cut off or names another message of the file, the value has no known
/// meaning: it is foreign, and is returned unchanged.
pub(super) fn unframe(header: Option<u32>, value: &[u8]) -> (u32, &[u8]) {
    let Some((&MAGIC, frame)) = value.split_first() else {
        return (header.unwrap_or(FOREIGN_SCHEMA), value);
    };
    let framed = frame
        .split_first_chunk()
        .and_then(|(number, rest)| Some((u32::from_be_bytes(*number), first_message(rest)?)));
    match framed {
        Some((schema, payload)) if header.is_none_or(|header| header == schema) => (schema, payload),
        _ => (FOREIGN_SCHEMA, value),
    }
}

/// What follows the place of the first message, which some serializers write in full: a list of
/// length 1 (as a zigzag varint) that holds 0.
fn first_message(value: &[u8]) -> Option<&[u8]> {
    match value {
        [0, payload @ ..] | [2, 0, payload @ ..] => Some(payload),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: u32 = 0x1_0001;

    #[test]
    fn a_value_has_the_frame_of_the_schema_registry() {
        let mut value = b"left over".to_vec();
        frame(JOB, b"\x0a\x01x", &mut value);
        assert_eq!(value, b"\0\0\x01\0\x01\0\x0a\x01x");
    }

    #[test]
    fn framing_round_trips() {
        let mut value = Vec::new();
        for schema in [0, JOB, u32::MAX] {
            for payload in [&b""[..], b"\0", b"\0\0\x01\0\x01\0", b"payload"] {
                frame(schema, payload, &mut value);
                assert_eq!(unframe(Some(schema), &value), (schema, payload));
                assert_eq!(unframe(None, &value), (schema, payload));
            }
        }
    }

    #[test]
    fn a_frame_without_a_header_is_enough() {
        assert_eq!(unframe(None, b"\0\0\x01\0\x01\0p"), (JOB, &b"p"[..]));
        assert_eq!(unframe(None, b"\0\0\x01\0\x01\x02\0p"), (JOB, &b"p"[..]));
    }

    #[test]
    fn a_value_without_a_frame_is_what_its_header_says() {
        for value in [&b""[..], b"\x0a\x01x", b"{}", b"\x01\0\x01\0\x01\0p"] {
            assert_eq!(unframe(Some(JOB), value), (JOB, value));
            assert_eq!(unframe(None, value), (FOREIGN_SCHEMA, value));
        }
    }

    #[test]
    fn a_frame_that_does_not_hold_is_foreign() {
        let whole = b"\0\0\x01\0\x01\0";
        let cut = (1..whole.len()).map(|len| &whole[..len]);
        let other_messages =
            [&b"\0\0\x01\0\x01\x02\x02p"[..], b"\0\0\x01\0\x01\x04\0\0p", b"\0\0\x01\0\x01\x02"];
        for value in cut.chain(other_messages) {
            assert_eq!(unframe(Some(JOB), value), (FOREIGN_SCHEMA, value));
            assert_eq!(unframe(None, value), (FOREIGN_SCHEMA, value));
        }
        assert_eq!(unframe(Some(JOB + 1), whole), (FOREIGN_SCHEMA, &whole[..]));
    }
}
