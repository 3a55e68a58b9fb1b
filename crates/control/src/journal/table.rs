//! Proofs of entries as tables hold them.
//!
//! A table has no order of the log, so an entry is checked by itself: who wrote it, in which place,
//! and whether people signed what it says they decided. An entry that is there twice is one row.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use tidegate_autopilot::executor::JournalEntry;

use super::check::{decided_by_people, time};
use super::proof::{self, Place};
use crate::authority::{JOURNAL, Signers};

/// File in the autopilot's folder of a data folder.
const FILE: &str = "proofs.json";

/// What that file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// Text of the file of signers.
    signers: String,
    /// Generation of the first entry that was proven; earlier ones count without.
    from_generation: u64,
}

/// An entry in a row of `autopilot_events`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TableEntry {
    /// Cluster.
    pub cluster: String,
    /// Source.
    pub source: String,
    /// Generation; `None` if it is none that a table can hold.
    pub epoch: Option<u64>,
    /// Number in the generation.
    pub seq: Option<u64>,
    /// The entry as JSON.
    pub body: String,
}

/// Checks entries of tables.
#[derive(Debug, Clone)]
pub struct TableProofs {
    signers: Signers,
    from_generation: u64,
}

impl TableProofs {
    /// Keeps in the autopilot's folder whose proofs count, and from which generation on, for
    /// commands that read the tables.
    pub(crate) fn keep(folder: &Path, signers: &Signers, from_generation: u64) -> io::Result<()> {
        let kept = Kept { signers: signers.text().to_owned(), from_generation };
        fs::create_dir_all(folder)?;
        let aside = folder.join(format!("{FILE}.{}", std::process::id()));
        fs::write(&aside, serde_json::to_string(&kept)?)?;
        fs::rename(aside, folder.join(FILE))
    }

    /// Whose proofs count by the autopilot's folder of a data folder; `None` if the autopilot that
    /// ran there had no keys.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn in_folder(folder: &Path) -> Result<Option<Self>, String> {
        let file = folder.join(FILE);
        let failed = |why: String| format!("{}: {why}", file.display());
        let text = match fs::read_to_string(&file) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| failed(error.to_string()))?,
        };
        let kept: Kept = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let signers = Signers::parse(&file, &kept.signers)?;
        Ok(Some(Self { signers, from_generation: kept.from_generation }))
    }

    /// Checks one entry.
    ///
    /// # Errors
    /// Why it does not count.
    pub fn check(&self, row: &TableEntry, entry: &JournalEntry) -> Result<(), String> {
        let (Some(generation), Some(seq)) = (row.epoch, row.seq) else {
            return Err("its generation or number is none that a process writes".to_owned());
        };
        let (text, proof) = proof::detach(&row.body);
        let Some(proof) = proof else {
            let is_older = generation < self.from_generation;
            return if is_older { Ok(()) } else { Err("nobody signed it".to_owned()) };
        };
        let place = Place { cluster: &row.cluster, source: &row.source, generation, seq };
        let statement = proof::statement(place, &proof.previous, &text);
        let at = time(entry.at_us)?;
        self.signers.verify(JOURNAL, statement.as_bytes(), &proof.signature, at)?;
        decided_by_people(&self.signers, &row.cluster, entry, at)
    }
}
