//! Counts what a Protobuf message holds before it is decoded, and refuses what is too much.
//!
//! Two bytes on the wire can become hundreds in memory: an empty message of a repeated field is a
//! whole struct, and a packed number of one byte takes eight. So the bytes are walked first,
//! without allocation, and each repeated field and each text is held to its bound ([`shapes`]).
//!
//! What is malformed ends the walk without an error: decoding stops at the same place and says why.

mod shapes;

pub use shapes::{MAX_SAMPLES, shape_of};

/// Message, as far as its size has bounds.
#[derive(Debug)]
pub struct Shape {
    /// Memory of the decoded message, bytes.
    pub bytes: usize,
    /// Its fields that can be many or long. Of others, a text is at most [`MAX_TEXT_BYTES`] long.
    pub fields: &'static [Field],
}

/// Field of a [`Shape`].
#[derive(Debug)]
pub struct Field {
    /// Number on the wire.
    pub number: u32,
    /// Name in the schema.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
}

/// What a field holds, with its bounds. Those of repeated fields hold for a whole record.
#[derive(Debug)]
pub enum Kind {
    /// One text of at most so many bytes.
    Text(usize),
    /// Repeated: so many texts.
    Texts(usize),
    /// Repeated: so many numbers, packed or not.
    Numbers(usize),
    /// Repeated: so many messages.
    Messages(usize, &'static Shape),
    /// One message.
    Message(&'static Shape),
}

/// Longest text of a field without a bound of its own, bytes: a list of all nodes of a cluster.
pub const MAX_TEXT_BYTES: usize = 2 << 20;
/// Bytes that a text takes beside its own.
const TEXT_BYTES: usize = 24;
/// Repeated fields of a record that are counted.
const MAX_COUNTED: usize = 16;

/// A record holds more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum TooMuch {
    /// A repeated field has too many entries.
    #[error("`{field}` stands more than {most} times in it; send less in one message")]
    Many { field: &'static str, most: usize },
    /// A text is too long.
    #[error("`{field}` is {bytes} bytes long, and at most {most} are accepted; shorten it")]
    Long { field: &'static str, bytes: usize, most: usize },
    /// A group, which no schema has.
    #[error("field {number} is a group, which proto3 does not have; write messages of schemas/")]
    Group { number: u32 },
}

/// Walks a message of `shape`. Returns the memory that it takes when it is decoded, bytes, by
/// estimate.
///
/// # Errors
/// [`TooMuch`] if a field is over its bound.
pub fn measure(shape: &'static Shape, message: &[u8]) -> Result<usize, TooMuch> {
    let mut walk = Walk { counts: [("", 0); MAX_COUNTED], bytes: shape.bytes };
    walk.message(shape, message)?;
    Ok(walk.bytes)
}

struct Walk {
    /// Entries of each repeated field so far, by name.
    counts: [(&'static str, usize); MAX_COUNTED],
    bytes: usize,
}

impl Walk {
    fn message(&mut self, shape: &'static Shape, mut rest: &[u8]) -> Result<(), TooMuch> {
        while let Some(tag) = varint(&mut rest) {
            let Ok(number) = u32::try_from(tag >> 3) else { return Ok(()) };
            let field = shape.fields.iter().find(|field| field.number == number);
            let skipped = match tag & 7 {
                0 => {
                    self.numbers(field, 1)?;
                    varint(&mut rest).map(|_| ())
                }
                1 => take(&mut rest, 8).map(|_| ()),
                5 => take(&mut rest, 4).map(|_| ()),
                2 => match varint(&mut rest).and_then(|len| take(&mut rest, usize::try_from(len).ok()?)) {
                    Some(value) => Some(self.value(field, value)?),
                    None => None,
                },
                3 | 4 => return Err(TooMuch::Group { number }),
                _ => None,
            };
            if skipped.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn value(&mut self, field: Option<&'static Field>, value: &[u8]) -> Result<(), TooMuch> {
        let Some(field) = field else { return self.text("a text", value.len(), MAX_TEXT_BYTES) };
        match field.kind {
            Kind::Text(most) => self.text(field.name, value.len(), most),
            Kind::Texts(most) => {
                self.count(field.name, 1, most)?;
                self.text(field.name, value.len(), MAX_TEXT_BYTES)
            }
            Kind::Numbers(_) => {
                // Each number ends with a byte without the upper bit.
                let numbers = value.iter().filter(|byte| **byte < 0x80).count();
                self.numbers(Some(field), numbers)
            }
            Kind::Messages(most, shape) => {
                self.count(field.name, 1, most)?;
                self.bytes += shape.bytes;
                self.message(shape, value)
            }
            Kind::Message(shape) => self.message(shape, value),
        }
    }

    fn numbers(&mut self, field: Option<&'static Field>, more: usize) -> Result<(), TooMuch> {
        if let Some(Field { name, kind: Kind::Numbers(most), .. }) = field {
            self.count(name, more, *most)?;
            self.bytes += more * size_of::<u64>();
        }
        Ok(())
    }

    fn text(&mut self, field: &'static str, bytes: usize, most: usize) -> Result<(), TooMuch> {
        if bytes > most {
            return Err(TooMuch::Long { field, bytes, most });
        }
        self.bytes += TEXT_BYTES + bytes;
        Ok(())
    }

    fn count(&mut self, field: &'static str, more: usize, most: usize) -> Result<(), TooMuch> {
        let known = self.counts.iter_mut().find(|(name, _)| *name == field || name.is_empty());
        let Some((name, count)) = known else { return Err(TooMuch::Many { field, most: 0 }) };
        (*name, *count) = (field, *count + more);
        if *count > most { Err(TooMuch::Many { field, most }) } else { Ok(()) }
    }
}

/// Takes a number of at most ten bytes off the front.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for at in 0..10 {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << (7 * at);
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Takes `len` bytes off the front.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (value, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(value)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::{Event, SchemaId, v1};

    fn batch() -> v1::GpuSampleBatch {
        v1::GpuSampleBatch {
            devices: vec![v1::gpu_sample_batch::DeviceInfo { uuid: "GPU-1".into(), ..Default::default() }],
            tick_delta_ms: vec![1_000; 9],
            columns: vec![v1::gpu_sample_batch::Column {
                name: "power_mw".into(),
                value_delta: vec![-300_000; 10],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn what_a_batch_takes_is_counted() {
        let shape = shape_of(SchemaId::GpuSampleBatch);
        let few = measure(shape, &batch().encode_to_vec()).unwrap();
        let mut more = batch();
        more.columns[0].value_delta = vec![1; 1_010];
        assert_eq!(measure(shape, &more.encode_to_vec()).unwrap() - few, 8_000);
    }

    #[test]
    fn empty_messages_are_refused_before_they_take_memory() {
        // Field 6 of a batch is `columns`: two bytes each.
        let columns = [0x32, 0].repeat(100_000);
        let refused = Event::decode_draft(SchemaId::GpuSampleBatch.number(), &columns).unwrap_err();
        assert!(refused.to_string().contains("`columns` stands more than 512 times"), "{refused}");
        let devices = [0x1a, 0].repeat(100_000);
        let refused = Event::decode_draft(SchemaId::GpuSampleBatch.number(), &devices).unwrap_err();
        assert!(refused.to_string().contains("`devices` stands more than"), "{refused}");
        // `evidence` of a node signal.
        let evidence = [0x3a, 0].repeat(100_000);
        let refused = Event::decode_draft(SchemaId::NodeSignal.number(), &evidence).unwrap_err();
        assert!(refused.to_string().contains("`evidence` stands more than"), "{refused}");
    }

    #[test]
    fn counts_hold_for_the_whole_record() {
        // Each column alone has few runs of missing values.
        let some = [vec![0x32, 0xc8, 0x01], [0x1a, 0].repeat(100)].concat().repeat(500);
        assert!(measure(shape_of(SchemaId::GpuSampleBatch), &some).is_ok());
        let runs = [vec![0x32, 0xa0, 0x9c, 0x01], [0x1a, 0].repeat(10_000)].concat().repeat(30);
        let refused = measure(shape_of(SchemaId::GpuSampleBatch), &runs).unwrap_err();
        assert!(matches!(refused, TooMuch::Many { field: "missing", .. }), "{refused:?}");
    }

    #[test]
    fn long_texts_and_groups_are_refused_and_garbage_is_left_to_the_decoder() {
        let mut event = v1::JobEvent { job_id: "x".repeat(5_000), ..Default::default() };
        let refused = Event::decode_draft(SchemaId::JobEvent.number(), &event.encode_to_vec()).unwrap_err();
        assert!(refused.to_string().contains("`job_id` is 5000 bytes long"), "{refused}");
        event.job_id = "x".into();
        assert!(Event::decode_draft(SchemaId::JobEvent.number(), &event.encode_to_vec()).is_ok());
        let group = Event::decode_draft(SchemaId::JobEvent.number(), &[0x0b, 0x0c]).unwrap_err();
        assert!(group.to_string().contains("a group"), "{group}");
        for garbage in [&[0xff; 20][..], &[0x0a, 0xff], &[0x0a, 5, 1], &[7]] {
            let refused = Event::decode_draft(SchemaId::JobEvent.number(), garbage).unwrap_err();
            assert!(refused.to_string().contains("is not a protobuf message"), "{refused}");
        }
    }
}
