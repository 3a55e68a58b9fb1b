//! Queries on the tables of a data folder, from commands.

use indicatif::HumanCount;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::pipeline::Plan;
use tidegate_log::DataDir;
use tidegate_server::{Encoded, Format, Overrides, QueryLimits, QueryService};
use url::Url;

use crate::CommandError;
use crate::args::DataArgs;
use crate::folder::lake_url;

/// The committed tables of a data folder. Another process may be writing them.
#[derive(Debug)]
pub struct Committed {
    lake: Url,
    plan: Plan,
    limits: Limits,
    service: QueryService,
}

impl Committed {
    /// Opens the tables as they are now.
    ///
    /// # Errors
    /// The folder is no data folder, a pipeline does not compile, or the tables cannot be read.
    pub async fn open(data: &DataArgs, limits: QueryLimits) -> Result<Self, CommandError> {
        let folder = DataDir::open_shared(&data.data)?;
        let plan = Plan::compile(data.load_pipelines()?).await?;
        let lake = lake_url(&folder)?;
        let of_engine = Limits { memory_bytes: limits.memory_bytes, threads: limits.threads };
        let tables = CatalogSource::fixed(committed_catalog(&lake, &plan, of_engine).await?);
        Ok(Self { lake, plan, limits: of_engine, service: QueryService::new(tables, limits)? })
    }

    /// Goes on to the newest commit.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub async fn refresh(&mut self) -> Result<(), CommandError> {
        let tables = CatalogSource::fixed(committed_catalog(&self.lake, &self.plan, self.limits).await?);
        self.service = self.service.over(tables);
        Ok(())
    }

    /// Answers queries over the commit that was read last.
    pub fn service(&self) -> &QueryService {
        &self.service
    }
}

/// Opens the committed tables of a data folder for queries. Another process may be writing them.
pub async fn committed(data: &DataArgs) -> Result<QueryService, CommandError> {
    Ok(Committed::open(data, QueryLimits::default()).await?.service)
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

impl TableCount {
    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.row_count == 0
    }
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
