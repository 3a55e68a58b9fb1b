//! A server with known tables, and a client that shows the raw response.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch, StringViewArray, TimestampMicrosecondArray};
use arrow::datatypes::DataType;
use datafusion::datasource::MemTable;
use tidegate_lake::catalog::Catalog;
use tidegate_lake::catalog::CatalogSource;
use tidegate_lake::table::{Column, Layout, TableSpec, timestamp_type};
use tidegate_server::{Door, QueryLimits, QueryService, serve};
use tokio::sync::oneshot;

/// No answer takes this long; a test that waits longer fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// One table, `jobs`, of three rows with a NULL in every column that may hold one.
pub fn catalog() -> Catalog {
    let column = |name: &str, data_type, doc: &str| Column { name: name.into(), data_type, doc: doc.into() };
    let spec = Arc::new(TableSpec {
        name: "jobs".into(),
        version: 1,
        doc: "Jobs.".into(),
        layout: Layout::Keyed,
        columns: vec![
            column("job_id", DataType::Utf8View, "Job."),
            column("gpu_ms_held", DataType::Int64, "GPU x ms held."),
            column("start_time", timestamp_type(), "When it began."),
        ],
        key: vec!["job_id".into()],
        partials: Vec::new(),
    });
    let times = [Some(1_614_816_000_000_000), None, Some(1_614_816_000_500_000)];
    let rows = RecordBatch::try_new(
        spec.public_schema(),
        vec![
            Arc::new(StringViewArray::from(vec![Some("a"), Some("b,\"c\""), None])),
            Arc::new(Int64Array::from(vec![Some(500), None, Some(9_007_199_254_740_993)])),
            Arc::new(TimestampMicrosecondArray::from(times.to_vec()).with_timezone("UTC")),
        ],
    );
    let table = MemTable::try_new(spec.public_schema(), vec![vec![rows.unwrap()]]).unwrap();
    let mut catalog = Catalog::default();
    catalog.tables.insert("jobs".into(), Arc::new(table));
    catalog.specs.insert("jobs".into(), spec);
    catalog
}

/// A server on a free loopback port; stopped when dropped.
pub struct Server {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(limits: QueryLimits) -> Self {
        Self::start_with(limits, |_| ())
    }

    /// A server whose door is changed before it opens.
    pub fn start_with(limits: QueryLimits, change: impl FnOnce(&mut Door) + Send + 'static) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let service = QueryService::new(CatalogSource::fixed(catalog()), limits).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let until = async { stopped.await.unwrap_or_default() };
                let mut door = Door::open(listener);
                change(&mut door);
                serve(door, service, Arc::default(), None, until).await;
            });
        });
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Opens a connection and sends a request; HTTP/1.0 unless the request line says otherwise.
    pub fn send(&self, request_line: &str, headers: &[&str], body: &[u8]) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        request(socket, request_line, headers, body)
    }

    pub fn request(&self, request_line: &str, headers: &[&str], body: &[u8]) -> Response {
        Response::read(self.send(request_line, headers, body))
    }

    pub fn sql(&self, accept: &str, sql: &str) -> Response {
        self.request("POST /v1/sql", &[&format!("Accept: {accept}")], sql.as_bytes())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        self.thread.take().map(JoinHandle::join);
    }
}

/// Sends a request; HTTP/1.0 unless the request line says otherwise.
pub fn request<S: Write>(mut socket: S, request_line: &str, headers: &[&str], body: &[u8]) -> S {
    let version = if request_line.ends_with("HTTP/1.1") { "" } else { " HTTP/1.0" };
    let mut head = format!("{request_line}{version}\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|h| h.starts_with("Host:")) {
        head.push_str("Host: localhost\r\n");
    }
    if !headers.iter().any(|h| h.starts_with("Connection:")) {
        head.push_str("Connection: close\r\n");
    }
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    head.push_str("\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    // A server that refuses the request by its head may stop reading.
    socket.write_all(body).ok();
    socket
}

/// A response as it came, up to where the server closed the connection.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn read(mut socket: impl Read) -> Self {
        let mut bytes = Vec::new();
        let mut block = [0; 64 << 10];
        loop {
            match socket.read(&mut block) {
                Ok(0) => break,
                Ok(n) => bytes.extend_from_slice(&block[..n]),
                // A connection cut by the server may show as a reset; what came before counts.
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(e) => panic!("no answer: {e}"),
            }
        }
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a response head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_lowercase(), body: bytes[end + 4..].to_vec() }
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }

    /// The refusal's code, and its message and hint for reading.
    pub fn refusal(&self) -> (u16, String, String) {
        let json = self.json();
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        (self.status, text("code"), format!("{} {}", text("message"), text("hint")))
    }
}
