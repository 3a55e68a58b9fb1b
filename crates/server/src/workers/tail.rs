//! The serving process's part of a query: rows that are not committed, for the worker that asks.

use std::io;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::StreamWriter;
use datafusion::execution::TaskContext;
use futures::StreamExt;
use tidegate_lake::catalog::Catalog;

use super::frame::Kind;
use super::message::WantedTail;
use super::process::Worker;

/// Sends the rows as an Arrow stream, one batch per frame. Each frame starts with the id of the
/// worker's request.
pub(super) async fn send(worker: &mut Worker, catalog: &Catalog, wanted: &WantedTail) -> io::Result<()> {
    let stored = catalog.stored.get(&wanted.table);
    let spec = catalog.specs.get(&wanted.table);
    let (Some(stored), Some(spec)) = (stored, spec) else {
        return Err(io::Error::other(format!("a worker asked for the table {:?}", wanted.table)));
    };
    let schema = Arc::new(spec.full_schema().project(&wanted.columns).map_err(io::Error::other)?);
    let mut encoder = Encoder::new(&schema, wanted.id)?;
    for rows in &stored.overlay.rows {
        send_batch(worker, &mut encoder, rows, wanted).await?;
    }
    for stream in &stored.overlay.streams {
        let mut rows = stream.execute(Arc::new(TaskContext::default()));
        while let Some(rows) = rows.next().await {
            send_batch(worker, &mut encoder, &rows.map_err(io::Error::other)?, wanted).await?;
        }
    }
    let last = encoder.finish()?;
    worker.write(Kind::Tail, &last).await?;
    worker.write(Kind::TailEnd, &wanted.id.to_le_bytes()).await
}

async fn send_batch(
    worker: &mut Worker,
    encoder: &mut Encoder,
    rows: &RecordBatch,
    wanted: &WantedTail,
) -> io::Result<()> {
    if rows.num_rows() == 0 {
        return Ok(());
    }
    let rows = rows.project(&wanted.columns).map_err(io::Error::other)?;
    let bytes = encoder.encode(&rows)?;
    worker.write(Kind::Tail, &bytes).await
}

/// Batches as pieces of one Arrow stream, each behind the number of the question.
struct Encoder {
    writer: StreamWriter<Vec<u8>>,
    id: u64,
}

impl Encoder {
    fn new(schema: &SchemaRef, id: u64) -> io::Result<Self> {
        let writer = StreamWriter::try_new(Vec::new(), schema).map_err(io::Error::other)?;
        Ok(Self { writer, id })
    }

    fn encode(&mut self, rows: &RecordBatch) -> io::Result<Vec<u8>> {
        self.writer.write(rows).map_err(io::Error::other)?;
        Ok(self.piece())
    }

    fn finish(mut self) -> io::Result<Vec<u8>> {
        self.writer.finish().map_err(io::Error::other)?;
        Ok(self.piece())
    }

    /// What was written since the last piece.
    fn piece(&mut self) -> Vec<u8> {
        let written = std::mem::take(self.writer.get_mut());
        [&self.id.to_le_bytes()[..], &written].concat()
    }
}
