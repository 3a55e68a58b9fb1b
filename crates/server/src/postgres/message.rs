//! Messages of clients in Postgres' protocol, version 3, each read within bounds.

use super::failure::Failure;

/// Longest first message of a connection, bytes, as in Postgres.
pub(super) const MAX_STARTUP_BYTES: usize = 10_000;
/// Longest other message, bytes: a query's text and its values.
pub(super) const MAX_MESSAGE_BYTES: usize = 256 << 10;

/// Numbers in place of a version, in a connection's first message.
const CANCEL: u32 = 80_877_102;
const TLS: u32 = 80_877_103;
const GSS: u32 = 80_877_104;

/// The first message of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First {
    /// Asks whether to go on with TLS.
    Tls,
    /// Asks whether to go on with GSSAPI encryption.
    Gss,
    /// Asks to end the query of another connection.
    Cancel { process: u32, secret: Vec<u8> },
    /// A session with these settings, of protocol 3 with this minor number.
    Startup { minor: u16, settings: Vec<(String, String)> },
}

/// A message of a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    Password(String),
    Query(String),
    Parse {
        name: String,
        sql: String,
        types: Vec<u32>,
    },
    Bind {
        portal: String,
        statement: String,
        formats: Vec<i16>,
        values: Vec<Option<Vec<u8>>>,
        columns: Vec<i16>,
    },
    Describe(Named),
    Execute {
        portal: String,
        max_rows: u32,
    },
    Close(Named),
    Flush,
    Sync,
    Terminate,
    /// Data of a COPY, which is never under way here; Postgres passes it over too.
    Copy,
}

/// What `Describe` and `Close` name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    Statement(String),
    Portal(String),
}

impl First {
    /// Reads what follows the length.
    ///
    /// # Errors
    /// It is no such message.
    pub fn read(body: &[u8]) -> Result<Self, Failure> {
        let mut body = Reader(body);
        match body.u32()? {
            TLS => Ok(Self::Tls),
            GSS => Ok(Self::Gss),
            CANCEL => Ok(Self::Cancel { process: body.u32()?, secret: body.0.to_vec() }),
            version if version >> 16 == 3 => {
                let mut settings = Vec::new();
                while body.0.first().is_some_and(|byte| *byte != 0) {
                    settings.push((body.text()?, body.text()?));
                }
                Ok(Self::Startup { minor: version as u16, settings })
            }
            version => Err(Failure::protocol(format!(
                "protocol {}.{} is not spoken here, but 3.0",
                version >> 16,
                version & 0xffff
            ))),
        }
    }
}

impl Message {
    /// Reads what follows kind and length.
    ///
    /// # Errors
    /// It is no such message.
    pub fn read(kind: u8, body: &[u8]) -> Result<Self, Failure> {
        let mut body = Reader(body);
        let message = match kind {
            b'p' => Self::Password(body.text()?),
            b'Q' => Self::Query(body.text()?),
            b'P' => {
                let (name, sql) = (body.text()?, body.text()?);
                Self::Parse { name, sql, types: body.list(|body| body.u32())? }
            }
            b'B' => Self::Bind {
                portal: body.text()?,
                statement: body.text()?,
                formats: body.list(|body| body.i16())?,
                values: body.list(Reader::value)?,
                columns: body.list(|body| body.i16())?,
            },
            b'D' => Self::Describe(body.named()?),
            b'C' => Self::Close(body.named()?),
            b'E' => Self::Execute { portal: body.text()?, max_rows: body.u32()? },
            b'H' => Self::Flush,
            b'S' => Self::Sync,
            b'X' => Self::Terminate,
            b'd' | b'c' | b'f' => Self::Copy,
            other => return Err(Failure::protocol(format!("there is no message {:?}", char::from(other)))),
        };
        match body.0.is_empty() || message == Self::Copy {
            true => Ok(message),
            false => Err(Failure::protocol(format!("message {:?} is too long", char::from(kind)))),
        }
    }
}

/// What is left of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Failure> {
        let (taken, rest) =
            self.0.split_at_checked(bytes).ok_or_else(|| Failure::protocol("a message ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Failure::protocol("a message ends too early"))
    }

    fn u32(&mut self) -> Result<u32, Failure> {
        self.array().map(u32::from_be_bytes)
    }

    fn i16(&mut self) -> Result<i16, Failure> {
        self.array().map(i16::from_be_bytes)
    }

    /// UTF-8 up to a NUL.
    fn text(&mut self) -> Result<String, Failure> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| Failure::protocol("a text of a message has no end"))?;
        let text = std::str::from_utf8(self.take(end)?).map(str::to_owned);
        self.take(1)?;
        text.map_err(|_| Failure::new("22021", "a text is not UTF-8"))
    }

    /// A number of items, and so many.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, Failure>) -> Result<Vec<T>, Failure> {
        let count = u16::from_be_bytes(self.array()?);
        // No memory is taken for the number alone: each item is of two bytes at least.
        if usize::from(count) > self.0.len() / 2 {
            return Err(Failure::protocol("a message ends too early"));
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// A length, and so many bytes; NULL where it is negative.
    fn value(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let length = i32::from_be_bytes(self.array()?);
        match usize::try_from(length) {
            Ok(length) => Ok(Some(self.take(length)?.to_vec())),
            Err(_) => Ok(None),
        }
    }

    fn named(&mut self) -> Result<Named, Failure> {
        match self.array()? {
            [b'S'] => Ok(Named::Statement(self.text()?)),
            [b'P'] => Ok(Named::Portal(self.text()?)),
            _ => Err(Failure::protocol("neither a statement nor a portal is named")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_clients_are_read() {
        let bind = b"p\0s\0\0\x01\0\x01\0\x02\0\0\0\x02\0\x07\xff\xff\xff\xff\0\0";
        let read = Message::Bind {
            portal: "p".into(),
            statement: "s".into(),
            formats: vec![1],
            values: vec![Some(vec![0, 7]), None],
            columns: vec![],
        };
        assert_eq!(Message::read(b'B', bind).unwrap(), read);
        let parse = Message::Parse { name: String::new(), sql: "SELECT $1".into(), types: vec![20] };
        assert_eq!(Message::read(b'P', b"\0SELECT $1\0\0\x01\0\0\0\x14").unwrap(), parse);
        assert_eq!(Message::read(b'D', b"Sx\0").unwrap(), Message::Describe(Named::Statement("x".into())));
        let settings = vec![("user".to_owned(), "ada".to_owned())];
        let startup = First::read(b"\0\x03\0\x02user\0ada\0\0").unwrap();
        assert_eq!(startup, First::Startup { minor: 2, settings });
        assert_eq!(First::read(&TLS.to_be_bytes()).unwrap(), First::Tls);
    }

    /// Whatever bytes come, they are a message or refused; no length in them is believed.
    #[test]
    fn bad_messages_are_refused() {
        for (kind, body) in [
            (b'B', &b"p\0s\0\xff\xff"[..]),
            (b'B', b"p\0s\0\0\0\0\x01\x7f\xff\xff\xff"),
            (b'P', b"\0SELECT 1"),
            (b'Q', b"SELECT 1\0and more"),
            (b'Q', b"\xff\0"),
            (b'E', b"\0\0"),
            (b'D', b"X\0"),
            (b'?', b""),
        ] {
            assert!(Message::read(kind, body).is_err(), "{} {body:?}", char::from(kind));
        }
        for body in [&b""[..], b"\0\x03", b"\0\x03\0\0user\0ada", b"\0\x02\0\0", b"GET / HTTP/1.1\r\n"] {
            assert!(First::read(body).is_err(), "{body:?}");
        }
        let mut state = 7_u32;
        for length in 0..4000 {
            let bytes: Vec<u8> = (0..length % 40)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8 % 8
                })
                .collect();
            for kind in b"pQPBDCEHSXd" {
                Message::read(*kind, &bytes).ok();
            }
            First::read(&bytes).ok();
        }
    }
}
