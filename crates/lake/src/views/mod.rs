//! Views: tables that are computed when a query asks for them.

pub(crate) mod deferred;
pub(crate) mod materialized;
