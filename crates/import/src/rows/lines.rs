//! Reader of text line by line. It holds one block and one line in memory.

use std::io::{BufRead, BufReader};

use super::RAW_LIMIT_BYTES;
use super::csv::Bytes;
use crate::error::{ImportError, Reject, RejectCode};

const BLOCK_BYTES: usize = 256 << 10;

/// Lines of a source.
pub(crate) struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
    number: u64,
}

impl<R: Bytes> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(BLOCK_BYTES, input), line: Vec::new(), number: 0 }
    }

    /// Reads the next line, of at most `most` bytes; the rest of a longer one is skipped. `None` is
    /// the end.
    pub(crate) fn read(&mut self, most: usize) -> Result<Option<Result<&str, Reject>>, ImportError> {
        self.line.clear();
        let mut length = 0;
        loop {
            let block = self.input.fill_buf();
            let block = match block {
                Ok(block) => block,
                Err(error) => return Err(self.input.get_ref().explain(error, self.number)),
            };
            let (end, is_complete) = match memchr::memchr(b'\n', block) {
                Some(end) => (end + 1, true),
                None => (block.len(), false),
            };
            let at_end = block.is_empty();
            let room = (most + 2).saturating_sub(self.line.len());
            self.line.extend_from_slice(&block[..end.min(room)]);
            length += end;
            self.input.consume(end);
            if at_end && length == 0 {
                self.input.get_ref().finish()?;
                return Ok(None);
            }
            if at_end || is_complete {
                break;
            }
        }
        self.number += 1;
        while self.line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            self.line.pop();
        }
        if self.line.len() > most {
            let reason = format!("the line has more than {most} bytes");
            return Ok(Some(Err(Reject::new(RejectCode::LineTooLong, reason))));
        }
        let text = std::str::from_utf8(&self.line);
        Ok(Some(text.map_err(|error| Reject::new(RejectCode::BadEncoding, error.to_string()))))
    }

    /// Number of the last line read, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The last line read, at most [`RAW_LIMIT_BYTES`] of it.
    pub(crate) fn raw(&self) -> Vec<u8> {
        self.line[..self.line.len().min(RAW_LIMIT_BYTES)].to_vec()
    }

    /// Bytes read, and the size of the file if known.
    pub(crate) fn progress(&self) -> (u64, Option<u64>) {
        self.input.get_ref().progress()
    }
}
