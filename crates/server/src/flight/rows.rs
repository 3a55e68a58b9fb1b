//! Rows of a query as Flight carries them.

use arrow_flight::FlightData;
use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use tonic::Status;

use super::messages::Messages;
use super::{Data, status};
use crate::answers::Answer;
use crate::asked::Started;
use crate::audit::Outcome;

/// The answer of a query, message by message. A separate task reads it from the worker, within the
/// query's time limit, so a slow client does not keep the worker. If the client disconnects, the
/// query ends.
pub(super) fn stream(Started { answer, record }: Started) -> Data {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let outcome = pass(answer, &sender).await;
        record.end(&outcome);
    });
    let next = |receiver: Option<mpsc::Receiver<Part>>| async move {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Part::Data(data)) => Some((Ok(data), Some(receiver))),
            Some(Part::End) => None,
            Some(Part::Failed(status)) => Some((Err(status), None)),
            // A cut answer must not be taken for a whole one.
            None => Some((Err(Status::deadline_exceeded("the query ended before its last row")), None)),
        }
    };
    stream::unfold(Some(receiver), next).boxed()
}

/// Part of an answer. One without [`Part::End`] was cut.
enum Part {
    Data(FlightData),
    End,
    Failed(Status),
}

/// Passes messages on; returns how the query ended.
async fn pass(mut answer: Answer, to: &mpsc::Sender<Part>) -> Outcome<'static> {
    let (mut messages, mut bytes) = (Messages::default(), 0);
    let error = loop {
        let piece = tokio::select! {
            piece = answer.next() => piece,
            () = to.closed() => return cancelled(bytes),
        };
        match piece {
            Ok(Some(piece)) => {
                bytes += piece.len() as u64;
                messages.push(&piece);
            }
            Ok(None) => {
                let outcome = Outcome { code: "ok", rows: answer.rows(), bytes: Some(bytes) };
                return if to.send(Part::End).await.is_ok() { outcome } else { cancelled(bytes) };
            }
            Err(error) => break error,
        }
        loop {
            let part = match messages.next() {
                Ok(Some(data)) => Part::Data(data),
                Ok(None) => break,
                Err(status) => Part::Failed(status),
            };
            let is_last = matches!(part, Part::Failed(_));
            match answer.in_time(to.send(part)).await {
                Ok(Ok(())) if !is_last => {}
                Ok(Ok(())) => return Outcome { bytes: Some(bytes), ..Outcome::failed("internal") },
                Ok(Err(_client_left)) => return cancelled(bytes),
                Err(error) => return Outcome { bytes: Some(bytes), ..Outcome::failed(error.code()) },
            }
        }
    };
    to.send(Part::Failed(status::of_query(&error))).await.ok();
    Outcome { bytes: Some(bytes), ..Outcome::failed(error.code()) }
}

fn cancelled(bytes: u64) -> Outcome<'static> {
    Outcome { bytes: Some(bytes), ..Outcome::failed("cancelled") }
}
