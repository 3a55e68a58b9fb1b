//! A session: messages come in, statements are answered, whatever else the client does.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::failure::Failure;
use super::keys::Key;
use super::message::Message;
use super::portal::{Portal, Prepared};
use super::running::{Passed, Running, Stopped};
use super::served::Served;
use super::statement::{Statement, split};
use super::wire::{Unread, Wire};
use crate::access::{Action, Principal};
use crate::asked::Started;
use crate::audit::Actor;
use crate::door::accept::Idle;
use crate::door::client::ClientCertificate;
use crate::query::Overrides;
use crate::question::{Encoding, Parameters, Query, Question};

/// What a client has shown to say who it is. It counts for as long as it would at a new session.
pub(super) struct Credentials {
    pub token: Option<Vec<u8>>,
    pub certificate: Option<Arc<ClientCertificate>>,
}

/// A session of a client.
pub(super) struct Session<S> {
    pub served: Arc<Served>,
    pub wire: Wire<S>,
    pub peer: SocketAddr,
    pub credentials: Credentials,
    pub key: Key,
    pub idle: Idle,
    pub state: State,
}

/// What a session has made.
#[derive(Default)]
pub(super) struct State {
    pub statements: HashMap<String, Arc<Prepared>>,
    pub portals: HashMap<String, Portal>,
    block: Block,
    /// Messages up to the next `Sync` are passed over: one before them failed.
    is_skipping: bool,
    time_max: Option<Duration>,
}

/// Whether the session is in a transaction block. Blocks hold no snapshot: each statement sees the
/// newest tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Block {
    #[default]
    None,
    Open,
    Failed,
}

impl Block {
    fn letter(self) -> u8 {
        match self {
            Self::None => b'I',
            Self::Open => b'T',
            Self::Failed => b'E',
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Answers until the client leaves or the server stops.
    pub async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            let message = tokio::select! {
                message = self.wire.message() => message,
                _ = stopped.wait_for(|stop| *stop) => {
                    let failure = Failure::new("57P01", "the server stops").fatal();
                    Err(Unread::Refused(failure))
                }
            };
            let answered = match message {
                Ok(Message::Terminate) => break,
                Ok(message) => {
                    let _busy = self.idle.clone().interrupt();
                    self.answer(message).await
                }
                Err(unread) => Err(unread.into()),
            };
            match answered {
                Ok(()) => {}
                Err(Stopped::Gone) => return,
                Err(Stopped::Failed(failure)) => {
                    failure.write(&mut self.wire.out, "");
                    break;
                }
            }
        }
        self.wire.close().await;
    }

    /// Answers one message. What fails in it is told the client; an error ends the session.
    async fn answer(&mut self, message: Message) -> Result<(), Stopped> {
        match message {
            Message::Sync => {
                self.state.is_skipping = false;
                self.ready().await
            }
            Message::Flush => Ok(self.wire.send().await?),
            _ if self.state.is_skipping => Ok(()),
            Message::Query(text) => {
                self.simple(&text).await?;
                self.ready().await
            }
            message => {
                let answered = self.extended(message).await;
                let Err(Stopped::Failed(failure)) = answered else { return answered };
                self.refuse(failure, "")?;
                self.state.is_skipping = true;
                Ok(self.wire.send_if_much().await?)
            }
        }
    }

    /// Tells the client what failed.
    ///
    /// # Errors
    /// The session ends with it.
    fn refuse(&mut self, failure: Failure, sql: &str) -> Result<(), Stopped> {
        if failure.is_fatal {
            return Err(Stopped::Failed(failure));
        }
        if self.state.block == Block::Open {
            self.state.block = Block::Failed;
        }
        failure.write(&mut self.wire.out, sql);
        Ok(())
    }

    async fn ready(&mut self) -> Result<(), Stopped> {
        if self.state.block == Block::None {
            self.state.portals.clear();
        }
        self.wire.out.ready(self.state.block.letter());
        Ok(self.wire.send().await?)
    }

    /// A text of any number of statements. The first one that fails is the last.
    async fn simple(&mut self, text: &str) -> Result<(), Stopped> {
        self.state.portals.remove("");
        let statements = match split(text) {
            Ok(statements) => statements,
            Err(failure) => return self.refuse(failure, text),
        };
        if statements.is_empty() {
            self.wire.out.empty_query();
        }
        for sql in statements {
            match self.simple_statement(sql).await {
                Ok(()) => {}
                Err(Stopped::Failed(failure)) => return self.refuse(failure, sql),
                Err(gone) => return Err(gone),
            }
        }
        Ok(())
    }

    async fn simple_statement(&mut self, sql: &str) -> Result<(), Stopped> {
        let statement = Statement::of(sql);
        self.check_block(&statement)?;
        let Statement::Query(sql) = &statement else {
            if let Statement::Show(name, _) = &statement {
                self.wire.out.text_column(name);
            }
            self.session_statement(&statement);
            return Ok(());
        };
        let query = Query { sql: sql.clone(), parameters: Parameters::None, of_postgres: true };
        let mut running = self.start(query, Vec::new(), false).await?;
        let passed = async {
            running.pass_columns(&mut self.wire, &self.key, true).await?;
            running.pass_rows(&mut self.wire, &self.key, 0).await
        };
        match passed.await {
            Ok(Passed::All(rows)) => self.wire.out.complete(&format!("SELECT {rows}")),
            Ok(Passed::Asked) => {}
            Err(stopped) => return Err(ended(running, stopped)),
        }
        Ok(())
    }

    /// A statement in a transaction block that failed is refused, as its client expects.
    pub(super) fn check_block(&self, statement: &Statement) -> Result<(), Stopped> {
        let ends = matches!(statement, Statement::End(_) | Statement::Done("ROLLBACK"));
        match self.state.block == Block::Failed && !ends {
            false => Ok(()),
            true => Err(Stopped::Failed(Failure::new(
                "25P02",
                "a statement of this transaction block failed; send ROLLBACK",
            ))),
        }
    }

    /// A statement that needs no tables.
    pub(super) fn session_statement(&mut self, statement: &Statement) {
        let mut tag = statement.tag();
        match statement {
            Statement::Empty => return self.wire.out.empty_query(),
            Statement::Query(_) => return,
            Statement::Begin(_) => self.state.block = Block::Open,
            Statement::End(_) => {
                if std::mem::take(&mut self.state.block) == Block::Failed {
                    tag = "ROLLBACK";
                }
            }
            Statement::Done("ROLLBACK") if self.state.block == Block::Failed => {
                self.state.block = Block::Open;
            }
            Statement::Done("DISCARD") => {
                tag = "DISCARD ALL";
                self.state = State { block: self.state.block, ..State::default() };
            }
            Statement::Done(_) => {}
            Statement::TimeLimit(time_max) => self.state.time_max = *time_max,
            Statement::Show(_, value) => self.wire.out.text_row(value),
            Statement::Deallocate(Some(name)) => {
                self.state.statements.remove(name);
            }
            Statement::Deallocate(None) => self.state.statements.clear(),
        }
        self.wire.out.complete(tag);
    }

    /// Sends a query to the workers, once its record is on the log.
    pub(super) async fn start(
        &mut self,
        query: Query,
        formats: Vec<i16>,
        only_describe: bool,
    ) -> Result<Running, Stopped> {
        let principal = self
            .served
            .principal(&self.credentials)
            .inspect_err(|_| self.served.metrics.count_refused_by_postgres());
        let principal = principal.map_err(Stopped::Failed)?;
        let served = Arc::clone(&self.served);
        let question = Question { query, encoding: Encoding::Postgres { formats }, only_describe };
        let actor = Actor::at_door(&principal, self.peer, "postgres");
        let time_max = self.state.time_max.map(|asked| asked.min(served.most_time));
        let overrides = Overrides { rows_max: None, time_max };
        let started = served.asked.start(&principal, &actor, &question, overrides, None);
        tokio::select! {
            started = started => match started {
                Ok(Started { answer, record }) => Ok(Running::new(answer, record)),
                Err(error) => Err(Stopped::Failed(error.into())),
            },
            () = self.key.cancelled() => Err(Stopped::Failed(Failure::cancelled())),
            () = self.wire.gone() => Err(Stopped::Gone),
        }
    }
}

impl Served {
    /// Who shows these credentials, as of now: revoking a token ends what its session may do.
    ///
    /// # Errors
    /// They do not count, or their principal may not ask.
    pub fn principal(&self, shown: &Credentials) -> Result<Principal, Failure> {
        let name = shown.certificate.as_ref().map(|certificate| certificate.name()).transpose()?;
        let principal = self.access.principal_of(shown.token.as_deref(), name);
        self.asked.note_changes(&self.access);
        let principal = principal?;
        principal.check(Action::Query)?;
        Ok(principal)
    }
}

/// Notes in its record that a query has failed.
pub(super) fn ended(running: Running, stopped: Stopped) -> Stopped {
    match &stopped {
        Stopped::Failed(failure) => running.end(failure.code),
        Stopped::Gone => running.end("cancelled"),
    }
    stopped
}
