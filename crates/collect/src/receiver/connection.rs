//! Reading and writing on one connection.

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{Counts, Shared};

/// Bytes read at a time.
pub(super) const READ_BYTES: usize = 16 << 10;
/// Writes all bytes. Returns false if the client does not read them in time.
pub(super) async fn write(stream: &mut UnixStream, shared: &Shared, bytes: &[u8]) -> bool {
    match timeout(shared.peers.limits.patience, stream.write_all(bytes)).await {
        Ok(result) => result.is_ok(),
        Err(_) => {
            Counts::add(&shared.counts.timed_out, 1);
            false
        }
    }
}
