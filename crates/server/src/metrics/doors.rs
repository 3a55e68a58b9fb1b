//! Metrics of the doors: connections and refusals.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Refused {
    pub status: u16,
}

/// Which listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DoorName {
    Http,
    Postgres,
    Flight,
}

/// Connections of one listener.
#[derive(Default)]
pub(super) struct Connections {
    pub open: Gauge,
    pub shed: Counter,
}

#[derive(Default)]
pub(super) struct Doors {
    pub refused: Family<Refused, Counter>,
    pub certificates_refused: Counter,
    http: Connections,
    postgres: Connections,
    flight: Connections,
    /// Sessions and statements that Postgres' door refused.
    pub postgres_refused: Counter,
}

impl Connections {
    fn register(&self, registry: &mut Registry) {
        registry.register("connections", "Open connections", self.open.clone());
        registry.register(
            "shed",
            "Connections closed to make room, those that never sent a request first",
            self.shed.clone(),
        );
    }
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
        doors.http.register(registry);
        doors.flight.register(whole.sub_registry_with_prefix("tidegate_flight"));
        let registry = whole.sub_registry_with_prefix("tidegate_postgres");
        doors.postgres.register(registry);
        registry.register(
            "refused",
            "Sessions and statements refused: without a valid token, or not permitted",
            doors.postgres_refused.clone(),
        );
        doors
    }

    pub fn connections(&self, of: DoorName) -> &Connections {
        match of {
            DoorName::Http => &self.http,
            DoorName::Postgres => &self.postgres,
            DoorName::Flight => &self.flight,
        }
    }
}
