//! `tidegate schema`: the list matches the documentation; compatible changes are accepted, others
//! not.

use std::path::Path;

use tempfile::TempDir;

use crate::program::{Ended, run, tidegate};

const SCHEMAS: &str = "../../schemas";
const COMPATIBLE: Option<i32> = Some(0);
const INCOMPATIBLE: Option<i32> = Some(1);

fn check(folder: &Path, against: Option<&Path>) -> Ended {
    let mut command = tidegate();
    command.args(["schema", "check"]).arg(folder);
    command.args(against.map(|_| "--against")).args(against);
    run(&mut command)
}

/// A copy of the contract's files.
fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(SCHEMAS).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "proto") {
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    folder
}

/// A copy in which one text of a file is another.
fn changed(file: &str, from: &str, to: &str) -> TempDir {
    let folder = copy();
    let path = folder.path().join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches(from).count(), 1, "{from:?} in {file}");
    std::fs::write(path, text.replace(from, to)).unwrap();
    folder
}

const GPUS: &str = "optional uint64 gpus_milli = 13;";
const MODEL: &str = "optional string gpu_model = 14;";
const JOB: &str = "message JobEvent {\n";
const LAST: &str = "optional sint64 priority = 23;";

#[test]
fn what_breaks_readers_is_named_with_its_place_and_how_to_mend_it() {
    let job = |from, to: &'static str, line| ("job_event.proto", from, to, line);
    let cases = [
        job(GPUS, "", "JobEvent.gpus_milli: the field is gone"),
        job(GPUS, "reserved 13;", "JobEvent.gpus_milli: the field is gone"),
        job(GPUS, "optional uint64 gpus = 13;", "JobEvent.gpus_milli: is called gpus now"),
        job(GPUS, "optional uint64 gpus_milli = 99;", "JobEvent.gpus_milli: had number 13, has 99"),
        job(
            GPUS,
            "optional sint64 gpus_milli = 13;",
            "JobEvent.gpus_milli: was optional uint64, is optional sint64",
        ),
        job(GPUS, "uint64 gpus_milli = 13;", "JobEvent.gpus_milli: was optional uint64, is plain uint64"),
        job(
            GPUS,
            "repeated uint64 gpus_milli = 13;",
            "JobEvent.gpus_milli: was optional uint64, is packed uint64",
        ),
        job(GPUS, "optional string colour = 13;", "JobEvent.colour: takes number 13, which is gpus_milli's"),
        job(
            GPUS,
            "optional string colour = 13; optional uint64 gpus_milli = 99;",
            "JobEvent.colour: takes number 13",
        ),
        job(GPUS, "oneof held { uint64 gpus_milli = 13; }", "JobEvent.gpus_milli: went into a oneof"),
        job("  RESUMED = 6;\n", "", "JobEventKind.RESUMED: the value is gone"),
        job("  RESUMED = 6;\n", "  CONTINUED = 6;\n", "JobEventKind.RESUMED: is called CONTINUED now"),
        job("  RESUMED = 6;\n", "  RESUMED = 199;\n", "JobEventKind.RESUMED: had number 6, has 199"),
        job("  RESUMED = 6;\n", "  RESUMED = 199;\n  AWOKEN = 6;\n", "JobEventKind.AWOKEN: takes number 6"),
        job("message JobEvent {", "message Job {", "JobEvent: the message is gone or renamed"),
        job(JOB, "message Colour {}\nmessage JobEvent {\n", "JobEvent: is not the first message of its file"),
        (
            "envelope.proto",
            "bytes event_id = 1;",
            "string event_id = 1;",
            "Envelope.event_id: was plain bytes, is plain string",
        ),
        (
            "gpu_sample_batch.proto",
            "= 5 [packed = true]",
            "= 5 [packed = false]",
            "GpuSampleBatch.tick_delta_ms: was packed sint64, is repeated sint64",
        ),
    ];
    for (file, from, to, line) in cases {
        let ended = check(changed(file, from, to).path(), None);
        assert_eq!(ended.status, INCOMPATIBLE, "{to}: {ended:?}");
        let found = ended
            .stdout
            .lines()
            .find(|said| said.contains(line))
            .unwrap_or_else(|| panic!("{line}: {ended:?}"));
        assert!(found.starts_with(&format!("incompatible  {file}: ")) && found.contains(';'), "{found}");
        assert!(ended.stdout.contains("is incompatible: "), "{ended:?}");
    }
}

#[test]
fn additions_are_compatible_and_listed() {
    let cases = [
        (
            LAST,
            "optional sint64 priority = 23; optional string colour = 99;",
            "added         job_event.proto: JobEvent.colour: new field, optional string, number 99",
        ),
        (
            LAST,
            "optional sint64 priority = 23; repeated string colours = 99;",
            "added         job_event.proto: JobEvent.colours: new field",
        ),
        (
            LAST,
            "optional sint64 priority = 23; string colour = 99;",
            "warning       job_event.proto: JobEvent.colour: new field, plain string, number 99: events without it read as zero or empty",
        ),
        (LAST, "optional sint64 priority = 23; reserved 99;", "nothing changed"),
        (
            "  OBSERVED = 8;\n",
            "  OBSERVED = 8;\n  MOVED = 199;\n",
            "warning       job_event.proto: JobEventKind.MOVED: new value, number 199: readers of the old version do not know it",
        ),
        (
            LAST,
            "optional sint64 priority = 23;\n message Colour { string name = 1; }",
            "added         job_event.proto: JobEvent.Colour: new message",
        ),
        (
            LAST,
            "optional sint64 priority = 23;\n enum Colour { NONE = 0; }",
            "added         job_event.proto: JobEvent.Colour: new enum",
        ),
        // Order in a message and comments mean nothing.
        (MODEL, "// The model.\n", ""),
    ];
    for (from, to, line) in cases {
        let folder = changed("job_event.proto", from, to);
        if from == MODEL {
            let path = folder.path().join("job_event.proto");
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(path, text.replace(JOB, &format!("{JOB}{MODEL}\n"))).unwrap();
        }
        let ended = check(folder.path(), None);
        assert_eq!(ended.status, COMPATIBLE, "{to}: {ended:?}");
        assert!(ended.stdout.contains(line) && ended.stdout.contains("is compatible: "), "{line}: {ended:?}");
    }
    let folder = copy();
    let file =
        "syntax = \"proto3\";\npackage tidegate.v1;\nmessage PowerEvent { optional uint64 watts = 1; }";
    std::fs::write(folder.path().join("power_event.proto"), file).unwrap();
    let ended = check(folder.path(), None);
    assert_eq!((ended.status, ended.stdout.lines().count()), (COMPATIBLE, 2), "{ended:?}");
    assert!(
        ended.stdout.starts_with("added         power_event.proto: PowerEvent: new message\n"),
        "{ended:?}"
    );
}

#[test]
fn a_renamed_package_and_a_lost_file_are_told_once() {
    let folder = copy();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace("tidegate.v1", "tidegate.v2")).unwrap();
    }
    let ended = check(folder.path(), None);
    let said = "incompatible  job_event.proto: the package was tidegate.v1, is tidegate.v2";
    assert!(ended.status == INCOMPATIBLE && ended.stdout.contains(said), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 17 + 1, "{ended:?}");

    let folder = copy();
    std::fs::remove_file(folder.path().join("node_event.proto")).unwrap();
    let ended = check(folder.path(), None);
    assert_eq!((ended.status, ended.stdout.lines().count()), (INCOMPATIBLE, 2), "{ended:?}");
    assert!(ended.stdout.starts_with("incompatible  node_event.proto: the file is gone"), "{ended:?}");
}

/// What one side adds, the other lost; and a number that was given up is not taken again.
#[test]
fn two_folders_are_compared_with_each_other() {
    let grown =
        changed("job_event.proto", LAST, "optional sint64 priority = 23; optional string colour = 99;");
    assert_eq!(check(grown.path(), Some(Path::new(SCHEMAS))).status, COMPATIBLE);
    let lost = check(Path::new(SCHEMAS), Some(grown.path()));
    assert_eq!(lost.status, INCOMPATIBLE);
    assert!(lost.stdout.contains("JobEvent.colour: the field is gone"), "{lost:?}");

    let reserved = changed("job_event.proto", LAST, "optional sint64 priority = 23; reserved 99;");
    let taken = check(grown.path(), Some(reserved.path()));
    assert_eq!(taken.status, INCOMPATIBLE);
    assert!(taken.stdout.contains("JobEvent.colour: number 99 or the name is reserved"), "{taken:?}");
}

/// The contract is proto3, which knows no required fields; a move to proto2 is reported.
#[test]
fn what_becomes_required_is_incompatible() {
    let folder = |fields: &str| {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("syntax = \"proto2\";\npackage p;\nmessage M {{ {fields} }}");
        std::fs::write(folder.path().join("m.proto"), text).unwrap();
        folder
    };
    let old = folder("optional string a = 1;");
    let ended = check(folder("required string a = 1; required string b = 2;").path(), Some(old.path()));
    assert_eq!(ended.status, INCOMPATIBLE);
    assert!(ended.stdout.contains("m.proto: M.a: was optional string, is required string"), "{ended:?}");
    assert!(ended.stdout.contains("m.proto: M.b: is required: events that exist lack it"), "{ended:?}");
    let grown = check(folder("optional string a = 1; optional string b = 2;").path(), Some(old.path()));
    assert_eq!(grown.status, COMPATIBLE, "{grown:?}");
}

#[test]
fn what_cannot_be_compiled_is_told_with_its_place() {
    let broken = changed("job_event.proto", GPUS, "optional uint64 gpus_milli 13;");
    let ended = check(broken.path(), None);
    ended.refused(&["job_event.proto:", "expected"]);
    let line = ended.stderr.split("job_event.proto:").nth(1).unwrap().split(':').next().unwrap();
    assert!(line.parse::<u32>().is_ok_and(|line| line > 30), "{ended:?}");

    let unknown = changed("job_event.proto", "Envelope envelope = 1;", "Envelop envelope = 1;");
    check(unknown.path(), None).refused(&["job_event.proto:", "Envelop"]);

    let empty = tempfile::tempdir().unwrap();
    let ended = check(empty.path(), None);
    ended.refused(&["holds no .proto files", "name the folder"]);
    check(Path::new("nowhere"), None).refused(&["read schemas folder nowhere"]);
}

#[test]
fn the_list_is_what_is_documented() {
    let listed = run(tidegate().args(["schema", "list"]));
    assert_eq!(listed.status, Some(0));
    let readme = std::fs::read_to_string(Path::new(SCHEMAS).join("README.md")).unwrap();
    for line in listed.stdout.lines().skip(1) {
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, id, version, number, topic, key, file] = words[..] else { panic!("{line}") };
        let row = format!("| [{name}]({file}) | {id} | {version} | {number} | `{topic}` | {key} |");
        assert!(readme.replace('`', "").contains(&row.replace('`', "")), "schemas/README.md lacks {row}");
        assert!(Path::new(SCHEMAS).join(file).is_file(), "{file}");
    }
    assert_eq!(check(Path::new(SCHEMAS), None).stdout, format!("{SCHEMAS} is compatible: nothing changed\n"));
}
