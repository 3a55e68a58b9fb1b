//! What holds the code base together and no compiler checks: which crate may see which, one Arrow,
//! and where things go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

mod circles;
mod text;
mod tokens;

/// Every crate and the ones of ours it may depend on: only downward, never sideways. A new crate
/// gets a line here.
const MAY_USE: &[(&str, &[&str])] = &[
    ("tidegate-units", &[]),
    ("tidegate-text", &[]),
    ("tidegate-telemetry", &[]),
    ("tidegate-events", &["tidegate-units"]),
    ("tidegate-log", &["tidegate-events"]),
    ("tidegate-readings", &["tidegate-events"]),
    ("tidegate-testing", &["tidegate-events", "tidegate-log"]),
    // Only its tests use import: what the watcher records and a later import must agree. So do its
    // fuzzers, which try the parsers of control and autopilot as well.
    (
        "tidegate-collect",
        &[
            "tidegate-events",
            "tidegate-log",
            "tidegate-telemetry",
            "tidegate-readings",
            "tidegate-slurm",
            "tidegate-import",
            "tidegate-control",
            "tidegate-autopilot",
        ],
    ),
    ("tidegate-import", &["tidegate-events", "tidegate-log", "tidegate-readings", "tidegate-slurm"]),
    ("tidegate-slurm", &["tidegate-events"]),
    (
        "tidegate-node",
        &["tidegate-events", "tidegate-log", "tidegate-telemetry", "tidegate-text", "tidegate-collect"],
    ),
    ("tidegate-lake", &["tidegate-events", "tidegate-log"]),
    (
        "tidegate-server",
        &["tidegate-events", "tidegate-log", "tidegate-telemetry", "tidegate-text", "tidegate-lake"],
    ),
    ("tidegate-insight", &[]),
    ("tidegate-signals", &["tidegate-events", "tidegate-log", "tidegate-insight"]),
    // Only its tests use facts: they try expected ends on real traces.
    (
        "tidegate-evaluation",
        &[
            "tidegate-events",
            "tidegate-insight",
            "tidegate-signals",
            "tidegate-autopilot",
            "tidegate-sim",
            "tidegate-facts",
        ],
    ),
    ("tidegate-facts", &["tidegate-events", "tidegate-autopilot"]),
    ("tidegate-sim", &["tidegate-events", "tidegate-autopilot", "tidegate-facts", "tidegate-insight"]),
    ("tidegate-autopilot", &["tidegate-units", "tidegate-insight"]),
    (
        "tidegate-control",
        &["tidegate-events", "tidegate-log", "tidegate-slurm", "tidegate-autopilot", "tidegate-facts"],
    ),
    (
        "tidegate-workspace",
        &[
            "tidegate-events",
            "tidegate-log",
            "tidegate-telemetry",
            "tidegate-text",
            "tidegate-node",
            "tidegate-lake",
            "tidegate-server",
        ],
    ),
    (
        "tidegate-demo",
        &[
            "tidegate-events",
            "tidegate-log",
            "tidegate-slurm",
            "tidegate-collect",
            "tidegate-autopilot",
            "tidegate-control",
            "tidegate-sim",
            "tidegate-evaluation",
        ],
    ),
    (
        "tidegate-lab",
        &[
            "tidegate-demo",
            "tidegate-events",
            "tidegate-log",
            "tidegate-collect",
            "tidegate-import",
            "tidegate-lake",
            "tidegate-server",
            "tidegate-signals",
            "tidegate-autopilot",
            "tidegate-control",
            "tidegate-sim",
            "tidegate-evaluation",
            "tidegate-workspace",
        ],
    ),
    (
        "tidegate",
        &[
            "tidegate-events",
            "tidegate-log",
            "tidegate-telemetry",
            "tidegate-text",
            "tidegate-collect",
            "tidegate-import",
            "tidegate-node",
            "tidegate-lake",
            "tidegate-server",
            "tidegate-insight",
            "tidegate-signals",
            "tidegate-evaluation",
            "tidegate-autopilot",
            "tidegate-sim",
            "tidegate-control",
            "tidegate-workspace",
            "tidegate-lab",
            "tidegate-demo",
        ],
    ),
];

/// What tests of any crate may use, and nothing else may.
const FOR_TESTS: &str = "tidegate-testing";

/// Crates whose types pass between libraries: two copies would be two different types.
const ONE_COPY: &[&str] = &["arrow", "datafusion", "parquet", "object_store", "deltalake"];

/// What would let the outside world into pure code. Time and randomness come in as arguments.
const IMPURE: &[&str] = &[
    "SystemTime::now",
    "Instant::now",
    "Utc::now",
    "Local::now",
    "rand::rng",
    "std::env",
    "std::fs",
    "tokio",
];

const MAX_LINES: usize = 700;

/// Hosts of package registries, in two parts so that they do not stand here either. Clients know
/// them by themselves, and where a site has a mirror its settings of those clients hold, as long as
/// nobody goes past them.
const REGISTRIES: &[(&str, &str)] = &[
    ("maven", ".org"),
    ("maven.apache", ".org"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("crates", ".io/"),
    ("npmjs", "."),
    ("proxy.golang", ".org"),
    ("deb.debian", ".org"),
];

fn root() -> PathBuf {
    Path::new("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All files of the tree that are text, but for what cargo and programs left there; paths from the
/// root.
fn texts() -> Vec<(String, String)> {
    let root = root();
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && !path.is_symlink() {
                let is_ours = ![".git", "target", "tidegate-data"].contains(&name.as_str());
                folders.extend(is_ours.then_some(path));
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                found.push((name, text));
            }
        }
    }
    found
}

/// All Rust files of `crates/*/src`, with their text; paths from the root.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut folders: Vec<PathBuf> = root
        .join("crates")
        .read_dir()
        .unwrap()
        .map(|c| c.unwrap().path().join("src"))
        .filter(|f| f.is_dir())
        .collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push((name, read(&path)));
            }
        }
    }
    assert!(found.len() > 50, "only {} source files found", found.len());
    found
}

/// The workspace's packages and those of ours each depends on. Tests of any crate may use
/// [`FOR_TESTS`]; what else they use counts only `with_tests`.
fn arrows(with_tests: bool) -> BTreeMap<String, BTreeSet<String>> {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let metadata: Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let name = |package: &Value| package["name"].as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    let used = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let for_tests = |d: &&Value| d["kind"] == "dev" && (!with_tests || name(d) == FOR_TESTS);
        let dependencies = dependencies.filter(|d| !for_tests(d)).map(name);
        // A crate's own tests may switch on one of its features by depending on it.
        dependencies.filter(|d| ours.contains(d) && *d != name(package)).collect()
    };
    packages.iter().map(|package| (name(package), used(package))).collect()
}

#[test]
fn crates_depend_only_downward() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let arrows = arrows(true);
    assert!(arrows["tidegate"].len() >= 4, "the binary sees {:?}", arrows["tidegate"]);
    for (package, used) in arrows {
        let Some(may_use) = allowed.get(package.as_str()) else {
            panic!("{package} is not in MAY_USE: say there which crates it may depend on");
        };
        for other in used {
            assert!(may_use.contains(&other.as_str()), "{package} must not depend on {other}");
        }
    }
}

#[test]
fn types_that_are_shared_exist_once() {
    let lock = read(&root().join("Cargo.lock"));
    let names = lock.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let shared = |name: &&str| {
        ONE_COPY.iter().any(|one| name.strip_prefix(one).is_some_and(|r| r.is_empty() || r.starts_with('-')))
    };
    let mut copies: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names.filter(shared) {
        *copies.entry(name).or_default() += 1;
    }
    for one in ONE_COPY {
        assert!(copies.contains_key(one), "{one} is not in Cargo.lock");
    }
    copies.retain(|_, count| *count > 1);
    assert!(copies.is_empty(), "several versions in Cargo.lock: {copies:?}; move them together");
}

#[test]
fn no_file_is_too_long_to_read() {
    for (file, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{file} has {lines} lines, more than {MAX_LINES}; take it apart");
    }
}

#[test]
fn pure_crates_know_no_clock_no_chance_and_no_disk() {
    for pure in [
        "crates/units/src/",
        "crates/events/src/",
        "crates/insight/src/",
        "crates/autopilot/src/",
        "crates/facts/src/",
        "crates/sim/src/",
    ] {
        let files: Vec<_> = sources().into_iter().filter(|(file, _)| file.starts_with(pure)).collect();
        assert!(!files.is_empty());
        for (file, text) in files.iter().filter(|(file, _)| !file.ends_with("/tests.rs")) {
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for word in IMPURE {
                assert!(!code.contains(word), "{file} has {word}; take it as an argument");
            }
        }
    }
}

#[test]
fn one_module_knows_the_table_library() {
    let users: Vec<String> = sources()
        .into_iter()
        .filter(|(_, text)| text.lines().any(|line| line.trim_start().starts_with("use deltalake")))
        .map(|(file, _)| file)
        .collect();
    let outside: Vec<_> = users.iter().filter(|file| !file.starts_with("crates/lake/src/delta")).collect();
    assert!(!users.is_empty() && outside.is_empty(), "{outside:?}");
}

#[test]
fn no_registry_is_named() {
    let texts = texts();
    assert!(texts.len() > 500, "only {} files found", texts.len());
    // Cargo writes its registry's address there by itself.
    for (file, text) in texts.iter().filter(|(file, _)| file != "Cargo.lock") {
        for (host, end) in REGISTRIES {
            let host = format!("{host}{end}");
            assert!(!text.contains(&host), "{file} names {host}; fetch by name, with the ordinary client");
        }
    }
}

#[test]
fn every_crate_follows_the_workspace_lints() {
    for entry in root().join("crates").read_dir().unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let text = read(&manifest);
        assert!(
            text.contains("\n[lints]\nworkspace = true\n"),
            "{} lacks [lints] workspace = true",
            manifest.display()
        );
    }
}
