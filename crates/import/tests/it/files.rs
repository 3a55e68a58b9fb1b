//! Real-world files: compressed, cut off, malformed, vanished, without line ends.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use crate::support::{Imported, MemoryLog, gpu_ms, run, text};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use parquet::arrow::ArrowWriter;
use tidegate_import::{ImportError, ImportOptions, Mapping, Source, import};

const ROWS: &str = "job_id,gpus,submit_time,start_time,end_time\n\
                    1,2,2024-01-01T00:00:00Z,2024-01-01T00:10:00Z,2024-01-01T01:10:00Z\n\
                    2,4,2024-01-01T00:00:00Z,,\n";

fn jobs() -> Mapping {
    Mapping::load("jobs_csv").unwrap()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Error of an import that must fail and write nothing.
fn failure(source: Source) -> ImportError {
    let log = MemoryLog::default();
    let error = import(source, &jobs(), &ImportOptions::default(), &log, &mut |_| {}).unwrap_err();
    assert_eq!(log.count(), 0, "{error}");
    error
}

fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )
    .unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn parquet_columns(times: ArrayRef) -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("job_id", Arc::new(StringArray::from(vec!["1", "2"]))),
        ("gpus", Arc::new(Int64Array::from(vec![2, 4]))),
        ("submit_time", times.clone()),
        ("start_time", times.clone()),
        ("end_time", times),
    ]
}

#[test]
fn gzip_is_detected_by_its_first_bytes() {
    let (log, summary) = run(text("misleading.csv", gzip(ROWS.as_bytes())), &jobs()).unwrap();
    assert_eq!((summary.rows_accepted, gpu_ms(&log.jobs())), (2, 2 * 3_600_000));
}

#[test]
fn line_ends_byte_order_mark_and_a_missing_last_line_end_do_not_matter() {
    let (plain, _) = run(text("x", ROWS), &jobs()).unwrap();
    let variants = [
        ROWS.replace('\n', "\r\n"),
        format!("\u{feff}{ROWS}"),
        ROWS.trim_end().to_owned(),
        ROWS.replace("\n2,", "\n\n2,"),
        ROWS.replace(",2024-01-01T00:10:00Z,", ",\"2024-01-01T00:10:00Z\","),
    ];
    for variant in variants {
        assert_eq!(run(text("x", variant.clone()), &jobs()).unwrap().0.jobs(), plain.jobs(), "{variant:?}");
    }
}

#[test]
fn quoted_fields_hold_delimiters_quotes_and_line_ends() {
    let content = "job_id,gpus,submit_time,start_time,end_time,job_name\n\
                   1,2,2024-01-01T00:00:00Z,,,\"a, \"\"b\"\"\nc\"\n\
                   2,x,2024-01-01T00:00:00Z,,,d\n";
    let (log, summary) = run(text("x", content), &jobs()).unwrap();
    assert_eq!(log.jobs()[0].job_name.as_deref(), Some("a, \"b\"\nc"));
    assert_eq!(summary.rejected(), 1);
    assert_eq!(log.dead_letters()[0].line, Some(4), "the quoted line end counts as a line");
}

#[test]
fn a_truncated_gzip_file_is_reported_with_its_line() {
    let mut content = ROWS.to_owned();
    for row in 0..20_000 {
        content.push_str(&format!("{row}-{},1,2024-01-01T00:00:00Z,,\n", row * 7919 % 1_000_003));
    }
    let whole = gzip(content.as_bytes());
    let error = run(text("dump.csv.gz", &whole[..whole.len() / 2]), &jobs()).unwrap_err();
    assert!(matches!(error, ImportError::TruncatedGzip { line, .. } if line > 1_000), "{error}");
    assert!(error.to_string().contains("dump.csv.gz"), "{error}");
}

#[test]
fn unusable_files_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.csv");
    let error = failure(Source::File(absent.clone()));
    assert!(matches!(error, ImportError::Open { .. }) && error.to_string().contains("absent.csv"), "{error}");
    assert!(matches!(
        failure(Source::File(folder.path().to_owned())),
        ImportError::Open { .. } | ImportError::Read { .. }
    ));
    assert!(matches!(failure(text("x", "")), ImportError::Empty { .. }));
    assert!(matches!(failure(text("x", "job_id,job_id\n")), ImportError::Header { .. }));
    assert!(matches!(failure(text("x", &b"\xff\xfe,b\n"[..])), ImportError::Header { .. }));
    assert!(matches!(failure(text("x", "PAR1....")), ImportError::ParquetFromStdin));
    let error = failure(text("x", "job_id,gpus,submit_time,start_time\n"));
    assert!(matches!(&error, ImportError::MissingColumn(missing) if missing.column == "end_time"), "{error}");
}

#[test]
fn parquet_is_detected_by_its_first_bytes_and_has_typed_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.csv");
    let micros = vec![1_704_067_200_000_000, 1_704_067_200_000_000];
    write_parquet(&path, parquet_columns(Arc::new(TimestampMicrosecondArray::from(micros.clone()))));
    let (naive, _) = run(Source::File(path.clone()), &jobs()).unwrap();
    assert_eq!(naive.jobs()[0].envelope.as_ref().unwrap().event_time_ms, 1_704_067_200_000);
    let zoned = TimestampMicrosecondArray::from(micros).with_timezone("+02:00");
    write_parquet(&path, parquet_columns(Arc::new(zoned)));
    let options = ImportOptions { timezone: Some("Asia/Tokyo".parse().unwrap()), ..ImportOptions::default() };
    let log = MemoryLog::default();
    import(Source::File(path), &jobs(), &options, &log, &mut |_| {}).unwrap();
    assert_eq!(log.jobs(), naive.jobs(), "an instant does not depend on the zone it is shown in");
}

#[test]
fn parquet_with_a_wrong_type_or_cut_off_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.parquet");
    let times: ArrayRef = Arc::new(Int64Array::from(vec![1_704_067_200, 1_704_067_200]));
    let mut columns = parquet_columns(times.clone());
    columns[1].1 = Arc::new(StringArray::from(vec!["2", "4"]));
    write_parquet(&path, columns);
    let error = failure(Source::File(path.clone()));
    assert!(matches!(&error, ImportError::ColumnType(wrong) if wrong.column == "gpus"), "{error}");
    write_parquet(&path, parquet_columns(times));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 20]).unwrap();
    let error = failure(Source::File(path));
    assert!(
        matches!(error, ImportError::ParquetHead { .. }) && error.to_string().contains("jobs.parquet"),
        "{error}"
    );
}

/// A header, one line of `left` bytes and a good row, generated as they are read.
struct GiantLine {
    before: std::io::Cursor<Vec<u8>>,
    left: u64,
    after: std::io::Cursor<&'static [u8]>,
    largest_read: usize,
}

impl Read for GiantLine {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        // A reader that holds the line would request more and more at once.
        self.largest_read = self.largest_read.max(buffer.len());
        assert!(self.largest_read < 4 << 20, "the reader's buffer grew to {}", self.largest_read);
        let count = self.before.read(buffer)?;
        if count > 0 {
            return Ok(count);
        }
        if self.left == 0 {
            return self.after.read(buffer);
        }
        let count = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        buffer[..count].fill(b'x');
        self.left -= count as u64;
        Ok(count)
    }
}

/// Peak memory of this process, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_giant_line_is_rejected_in_constant_memory() {
    for quote in ["", "\""] {
        let reader = GiantLine {
            before: std::io::Cursor::new(format!("{ROWS}{quote}").into_bytes()),
            left: 300 << 20,
            after: std::io::Cursor::new(b"\n3,1,2024-01-01T00:00:00Z,,\n"),
            largest_read: 0,
        };
        let before_kib = peak_kib();
        let (log, summary) =
            run(Source::Reader { name: "giant".into(), reader: Box::new(reader) }, &jobs()).unwrap();
        assert!(peak_kib() - before_kib < 150 << 10, "from {before_kib} KiB to {} KiB", peak_kib());
        assert_eq!((summary.rows_accepted, summary.rejected()), (3, 1));
        let letters = log.dead_letters();
        assert_eq!(
            (letters[0].code.as_str(), letters[0].line, letters[0].raw.len()),
            ("LINE_TOO_LONG", Some(4), 4096)
        );
    }
}

#[test]
fn progress_ends_at_the_size_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.csv");
    std::fs::write(&path, ROWS).unwrap();
    let mut last = None;
    import(Source::File(path), &jobs(), &ImportOptions::default(), &MemoryLog::default(), &mut |progress| {
        last = Some(progress)
    })
    .unwrap();
    let last = last.unwrap();
    assert_eq!(
        (last.bytes_read, last.bytes_total, last.rows),
        (ROWS.len() as u64, Some(ROWS.len() as u64), 2)
    );
}

#[test]
fn a_file_that_shrinks_while_read_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.csv");
    let mut content = ROWS.to_owned();
    for row in 3..50_000 {
        content.push_str(&format!("{row},1,2024-01-01T00:00:00Z,,\n"));
    }
    std::fs::write(&path, &content).unwrap();
    let cut = |progress: tidegate_import::Progress| {
        if progress.rows == 4096 {
            File::options().write(true).open(&path).unwrap().set_len(content.len() as u64 / 2).unwrap();
        }
    };
    let source = Source::File(path.clone());
    let error =
        import(source, &jobs(), &ImportOptions::default(), &MemoryLog::default(), &mut { cut }).unwrap_err();
    assert!(matches!(error, ImportError::Shrank { .. }), "{error}");
}
