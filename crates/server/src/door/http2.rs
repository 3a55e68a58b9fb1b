//! HTTP/2 on a connection, for gRPC.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::accept::{Idle, Protocol};
use super::client::ClientCertificate;
use super::http1::service;
use super::limits::{ConnectionLimits, HEAD_BYTES};
use super::stream::Unstalled;
use super::tls::{HTTP2, Tls};
use crate::audit::Peer;
use crate::lasting::Stopping;
use crate::metrics::Metrics;

/// Requests of a connection that are answered at a time: each may have a worker.
const MAX_REQUESTS: u32 = 16;
/// A client that is silent so long is asked whether it is still there.
const ASK_AFTER: Duration = Duration::from_secs(60);

/// Answers requests with an app.
pub(crate) struct Http2 {
    pub app: Router,
    pub tls: Option<Tls>,
    pub limits: ConnectionLimits,
    pub metrics: Arc<Metrics>,
}

impl Protocol for Http2 {
    fn connection(
        &self,
        socket: TcpStream,
        peer: Peer,
        idle: Idle,
        stopped: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (app, limits) = (self.app.clone(), self.limits);
        let tls = self.tls.clone();
        let metrics = Arc::clone(&self.metrics);
        async move {
            let Some(tls) = tls else { return serve(socket, peer, app, None, limits, idle, stopped).await };
            if let Some((socket, client)) = tls.accept(socket, HTTP2, limits.head, &metrics).await {
                serve(socket, peer, app, client, limits, idle, stopped).await;
            }
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: Peer,
    app: Router,
    client: Option<Arc<ClientCertificate>>,
    limits: ConnectionLimits,
    idle: Idle,
    mut stopped: watch::Receiver<bool>,
) {
    let stream = TokioIo::new(Unstalled::new(stream, limits.stalled));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_REQUESTS)
        .max_header_list_size(HEAD_BYTES as u32)
        .keep_alive_interval(ASK_AFTER)
        .keep_alive_timeout(limits.head)
        .serve_connection(stream, service(app, peer, client, limits, idle, Stopping::new(stopped.clone())));
    let mut connection = std::pin::pin!(connection);
    let stopped = async { stopped.wait_for(|stop| *stop).await.map_or((), |_| ()) };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}
