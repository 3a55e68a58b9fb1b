//! What answers that last ask now and then: whether they may go on.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// In the extensions of every request that came in: asks again whether it would.
#[derive(Clone)]
pub(crate) struct Admission(Arc<dyn Fn() -> bool + Send + Sync>);

impl Admission {
    pub fn new(asked: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(asked))
    }

    /// Whether the request would still come in, as the same principal: its token or certificate may
    /// be revoked meanwhile.
    pub fn lasts(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admission")
    }
}

/// In the extensions of every request: whether the server stops.
#[derive(Debug, Clone)]
pub(crate) struct Stopping(watch::Receiver<bool>);

impl Stopping {
    pub fn new(stopped: watch::Receiver<bool>) -> Self {
        Self(stopped)
    }

    /// Resolves when it does.
    pub async fn stops(&mut self) {
        // An error says that the accept loop is gone, which is the same.
        self.0.wait_for(|stop| *stop).await.ok();
    }
}
