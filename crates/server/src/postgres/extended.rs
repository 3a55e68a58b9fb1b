//! The extended protocol: statements are prepared, bound to values as portals, described and
//! executed, some rows at a time if their client likes.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::failure::Failure;
use super::message::{Message, Named};
use super::portal::{Portal, Prepared};
use super::running::{Passed, Stopped};
use super::session::{Session, ended};
use super::statement::{Statement, split};
use crate::question::{Bound, Parameters, Query};

/// Bytes of all prepared statements of a session.
const PREPARED_BYTES: usize = 1 << 20;
/// Portals of a session, and those among them whose query runs: each has a worker.
const MAX_PORTALS: usize = 64;
const MAX_RUNNING: usize = 4;

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// A message of the extended protocol.
    pub(super) async fn extended(&mut self, message: Message) -> Result<(), Stopped> {
        match message {
            Message::Parse { name, sql, types } => {
                self.prepare(name, sql, types).map_err(Stopped::Failed)?;
                self.wire.out.parsed();
            }
            Message::Bind { portal, statement, formats, values, columns } => {
                let prepared = self.prepared(&statement).map_err(Stopped::Failed)?;
                self.state.portals.remove(&portal);
                if self.state.portals.len() >= MAX_PORTALS {
                    return Err(too_many(format!("a session may have {MAX_PORTALS} portals; close some")));
                }
                let bound = Bound { types: prepared.types.clone(), formats, values };
                let portal_of = Portal { prepared, bound, columns, running: None, is_done: false };
                self.state.portals.insert(portal, portal_of);
                self.wire.out.bound();
            }
            Message::Describe(Named::Statement(name)) => {
                let prepared = self.prepared(&name).map_err(Stopped::Failed)?;
                self.describe(&prepared).await?;
            }
            Message::Describe(Named::Portal(name)) => self.describe_portal(&name).await?,
            Message::Execute { portal, max_rows } => self.execute(&portal, max_rows).await?,
            Message::Close(Named::Statement(name)) => {
                self.state.statements.remove(&name);
                self.wire.out.closed();
            }
            Message::Close(Named::Portal(name)) => {
                self.state.portals.remove(&name);
                self.wire.out.closed();
            }
            Message::Copy => {}
            Message::Password(_) => {
                return Err(Stopped::Failed(Failure::protocol("nobody asked for a password")));
            }
            Message::Query(_) | Message::Sync | Message::Flush | Message::Terminate => {}
        }
        Ok(self.wire.send_if_much().await?)
    }

    fn prepare(&mut self, name: String, sql: String, types: Vec<u32>) -> Result<(), Failure> {
        if !name.is_empty() && self.state.statements.contains_key(&name) {
            return Err(Failure::new("42P05", format!("there is a prepared statement {name:?} already")));
        }
        let mut statements = split(&sql)?.into_iter();
        let statement = statements.next().map_or(Statement::Empty, Statement::of);
        if statements.next().is_some() {
            return Err(Failure::new("42601", "a prepared statement is one statement"));
        }
        self.state.statements.remove(&name);
        let held =
            self.state.statements.iter().map(|(name, kept)| name.len() + kept.sql.len()).sum::<usize>();
        if held + name.len() + sql.len() > PREPARED_BYTES {
            let message =
                format!("prepared statements of a session may have {PREPARED_BYTES} bytes; deallocate some");
            return Err(Failure::new("54000", message));
        }
        self.state.statements.insert(name, Arc::new(Prepared { sql, statement, types }));
        Ok(())
    }

    fn prepared(&self, name: &str) -> Result<Arc<Prepared>, Failure> {
        let found = self.state.statements.get(name).cloned();
        found.ok_or_else(|| Failure::new("26000", format!("there is no prepared statement {name:?}")))
    }

    /// Tells the client what a prepared statement takes and gives.
    async fn describe(&mut self, prepared: &Prepared) -> Result<(), Stopped> {
        let Statement::Query(sql) = &prepared.statement else {
            self.wire.out.no_parameters();
            match &prepared.statement {
                Statement::Show(name, _) => self.wire.out.text_column(name),
                _ => self.wire.out.no_data(),
            }
            return Ok(());
        };
        let bound = Bound { types: prepared.types.clone(), ..Bound::default() };
        let query = Query { sql: sql.clone(), parameters: Parameters::Postgres(bound), of_postgres: true };
        let mut running = self.start(query, Vec::new(), true).await?;
        match running.pass_all(&mut self.wire, &self.key).await {
            Ok(()) => {
                running.end("ok");
                Ok(())
            }
            Err(stopped) => Err(ended(running, stopped)),
        }
    }

    /// Tells the client what the statement of a portal gives. A query is started for that: its
    /// client is about to ask for the rows.
    async fn describe_portal(&mut self, name: &str) -> Result<(), Stopped> {
        let portal = self.state.portals.remove(name);
        let mut portal = portal.ok_or_else(|| Stopped::Failed(no_portal(name)))?;
        match &portal.prepared.statement {
            Statement::Show(name, _) => self.wire.out.text_column(name),
            Statement::Query(_) => self.start_portal(&mut portal, true).await?,
            _ => self.wire.out.no_data(),
        }
        self.state.portals.insert(name.to_owned(), portal);
        Ok(())
    }

    /// Starts the query of a portal, unless it runs already.
    async fn start_portal(&mut self, portal: &mut Portal, columns_wanted: bool) -> Result<(), Stopped> {
        if portal.running.is_some() || portal.is_done {
            return Ok(());
        }
        self.check_block(&portal.prepared.statement)?;
        if self.state.portals.values().filter(|portal| portal.running.is_some()).count() >= MAX_RUNNING {
            return Err(too_many(format!(
                "{MAX_RUNNING} queries of this session have rows left; close some"
            )));
        }
        let Statement::Query(sql) = &portal.prepared.statement else { return Ok(()) };
        let parameters = Parameters::Postgres(portal.bound.clone());
        let query = Query { sql: sql.clone(), parameters, of_postgres: true };
        let mut running = self.start(query, portal.columns.clone(), false).await?;
        match running.pass_columns(&mut self.wire, &self.key, columns_wanted).await {
            Ok(()) => portal.running = Some(running),
            Err(stopped) => return Err(ended(running, stopped)),
        }
        Ok(())
    }

    async fn execute(&mut self, name: &str, max_rows: u32) -> Result<(), Stopped> {
        let portal = self.state.portals.remove(name);
        let mut portal = portal.ok_or_else(|| Stopped::Failed(no_portal(name)))?;
        let statement = &portal.prepared.statement;
        if !matches!(statement, Statement::Query(_)) {
            self.check_block(statement)?;
            let prepared = Arc::clone(&portal.prepared);
            self.session_statement(&prepared.statement);
            self.state.portals.insert(name.to_owned(), portal);
            return Ok(());
        }
        self.start_portal(&mut portal, false).await?;
        if let Some(mut running) = portal.running.take() {
            match running.pass_rows(&mut self.wire, &self.key, max_rows).await {
                Ok(Passed::All(rows)) => {
                    portal.is_done = true;
                    self.wire.out.complete(&format!("SELECT {rows}"));
                }
                Ok(Passed::Asked) => {
                    portal.running = Some(running);
                    self.wire.out.suspended();
                }
                Err(stopped) => return Err(ended(running, stopped)),
            }
        } else {
            self.wire.out.complete("SELECT 0");
        }
        self.state.portals.insert(name.to_owned(), portal);
        Ok(())
    }
}

fn no_portal(name: &str) -> Failure {
    Failure::new("34000", format!("there is no portal {name:?}"))
}

fn too_many(message: String) -> Stopped {
    Stopped::Failed(Failure::new("53400", message))
}
