//! Nodes declared for a history without node events.

use crate::support::{MemoryLog, text};
use tidegate_events::{Event, v1};
use tidegate_import::{Fleet, ImportError, ImportOptions, ImportSummary, Mapping, import};

const JOBS: &str = "\
cluster,job_id,gpus,submit_time,start_time,end_time
a,1,1,2024-03-01T00:10:00Z,2024-03-01T00:20:00Z,2024-03-01T01:00:00Z
a,2,1,2024-03-01T00:05:00Z,2024-03-01T00:20:00Z,2024-03-01T01:00:00Z
b,3,1,2024-03-01T02:00:00Z,2024-03-01T02:20:00Z,2024-03-01T03:00:00Z
";

fn import_with(fleet: Fleet, rows: &str, log: &MemoryLog) -> Result<ImportSummary, ImportError> {
    let options = ImportOptions { fleet, ..ImportOptions::default() };
    import(text("jobs.csv", rows), &Mapping::load("jobs_csv").unwrap(), &options, log, &mut |_| {})
}

fn declared(specs: &[&str]) -> Fleet {
    let mut fleet = Fleet::default();
    specs.iter().for_each(|spec| fleet.add_spec(spec).unwrap());
    fleet
}

/// Cluster, name, thousandths of a GPU, model, pool and minutes since midnight, by cluster and
/// name.
fn nodes(log: &MemoryLog) -> Vec<String> {
    let shown = |event| {
        let Event::Node(node) = event else { panic!("{event:?}") };
        assert_eq!(node.kind(), v1::NodeEventKind::NodeRegistered);
        let envelope = node.envelope.unwrap();
        let minute = (envelope.event_time_ms - 1_709_251_200_000) / 60_000;
        let [model, pool] = [node.gpu_model, node.pool].map(|text| text.unwrap_or_else(|| "-".into()));
        format!("{} {} {} {model} {pool} {minute}", envelope.cluster, node.node, node.gpus_milli.unwrap())
    };
    let mut nodes: Vec<_> = log.events("nodes").into_iter().map(shown).collect();
    nodes.sort();
    nodes
}

#[test]
fn declared_nodes_exist_from_the_beginning_of_their_history() {
    let fleet = declared(&["a/gpu[1-2]:8:a100:x", "b/n:4"]);
    let log = MemoryLog::default();
    import_with(fleet.clone(), JOBS, &log).unwrap();
    assert_eq!(nodes(&log), ["a gpu1 8000 a100 x 5", "a gpu2 8000 a100 x 5", "b n 4000 - - 120"]);
    // Importing again adds nothing.
    let again = import_with(fleet, JOBS, &log).unwrap();
    assert_eq!((again.events_written, nodes(&log).len()), (0, 3));
}

#[test]
fn a_fixed_time_makes_overlapping_exports_agree() {
    let log = MemoryLog::default();
    let mut fleet = declared(&["a/gpu1:8"]);
    fleet.since(1_709_251_200_000);
    let lines: Vec<&str> = JOBS.lines().collect();
    import_with(fleet.clone(), &lines[..3].join("\n"), &log).unwrap();
    import_with(fleet, &lines[..2].join("\n"), &log).unwrap();
    assert_eq!(nodes(&log), ["a gpu1 8000 - - 0"]);
}

#[test]
fn a_table_names_nodes_too() {
    let log = MemoryLog::default();
    let mut fleet = Fleet::default();
    let table = "cluster,node,gpus,gpu_model,pool\na,n[1-2],8,h100,\"x,y\"\nb,m,0,,\n";
    fleet.add_table(text("nodes.csv", table)).unwrap();
    import_with(fleet, JOBS, &log).unwrap();
    assert_eq!(nodes(&log), ["a n1 8000 h100 x,y 5", "a n2 8000 h100 x,y 5", "b m 0 - - 120"]);
}

#[test]
fn invalid_declarations_are_explained() {
    let log = MemoryLog::default();
    let refused = |fleet| import_with(fleet, JOBS, &log).unwrap_err().to_string();
    let without = refused(declared(&["gpu1:8"]));
    assert!(without.contains("has several: a, b; write CLUSTER/ before the names"), "{without}");
    let wrong = refused(declared(&["c/gpu1:8"]));
    assert!(wrong.contains("declared for cluster c, and the history has a, b"), "{wrong}");
    let twice = refused(declared(&["a/gpu[1-3]:8", "a/gpu2:4"]));
    assert!(twice.contains("node gpu2 is declared twice"), "{twice}");
    assert_eq!(nodes(&log), Vec::<String>::new());

    let table =
        |content: &str| Fleet::default().add_table(text("nodes.csv", content)).unwrap_err().to_string();
    assert!(table("node,model\nn1,a\n").contains("nodes.csv has no column gpus"));
    assert!(table("node,gpus\nn1,8\nn2,many\n").contains("nodes.csv, line 3: \"many\" is no number of GPUs"));

    let options = ImportOptions { fleet: declared(&["n:8"]), ..ImportOptions::default() };
    let nodes = Mapping::load("alibaba_openb_nodes").unwrap();
    let source = text("nodes.csv", "sn,gpu,model,cpu_milli,memory_mib\n");
    let error = import(source, &nodes, &options, &log, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("mapping alibaba_openb_nodes is of another kind"), "{error}");
}
