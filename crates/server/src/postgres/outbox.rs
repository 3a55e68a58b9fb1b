//! Messages of the server in Postgres' protocol, version 3.

use bytes::{BufMut, BytesMut};

/// Messages that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox(pub BytesMut);

impl Outbox {
    /// A message of this kind, whose rest is written by `body`.
    pub fn put(&mut self, kind: u8, body: impl FnOnce(&mut BytesMut)) {
        self.0.put_u8(kind);
        let begin = self.0.len();
        self.0.put_u32(0);
        body(&mut self.0);
        let length = u32::try_from(self.0.len() - begin).unwrap_or(u32::MAX);
        self.0[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
    }

    pub fn authentication_ok(&mut self) {
        self.put(b'R', |body| body.put_u32(0));
    }

    pub fn ask_password(&mut self) {
        self.put(b'R', |body| body.put_u32(3));
    }

    pub fn setting(&mut self, name: &str, value: &str) {
        self.put(b'S', |body| {
            put_text(body, name);
            put_text(body, value);
        });
    }

    /// By what another connection may end this one's queries.
    pub fn key(&mut self, process: u32, secret: u32) {
        self.put(b'K', |body| {
            body.put_u32(process);
            body.put_u32(secret);
        });
    }

    /// That of the minor versions of protocol 3 the lowest alone is spoken here, and none of these
    /// options.
    pub fn only_version_3_0(&mut self, options: &[&str]) {
        self.put(b'v', |body| {
            body.put_u32(3 << 16);
            body.put_u32(u32::try_from(options.len()).unwrap_or(u32::MAX));
            options.iter().for_each(|option| put_text(body, option));
        });
    }

    /// `T`: within a transaction block.
    pub fn ready(&mut self, block: u8) {
        self.put(b'Z', |body| body.put_u8(block));
    }

    pub fn parsed(&mut self) {
        self.put(b'1', |_| ());
    }

    pub fn bound(&mut self) {
        self.put(b'2', |_| ());
    }

    pub fn closed(&mut self) {
        self.put(b'3', |_| ());
    }

    pub fn no_data(&mut self) {
        self.put(b'n', |_| ());
    }

    pub fn no_parameters(&mut self) {
        self.put(b't', |body| body.put_u16(0));
    }

    pub fn suspended(&mut self) {
        self.put(b's', |_| ());
    }

    pub fn empty_query(&mut self) {
        self.put(b'I', |_| ());
    }

    pub fn complete(&mut self, tag: &str) {
        self.put(b'C', |body| put_text(body, tag));
    }

    /// One column of text.
    pub fn text_column(&mut self, name: &str) {
        const TEXT: u32 = 25;
        self.put(b'T', |body| {
            body.put_u16(1);
            put_text(body, name);
            body.put_u32(0);
            body.put_u16(0);
            body.put_u32(TEXT);
            body.put_i16(-1);
            body.put_i32(-1);
            body.put_u16(0);
        });
    }

    /// One row of one text.
    pub fn text_row(&mut self, value: &str) {
        self.put(b'D', |body| {
            body.put_u16(1);
            body.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
            body.put_slice(value.as_bytes());
        });
    }

    /// Fields of an error, each with the letter that says what it is.
    pub fn error(&mut self, fields: &[(u8, &str)]) {
        self.put(b'E', |body| {
            for (letter, text) in fields {
                body.put_u8(*letter);
                put_text(body, text);
            }
            body.put_u8(0);
        });
    }
}

/// A text up to a NUL; of one within it the rest is left out.
fn put_text(body: &mut BytesMut, text: &str) {
    body.put_slice(text.split('\0').next().unwrap_or_default().as_bytes());
    body.put_u8(0);
}
