//! Rate and connection limits per client, so that none slows the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::reporter::{PeerId, Reporter};
use super::spread::Spread;

/// Limits of the receiver. A peer is a user of the node on the Unix socket, or all of TCP together.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest line, bytes.
    pub line_bytes: usize,
    /// Longest body of a request, bytes.
    pub body_bytes: usize,
    /// Bytes of bodies that are in memory at once, of all peers and of one.
    pub bodies_bytes: usize,
    /// See `bodies_bytes`.
    pub bodies_bytes_per_peer: usize,
    /// Open connections, in total and per peer.
    pub connections: usize,
    /// See `connections`.
    pub connections_per_peer: usize,
    /// Sustained lines per second of a peer, and the burst it may send at once. A line counts again
    /// for each [`LINE_COST_BYTES`].
    pub lines_per_second: u32,
    /// See `lines_per_second`.
    pub lines_at_once: u32,
    /// Jobs that a peer may report for within a minute.
    pub jobs_per_minute: usize,
    /// Ranks of a job that may be reported on this node within a minute.
    pub ranks_per_minute: usize,
    /// Timeout for a request or line to arrive completely, for an answer to be read, and for the
    /// first byte of a connection.
    pub patience: Duration,
    /// How long a connection may be silent between two lines.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            line_bytes: 16 << 10,
            body_bytes: 1 << 20,
            bodies_bytes: 16 << 20,
            bodies_bytes_per_peer: 4 << 20,
            connections: 256,
            connections_per_peer: 96,
            lines_per_second: 1_000,
            lines_at_once: 10_000,
            jobs_per_minute: 64,
            ranks_per_minute: 1_024,
            patience: Duration::from_secs(10),
            idle: Duration::from_secs(3_600),
        }
    }
}

/// A line counts once more towards the rate for each of so many bytes: a line as clients send it
/// counts once, and the bytes of a peer are bounded as its lines are.
pub(super) const LINE_COST_BYTES: usize = 1 << 10;

/// All known peers.
pub(super) struct Peers {
    pub limits: Limits,
    known: Mutex<HashMap<PeerId, PeerState>>,
    spread: Mutex<Spread>,
}

struct PeerState {
    connections: usize,
    bodies_bytes: usize,
    /// Lines it may send now. Below zero it must wait.
    allowance: f64,
    counted_at: Instant,
}

/// A connection of a peer. Dropping it frees its place.
pub(super) struct Peer {
    shared: Arc<super::Shared>,
    pub id: PeerId,
    pub reporter: Reporter,
}

impl Peers {
    pub fn new(limits: Limits) -> Self {
        let spread = Mutex::new(Spread::new(limits.jobs_per_minute, limits.ranks_per_minute, Instant::now()));
        Self { limits, known: Mutex::new(HashMap::new()), spread }
    }

    /// Counts a report towards the jobs and ranks of this minute, or says which limit it exceeds.
    pub fn spread(&self, peer: PeerId, job: &str, rank: u32) -> Result<(), String> {
        let mut spread = self.spread.lock().unwrap_or_else(PoisonError::into_inner);
        spread.count(peer, job, rank, Instant::now())
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PeerId, PeerState>> {
        // State stays valid across a panic, so poisoning is ignored.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    /// Admits a connection, unless there are too many.
    pub fn enter(
        shared: &Arc<super::Shared>,
        reporter: impl FnOnce() -> Reporter,
        id: PeerId,
    ) -> Option<Self> {
        let limits = shared.peers.limits;
        let mut known = shared.peers.known();
        let open: usize = known.values().map(|peer| peer.connections).sum();
        let now = Instant::now();
        if open >= limits.connections {
            return None;
        }
        // Disconnected peers with their whole allowance are as good as new ones.
        known.retain(|_, peer| {
            peer.connections > 0 || refilled(peer, now, limits) < f64::from(limits.lines_at_once)
        });
        let peer = known.entry(id).or_insert_with(|| PeerState {
            connections: 0,
            bodies_bytes: 0,
            allowance: f64::from(limits.lines_at_once),
            counted_at: now,
        });
        if peer.connections >= limits.connections_per_peer {
            return None;
        }
        peer.connections += 1;
        drop(known);
        Some(Self { shared: Arc::clone(shared), id, reporter: reporter() })
    }

    /// Spends allowance for some lines and returns how long to wait before handling them.
    pub fn spend(&self, lines: usize) -> Duration {
        let limits = self.shared.peers.limits;
        let mut known = self.shared.peers.known();
        let Some(peer) = known.get_mut(&self.id) else { return Duration::ZERO };
        let now = Instant::now();
        peer.allowance = refilled(peer, now, limits) - lines as f64;
        peer.counted_at = now;
        Duration::from_secs_f64((-peer.allowance).max(0.0) / f64::from(limits.lines_per_second.max(1)))
    }

    /// Spends allowance for some lines, unless the peer must still wait for earlier ones. Then
    /// returns how long.
    pub fn try_spend(&self, lines: usize) -> Result<(), Duration> {
        let before = self.spend(0);
        if before.is_zero() {
            self.spend(lines);
            return Ok(());
        }
        Err(before)
    }
}

/// Bytes of a body that a peer has in memory. Dropping it frees them.
pub(super) struct BodyBytes<'a> {
    peer: &'a Peer,
    bytes: usize,
}

impl<'a> BodyBytes<'a> {
    pub fn none(peer: &'a Peer) -> Self {
        Self { peer, bytes: 0 }
    }

    /// Takes so many bytes more, unless bodies have too many.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let limits = self.peer.shared.peers.limits;
        let mut known = self.peer.shared.peers.known();
        let all: usize = known.values().map(|peer| peer.bodies_bytes).sum();
        let Some(peer) = known.get_mut(&self.peer.id) else { return false };
        let fits =
            all + bytes <= limits.bodies_bytes && peer.bodies_bytes + bytes <= limits.bodies_bytes_per_peer;
        if fits {
            peer.bodies_bytes += bytes;
            self.bytes += bytes;
        }
        fits
    }

    /// Frees what was taken so far.
    pub fn free(&mut self) {
        if let Some(peer) = self.peer.shared.peers.known().get_mut(&self.peer.id) {
            peer.bodies_bytes = peer.bodies_bytes.saturating_sub(self.bytes);
        }
        self.bytes = 0;
    }
}

impl Drop for BodyBytes<'_> {
    fn drop(&mut self) {
        self.free();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(peer) = self.shared.peers.known().get_mut(&self.id) {
            peer.connections = peer.connections.saturating_sub(1);
        }
    }
}

fn refilled(peer: &PeerState, now: Instant, limits: Limits) -> f64 {
    let since = now.saturating_duration_since(peer.counted_at).as_secs_f64();
    (peer.allowance + since * f64::from(limits.lines_per_second)).min(f64::from(limits.lines_at_once))
}
