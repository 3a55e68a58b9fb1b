//! The door: a listener with the rules of who comes in, and the protocols spoken there.

pub(crate) mod accept;
pub(crate) mod client;
pub(crate) mod guard;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod limits;
mod names;
pub(crate) mod stream;
pub(crate) mod tls;
mod verifier;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;

pub use limits::ConnectionLimits;
pub use names::HostNames;
pub use tls::{ClientFiles, Tls, TlsError, TlsFiles};

use crate::access::Access;
use crate::audit::Auditor;
use crate::steering::Steering;

/// A listener, and who comes in by it.
#[derive(Debug)]
pub struct Door {
    /// The address.
    pub listener: TcpListener,
    /// Whose requests are answered.
    pub access: Access,
    /// Names that requests may ask for.
    pub names: HostNames,
    /// TLS; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// Bounds of connections.
    pub limits: ConnectionLimits,
    /// Records what people do, before it is done; `None` in tests alone.
    pub audit: Option<Auditor>,
    /// The autopilot of this process, if one runs.
    pub steering: Option<Arc<dyn Steering>>,
    /// The file of the last rehearsal, if there may be one.
    pub rehearsal: Option<PathBuf>,
    /// The address for clients of Postgres, if they are answered.
    pub postgres: Option<TcpListener>,
    /// The address for clients of Arrow Flight SQL, if they are answered.
    pub flight: Option<TcpListener>,
}

impl Door {
    /// A door open to everybody who reaches the address, without TLS: for loopback addresses.
    pub fn open(listener: TcpListener) -> Self {
        let limits = ConnectionLimits::of_process();
        Self {
            listener,
            access: Access::Open,
            names: HostNames::default(),
            tls: None,
            limits,
            audit: None,
            steering: None,
            rehearsal: None,
            postgres: None,
            flight: None,
        }
    }

    /// Beginning of the address, for messages.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Where clients of Arrow Flight SQL come in, if they do.
    pub fn flight_uri(&self) -> Option<String> {
        let address = self.flight.as_ref()?.local_addr().ok()?;
        let scheme = if self.tls.is_some() { "grpc+tls" } else { "grpc" };
        Some(format!("{scheme}://{address}"))
    }

    /// How psql comes in, if it does.
    pub fn psql(&self) -> Option<String> {
        let address = self.postgres.as_ref()?.local_addr().ok()?;
        let encryption = if self.tls.is_some() { " sslmode=require" } else { "" };
        Some(format!("psql \"host={} port={}{encryption}\"", address.ip(), address.port()))
    }
}
