//! Owners and pools that a policy names.

use super::Policy;
use crate::names::{OwnerName, PoolName};

impl Policy {
    /// Every owner that a key names, with the key. A name that the site does not have matches
    /// nothing, so its promise, floor or stop holds for nobody.
    pub fn named_owners(&self) -> Vec<(&'static str, &OwnerName)> {
        let lists = [
            ("floors.owners", self.floors.owners.keys().collect::<Vec<_>>()),
            ("lend.owner_promise_quantile", self.lend.owner_promise_quantile.keys().collect()),
            ("reservation.ahead", self.reservation.ahead.keys().collect()),
            ("promise.owner_wait_p95_s", self.promise.owner_wait_p95_s.keys().collect()),
            ("promise.owner_unmet_minutes", self.promise.owner_unmet_minutes.keys().collect()),
            ("scopes", self.scopes.iter().filter_map(|scope| scope.owner.as_ref()).collect()),
            ("calendar", self.calendar.iter().flat_map(|freeze| &freeze.owners).collect()),
            ("services", self.services.iter().map(|service| &service.owner).collect()),
        ];
        lists.into_iter().flat_map(|(key, names)| names.into_iter().map(move |name| (key, name))).collect()
    }

    /// The same for pools.
    pub fn named_pools(&self) -> Vec<(&'static str, &PoolName)> {
        let lists = [
            ("floors.pools", self.floors.pools.keys().collect::<Vec<_>>()),
            ("scopes", self.scopes.iter().filter_map(|scope| scope.pool.as_ref()).collect()),
            ("calendar", self.calendar.iter().flat_map(|freeze| &freeze.pools).collect()),
            ("services", self.services.iter().map(|service| &service.pool).collect()),
        ];
        lists.into_iter().flat_map(|(key, names)| names.into_iter().map(move |name| (key, name))).collect()
    }
}
