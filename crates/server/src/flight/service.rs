//! The calls of Flight SQL.

use std::pin::Pin;
use std::sync::Arc;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest,
    ActionCreatePreparedStatementResult, CommandGetCatalogs, CommandGetDbSchemas, CommandGetSqlInfo,
    CommandGetTableTypes, CommandGetTables, CommandPreparedStatementQuery, CommandStatementQuery,
    DoPutPreparedStatementResult, SqlInfo, TicketStatementQuery,
};
use arrow_flight::{Action, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse, Ticket};
use async_trait::async_trait;
use axum::Router;
use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use futures::{Stream, StreamExt, stream};
use tonic::metadata::MetadataValue;
use tonic::service::Routes;
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::handle::Handle;
use super::messages::{Messages, frame, frame_end};
use super::metadata::{self, About};
use super::{Data, MAX_MESSAGE_BYTES, rows, status};
use crate::access::{Access, Action as Deed, Principal};
use crate::asked::{Asked, Started};
use crate::audit::{Actor, Outcome, Peer};
use crate::door::client::ClientCertificate;
use crate::error::QueryError;
use crate::query::Overrides;

/// The service, to be offered over HTTP/2.
pub(crate) fn router(asked: Asked, access: Access) -> Router {
    let service = FlightServiceServer::new(Service { asked, access });
    // A handle holds values as numbers of JSON, four bytes for one.
    let service = service.max_decoding_message_size(8 * MAX_MESSAGE_BYTES);
    Routes::new(service).into_axum_router()
}

/// Answers calls, each on its own: the server remembers nothing between them.
#[derive(Clone)]
pub(super) struct Service {
    pub asked: Asked,
    pub access: Access,
}

/// What a call came with.
struct Call<'a> {
    authorization: Option<&'a [u8]>,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a, T> From<&'a Request<T>> for Call<'a> {
    fn from(request: &'a Request<T>) -> Self {
        let authorization = request.metadata().get("authorization").map(|value| value.as_encoded_bytes());
        let headers = request.metadata().as_ref();
        Self { authorization, headers, extensions: request.extensions() }
    }
}

impl Call<'_> {
    /// The token that it shows, as it is or as the password of any user.
    fn token(&self) -> Option<Vec<u8>> {
        let shown = self.authorization?;
        if let Some(token) = shown.strip_prefix(b"Bearer ") {
            return Some(token.to_vec());
        }
        let basic = STANDARD.decode(shown.strip_prefix(b"Basic ")?.trim_ascii()).ok()?;
        let colon = basic.iter().position(|byte| *byte == b':')?;
        Some(basic[colon + 1..].to_vec())
    }
}

impl Service {
    /// Who calls, if they may ask.
    fn principal(&self, call: &Call<'_>) -> Result<Principal, Status> {
        let certificate = call.extensions.get::<Arc<ClientCertificate>>();
        let name = certificate.map(|shown| shown.name()).transpose().map_err(|e| status::of_access(&e))?;
        let principal = self.access.principal_of(call.token().as_deref(), name);
        self.asked.note_changes(&self.access);
        let principal = principal.map_err(|error| status::of_access(&error))?;
        principal.check(Deed::Query).map_err(|error| status::of_role(&error))?;
        Ok(principal)
    }

    /// Starts a query of whoever calls.
    async fn start(&self, call: &Call<'_>, handle: Handle, only_describe: bool) -> Result<Started, Status> {
        let principal = self.principal(call)?;
        let Some(Peer(peer)) = call.extensions.get() else {
            return Err(Status::internal("a call without a connection"));
        };
        let actor = Actor::at_door(&principal, *peer, "flight");
        let question = handle.question(only_describe);
        let headers = Some(call.headers);
        let started = self.asked.start(&principal, &actor, &question, Overrides::default(), headers);
        started.await.map_err(status::of_start)
    }

    async fn rows(&self, call: &Call<'_>, handle: Handle) -> Result<Response<Data>, Status> {
        Ok(Response::new(rows::stream(self.start(call, handle, false).await?)))
    }

    /// What the tables seen by whoever calls say to a question about the server.
    fn about(&self, call: &Call<'_>, question: impl About) -> Result<Response<Data>, Status> {
        let principal = self.principal(call)?;
        let answers = self.asked.answers.seen_with(principal.sight());
        let catalog = answers.and_then(|answers| answers.catalog()).map_err(|e| status::of_query(&e))?;
        metadata::data(question.answer(&catalog)).map(Response::new)
    }

    /// Where an answer is to be had.
    fn info(
        &self,
        command: &impl arrow_flight::sql::ProstMessageExt,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.principal(&Call::from(&request))?;
        Ok(Response::new(metadata::info(command, request.into_inner())))
    }

    /// Parameters and columns of a query, each as the message of a schema.
    async fn describe(
        &self,
        call: &Call<'_>,
        handle: Handle,
    ) -> Result<(bytes::Bytes, bytes::Bytes), Status> {
        let Started { mut answer, record } = self.start(call, handle, true).await?;
        let mut messages = Messages::default();
        let ended = async {
            while let Some(piece) = answer.next().await? {
                messages.push(&piece);
            }
            Ok::<_, QueryError>(())
        };
        let ended = ended.await;
        record.end(&Outcome::failed(ended.as_ref().err().map_or("ok", QueryError::code)));
        ended.map_err(|error| status::of_query(&error))?;
        Ok((messages.next_framed()?, messages.next_framed()?))
    }
}

type Handshakes = Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>;

#[async_trait]
impl FlightSqlService for Service {
    type FlightService = Self;

    /// Drivers that ask for user and password get a token: the password, if it is one.
    async fn do_handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Handshakes>, Status> {
        let call = Call::from(&request);
        self.principal(&call)?;
        let answer: Handshakes = stream::iter([Ok(HandshakeResponse::default())]).boxed();
        let mut answer = Response::new(answer);
        if let Some(token) = call.token() {
            let bearer = [b"Bearer ", &token[..]].concat();
            let bearer = MetadataValue::try_from(&bearer[..]);
            let bearer = bearer.map_err(|_| Status::invalid_argument("a token is of visible letters"))?;
            answer.metadata_mut().insert("authorization", bearer);
        }
        Ok(answer)
    }

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let statement_handle = Handle::new(query.query).bytes()?;
        self.info(&TicketStatementQuery { statement_handle }, request)
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.rows(&Call::from(&request), Handle::read(&ticket.statement_handle)?).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let handle = Handle::new(query.query);
        let prepared_statement_handle = handle.bytes()?;
        let (parameter_schema, dataset_schema) = self.describe(&Call::from(&request), handle).await?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle,
            dataset_schema,
            parameter_schema,
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        _: ActionClosePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<(), Status> {
        self.principal(&Call::from(&request)).map(|_| ())
    }

    /// Values of parameters go into a new handle, which the client uses from then on.
    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        self.principal(&Call::from(&request))?;
        let mut handle = Handle::read(&query.prepared_statement_handle)?;
        let (mut values, mut given) = (BytesMut::new(), request.into_inner());
        while let Some(data) = given.next().await {
            let data = data?;
            if values.len() + data.data_header.len() + data.data_body.len() > MAX_MESSAGE_BYTES {
                let message = format!("values of parameters may have {MAX_MESSAGE_BYTES} bytes");
                return Err(Status::resource_exhausted(message));
            }
            if !data.data_header.is_empty() {
                frame(&data, &mut values);
            }
        }
        frame_end(&mut values);
        handle.values = Some(values.to_vec());
        Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(handle.bytes()?) })
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(&query, request)
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.rows(&Call::from(&request), Handle::read(&query.prepared_statement_handle)?).await
    }

    async fn get_flight_info_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(&query, request)
    }

    async fn do_get_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.about(&Call::from(&request), query)
    }

    async fn get_flight_info_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(&query, request)
    }

    async fn do_get_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.about(&Call::from(&request), query)
    }

    async fn get_flight_info_tables(
        &self,
        query: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(&query, request)
    }

    async fn do_get_tables(
        &self,
        query: CommandGetTables,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.about(&Call::from(&request), query)
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(&query, request)
    }

    async fn do_get_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.about(&Call::from(&request), query)
    }

    async fn get_flight_info_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(&query, request)
    }

    async fn do_get_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.about(&Call::from(&request), query)
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
