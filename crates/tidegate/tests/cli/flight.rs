//! Arrow Flight SQL over a real loopback socket.

use std::net::SocketAddr;
use std::time::Duration;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use arrow_flight::FlightInfo;
use arrow_flight::sql::CommandGetTables;
use arrow_flight::sql::client::FlightSqlServiceClient;
use futures::TryStreamExt;
use tidegate_server::access::{Action, Role};
use tidegate_server::{Door, QueryLimits};
use tonic::transport::{Channel, Endpoint};

use crate::access::Site;
use crate::program::wait_until;
use crate::support::{PATIENCE, Server};

type Client = FlightSqlServiceClient<Channel>;

/// A server with both doors, and the address of Flight's.
fn server_with(change: impl FnOnce(&mut Door) + Send + 'static) -> (Server, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = Server::start_with(QueryLimits { threads: 2, ..QueryLimits::default() }, move |door| {
        door.flight = Some(tokio::net::TcpListener::from_std(listener).unwrap());
        change(door);
    });
    (server, address)
}

async fn client(address: SocketAddr, token: Option<&str>) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap().timeout(PATIENCE);
    let mut client = Client::new(endpoint.connect().await.unwrap());
    if let Some(token) = token {
        client.set_token(token.to_owned());
    }
    client
}

async fn rows(client: &mut Client, info: FlightInfo) -> Result<Vec<RecordBatch>, String> {
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let rows = client.do_get(ticket).await.map_err(|error| error.to_string())?;
    rows.try_collect().await.map_err(|error| error.to_string())
}

async fn asked(client: &mut Client, sql: &str) -> Result<Vec<RecordBatch>, String> {
    let info = client.execute(sql.to_owned(), None).await.map_err(|error| error.to_string())?;
    rows(client, info).await
}

#[tokio::test]
async fn queries_and_prepared_statements_are_answered() {
    let (_server, address) = server_with(|_| ());
    let mut client = client(address, None).await;
    let found = asked(&mut client, "SELECT job_id FROM jobs WHERE gpu_ms_held = 500").await.unwrap();
    assert_eq!(found[0].column(0).as_string::<i32>().value(0), "a");
    let many = asked(&mut client, "SELECT value FROM generate_series(1, 700000)").await.unwrap();
    let sum: i64 = many.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values()).sum();
    assert_eq!(sum, 700_000 * 700_001 / 2);

    let sql = "SELECT gpu_ms_held FROM jobs WHERE gpu_ms_held >= $1 OR job_id = $2 ORDER BY 1";
    let mut prepared = client.prepare(sql.into(), None).await.unwrap();
    assert_eq!(prepared.dataset_schema().unwrap().field(0).name(), "gpu_ms_held");
    assert_eq!(prepared.parameter_schema().unwrap().fields().len(), 2);
    let values = RecordBatch::try_from_iter([
        ("$1", std::sync::Arc::new(Int64Array::from(vec![501])) as arrow::array::ArrayRef),
        ("$2", std::sync::Arc::new(StringArray::from(vec!["a"])) as _),
    ]);
    prepared.set_parameters(values.unwrap()).unwrap();
    let info = prepared.execute().await.unwrap();
    let found = rows(&mut client, info).await.unwrap();
    assert_eq!(found[0].column(0).as_primitive::<Int64Type>().values(), &[500, 9_007_199_254_740_993]);

    let two = RecordBatch::try_from_iter([
        ("$1", std::sync::Arc::new(Int64Array::from(vec![1, 2])) as arrow::array::ArrayRef),
        ("$2", std::sync::Arc::new(StringArray::from(vec!["a", "b"])) as _),
    ]);
    prepared.set_parameters(two.unwrap()).unwrap();
    let info = prepared.execute().await.unwrap();
    assert!(rows(&mut client, info).await.unwrap_err().contains("one row"));
}

#[tokio::test]
async fn drivers_find_the_tables() {
    let (_server, address) = server_with(|_| ());
    let mut client = client(address, None).await;
    let all = CommandGetTables {
        catalog: None,
        db_schema_filter_pattern: Some("public".into()),
        table_name_filter_pattern: Some("jo%".into()),
        table_types: vec![],
        include_schema: true,
    };
    let info = client.get_tables(all).await.unwrap();
    let found = rows(&mut client, info).await.unwrap();
    let names = found[0].column_by_name("table_name").unwrap().as_string::<i32>();
    assert_eq!((names.len(), names.value(0)), (1, "jobs"));
    let info = client.get_catalogs().await.unwrap();
    assert_eq!(rows(&mut client, info).await.unwrap()[0].num_rows(), 1);
}

#[tokio::test]
async fn failures_are_told_and_no_cut_answer_is_whole() {
    let (_server, address) = server_with(|_| ());
    let mut client = client(address, None).await;
    for (sql, says) in [
        ("SELECT * FROM nothing", "no table named nothing"),
        ("DROP TABLE jobs", "queries only read"),
        ("SELECT value FROM generate_series(1, 2000000)", "more than 1000000 rows"),
    ] {
        let failed = asked(&mut client, sql).await.unwrap_err();
        assert!(failed.contains(says), "{sql}: {failed}");
    }
    let made_up = arrow_flight::sql::TicketStatementQuery { statement_handle: "nonsense".into() };
    let ticket = arrow_flight::Ticket {
        ticket: prost::Message::encode_to_vec(&arrow_flight::sql::ProstMessageExt::as_any(&made_up)).into(),
    };
    assert!(client.do_get(ticket).await.is_err());
    let long = format!("SELECT '{}'", "x".repeat(4 << 20));
    assert!(asked(&mut client, &long).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_have_the_roles_of_http() {
    let mut site = Site::new();
    for role in ["service", "viewer", "operator", "administrator"] {
        site.token(role, &["--role", role]);
    }
    site.token("agent", &["--role", "agent", "--cluster", "c", "--node", "n1"]);
    site.token("watcher", &["--role", "watcher", "--cluster", "c"]);
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = site.command();
    command.arg("--flight").arg(address.to_string());
    site.start_by(command);
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Local) {
        let mut client = client(address, Some(site.token_of(role.name()))).await;
        let answer = asked(&mut client, "SELECT 1").await;
        assert_eq!(answer.is_ok(), role.may(Action::Query), "{role}: {answer:?}");
    }
    let refused = asked(&mut client(address, None).await, "SELECT 1").await.unwrap_err();
    assert!(refused.contains("asks for a token"), "{refused}");
    let mut by_password = client(address, None).await;
    by_password.handshake("ada", site.token_of("viewer")).await.unwrap();
    assert!(asked(&mut by_password, "SELECT 1").await.is_ok());
    assert!(client(address, None).await.handshake("ada", "tidegate_wrong").await.is_err());

    let seen = "SELECT count(*) > 0 AS is_there FROM audit WHERE door = 'flight' AND principal = 'viewer'";
    let mut administrator = client(address, Some(site.token_of("administrator"))).await;
    let mut is_there = false;
    for _ in 0..200 {
        let rows = asked(&mut administrator, seen).await.unwrap();
        is_there = rows[0].column(0).as_boolean().value(0);
        if is_there {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(is_there, "the query is on record");
    let mut viewer = client(address, Some(site.token_of("viewer"))).await;
    assert!(asked(&mut viewer, seen).await.unwrap_err().contains("no table named audit"));
    crate::program::succeed(
        crate::program::tidegate().args(["token", "revoke", "viewer", "--tokens"]).arg(site.file()),
    );
    let handle = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        wait_until("the token to count no more", || handle.block_on(asked(&mut viewer, "SELECT 1")).is_err());
    });
}
