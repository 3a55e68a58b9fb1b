//! Plans with all their inputs, as files beside the journal.
//!
//! A plan can be made again from its inputs, above all the observed state, which is up to megabytes
//! on a large cluster. The journal records what was decided; the inputs are kept here, compressed,
//! the newest of them. `explain decision` reads them. Nothing else needs them, so a file that is
//! lost costs an explanation and no action.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tidegate_autopilot::executor::PlanRecord;

/// Bytes that are kept unless told otherwise.
const KEPT_BYTES: u64 = 512 << 20;
/// Files that are kept.
const KEPT_FILES: usize = 20_000;
/// Largest record, bytes before compression.
const MAX_RECORD_BYTES: u64 = 256 << 20;
const SUFFIX: &str = ".json.zst";
const UNFINISHED: &str = ".unfinished";
const LEVEL: i32 = 1;

/// The plans of a data folder.
#[derive(Debug, Clone)]
pub struct PlanArchive {
    folder: PathBuf,
    kept_bytes: u64,
}

impl PlanArchive {
    /// The archive in a data folder, which keeps 512 MiB.
    pub fn in_data(data: &Path) -> Self {
        Self { folder: data.join("autopilot").join("plans"), kept_bytes: KEPT_BYTES }
    }

    /// Keeps this many bytes instead.
    #[must_use]
    pub fn keeping(self, kept_bytes: u64) -> Self {
        Self { kept_bytes, ..self }
    }

    /// The folder in which the archive and the autopilot's other files are.
    pub fn beside(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }

    /// Writes a plan, atomically, and deletes the oldest beyond what is kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, planned: &PlanRecord) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let path = self.path(&planned.plan.id)?;
        let aside = self.folder.join(format!("{}{UNFINISHED}", planned.plan.id));
        let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
        encoder.include_checksum(true)?;
        serde_json::to_writer(&mut encoder, planned)?;
        let bytes = encoder.finish()?;
        let mut file = fs::File::create(&aside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&aside, &path)?;
        self.prune()
    }

    /// The plan with this id and all its inputs; `None` if it is not kept (any more) in this
    /// folder.
    ///
    /// # Errors
    /// The file is damaged or cannot be read.
    pub fn read(&self, id: &str) -> io::Result<Option<PlanRecord>> {
        let Ok(path) = self.path(id) else { return Ok(None) };
        let file = match fs::File::open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = Vec::new();
        zstd::Decoder::new(file)?.take(MAX_RECORD_BYTES).read_to_end(&mut text)?;
        let planned: PlanRecord = serde_json::from_slice(&text)?;
        Ok((planned.plan.id == id).then_some(planned))
    }

    fn path(&self, id: &str) -> io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        match !id.is_empty() && id.len() <= 128 && id.chars().all(plain) {
            true => Ok(self.folder.join(format!("{id}{SUFFIX}"))),
            false => Err(io::Error::new(ErrorKind::InvalidInput, format!("{id:?} names no plan"))),
        }
    }

    /// Deletes the oldest files beyond what is kept, and what a process that died left unfinished.
    fn prune(&self) -> io::Result<()> {
        let mut files: Vec<(SystemTime, PathBuf, u64)> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let (path, meta) = (entry.path(), entry.metadata()?);
            match path.to_str() {
                Some(name) if name.ends_with(SUFFIX) => files.push((meta.modified()?, path, meta.len())),
                Some(name) if name.ends_with(UNFINISHED) => fs::remove_file(&path)?,
                _ => {}
            }
        }
        files.sort_unstable_by(|a, b| b.cmp(a));
        let mut bytes = 0;
        for (at, (_, path, length)) in files.iter().enumerate() {
            bytes += length;
            // The newest stays, whatever its size.
            if at > 0 && (bytes > self.kept_bytes || at >= KEPT_FILES) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// The plan without its inputs, as the journal records it beside an archive.
pub(crate) fn without_inputs(planned: &PlanRecord) -> PlanRecord {
    let mut slim = PlanRecord { state: Default::default(), ..planned.clone() };
    slim.report.answers.clear();
    slim.report.considered.clear();
    slim
}

#[cfg(test)]
mod tests;
