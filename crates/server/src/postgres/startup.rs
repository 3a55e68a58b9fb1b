//! The beginning of a connection: encryption, who asks, and what the server is.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::failure::Failure;
use super::keys::Key;
use super::message::{First, Message};
use super::outbox::Outbox;
use super::served::Served;
use super::session::{Credentials, Session, State};
use super::statement::{SETTINGS, TOLD};
use super::wire::{Unread, Wire, first};
use crate::access::Access;
use crate::audit::Peer;
use crate::door::accept::Idle;
use crate::door::client::ClientCertificate;
use crate::door::tls::POSTGRES;

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// A client may ask for two kinds of encryption, and then begins.
const FIRST_MESSAGES: usize = 3;

/// Serves a connection to its end.
pub(super) async fn serve(
    served: Arc<Served>,
    socket: TcpStream,
    Peer(peer): Peer,
    idle: Idle,
    stopped: watch::Receiver<bool>,
) {
    let within = served.limits.head;
    match timeout(within, negotiate(&served, socket)).await {
        Ok(Ok(Some(Negotiated::Plain(stream, begun)))) => {
            begin(served, stream, None, begun, peer, idle, stopped).await;
        }
        Ok(Ok(Some(Negotiated::Tls(stream, client, begun)))) => {
            begin(served, *stream, client, begun, peer, idle, stopped).await;
        }
        Ok(Ok(None)) => {}
        Ok(Err(error)) => tracing::debug!("a connection for Postgres ended: {error}"),
        Err(_) => tracing::debug!("a client of Postgres took too long to begin"),
    }
}

/// A connection whose client has begun a session.
enum Negotiated {
    Plain(TcpStream, Begun),
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>, Option<Arc<ClientCertificate>>, Begun),
}

/// The first message of a session.
type Begun = (u16, Vec<(String, String)>);

/// Agrees on encryption. `None` where the connection was for something else, or is refused.
async fn negotiate(served: &Served, mut socket: TcpStream) -> io::Result<Option<Negotiated>> {
    let mut begins = [0];
    if socket.peek(&mut begins).await? == 1 && begins[0] == HANDSHAKE {
        return encrypted(served, socket).await;
    }
    for _ in 0..FIRST_MESSAGES {
        match first(&mut socket).await? {
            Ok(First::Tls) if served.tls.is_some() => {
                socket.write_all(b"S").await?;
                return encrypted(served, socket).await;
            }
            Ok(First::Tls | First::Gss) => socket.write_all(b"N").await?,
            Ok(First::Startup { .. }) if served.tls.is_some() => {
                let failure = Failure::new("28000", "this address asks for TLS: sslmode=require").fatal();
                refuse(&mut socket, &failure).await?;
                return Ok(None);
            }
            other => {
                let begun = served.begun(other, &mut socket).await?;
                return Ok(begun.map(|begun| Negotiated::Plain(socket, begun)));
            }
        }
    }
    Ok(None)
}

async fn encrypted(served: &Served, socket: TcpStream) -> io::Result<Option<Negotiated>> {
    let Some(tls) = &served.tls else { return Ok(None) };
    let accepted = tls.accept(socket, POSTGRES, served.limits.head, &served.metrics).await;
    let Some((mut stream, client)) = accepted else { return Ok(None) };
    let message = first(&mut stream).await?;
    let begun = served.begun(message, &mut stream).await?;
    Ok(begun.map(|begun| Negotiated::Tls(Box::new(stream), client, begun)))
}

impl Served {
    /// The beginning of a session, if the message is one.
    async fn begun(
        &self,
        message: Result<First, Failure>,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<Option<Begun>> {
        let failure = match message {
            Ok(First::Startup { minor, settings }) => {
                let replicates =
                    settings.iter().any(|(name, value)| name == "replication" && value != "false");
                if !replicates {
                    return Ok(Some((minor, settings)));
                }
                Failure::new("0A000", "there is no replication here: the tables are Delta tables").fatal()
            }
            Ok(First::Cancel { process, secret }) => {
                self.keys.cancel(process, &secret);
                return Ok(None);
            }
            Ok(First::Tls | First::Gss) => Failure::protocol("encryption was agreed on already"),
            Err(failure) => failure,
        };
        refuse(to, &failure).await?;
        Ok(None)
    }
}

async fn refuse(to: &mut (impl AsyncWrite + Unpin), failure: &Failure) -> io::Result<()> {
    let mut out = Outbox::default();
    failure.write(&mut out, "");
    to.write_all(&out.0).await?;
    to.shutdown().await
}

/// Finds out who asks, and serves the session.
async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
    served: Arc<Served>,
    stream: S,
    client: Option<Arc<ClientCertificate>>,
    (minor, settings): Begun,
    peer: std::net::SocketAddr,
    idle: Idle,
    stopped: watch::Receiver<bool>,
) {
    let mut wire = Wire::new(stream, served.limits.body, served.limits.stalled);
    let credentials = timeout(served.limits.head, credentials(&served, &mut wire, client)).await;
    let credentials = match credentials {
        Ok(Ok(credentials)) => credentials,
        Ok(Err(Unread::Gone)) => return,
        Ok(Err(Unread::Refused(failure))) => return leave(&served, wire, &failure).await,
        Err(_) => {
            let failure = Failure::new("57014", "the password took too long to arrive").fatal();
            return leave(&served, wire, &failure).await;
        }
    };
    if let Err(failure) = served.principal(&credentials) {
        return leave(&served, wire, &failure.fatal()).await;
    }
    let key = served.keys.issue();
    welcome(&mut wire.out, &key, minor, &settings);
    if wire.send().await.is_ok() {
        let state = State::default();
        Session { served, wire, peer, credentials, key, idle, state }.run(stopped).await;
    }
}

async fn leave<S: AsyncRead + AsyncWrite + Unpin>(served: &Served, mut wire: Wire<S>, failure: &Failure) {
    served.metrics.count_refused_by_postgres();
    failure.write(&mut wire.out, "");
    wire.close().await;
}

/// Asks for a token as the password, unless nobody is asked here or a certificate was shown.
async fn credentials<S: AsyncRead + AsyncWrite + Unpin>(
    served: &Served,
    wire: &mut Wire<S>,
    certificate: Option<Arc<ClientCertificate>>,
) -> Result<Credentials, Unread> {
    if matches!(served.access, Access::Open) || certificate.is_some() {
        return Ok(Credentials { token: None, certificate });
    }
    wire.out.ask_password();
    wire.send().await?;
    match wire.message().await? {
        Message::Password(token) => Ok(Credentials { token: Some(token.into_bytes()), certificate }),
        Message::Terminate => Err(Unread::Gone),
        _ => Err(Unread::Refused(Failure::protocol("a password was asked for"))),
    }
}

fn welcome(out: &mut Outbox, key: &Key, minor: u16, settings: &[(String, String)]) {
    let options = settings.iter().map(|(name, _)| name.as_str());
    let options: Vec<&str> = options.filter(|name| name.starts_with("_pq_.")).collect();
    if minor > 0 || !options.is_empty() {
        out.only_version_3_0(&options);
    }
    out.authentication_ok();
    SETTINGS[..TOLD].iter().for_each(|(name, value)| out.setting(name, value));
    let named = settings.iter().filter(|(name, _)| name == "application_name");
    named.for_each(|(name, value)| out.setting(name, value));
    out.key(key.process, key.secret);
    out.ready(b'I');
}
