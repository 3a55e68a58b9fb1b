//! The files of the page: in the program, named by what is in all of them.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};

/// A file of the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct File {
    /// Below crates/server/page, and below `/page/{version}` for browsers.
    pub name: &'static str,
    pub bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(File { name: $name, bytes: include_bytes!(concat!("../../page/", $name)) }),*]
    };
}

/// Every file that a browser may ask for.
pub(super) const FILES: &[File] = files![
    "css/base.css",
    "css/layout.css",
    "css/pages.css",
    "css/parts.css",
    "css/states.css",
    "js/advice.js",
    "js/answer-plot.js",
    "js/api.js",
    "js/app.js",
    "js/ask.js",
    "js/autopilot.js",
    "js/changes.js",
    "js/charts.js",
    "js/decisions.js",
    "js/demand.js",
    "js/dom.js",
    "js/editor.js",
    "js/evidence.js",
    "js/filters.js",
    "js/fleet.js",
    "js/format.js",
    "js/heatmap.js",
    "js/job-lanes.js",
    "js/job.js",
    "js/jobs.js",
    "js/keys.js",
    "js/lanes.js",
    "js/leak.js",
    "js/ledger.js",
    "js/money.js",
    "js/now.js",
    "js/picker.js",
    "js/rehearsal.js",
    "js/route.js",
    "js/scores.js",
    "js/states.js",
    "js/steering.js",
    "js/table.js",
    "js/theme.js",
    "js/tips.js",
    "js/trace.js",
    "vendor/codemirror.LICENSE",
    "vendor/codemirror.js",
    "vendor/uplot.LICENSE",
    "vendor/uplot.css",
    "vendor/uplot.js",
];

/// Names all files by their bytes: the same number is the same files.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for file in FILES {
        hash.update(file.name);
        hash.update([0]);
        hash.update(Sha256::digest(file.bytes));
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
});

impl File {
    pub fn of(name: &str) -> Option<Self> {
        FILES.iter().copied().find(|file| file.name == name)
    }

    /// Its media type, by its name. Every file has one.
    pub fn media_type(self) -> Option<&'static str> {
        match self.name.rsplit_once('.')?.1 {
            "js" => Some("text/javascript; charset=utf-8"),
            "css" => Some("text/css; charset=utf-8"),
            "LICENSE" => Some("text/plain; charset=utf-8"),
            _ => None,
        }
    }
}
