//! HTTP/1.1 on a connection, with deadlines for each part of a request.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::accept::{Busy, Idle, Protocol};
use super::client::ClientCertificate;
use super::limits::{ConnectionLimits, HEAD_BYTES};
use super::stream::{HoldingBody, TimedBody, Unstalled};
use super::tls::{HTTP, Tls};
use crate::audit::Peer;
use crate::lasting::Stopping;
use crate::metrics::Metrics;

/// Answers requests with an app.
pub(crate) struct Http1 {
    pub app: Router,
    pub tls: Option<Tls>,
    pub limits: ConnectionLimits,
    pub metrics: Arc<Metrics>,
}

impl Protocol for Http1 {
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
            if let Some((socket, client)) = tls.accept(socket, HTTP, limits.head, &metrics).await {
                serve(socket, peer, app, client, limits, idle, stopped).await;
            }
        }
    }
}

/// What answers the requests of a connection.
pub(super) fn service(
    app: Router,
    peer: Peer,
    client: Option<Arc<ClientCertificate>>,
    limits: ConnectionLimits,
    idle: Idle,
    stopping: Stopping,
) -> impl Service<
    hyper::Request<Incoming>,
    Response = hyper::Response<HoldingBody<Busy>>,
    Error = std::convert::Infallible,
    Future: Send + 'static,
> {
    let app = TowerToHyperService::new(app);
    service_fn(move |mut request: hyper::Request<Incoming>| {
        if let Some(client) = &client {
            request.extensions_mut().insert(Arc::clone(client));
        }
        request.extensions_mut().insert(stopping.clone());
        let (app, idle) = (app.clone(), idle.clone());
        async move {
            let busy = idle.interrupt();
            let mut request = request.map(|body| Body::new(TimedBody::new(body, limits.body)));
            request.extensions_mut().insert::<Peer>(peer);
            let answer = app.call(request).await;
            answer.map(|response| response.map(|body| HoldingBody { body, _held: busy }))
        }
    })
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
    let service = service(app, peer, client, limits, idle, Stopping::new(stopped.clone()));
    let stream = TokioIo::new(Unstalled::new(stream, limits.stalled));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(stream, service);
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
