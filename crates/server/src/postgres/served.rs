//! What sessions are served with.

use std::sync::Arc;
use std::time::Duration;

use super::keys::Keys;
use crate::access::Access;
use crate::asked::Asked;
use crate::door::{ConnectionLimits, Tls};
use crate::metrics::Metrics;

/// What sessions are served with.
pub(super) struct Served {
    pub asked: Asked,
    pub access: Access,
    pub tls: Option<Tls>,
    pub limits: ConnectionLimits,
    pub metrics: Arc<Metrics>,
    pub keys: Arc<Keys>,
    /// The longest time that a query may ask for.
    pub most_time: Duration,
}
