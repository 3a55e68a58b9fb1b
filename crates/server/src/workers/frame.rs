//! Frames between the serving process and its workers: a kind, a length, and so many bytes.

use std::io;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest frame from a worker, bytes. A worker runs what users wrote, so the serving process takes
/// no more than this at a time from it. Longer pieces come in several frames.
pub(super) const MAX_FROM_WORKER: usize = 1 << 20;
/// Longest frame to a worker, bytes.
pub(super) const MAX_TO_WORKER: usize = 256 << 20;

/// A kind, and a length as a little-endian number.
const HEAD_BYTES: usize = 5;
/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To a worker: a query, [`super::message::Ask`].
    Ask,
    /// To a worker: where the tables are that it asked for, [`super::message::Places`].
    Places,
    /// To a worker: bytes of an Arrow stream.
    Tail,
    /// To a worker: the Arrow stream is complete.
    TailEnd,
    /// To a worker: nobody waits for the query any more.
    Cancel,
    /// To a worker: it runs in the background from now on.
    Yield,
    /// From a worker: it needs these stored tables; their names.
    Need,
    /// From a worker: it needs rows that are not committed, [`super::message::WantedTail`].
    WantTail,
    /// From a worker: bytes of the answer.
    Piece,
    /// From a worker: the answer is complete.
    Whole,
    /// From a worker: the query failed, [`crate::QueryError`].
    Failed,
    /// From a worker: nothing of the query runs any more.
    Idle,
    /// From a worker: as [`Kind::Idle`], but another worker should take the next query.
    Worn,
}

const KINDS: [Kind; 13] = [
    Kind::Ask,
    Kind::Places,
    Kind::Tail,
    Kind::TailEnd,
    Kind::Cancel,
    Kind::Yield,
    Kind::Need,
    Kind::WantTail,
    Kind::Piece,
    Kind::Whole,
    Kind::Failed,
    Kind::Idle,
    Kind::Worn,
];

/// A kind with its bytes.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    /// The message that the bytes are.
    pub(super) fn message<T: DeserializeOwned>(&self) -> io::Result<T> {
        serde_json::from_slice(&self.bytes).map_err(io::Error::other)
    }
}

/// Reads frames. A read that is dropped half way loses nothing.
#[derive(Debug, Default)]
pub(super) struct Reader {
    buffered: Vec<u8>,
}

impl Reader {
    /// The next frame, of at most so many bytes; `None` where the other side has closed.
    pub(super) async fn next(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        most: usize,
    ) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.whole(most)? {
                return Ok(Some(frame));
            }
            self.buffered.reserve(READ_BYTES);
            if from.read_buf(&mut self.buffered).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The first frame that is buffered as a whole.
    fn whole(&mut self, most: usize) -> io::Result<Option<Frame>> {
        let Some((head, rest)) = self.buffered.split_at_checked(HEAD_BYTES) else { return Ok(None) };
        let kind = KINDS
            .get(usize::from(head[0]))
            .copied()
            .ok_or_else(|| io::Error::other(format!("a frame of the unknown kind {}", head[0])))?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > most {
            return Err(io::Error::other(format!("a frame of {length} bytes; at most {most} are read")));
        }
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let bytes = bytes.to_vec();
        self.buffered.drain(..HEAD_BYTES + length);
        Ok(Some(Frame { kind, bytes }))
    }
}

/// Writes one frame.
pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), kind: Kind, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let place = KINDS.iter().position(|known| *known == kind).unwrap_or_default();
    let mut head = [place as u8; HEAD_BYTES];
    head[1..].copy_from_slice(&length.to_le_bytes());
    to.write_all(&head).await?;
    to.write_all(bytes).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_back_and_long_or_strange_ones_refused() {
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Piece, b"abc").await.unwrap();
        write(&mut bytes, Kind::Idle, br#"["x"]"#).await.unwrap();
        let (mut from, mut reader) = (&bytes[..], Reader::default());
        let first = reader.next(&mut from, 3).await.unwrap().unwrap();
        assert_eq!((first.kind, &first.bytes[..]), (Kind::Piece, &b"abc"[..]));
        let second = reader.next(&mut from, 5).await.unwrap().unwrap();
        assert_eq!((second.kind, second.message::<Vec<String>>().unwrap()), (Kind::Idle, vec!["x".into()]));
        assert!(reader.next(&mut from, 5).await.unwrap().is_none(), "the end");
        for (bytes, says) in [
            (&bytes[..], "at most 2"),
            (&[13, 0, 0, 0, 0], "kind 13"),
            // A length is not believed: no memory is taken for it.
            (&[0, 255, 255, 255, 255], "4294967295 bytes"),
        ] {
            let refused = Reader::default().next(&mut &bytes[..], 2).await.unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
