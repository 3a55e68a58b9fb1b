//! What drivers ask about a server: its tables, and what it can do.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::{CommandGetCatalogs, CommandGetSqlInfo};
use arrow_flight::sql::{
    CommandGetDbSchemas, CommandGetTableTypes, CommandGetTables, ProstMessageExt, SqlInfo,
};
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use datafusion::datasource::TableType;
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use tidegate_lake::catalog::Catalog;
use tonic::Status;

use super::Data;

/// Name of the database, and of the schema of all tables.
const DATABASE: &str = "tidegate";
const SCHEMA: &str = "public";
const KINDS: [&str; 2] = ["TABLE", "VIEW"];

/// A question about the server, and the columns and rows of its answer.
pub(super) trait About: ProstMessageExt + Sized {
    /// The answer for a reader who sees these tables.
    fn answer(self, catalog: &Catalog) -> arrow_flight::error::Result<RecordBatch>;
}

impl About for CommandGetCatalogs {
    fn answer(self, _: &Catalog) -> arrow_flight::error::Result<RecordBatch> {
        let mut found = self.into_builder();
        found.append(DATABASE);
        found.build()
    }
}

impl About for CommandGetDbSchemas {
    fn answer(self, _: &Catalog) -> arrow_flight::error::Result<RecordBatch> {
        let mut found = self.into_builder();
        found.append(DATABASE, SCHEMA);
        found.build()
    }
}

impl About for CommandGetTableTypes {
    fn answer(self, _: &Catalog) -> arrow_flight::error::Result<RecordBatch> {
        let mut found = self.into_builder();
        KINDS.iter().for_each(|kind| found.append(kind));
        found.build()
    }
}

impl About for CommandGetTables {
    fn answer(self, catalog: &Catalog) -> arrow_flight::error::Result<RecordBatch> {
        let mut found = self.into_builder();
        for (name, table) in &catalog.tables {
            let kind = if table.table_type() == TableType::View { KINDS[1] } else { KINDS[0] };
            found.append(DATABASE, SCHEMA, name, kind, &table.schema())?;
        }
        found.build()
    }
}

impl About for CommandGetSqlInfo {
    fn answer(self, _: &Catalog) -> arrow_flight::error::Result<RecordBatch> {
        self.into_builder(&server()?).build()
    }
}

/// What the server can do.
fn server() -> arrow_flight::error::Result<SqlInfoData> {
    let mut can = SqlInfoDataBuilder::new();
    can.append(SqlInfo::FlightSqlServerName, "Tidegate");
    can.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    can.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
    can.append(SqlInfo::FlightSqlServerReadOnly, true);
    can.append(SqlInfo::FlightSqlServerSql, true);
    can.append(SqlInfo::FlightSqlServerSubstrait, false);
    // No transactions, no savepoints.
    can.append(SqlInfo::FlightSqlServerTransaction, 0_i32);
    can.append(SqlInfo::FlightSqlServerCancel, false);
    can.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    can.append(SqlInfo::SqlDdlCatalog, false);
    can.append(SqlInfo::SqlDdlSchema, false);
    can.append(SqlInfo::SqlDdlTable, false);
    can.build()
}

/// Where the answer to a command is to be had: here, with the command as the ticket.
pub(super) fn info(command: &impl ProstMessageExt, descriptor: FlightDescriptor) -> FlightInfo {
    let ticket = Ticket { ticket: command.as_any().encode_to_vec().into() };
    FlightInfo::new().with_endpoint(FlightEndpoint::new().with_ticket(ticket)).with_descriptor(descriptor)
}

/// Rows that are there already.
pub(super) fn data(rows: arrow_flight::error::Result<RecordBatch>) -> Result<Data, Status> {
    let rows = rows.map_err(|error| Status::internal(error.to_string()))?;
    let schema = Arc::clone(rows.schema_ref());
    let encoded = FlightDataEncoderBuilder::new().with_schema(schema).build(stream::iter([Ok(rows)]));
    let encoded = encoded.map_err(|error: FlightError| Status::internal(error.to_string()));
    Ok(encoded.boxed())
}
