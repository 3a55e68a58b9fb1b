//! The three formats, as adapters around the rows of a topic.

use arrow::{
    array::RecordBatch,
    buffer::Buffer,
    compute::concat_batches,
    datatypes::{Schema, SchemaRef},
    error::ArrowError,
    ipc::{reader::StreamDecoder, writer::StreamEncoder},
};
use arrow_avro::{
    reader::{Decoder, ReaderBuilder},
    schema::{AvroSchema, SCHEMA_METADATA_KEY, SchemaStore},
    writer::{Encoder, WriterBuilder, format::AvroSoeFormat},
};

/// One way to write items as messages, and to read messages back as one flat batch.
pub trait Codec<T> {
    fn encode(&mut self, items: &[T]) -> Result<Vec<Vec<u8>>, ArrowError>;
    fn decode(&mut self, messages: &[&[u8]]) -> Result<RecordBatch, ArrowError>;
}

/// The codecs of a topic, by name in the report.
pub type NamedCodecs<T> = Vec<(&'static str, Box<dyn Codec<T>>)>;

/// Converts items of a topic into the batch that a format writes.
pub type ToBatch<T> = fn(&[T]) -> Result<RecordBatch, ArrowError>;

/// One Protobuf message per item.
pub struct Protobuf<T> {
    pub encode: fn(&T) -> Vec<u8>,
    pub decode: fn(&[&[u8]]) -> Result<RecordBatch, ArrowError>,
}

impl<T> Codec<T> for Protobuf<T> {
    fn encode(&mut self, items: &[T]) -> Result<Vec<Vec<u8>>, ArrowError> {
        Ok(items.iter().map(self.encode).collect())
    }

    fn decode(&mut self, messages: &[&[u8]]) -> Result<RecordBatch, ArrowError> {
        (self.decode)(messages)
    }
}

/// One Avro single-object message (marker, fingerprint of the schema, record) per row of the batch.
pub struct Avro<T> {
    encoder: Encoder,
    decoder: Decoder,
    /// Number of items that a producer writes at once.
    items_at_once: usize,
    to_batch: ToBatch<T>,
    to_flat: fn(RecordBatch) -> Result<RecordBatch, ArrowError>,
}

impl<T> Avro<T> {
    pub fn new(
        schema: &Schema,
        items_at_once: usize,
        to_batch: ToBatch<T>,
        to_flat: fn(RecordBatch) -> Result<RecordBatch, ArrowError>,
    ) -> Result<Self, ArrowError> {
        let encoder = WriterBuilder::new(schema.clone()).build_encoder::<AvroSoeFormat>()?;
        // The writer's own schema: fingerprints must agree.
        let written_as = encoder.schema().metadata()[SCHEMA_METADATA_KEY].clone();
        let mut store = SchemaStore::new();
        let fingerprint = store.register(AvroSchema::new(written_as))?;
        let decoder = ReaderBuilder::new()
            .with_writer_schema_store(store)
            .with_active_fingerprint(fingerprint)
            .with_batch_size(usize::from(u16::MAX))
            .build_decoder()?;
        Ok(Self { encoder, decoder, items_at_once, to_batch, to_flat })
    }
}

impl<T> Codec<T> for Avro<T> {
    fn encode(&mut self, items: &[T]) -> Result<Vec<Vec<u8>>, ArrowError> {
        let mut messages = Vec::new();
        for items in items.chunks(self.items_at_once) {
            self.encoder.encode(&(self.to_batch)(items)?)?;
            messages.extend(self.encoder.flush().iter().map(|row| row.to_vec()));
        }
        Ok(messages)
    }

    fn decode(&mut self, messages: &[&[u8]]) -> Result<RecordBatch, ArrowError> {
        for message in messages {
            let read = self.decoder.decode(message)?;
            if read != message.len() {
                let text = format!("avro read {read} of a message of {} bytes", message.len());
                return Err(ArrowError::AvroError(text));
            }
        }
        let batch = self.decoder.flush()?.ok_or_else(|| ArrowError::AvroError("no rows to decode".into()))?;
        (self.to_flat)(batch)
    }
}

/// One Arrow IPC message per item.
pub struct ArrowIpc<T> {
    schema: SchemaRef,
    to_batch: ToBatch<T>,
    /// Decoder with the schema, for bare batches; `None` if each message is a stream with its
    /// schema.
    shared: Option<(StreamEncoder, StreamDecoder)>,
}

impl<T> ArrowIpc<T> {
    /// Each message carries schema and dictionaries.
    pub fn streams(schema: SchemaRef, to_batch: ToBatch<T>) -> Self {
        Self { schema, to_batch, shared: None }
    }

    /// Reader and writer agreed on the schema beforehand.
    pub fn bare(schema: SchemaRef, to_batch: ToBatch<T>) -> Result<Self, ArrowError> {
        let mut encoder = StreamEncoder::try_new(&schema)?;
        let mut decoder = StreamDecoder::new();
        for mut buffer in encoder.encode(&RecordBatch::new_empty(schema.clone()))? {
            decoder.decode(&mut buffer)?;
        }
        Ok(Self { schema, to_batch, shared: Some((encoder, decoder)) })
    }

    fn encode_one(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        let buffers = match &mut self.shared {
            Some((encoder, _)) => encoder.encode(batch)?,
            None => StreamEncoder::try_new(&self.schema)?.encode(batch)?,
        };
        Ok(buffers.iter().map(Buffer::as_slice).collect::<Vec<_>>().concat())
    }

    fn decode_one(&mut self, message: &[u8]) -> Result<RecordBatch, ArrowError> {
        let mut message = Buffer::from(message);
        let batch = match &mut self.shared {
            Some((_, decoder)) => decoder.decode(&mut message)?,
            None => StreamDecoder::new().decode(&mut message)?,
        };
        batch.ok_or_else(|| ArrowError::IpcError("message without a record batch".into()))
    }
}

impl<T> Codec<T> for ArrowIpc<T> {
    fn encode(&mut self, items: &[T]) -> Result<Vec<Vec<u8>>, ArrowError> {
        let to_batch = self.to_batch;
        items.iter().map(|item| self.encode_one(&to_batch(std::slice::from_ref(item))?)).collect()
    }

    fn decode(&mut self, messages: &[&[u8]]) -> Result<RecordBatch, ArrowError> {
        let batches =
            messages.iter().map(|message| self.decode_one(message)).collect::<Result<Vec<_>, _>>()?;
        concat_batches(&self.schema, &batches)
    }
}
