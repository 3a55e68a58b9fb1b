//! How many connections a process may hold, and for how long.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Longest body of a request for rows, bytes.
pub const MAX_BODY_BYTES: usize = 256 << 10;
/// Most connections, whatever the system grants: each may hold [`HEAD_BYTES`].
const MAX_CONNECTIONS: u64 = 4096;
const MIN_CONNECTIONS: u64 = 16;
/// Connections take one part in so many of the descriptors; tables, log and spilled rows need the
/// others.
const PART: u64 = 4;

/// Longest head of a request, bytes; also what is read ahead of a body.
pub(crate) const HEAD_BYTES: usize = 32 << 10;

/// Bounds of connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Connections at a time. One more closes one that never sent a request, or else the
    /// one that has sent none for longest.
    pub connections: usize,
    /// How long a client may take for a TLS handshake, and for the head of a request; a connection
    /// without a request is closed after this time.
    pub head: Duration,
    /// How long it may take for the body.
    pub body: Duration,
    /// How long it may take nothing of a response.
    pub stalled: Duration,
}

impl ConnectionLimits {
    /// The usual times, and as many connections as this process has descriptors for. Raises the
    /// soft limit of descriptors to the hard one: systemd's soft one is 1024.
    pub fn of_process() -> Self {
        let files = match getrlimit(Resource::RLIMIT_NOFILE) {
            Ok((soft, hard)) if soft < hard => match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
                Ok(()) => hard,
                Err(error) => {
                    tracing::warn!("the limit of open files stays at {soft}: {error}");
                    soft
                }
            },
            Ok((soft, _)) => soft,
            Err(_) => MIN_CONNECTIONS * PART,
        };
        let connections = (files / PART).clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
        Self {
            connections: usize::try_from(connections).unwrap_or(usize::MAX),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            stalled: Duration::from_secs(60),
        }
    }
}
