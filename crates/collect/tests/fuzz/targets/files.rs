//! Files that people give: mappings, tables to import, topologies, policies; and snapshots, which
//! may be damaged.

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;

use tidegate_autopilot::policy::Policy;
use tidegate_import::generate::{SacctFile, sacct};
use tidegate_import::{ImportOptions, Mapping, Source, import, topology};
use tidegate_log::snapshot::{Position, SnapshotStore, stored};
use tidegate_testing::MemoryLog;
use xxhash_rust::xxh3::xxh3_128;

use super::{Parser, Target, files_of, lines, of_text};

pub const TARGETS: [Target; 6] = [
    Target {
        name: "mapping",
        start: || of_text(|text| Mapping::parse(text, "fuzz")),
        seeds: || files_of("schemas/imports", "toml"),
    },
    Target { name: "import", start: importing, seeds: tables },
    Target { name: "parquet", start: parquet, seeds: || files_of("crates/import/tests/fixtures", "parquet") },
    Target { name: "topology", start: || of_text(topology::read), seeds: || lines(TOPOLOGY) },
    Target {
        name: "policy",
        start: || of_text(Policy::parse),
        seeds: || files_of("crates/autopilot/policies", "toml"),
    },
    Target { name: "snapshot", start: snapshots, seeds: || vec![snapshot().1] },
];

const TOPOLOGY: &[&str] =
    &["SwitchName=s1 Nodes=n[1-4]\nSwitchName=top Switches=s[1-2]\n", "node,rack,switch\nn1,r1,s1\n"];
/// Bytes of the checksum at the end of a snapshot.
const CHECKSUM_BYTES: usize = 16;

fn mappings() -> Vec<Mapping> {
    let texts = files_of("schemas/imports", "toml");
    texts.iter().map(|text| Mapping::parse(str::from_utf8(text).unwrap(), "shipped").unwrap()).collect()
}

fn tables() -> Vec<Vec<u8>> {
    let mut accounting = Vec::new();
    let file = SacctFile { days: 1, steps: true, ..SacctFile::year(1, 8, 64) };
    sacct(&mut accounting, &file).unwrap();
    let jobs = "job_id,gpus,submit_time,start_time,end_time,nodes,state,job_name\n\
                1,2,1704067200,1704067200,1704067260,n[1-2],COMPLETED,\"a \"\"name\"\",\nof two lines\"\n\
                2,0.5,2024-03-01T12:00:00+01:00,,,,PENDING,x\n";
    vec![accounting, jobs.into()]
}

/// Each input as a table of each mapping.
fn importing() -> Parser {
    let mappings = mappings();
    Box::new(move |input| {
        for mapping in &mappings {
            let reader = Box::new(Cursor::new(input.to_vec()));
            let source = Source::Reader { name: "fuzz".into(), reader };
            import(source, mapping, &ImportOptions::default(), &MemoryLog::default(), &mut |_| {}).ok();
        }
    })
}

/// Each input as a file of the mapping that its columns fit best.
fn parquet() -> Parser {
    let mapping = Mapping::load("jobs_csv").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    Box::new(move |input| {
        fs::write(&file, input).unwrap();
        let source = Source::File(file.path().into());
        import(source, &mapping, &ImportOptions::default(), &MemoryLog::default(), &mut |_| {}).ok();
    })
}

/// A folder with a snapshot, and the snapshot without its checksum.
fn snapshot() -> ((tempfile::TempDir, PathBuf), Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let mut store = SnapshotStore::new(folder.path(), "signals", "c", 1);
    let position = Position { topic: "jobs".into(), partition: 3, next: 8, last: Some((7, 9)) };
    store.save(vec![position], &b"state ".repeat(100), 1_767_225_600_000).unwrap();
    let file = fs::read_dir(store.folder()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - CHECKSUM_BYTES);
    ((folder, file), bytes)
}

/// Snapshots whose checksum is right.
fn snapshots() -> Parser {
    let ((folder, file), _) = snapshot();
    Box::new(move |input| {
        fs::write(&file, [input, &xxh3_128(input).to_le_bytes()].concat()).unwrap();
        stored(folder.path()).unwrap();
    })
}
