//! Keys by which a connection ends the query of another one: so Postgres' clients cancel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use subtle::ConstantTimeEq;
use tokio::sync::Notify;

/// The keys of all open sessions.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<OpenSessions>);

#[derive(Debug, Default)]
struct OpenSessions {
    last: u32,
    open: HashMap<u32, (u32, Arc<Notify>)>,
}

/// The key of a session, until it is dropped.
#[derive(Debug)]
pub(super) struct Key {
    keys: Arc<Keys>,
    pub process: u32,
    pub secret: u32,
    cancelled: Arc<Notify>,
}

impl Keys {
    /// A key for a new session.
    pub fn issue(self: &Arc<Self>) -> Key {
        let (secret, cancelled) = (rand::random(), Arc::<Notify>::default());
        let mut known = self.known();
        // A number is used again after four thousand million sessions, when the first has ended.
        known.last = known.last.wrapping_add(1);
        let process = known.last;
        known.open.insert(process, (secret, Arc::clone(&cancelled)));
        Key { keys: Arc::clone(self), process, secret, cancelled }
    }

    /// Ends what the session runs now, if the key is right. Nobody is told whether it is.
    pub fn cancel(&self, process: u32, secret: &[u8]) {
        if let Some((right, cancelled)) = self.known().open.get(&process)
            && bool::from(right.to_be_bytes()[..].ct_eq(secret))
        {
            cancelled.notify_waiters();
        }
    }

    fn known(&self) -> MutexGuard<'_, OpenSessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Key {
    /// Ends when somebody cancels from now on.
    pub async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.keys.known().open.remove(&self.process);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_the_right_key_ends_a_query() {
        let keys = Arc::<Keys>::default();
        let (key, other) = (keys.issue(), keys.issue());
        keys.cancel(key.process, &key.secret.to_be_bytes());
        let mut cancelled = std::pin::pin!(key.cancelled());
        assert!(cancelled.as_mut().now_or_never().is_none(), "nothing ran when it came");
        for secret in [&other.secret.to_be_bytes()[..], b"", b"12345"] {
            keys.cancel(key.process, secret);
        }
        assert!(cancelled.as_mut().now_or_never().is_none());
        keys.cancel(key.process, &key.secret.to_be_bytes());
        cancelled.await;
        let process = other.process;
        drop(other);
        assert!(!keys.known().open.contains_key(&process));
    }
}
