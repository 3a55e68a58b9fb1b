//! What the autopilot reads: its journal, what people sign, and what jobs declare of themselves.

use std::fs;
use std::hint::black_box;
use std::sync::Arc;

use tidegate_autopilot::executor::{Journal, JournalEntry, JournalEvent};
use tidegate_autopilot::intent::{IntentEvent, Lease, SignedApproval, Transition};
use tidegate_control::authority::{ApprovalStatement, PolicyStatement, Signers, SwitchStatement};
use tidegate_control::slurm::Declaration;
use tidegate_control::{Chains, JournalKeys, LogJournal};
use tidegate_events::SchemaId;
use tidegate_log::{EventLog, Record};
use tidegate_testing::MemoryLog;

use super::{Parser, Target, files_of, lines, of_text, repository};

pub const TARGETS: [Target; 5] = [
    Target { name: "journal", start: journal, seeds: entries },
    Target { name: "statements", start: || of_text(statements), seeds: || lines(STATEMENTS) },
    Target { name: "signers", start: signer_files, seeds: || vec![fs::read(signers_file()).unwrap()] },
    Target { name: "signatures", start: signatures, seeds: || files_of(AUTHORITY, "sig") },
    Target { name: "declarations", start: || of_text(Declaration::parse), seeds: || lines(DECLARATIONS) },
];

/// The topic of journals.
const TOPIC: &str = "autopilot";
const AUTHORITY: &str = "crates/control/tests/fixtures/authority";
const STATEMENTS: &[&str] = &[
    "tidegate policy\ncluster c\nacts-as policy\nsequence 7\nafter none\nexpires 2026-12-01T00:00:00Z\npolicy sha256:00\n",
    "tidegate approve\ncluster c\naction a\nplan p\nsequence 1795000000000000\nexpires-us 1795000900000000\n",
    "tidegate switch\ncluster c\nswitch on\nsequence 1795000000000000\n",
];
const DECLARATIONS: &[&str] = &[
    "run 7 tidegate:elastic,min=8,max=32,grow=requeue,notice of bert",
    "tidegate:elastic,sizes=32/8/16,grow=satellites,satellite=/join.sh tidegate:do-not-disrupt",
];
const CLUSTER: &str = "c";

fn signers_file() -> std::path::PathBuf {
    repository(AUTHORITY).join("allowed_signers")
}

/// Records of a journal, as it writes them.
fn entries() -> Vec<Vec<u8>> {
    let log = Arc::new(MemoryLog::with_topic(TOPIC));
    let mut journal = LogJournal::open(Arc::clone(&log) as Arc<dyn EventLog>, CLUSTER, "one").unwrap();
    let entry = |event| JournalEntry { at_us: 1_795_000_000_000_000, generation: 1, event };
    let lease = Lease { holder: "one".into(), generation: 1, until_us: 1_795_000_030_000_000 };
    let signed = SignedApproval {
        plan: "p".into(),
        given_us: 1_795_000_000_000_000,
        expires_us: 1_795_000_900_000_000,
        signature: "x".into(),
    };
    let step = IntentEvent {
        action: "drain-1".into(),
        at_us: 1_795_000_000_000_000,
        generation: 1,
        transition: Transition::Approved { by: "anna".into(), signed: Some(signed) },
    };
    let events = [JournalEvent::Lease(lease), JournalEvent::Step(Box::new(step))];
    journal.append(events.into_iter().map(entry).collect()).unwrap();
    let mut seeds: Vec<_> = log.records(TOPIC).into_iter().map(|record| record.payload.to_vec()).collect();
    seeds.extend(files_of("schemas/fixtures/autopilot_event", "bin"));
    seeds
}

/// Reads each input as a record of a journal, with keys and without.
fn journal() -> Parser {
    let signers = Signers::read(&signers_file()).unwrap();
    Box::new(move |input| {
        let record = Record {
            key: CLUSTER.into(),
            schema: SchemaId::AutopilotEvent.number(),
            event_time_ms: 1_795_000_000_000,
            payload: input.to_vec().into(),
        };
        let log: Arc<dyn EventLog> = Arc::new(MemoryLog::with_topic(TOPIC).holding(TOPIC, record));
        for keys in [None, Some(JournalKeys { signers: signers.clone(), key: None })] {
            let journal = LogJournal::open(Arc::clone(&log), CLUSTER, "two").unwrap();
            let mut journal = journal.proving(keys, Chains::default());
            black_box((journal.read().ok(), journal.take_refused()));
        }
    })
}

fn statements(input: &str) {
    black_box(PolicyStatement::parse(input).ok());
    black_box(ApprovalStatement::parse(input).ok());
    black_box(SwitchStatement::parse(input).ok());
}

fn signer_files() -> Parser {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("allowed_signers");
    Box::new(move |input| {
        let _folder = &folder;
        fs::write(&file, input).unwrap();
        black_box(Signers::read(&file).ok());
    })
}

fn signatures() -> Parser {
    let signers = Signers::read(&signers_file()).unwrap();
    let statement = fs::read(repository(AUTHORITY).join("policy.toml")).unwrap();
    of_text(move |text| signers.verify("tidegate-policy", &statement, text, chrono::DateTime::UNIX_EPOCH))
}
