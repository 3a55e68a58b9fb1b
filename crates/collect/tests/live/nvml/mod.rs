//! The NVML source on the stand-in driver (`tests/nvml/standin.c`), whose values are functions of
//! time.

mod cost;
mod mig;
mod trouble;
mod values;
mod xids;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_collect::nvml::{NvmlOptions, NvmlSource, start};
use tidegate_collect::xid::XidOptions;
use tidegate_collect::{Metric, Value};
use tidegate_events::v1::gpu_sample_batch::MissingReason;

use crate::sink::{Recorded, now_ms};

pub const INTERVAL_MS: i64 = 200;
pub const NOT_SUPPORTED: Value = Value::Missing(MissingReason::NotSupported);
pub const STALE: Value = Value::Missing(MissingReason::Stale);
pub const LOST: Value = Value::Missing(MissingReason::DeviceLost);

/// A stand-in driver with its own scenario. Each has a copy of the library, which finds its
/// scenario next to it.
pub struct Node {
    folder: TempDir,
    /// Wall clock at the scenario's time 0.
    pub start_ms: i64,
}

impl Node {
    pub fn new(scenario: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(library(), folder.path().join("libnvidia-ml.so")).unwrap();
        let start_ms = now_ms();
        let counts = folder.path().join("counts");
        let text = format!("start_ms {start_ms}\ncounts {}\n{scenario}\n", counts.display());
        std::fs::write(folder.path().join("libnvidia-ml.so.scenario"), text).unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        Self { folder, start_ms }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Quick ticks, and no kernel log.
    pub fn options(&self) -> NvmlOptions {
        NvmlOptions {
            lib_path: Some(self.path("libnvidia-ml.so")),
            interval: Duration::from_millis(INTERVAL_MS as u64),
            stale_after: Duration::from_secs(1),
            slow_every: Duration::from_millis(400),
            processes_every: Duration::from_millis(400),
            rescan_every: Duration::from_millis(300),
            reopen_after: Duration::from_secs(600),
            xid: XidOptions { kernel_log: None, ..XidOptions::default() },
            proc_root: self.path("proc"),
            ..NvmlOptions::default()
        }
    }

    pub fn start(&self) -> (NvmlSource, Arc<Recorded>) {
        self.start_with(self.options())
    }

    pub fn start_with(&self, options: NvmlOptions) -> (NvmlSource, Arc<Recorded>) {
        let sink = Arc::new(Recorded::default());
        (start(options, Arc::clone(&sink) as _).unwrap(), sink)
    }

    /// Number of calls of a driver function.
    pub fn calls(&self, function: &str) -> u64 {
        self.all_calls().into_iter().find(|(name, _)| name == function).map_or(0, |(_, calls)| calls)
    }

    pub fn all_calls(&self) -> Vec<(String, u64)> {
        let counts = std::fs::read(self.path("counts")).unwrap_or_default();
        let one = |slot: &[u8]| {
            let name = String::from_utf8_lossy(&slot[..56]).trim_end_matches('\0').to_owned();
            (name, u64::from_ne_bytes(slot[56..].try_into().unwrap()))
        };
        counts.chunks_exact(64).map(one).filter(|(name, _)| !name.is_empty()).collect()
    }
}

/// The library, built once.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let built = folder.join(format!("standin-{}.so", std::process::id()));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/nvml/build.sh");
        let status = Command::new("bash").arg(script).arg(&built).status().unwrap();
        assert!(status.success(), "the stand-in driver does not build");
        // Other test processes may use the existing one.
        let place = folder.join("standin.so");
        std::fs::rename(built, &place).unwrap();
        place
    })
}

/// The number of a value, which must exist.
#[track_caller]
pub fn number(value: Value, metric: Metric) -> i64 {
    match value {
        Value::Is(number) => number,
        other => panic!("{metric:?} is {other:?}"),
    }
}
