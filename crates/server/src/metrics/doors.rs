//! Metrics of the HTTP doors: connections and refusals.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Refused {
    pub status: u16,
}

#[derive(Default)]
pub(super) struct Doors {
    pub refused: Family<Refused, Counter>,
    pub certificates_refused: Counter,
    pub connections: Gauge,
    pub shed: Counter,
}

impl Doors {
    pub fn register(whole: &mut Registry) -> Self {
        let doors = Self::default();
        let registry = whole.sub_registry_with_prefix("tidegate_http");
        registry.register(
            "refused",
            "Requests refused: without a valid token or certificate (401), not permitted or of another origin (403), for another name (421)",
            doors.refused.clone(),
        );
        registry.register(
            "certificates_refused",
            "Client certificates refused in the handshake: of another authority, expired, revoked or not for clients",
            doors.certificates_refused.clone(),
        );
        registry.register("connections", "Open connections", doors.connections.clone());
        registry.register(
            "shed",
            "Connections closed to make room, those that never sent a request first",
            doors.shed.clone(),
        );
        doors
    }
}
