//! The other systems, queried through a Python that has them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::Question;
use super::answer::Answer;
use tidegate_workspace::CommandError;

const PROGRAM: &str = include_str!("peers.py");

/// Input of the Python program.
#[derive(Debug, Serialize)]
pub struct Request {
    pub samples: PathBuf,
    pub holds: PathBuf,
    /// Folder for their tables.
    pub folder: PathBuf,
    pub threads: usize,
    pub repeat: u32,
    pub questions: Vec<Question>,
}

/// Results of one system.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeerReport {
    version: String,
    /// Size of its sample table, if it reports it.
    table_bytes: Option<u64>,
    /// By query and form.
    #[serde(skip_serializing)]
    pub answers: BTreeMap<String, BTreeMap<String, Answer>>,
}

/// Runs the queries; returns results by system.
pub fn ask(python: &Path, given: &Request) -> Result<BTreeMap<String, PeerReport>, CommandError> {
    let named = |e: std::io::Error| {
        format!("{}: {e}; tests/peers/install.sh makes one that has duckdb and chdb", python.display())
    };
    let mut child = Command::new(python)
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(named)?;
    let mut stdin = child.stdin.take().ok_or("no way to ask")?;
    stdin.write_all(&serde_json::to_vec(given)?)?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(
            format!("{} ended with {}: what it wrote is above", python.display(), output.status).into()
        );
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
