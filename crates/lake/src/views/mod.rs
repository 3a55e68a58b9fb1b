//! Views: tables that are computed when a query reads them.

pub(crate) mod deferred;
pub(crate) mod materialized;
