//! Queries on the tables of a data folder, from commands.

use indicatif::HumanCount;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::pipeline::Plan;
use tidegate_log::DataDir;
use tidegate_server::{Encoded, Format, Overrides, QueryLimits, QueryService};

use crate::CommandError;
use crate::args::DataArgs;
use crate::folder::lake_url;

/// Opens the committed tables of a data folder for queries. Another process may be writing them.
pub async fn committed(data: &DataArgs) -> Result<QueryService, CommandError> {
    let folder = DataDir::open_shared(&data.data)?;
    let plan = Plan::compile(data.load_pipelines()?).await?;
    let catalog = committed_catalog(&lake_url(&folder)?, &plan, Limits::default()).await?;
    Ok(QueryService::new(CatalogSource::fixed(catalog), QueryLimits::default())?)
}

/// Runs a query and deserializes all rows by column name, without the usual row limit.
pub async fn ask<T: DeserializeOwned>(service: &QueryService, sql: &str) -> Result<Vec<T>, CommandError> {
    let all = Overrides { rows_max: Some(u64::MAX), ..Overrides::default() };
    let mut encoded = Encoded::new(service.query(sql, all).await?, Format::Json)?;
    let mut json = Vec::new();
    while let Some(piece) = encoded.next().await? {
        json.extend(piece);
    }
    Ok(serde_json::from_slice(&json)?)
}

/// Row count of a table, for display.
#[derive(Debug, Deserialize)]
pub struct TableCount {
    table_name: String,
    row_count: u64,
}

impl std::fmt::Display for TableCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<20} {:>12} rows", self.table_name, HumanCount(self.row_count).to_string())
    }
}

/// Counts the rows of every stored table. Deferred views are left out: they may take long.
pub async fn table_counts(service: &QueryService) -> Result<Vec<TableCount>, CommandError> {
    let catalog = service.catalog();
    let mut counts = Vec::new();
    for name in catalog.tables.keys().filter(|name| !catalog.views.contains(*name)) {
        let sql = format!("SELECT '{name}' AS table_name, count(*) AS row_count FROM {name}");
        counts.extend(ask(service, &sql).await?);
    }
    Ok(counts)
}

/// Quotes text as an SQL literal.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
