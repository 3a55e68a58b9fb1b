//! Damaged Parquet files: an error names file and row group, and what was written stays.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::file::properties::WriterProperties;
use tidegate_import::{ImportError, ImportOptions, ImportSummary, Mapping, Source, import};
use tidegate_log::TopicConfig;

use crate::support::{Imported, MemoryLog};

/// Rows of each of the three row groups of the small file.
const GROUP_ROWS: usize = 40;
/// The whole file, which the fuzzer mutates.
const WHOLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/jobs.parquet");

fn write_whole(path: &Path, group_rows: usize) {
    let rows = 3 * group_rows as i64;
    let optional = |value: &dyn Fn(i64) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter((0..rows).map(|row| (row % 7 != 3).then(|| value(row)))))
    };
    let times: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..rows).map(|row| 1_704_067_200 + row * 977)));
    let text = |value: &dyn Fn(i64) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..rows).map(value)))
    };
    let columns = vec![
        ("job_id", text(&|row| format!("{}", row * 7_919 % 1_000_003)), false),
        ("gpus", optional(&|row| row % 8), true),
        ("submit_time", times, false),
        ("start_time", optional(&|row| 1_704_070_800 + row * 977), true),
        ("end_time", optional(&|row| 1_704_074_400 + row * 977), true),
        ("user", text(&|row| format!("user-{}", row % 5)), false),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let groups = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(groups)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn import_into(log: &MemoryLog, path: &Path) -> Result<ImportSummary, ImportError> {
    let mapping = Mapping::load("jobs_csv").unwrap();
    let topics = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
    let options = ImportOptions { topics, ..ImportOptions::default() };
    import(Source::File(path.into()), &mapping, &options, log, &mut |_| {})
}

/// Files on which the library has panicked, as the fuzzer has found them.
fn panicked() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/corpus/parquet");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_whole_file_is_the_one_that_the_writer_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.parquet");
    write_whole(&path, GROUP_ROWS);
    if std::env::var("TIDEGATE_BLESS").is_ok() {
        fs::copy(&path, WHOLE).unwrap();
    }
    let logs = [MemoryLog::default(), MemoryLog::default()];
    import_into(&logs[0], &path).unwrap();
    import_into(&logs[1], WHOLE.as_ref()).unwrap();
    assert_eq!(logs[0].jobs(), logs[1].jobs());
}

#[test]
fn files_on_which_the_library_panicked_are_named() {
    let files = panicked();
    assert!(!files.is_empty());
    for path in files {
        let error = import_into(&MemoryLog::default(), &path).unwrap_err();
        assert!(matches!(error, ImportError::Parquet { .. } | ImportError::ParquetHead { .. }), "{error}");
        let (text, name) = (error.to_string(), path.file_name().unwrap().to_str().unwrap());
        assert!(text.contains(name) && text.contains("its data is damaged"), "{text}");
    }
}

#[test]
fn what_was_written_before_the_damage_stays_and_the_whole_file_adds_the_rest() {
    // Of one partition, a chunk is full within the first row group.
    const ROWS: usize = 9_000;
    let folder = tempfile::tempdir().unwrap();
    let (whole, damaged) = (folder.path().join("whole.parquet"), folder.path().join("damaged.parquet"));
    write_whole(&whole, ROWS);
    let metadata = ArrowReaderMetadata::load(&File::open(&whole).unwrap(), Default::default()).unwrap();
    let at = metadata.metadata().row_group(1).column(1).data_page_offset() as usize;
    let mut bytes = fs::read(&whole).unwrap();
    bytes[at..at + 16].fill(0xff);
    fs::write(&damaged, bytes).unwrap();
    let log = MemoryLog::default();
    let error = import_into(&log, &damaged).unwrap_err();
    let ImportError::Parquet { group, row, .. } = &error else { panic!("{error}") };
    assert_eq!((*group, *row), (2, ROWS as u64), "{error}");
    assert!(error.to_string().contains("damaged.parquet cannot be read on in row group 2"), "{error}");
    let before = log.count();
    assert!(before > 0, "what the first row group gave is written, as far as chunks were full");
    let summary = import_into(&log, &whole).unwrap();
    let alone = MemoryLog::default();
    let expected = import_into(&alone, &whole).unwrap();
    assert_eq!(summary.rows_accepted, expected.rows_accepted);
    assert_eq!(summary.events_already_present, before as u64);
    assert_eq!((log.count(), log.jobs()), (alone.count(), alone.jobs()));
}
