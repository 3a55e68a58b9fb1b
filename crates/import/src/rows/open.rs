//! Opens a path, standard input or reader as rows. The format is detected from the first bytes, not
//! from the name.

use std::cell::Cell as Counter;
use std::fs::File;
use std::io::{BufReader, Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use super::Rows;
use super::csv::{Bytes, CsvRows, Dialect};
use super::lines::Lines;
use super::parquet::ParquetRows;
use crate::error::ImportError;

const PARQUET_MAGIC: &[u8] = b"PAR1";
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const READ_AHEAD_BYTES: usize = 128 << 10;

/// Source of an import.
pub enum Source {
    /// CSV, gzipped CSV or Parquet.
    File(PathBuf),
    /// CSV or gzipped CSV.
    Stdin,
    /// CSV or gzipped CSV, with a name for messages.
    Reader {
        /// Name for messages and dead letters.
        name: String,
        /// The content.
        reader: Box<dyn Read>,
    },
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Source").field(&self.display_name()).finish()
    }
}

impl Source {
    /// `-` is standard input, anything else a path.
    pub fn from_argument(argument: PathBuf) -> Self {
        if argument.as_os_str() == "-" { Self::Stdin } else { Self::File(argument) }
    }

    /// The file's base name: the origin in dead letters, independent of where the file lies.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path
                .file_name()
                .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into()),
            Self::Stdin => "stdin".into(),
            Self::Reader { name, .. } => name.clone(),
        }
    }

    /// Checks that the file exists and may be read, before anything else begins.
    ///
    /// # Errors
    /// [`ImportError::Open`], as reading would fail.
    pub fn check(&self) -> Result<(), ImportError> {
        match self {
            Self::File(path) => {
                let opened = File::open(path);
                opened.map(|_| ()).map_err(|source| ImportError::Open { file: self.display_name(), source })
            }
            Self::Stdin | Self::Reader { .. } => Ok(()),
        }
    }

    fn display_name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            _ => self.name(),
        }
    }
}

/// Opens the source and reads its header.
pub(crate) fn open(source: Source, dialect: Dialect) -> Result<Box<dyn Rows>, ImportError> {
    let file = source.display_name();
    match content(source)? {
        Content::Parquet(parquet) => Ok(Box::new(ParquetRows::open(parquet, file)?)),
        Content::Text(input) => Ok(Box::new(CsvRows::open(input, file, dialect)?)),
    }
}

/// Opens the source to be read line by line.
pub(crate) fn open_lines(source: Source) -> Result<Lines<Input>, ImportError> {
    let file = source.display_name();
    match content(source)? {
        Content::Parquet(_) => Err(ImportError::NotLines { file }),
        Content::Text(input) => Ok(Lines::new(input)),
    }
}

enum Content {
    Parquet(File),
    Text(Input),
}

fn content(source: Source) -> Result<Content, ImportError> {
    let display_name = source.display_name();
    let opening = |source| ImportError::Open { file: display_name.clone(), source };
    let (mut reader, total): (Box<dyn Read>, Option<u64>) = match source {
        Source::File(path) => {
            let mut file = File::open(&path).map_err(opening)?;
            let bytes = file.metadata().map_err(opening)?.len();
            if starts_with(&mut file, PARQUET_MAGIC).map_err(opening)? {
                return Ok(Content::Parquet(file));
            }
            (Box::new(file), Some(bytes))
        }
        Source::Stdin => (Box::new(std::io::stdin().lock()), None),
        Source::Reader { reader, .. } => (reader, None),
    };
    let mut start = Vec::new();
    reader.by_ref().take(PARQUET_MAGIC.len() as u64).read_to_end(&mut start).map_err(opening)?;
    if start == PARQUET_MAGIC {
        return Err(ImportError::ParquetFromStdin);
    }
    let gzip = start.starts_with(GZIP_MAGIC);
    let read = Rc::new(Counter::new(0));
    let counted = Counted { inner: Cursor::new(start).chain(reader), read: read.clone() };
    let reader: Box<dyn Read> = if gzip {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ_AHEAD_BYTES, counted)))
    } else {
        Box::new(counted)
    };
    Ok(Content::Text(Input { reader, read, total, gzip, file: display_name }))
}

fn starts_with(file: &mut File, magic: &[u8]) -> std::io::Result<bool> {
    let mut start = Vec::new();
    file.by_ref().take(magic.len() as u64).read_to_end(&mut start)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(start == magic)
}

struct Counted<R> {
    inner: R,
    read: Rc<Counter<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

pub(crate) struct Input {
    reader: Box<dyn Read>,
    /// Bytes read from the file, before decompression.
    read: Rc<Counter<u64>>,
    total: Option<u64>,
    gzip: bool,
    file: String,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl Bytes for Input {
    fn progress(&self) -> (u64, Option<u64>) {
        (self.read.get(), self.total)
    }

    fn explain(&self, error: std::io::Error, line: u64) -> ImportError {
        let file = self.file.clone();
        match error.kind() {
            ErrorKind::UnexpectedEof if self.gzip => ImportError::TruncatedGzip { file, line },
            _ => ImportError::Read { file, line, source: error },
        }
    }

    fn finish(&self) -> Result<(), ImportError> {
        match self.total {
            Some(expected) if self.read.get() < expected => {
                Err(ImportError::Shrank { file: self.file.clone(), read: self.read.get(), expected })
            }
            _ => Ok(()),
        }
    }
}
