//! Accepts connections and detects their protocol.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::connection::READ_BYTES;
use super::limits::Peer;
use super::listen::Listeners;
use super::reporter::{PeerId, Reporter};
use super::{Counts, Shared, http, lines};

/// Pause after a failed accept, e.g. without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until stopped.
pub(super) async fn serve(shared: Arc<Shared>, mut listeners: Listeners, stopped: oneshot::Receiver<()>) {
    // The listeners are non-blocking already, and the runtime runs: neither of these fails.
    let unix = listeners.unix.take().and_then(|unix| UnixListener::from_std(unix).ok());
    let tcp = listeners.tcp.take().and_then(|tcp| TcpListener::from_std(tcp).ok());
    tokio::select! {
        () = accept_unix(&shared, unix) => {}
        () = accept_tcp(&shared, tcp) => {}
        // The sender is dropped without a message only if the agent is gone.
        _ = stopped => {}
    }
}

async fn accept_unix(shared: &Arc<Shared>, listener: Option<UnixListener>) {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(cred) = stream.peer_cred() else { continue };
        let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok());
        let reporter = || match &shared.parts.jobs {
            Some(jobs) => jobs.reporter(cred.uid(), pid),
            None => Reporter { uid: Some(cred.uid()), ..Reporter::default() },
        };
        match enter(shared, reporter, Some(cred.uid())) {
            Some(peer) => drop(tokio::spawn(serve_unix(Arc::clone(shared), peer, stream))),
            None => drop(stream),
        }
    }
}

async fn accept_tcp(shared: &Arc<Shared>, listener: Option<TcpListener>) {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        match enter(shared, Reporter::default, None) {
            Some(peer) => drop(tokio::spawn(http::serve(Arc::clone(shared), peer, stream))),
            None => drop(stream),
        }
    }
}

fn enter(shared: &Arc<Shared>, reporter: impl FnOnce() -> Reporter, id: PeerId) -> Option<Peer> {
    let peer = Peer::enter(shared, reporter, id);
    if peer.is_none() {
        Counts::add(&shared.counts.refused_connections, 1);
        tracing::debug!(uid = id, "a connection was refused: there are too many");
    }
    peer
}

/// Detects JSON lines or HTTP by the first byte that is no space.
async fn serve_unix(shared: Arc<Shared>, peer: Peer, mut stream: UnixStream) {
    let mut first = Vec::with_capacity(READ_BYTES);
    let patience = shared.peers.limits.patience;
    match timeout(patience, stream.read_buf(&mut first)).await {
        Ok(Ok(1..)) => {}
        Ok(_) => return,
        Err(_) => return Counts::add(&shared.counts.timed_out, 1),
    }
    if first.trim_ascii_start().first() == Some(&b'{') {
        lines::serve(shared, peer, stream, first).await;
    } else {
        let (read, write) = stream.into_split();
        let stream = tokio::io::join(std::io::Cursor::new(first).chain(read), write);
        http::serve(shared, peer, stream).await;
    }
}
