//! Reads and writes messages on a connection, within bounds of size and time.

use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::failure::Failure;
use super::message::{First, MAX_MESSAGE_BYTES, MAX_STARTUP_BYTES, Message};
use super::outbox::Outbox;
use crate::door::stream::Unstalled;

/// Kind and length of a message.
const HEAD_BYTES: usize = 5;
/// Bytes that are read ahead of the message that is worked on.
const AHEAD_BYTES: usize = 64 << 10;
/// Messages are sent when they are so many bytes, and at the end of an answer.
const SEND_BYTES: usize = 64 << 10;

/// Reads the first message of a connection, and nothing of what follows it: that may be encrypted.
///
/// # Errors
/// The connection ends, or what comes is no such message.
pub(super) async fn first(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Result<First, Failure>> {
    let length = from.read_u32().await? as usize;
    // Browsers may be led here: `GET ` is a length too.
    let body = length.checked_sub(4).filter(|_| (8..=MAX_STARTUP_BYTES).contains(&length));
    let Some(body) = body else {
        return Ok(Err(Failure::protocol("what was sent is not the protocol of Postgres")));
    };
    let mut message = vec![0; body];
    from.read_exact(&mut message).await?;
    Ok(First::read(&message))
}

/// A connection in a session.
pub(super) struct Wire<S> {
    stream: Unstalled<S>,
    inbox: BytesMut,
    pub out: Outbox,
    /// How long a message may take to arrive.
    within: Duration,
}

/// Why no message is read.
#[derive(Debug)]
pub(super) enum Unread {
    /// The client has left, or the connection failed.
    Gone,
    Refused(Failure),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        tracing::debug!("a connection of Postgres ended: {error}");
        Self::Gone
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// `within`: how long a message may take to arrive; `stalled`: how long the client may take
    /// nothing of what is sent.
    pub fn new(stream: S, within: Duration, stalled: Duration) -> Self {
        let stream = Unstalled::new(stream, stalled);
        Self { stream, inbox: BytesMut::new(), out: Outbox::default(), within }
    }

    /// Waits for the next message for as long as the client likes; once its first byte is there,
    /// the others must follow in time. A call that is dropped loses nothing.
    ///
    /// # Errors
    /// The client leaves, or the message is too long or none.
    pub async fn message(&mut self) -> Result<Message, Unread> {
        while self.inbox.is_empty() {
            self.fill().await?;
        }
        let (kind, length) = timeout(self.within, self.whole()).await.map_err(|_| {
            Unread::Refused(Failure::new("57014", "the message took too long to arrive").fatal())
        })??;
        let message = Message::read(kind, &self.inbox[HEAD_BYTES..HEAD_BYTES + length]);
        self.inbox.advance(HEAD_BYTES + length);
        message.map_err(Unread::Refused)
    }

    /// Waits until the next message is there; returns its kind and the length of what follows.
    async fn whole(&mut self) -> Result<(u8, usize), Unread> {
        loop {
            if let Some((head, rest)) = self.inbox.split_at_checked(HEAD_BYTES) {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                let length = length.checked_sub(4).filter(|length| *length <= MAX_MESSAGE_BYTES);
                let length = length.ok_or_else(|| {
                    let message = format!("a message may have {MAX_MESSAGE_BYTES} bytes");
                    Unread::Refused(Failure::new("54000", message).fatal())
                })?;
                if rest.len() >= length {
                    return Ok((head[0], length));
                }
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), Unread> {
        self.inbox.reserve(AHEAD_BYTES);
        match self.stream.read_buf(&mut self.inbox).await? {
            0 => Err(Unread::Gone),
            _ => Ok(()),
        }
    }

    /// Ends when the client leaves. What it sends meanwhile is kept, up to a bound.
    pub async fn gone(&mut self) {
        while self.inbox.len() < MAX_MESSAGE_BYTES {
            if self.fill().await.is_err() {
                return;
            }
        }
        std::future::pending().await
    }

    /// Sends what waits to be sent.
    ///
    /// # Errors
    /// The client has left, or takes nothing.
    pub async fn send(&mut self) -> Result<(), Unread> {
        self.stream.write_all_buf(&mut self.out.0).await?;
        Ok(self.stream.flush().await?)
    }

    /// Sends what waits to be sent if it is much.
    ///
    /// # Errors
    /// The client has left, or takes nothing.
    pub async fn send_if_much(&mut self) -> Result<(), Unread> {
        match self.out.0.len() < SEND_BYTES {
            true => Ok(()),
            false => self.send().await,
        }
    }

    /// Takes leave of the client.
    pub async fn close(mut self) {
        self.send().await.ok();
        self.stream.shutdown().await.ok();
    }
}
