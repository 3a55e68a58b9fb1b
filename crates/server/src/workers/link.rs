//! A worker's end of the connection to the serving process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use arrow::ipc::reader::StreamReader;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{Mutex, mpsc};

use super::frame::{self, Frame, Kind};
use super::message::{Needed, Places, WantedTail};
use crate::background::Background;

/// Frames that wait to be written. A client that reads slowly slows the query down.
const FRAMES_AHEAD: usize = 2;

/// What the serving process wants of a worker.
pub(super) enum Order {
    Ask(Frame),
    Cancel,
}

/// Writes frames, and asks for what the serving process has. Shared by all parts of a query.
#[derive(Debug)]
pub(super) struct Link {
    /// Frames are written by a task, so that none is cut when a query is dropped.
    out: mpsc::Sender<(Kind, Vec<u8>)>,
    /// Each reply with the number of the query that was running when it came.
    replies: Mutex<mpsc::UnboundedReceiver<(u64, Frame)>>,
    query: AtomicU64,
    questions: AtomicU64,
}

impl Link {
    /// Starts the tasks that read and write. The orders end where the serving process has ended.
    pub(super) fn over(
        stream: UnixStream,
        background: Background,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Order>) {
        let (from, mut to) = stream.into_split();
        let (out, mut to_write) = mpsc::channel::<(Kind, Vec<u8>)>(FRAMES_AHEAD);
        tokio::spawn(async move {
            while let Some((kind, bytes)) = to_write.recv().await {
                if frame::write(&mut to, kind, &bytes).await.is_err() {
                    return;
                }
            }
        });
        let (reply, replies) = mpsc::unbounded_channel();
        let (order, orders) = mpsc::unbounded_channel();
        tokio::spawn(route(from, order, reply, background));
        (
            Arc::new(Self {
                out,
                replies: Mutex::new(replies),
                query: AtomicU64::new(0),
                questions: AtomicU64::new(0),
            }),
            orders,
        )
    }

    /// From now on replies are to this query.
    pub(super) fn begin_query(&self) {
        self.query.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) async fn send(&self, kind: Kind, bytes: Vec<u8>) -> io::Result<()> {
        self.out.send((kind, bytes)).await.map_err(|_| gone())
    }

    /// Number of the next question for rows.
    pub(super) fn next_id(&self) -> u64 {
        self.questions.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks where tables are.
    pub(super) async fn places(&self, needed: &Needed) -> io::Result<Places> {
        let mut replies = self.replies.lock().await;
        self.send(Kind::Need, json(needed)?).await?;
        loop {
            let frame = self.reply(&mut replies).await?;
            if frame.kind == Kind::Places {
                return frame.message();
            }
        }
    }

    /// Asks for rows that are not committed. A part of a query may be dropped while it asks, as
    /// behind a LIMIT; what comes of its reply is passed over by number.
    pub(super) async fn tail(&self, wanted: &WantedTail) -> io::Result<Vec<RecordBatch>> {
        let mut replies = self.replies.lock().await;
        self.send(Kind::WantTail, json(wanted)?).await?;
        let mut stream = Vec::new();
        loop {
            let Frame { kind, bytes } = self.reply(&mut replies).await?;
            match bytes.split_first_chunk() {
                Some((id, rows)) if u64::from_le_bytes(*id) == wanted.id => match kind {
                    Kind::Tail => stream.extend(rows),
                    _ => break,
                },
                _ => {}
            }
        }
        drop(replies);
        let batches = StreamReader::try_new(&stream[..], None).map_err(io::Error::other)?;
        batches.collect::<Result<_, _>>().map_err(io::Error::other)
    }

    /// The next reply. What came for an earlier query, which was dropped before, is passed over.
    async fn reply(&self, replies: &mut mpsc::UnboundedReceiver<(u64, Frame)>) -> io::Result<Frame> {
        loop {
            let (query, frame) = replies.recv().await.ok_or_else(gone)?;
            if query == self.query.load(Ordering::Relaxed) {
                return Ok(frame);
            }
        }
    }
}

fn json(message: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(message).map_err(io::Error::other)
}

fn gone() -> io::Error {
    io::Error::other("the serving process has ended")
}

/// Sorts frames into orders and replies.
async fn route(
    mut from: OwnedReadHalf,
    orders: mpsc::UnboundedSender<Order>,
    replies: mpsc::UnboundedSender<(u64, Frame)>,
    background: Background,
) {
    let (mut reader, mut query) = (frame::Reader::default(), 0);
    while let Ok(Some(frame)) = reader.next(&mut from, frame::MAX_TO_WORKER).await {
        let sent = match frame.kind {
            Kind::Ask => {
                query += 1;
                orders.send(Order::Ask(frame)).is_ok()
            }
            Kind::Cancel => orders.send(Order::Cancel).is_ok(),
            Kind::Yield => {
                background.enter();
                true
            }
            _ => replies.send((query, frame)).is_ok(),
        };
        if !sent {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use arrow::ipc::writer::StreamWriter;

    use super::*;

    fn reply(id: u64, value: i64) -> Vec<u8> {
        let column: arrow::array::ArrayRef = Arc::new(Int64Array::from(vec![value]));
        let rows = RecordBatch::try_from_iter([("value", column)]).unwrap();
        let mut writer = StreamWriter::try_new(id.to_le_bytes().to_vec(), &rows.schema()).unwrap();
        writer.write(&rows).unwrap();
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    }

    #[tokio::test]
    async fn a_reply_to_a_question_that_was_dropped_is_nobodys_rows() {
        let (here, mut server) = UnixStream::pair().unwrap();
        let (link, _orders) = Link::over(here, Background::start().unwrap());
        let wanted = |table: &str| WantedTail { id: link.next_id(), table: table.into(), columns: vec![0] };
        let (dropped, kept) = (wanted("a"), wanted("b"));
        let asks = tokio::time::timeout(Duration::from_millis(20), link.tail(&dropped));
        assert!(asks.await.is_err(), "nobody has answered");
        let answers = async {
            for (question, value) in [(&dropped, 1), (&kept, 2)] {
                let rows = reply(question.id, value);
                frame::write(&mut server, Kind::Tail, &rows).await.unwrap();
                frame::write(&mut server, Kind::TailEnd, &question.id.to_le_bytes()).await.unwrap();
            }
        };
        let (rows, ()) = tokio::join!(link.tail(&kept), answers);
        assert_eq!(rows.unwrap()[0].column(0).as_primitive::<Int64Type>().values(), &[2]);
    }
}
