//! A query that runs: the worker writes Postgres' messages, and they are passed on.

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use super::failure::Failure;
use super::keys::Key;
use super::wire::{Unread, Wire};
use crate::answers::Answer;
use crate::asked::QueryRecord;
use crate::audit::Outcome;
use crate::error::QueryError;

/// Kind and length of a message.
const HEAD_BYTES: usize = 5;

/// A query, and what it has answered that was not passed on. Dropping it ends the query.
pub(super) struct Running {
    answer: Answer,
    /// Its record, until it has ended.
    record: Option<QueryRecord>,
    pieces: BytesMut,
    is_whole: bool,
    bytes: u64,
}

/// Why rows stopped.
pub(super) enum Stopped {
    /// The query was refused, failed or was cancelled.
    Failed(Failure),
    /// Its client is gone.
    Gone,
}

impl From<QueryError> for Stopped {
    fn from(error: QueryError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Unread> for Stopped {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Gone => Self::Gone,
            Unread::Refused(failure) => Self::Failed(failure),
        }
    }
}

/// How far the rows of a query have been passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// All of them; so many with this call.
    All(u64),
    /// As many as were asked for.
    Asked,
}

impl Running {
    pub fn new(answer: Answer, record: QueryRecord) -> Self {
        Self { answer, record: Some(record), pieces: BytesMut::new(), is_whole: false, bytes: 0 }
    }

    /// Passes on the message that describes the columns, or leaves it out where the client knows
    /// them.
    pub async fn pass_columns<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        wire: &mut Wire<S>,
        key: &Key,
        is_wanted: bool,
    ) -> Result<(), Stopped> {
        match self.message(wire, key).await? {
            Some(length) if is_wanted => wire.out.0.extend_from_slice(&self.pieces.split_to(length)),
            Some(length) => self.pieces.advance(length),
            None => {}
        }
        Ok(())
    }

    /// Passes on rows: as many as are asked for, or all where that is 0.
    pub async fn pass_rows<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        wire: &mut Wire<S>,
        key: &Key,
        most: u32,
    ) -> Result<Passed, Stopped> {
        let mut rows = 0_u64;
        while let Some(length) = self.message(wire, key).await? {
            if most > 0 && rows == u64::from(most) {
                return Ok(Passed::Asked);
            }
            rows += 1;
            wire.out.0.extend_from_slice(&self.pieces.split_to(length));
            // A reader that takes its time has as much as the query has.
            self.answer.in_time(wire.send_if_much()).await??;
        }
        let outcome = Outcome { code: "ok", rows: self.answer.rows(), bytes: Some(self.bytes) };
        if let Some(record) = self.record.take() {
            record.end(&outcome);
        }
        Ok(Passed::All(rows))
    }

    /// Passes on everything, as it comes.
    pub async fn pass_all<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        wire: &mut Wire<S>,
        key: &Key,
    ) -> Result<(), Stopped> {
        while self.message(wire, key).await?.is_some() {
            wire.out.0.extend_from_slice(&self.pieces.split());
        }
        Ok(())
    }

    /// Notes in the record how the query ended.
    pub fn end(mut self, code: &'static str) {
        if let Some(record) = self.record.take() {
            record.end(&Outcome { bytes: Some(self.bytes), ..Outcome::failed(code) });
        }
    }

    /// Waits until the next message is there as a whole; returns its length. `None` after the last
    /// one.
    async fn message<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        wire: &mut Wire<S>,
        key: &Key,
    ) -> Result<Option<usize>, Stopped> {
        loop {
            if let Some(length) = self.pieces.get(1..HEAD_BYTES) {
                let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize + 1;
                if self.pieces.len() >= length {
                    return Ok(Some(length));
                }
            }
            if self.is_whole {
                return Ok(None);
            }
            let piece = tokio::select! {
                piece = self.answer.next() => piece?,
                () = key.cancelled() => return Err(Stopped::Failed(Failure::cancelled())),
                () = wire.gone() => return Err(Stopped::Gone),
            };
            match piece {
                Some(piece) => {
                    self.bytes += piece.len() as u64;
                    self.pieces.extend_from_slice(&piece);
                }
                None => self.is_whole = true,
            }
        }
    }
}
