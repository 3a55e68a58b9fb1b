//! The embedded log does what every log must do.

use std::sync::Arc;

use tempfile::TempDir;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog};
use tidegate_testing::conformance::Harness;
use tidegate_testing::conformance_suite;

use crate::support::reopened;

struct Embedded {
    dir: TempDir,
    options: EmbeddedOptions,
    log: Option<EmbeddedLog>,
}

impl Embedded {
    fn new(options: EmbeddedOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Some(EmbeddedLog::open(dir.path(), options).unwrap());
        Self { dir, options, log }
    }
}

impl Harness for Embedded {
    fn handle(&self) -> Arc<dyn EventLog> {
        Arc::new(self.log.clone().unwrap())
    }

    fn reopen(&mut self) {
        drop(self.log.take());
        self.log = Some(reopened(self.dir.path(), self.options));
    }
}

mod with_usual_segments {
    use super::*;
    conformance_suite!(Embedded::new(EmbeddedOptions::default()));
}

mod with_a_segment_for_every_other_batch {
    use super::*;
    conformance_suite!(Embedded::new(EmbeddedOptions { segment_batches: 2, ..Default::default() }));
}
