//! A client of Postgres' protocol that shows each message as it came.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::PATIENCE;

/// A message: its kind, and what follows the length.
pub type Message = (u8, Vec<u8>);

pub struct Client<S = TcpStream> {
    pub socket: S,
    /// Process and secret by which its queries are cancelled.
    pub key: Vec<u8>,
}

/// A connection, with nothing sent.
pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// A first message with this number in place of a version.
pub fn first(number: u32, rest: &[u8]) -> Vec<u8> {
    let length = u32::try_from(8 + rest.len()).unwrap();
    [&length.to_be_bytes()[..], &number.to_be_bytes(), rest].concat()
}

pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(4 + body.len()).unwrap();
    [&[kind][..], &length.to_be_bytes(), body].concat()
}

impl Client {
    /// A session of whoever holds this password; without one where nobody is asked.
    pub fn open(address: SocketAddr, password: Option<&str>) -> Result<Self, BTreeMap<u8, String>> {
        Self::over(connect(address), password)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn over(socket: S, password: Option<&str>) -> Result<Self, BTreeMap<u8, String>> {
        let mut client = Self { socket, key: Vec::new() };
        client.socket.write_all(&first(3 << 16, b"user\0ada\0database\0any\0\0")).unwrap();
        loop {
            match client.read() {
                Some((b'R', body)) if body == 3_u32.to_be_bytes() => {
                    let password = password.expect("a password is asked for");
                    client.send(b'p', format!("{password}\0").as_bytes());
                }
                Some((b'K', body)) => client.key = body,
                Some((b'Z', _)) => return Ok(client),
                Some((b'E', body)) => return Err(fields(&body)),
                Some(_) => {}
                None => return Err(BTreeMap::new()),
            }
        }
    }

    pub fn send(&mut self, kind: u8, body: &[u8]) {
        self.socket.write_all(&message(kind, body)).unwrap();
    }

    /// The next message; `None` where the server has closed the connection.
    pub fn read(&mut self) -> Option<Message> {
        let mut head = [0; 5];
        self.socket.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length - 4];
        self.socket.read_exact(&mut body).ok()?;
        Some((head[0], body))
    }

    /// All messages up to `ReadyForQuery`, or the end.
    pub fn until_ready(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(message) = self.read() {
            let is_last = message.0 == b'Z';
            messages.push(message);
            if is_last {
                break;
            }
        }
        messages
    }

    pub fn query(&mut self, sql: &str) -> Vec<Message> {
        self.send(b'Q', format!("{sql}\0").as_bytes());
        self.until_ready()
    }
}

/// Kinds of messages, in order.
pub fn kinds(messages: &[Message]) -> String {
    messages.iter().map(|(kind, _)| char::from(*kind)).collect()
}

/// The rows among them, as text; NULL is `None`.
pub fn rows(messages: &[Message]) -> Vec<Vec<Option<String>>> {
    let rows = messages.iter().filter(|(kind, _)| *kind == b'D').map(|(_, body)| {
        let (count, mut rest) = body.split_first_chunk::<2>().unwrap();
        let cells = (0..u16::from_be_bytes(*count)).map(|_| {
            let (length, after) = rest.split_first_chunk::<4>().unwrap();
            let length = usize::try_from(i32::from_be_bytes(*length)).ok();
            let (cell, after) = after.split_at(length.unwrap_or_default());
            rest = after;
            length.map(|_| String::from_utf8(cell.to_vec()).unwrap())
        });
        cells.collect()
    });
    rows.collect()
}

/// The rows, a line each, NULL as `-`.
pub fn table(messages: &[Message]) -> String {
    let line = |row: Vec<Option<String>>| {
        row.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into())).collect::<Vec<_>>().join("|")
    };
    rows(messages).into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Texts of the messages of this kind, up to their first NUL.
pub fn texts(messages: &[Message], of: u8) -> Vec<String> {
    let text = |body: &Vec<u8>| String::from_utf8(body.split(|b| *b == 0).next().unwrap().to_vec()).unwrap();
    messages.iter().filter(|(kind, _)| *kind == of).map(|(_, body)| text(body)).collect()
}

/// Fields of an error.
pub fn fields(body: &[u8]) -> BTreeMap<u8, String> {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    fields.map(|(letter, text)| (*letter, String::from_utf8(text.to_vec()).unwrap())).collect()
}

/// The first error among them: its code and its message.
pub fn error(messages: &[Message]) -> (String, String) {
    let error = messages.iter().find(|(kind, _)| *kind == b'E').expect("an error");
    let fields = fields(&error.1);
    (fields[&b'C'].clone(), fields[&b'M'].clone())
}
