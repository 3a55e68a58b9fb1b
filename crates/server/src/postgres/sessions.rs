//! The door of Postgres: a session for each connection.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::watch;

use super::served::Served;
use super::startup;
use crate::access::Access;
use crate::asked::Asked;
use crate::audit::Peer;
use crate::door::accept::{Idle, Protocol};
use crate::door::{ConnectionLimits, Tls};
use crate::metrics::Metrics;

/// Answers clients of Postgres.
pub(crate) struct Sessions(Arc<Served>);

impl Sessions {
    pub fn new(
        asked: Asked,
        access: Access,
        tls: Option<Tls>,
        limits: ConnectionLimits,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (keys, most_time) = (Arc::default(), asked.answers.time_max());
        Self(Arc::new(Served { asked, access, tls, limits, metrics, keys, most_time }))
    }
}

impl Protocol for Sessions {
    fn connection(
        &self,
        socket: TcpStream,
        peer: Peer,
        idle: Idle,
        stopped: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        startup::serve(Arc::clone(&self.0), socket, peer, idle, stopped)
    }
}
