//! Parses pipeline files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::{LakeError, Result};
use crate::pipeline::catalog_file::{self, CatalogFile, CatalogHeader};
use crate::pipeline::definition::{Extent, Pipeline, Shape};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    name: String,
    #[serde(default = "default_version")]
    version: u32,
    #[serde(default = "default_stored")]
    stored: bool,
    #[serde(default)]
    once: bool,
    #[serde(default)]
    opening: bool,
    #[serde(default = "default_wait_outcome")]
    wait_outcome: bool,
    doc: String,
    question: Option<String>,
    example: Option<String>,
    sources: Vec<String>,
    catalog: Option<CatalogHeader>,
    #[serde(default)]
    key: Vec<String>,
    per: Option<Vec<String>>,
    window: Option<String>,
    #[serde(default = "default_lateness")]
    lateness: String,
    extent: Option<ExtentHeader>,
    extents: Option<BTreeMap<String, ExtentHeader>>,
    since: Option<String>,
    until: Option<String>,
    rolls_up: Option<String>,
    #[serde(default)]
    columns: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtentHeader {
    time: Option<String>,
    from: Option<String>,
    to: Option<String>,
}

/// Form of an extent, for messages.
const EXTENT_FORM: &str = "{ time = \"column\" }` or `{ from = \"column\", to = \"column\" }";

impl ExtentHeader {
    fn extent(&self) -> Option<Extent> {
        match self {
            Self { time: Some(time), from: None, to: None } => Some(Extent::Instant { time: time.clone() }),
            Self { time: None, from: Some(from), to: Some(to) } => {
                Some(Extent::Interval { from: from.clone(), to: to.clone() })
            }
            _ => None,
        }
    }
}

fn default_stored() -> bool {
    true
}

fn default_wait_outcome() -> bool {
    true
}

fn default_version() -> u32 {
    1
}

fn default_lateness() -> String {
    "1h".into()
}

impl Pipeline {
    /// Reads and parses a pipeline file, and the CSV file that it names as its catalogue.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| LakeError::Io(format!("read pipeline {}", path.display()), e))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Parses the text of a pipeline file. `file` names it in messages; a catalogue that is not
    /// shipped is looked up beside it.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        Self::parse_with(file, text, &[], |name| Ok(vec![CatalogFile::find(name, Path::new(file))?]))
    }

    /// As [`Self::parse`]. `catalog` returns the CSV files for the name in the header; `required`
    /// are columns that each of them must have.
    pub(crate) fn parse_with(
        file: &str,
        text: &str,
        required: &[&str],
        catalog: impl Fn(&str) -> Result<Vec<CatalogFile>>,
    ) -> Result<Self> {
        let refuse = |message: String| LakeError::Pipeline { file: file.to_owned(), message };
        let header_lines = text.lines().take_while(|line| line.starts_with("--!")).count();
        let header: String =
            text.lines().take(header_lines).map(|line| format!("{}\n", &line[3..])).collect();
        let header: Header = toml::from_str(&header).map_err(|e| {
            refuse(format!(
                "the header (the `--!` lines at the top, in TOML) does not parse: {}",
                e.to_string().trim_end()
            ))
        })?;
        let mut sql: String = text.lines().skip(header_lines).map(|line| format!("{line}\n")).collect();
        if sql.trim().is_empty() {
            return Err(refuse("there is no SELECT after the header".into()));
        }
        let shape = header.shape().map_err(refuse)?;
        if let Some(named) = &header.catalog {
            if shape != Shape::View || !header.sources.is_empty() {
                return Err(refuse("`catalog` is for views without sources only".into()));
            }
            sql = catalog_file::with_rows(named, &catalog(&named.file)?, required, &sql)?;
        }
        if !header.stored && !matches!(shape, Shape::Keyed { .. } | Shape::Joined { .. }) {
            return Err(refuse(
                "`stored = false` is for keyed and joined pipelines only; a view is never stored anyway"
                    .into(),
            ));
        }
        if header.once && shape != Shape::View {
            return Err(refuse("`once = true` is for views only; other tables are stored anyway".into()));
        }
        let is_stored_joined = header.stored && matches!(shape, Shape::Joined { .. });
        if header.opening && !is_stored_joined {
            return Err(refuse("`opening = true` is only for stored joined pipelines".into()));
        }
        if !header.wait_outcome && !is_stored_joined {
            return Err(refuse("`wait_outcome = false` is only for stored joined pipelines".into()));
        }
        if header.rolls_up.is_some() && (shape.segment().is_none() || !header.stored) {
            return Err(refuse("`rolls_up` is only for stored windowed and joined pipelines".into()));
        }
        if shape != Shape::View && header.key.is_empty() {
            return Err(refuse("`key` is missing: list the columns that together name an output row".into()));
        }
        if let Some(c) =
            header.name.chars().find(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_'))
        {
            return Err(refuse(format!("name {:?} holds {c:?}; use a-z, 0-9 and _", header.name)));
        }
        Ok(Self {
            name: header.name,
            version: header.version,
            doc: header.doc,
            question: header.question,
            example: header.example,
            stored: header.stored,
            materialized: header.once,
            opening: header.opening,
            wait_outcome: header.wait_outcome,
            rolls_up: header.rolls_up,
            shape,
            sources: header.sources,
            key: header.key,
            columns: header.columns,
            file: file.to_owned(),
            is_catalog: header.catalog.is_some(),
            sql_line: header_lines + 1,
            sql,
        })
    }
}

impl Header {
    fn shape(&self) -> Result<Shape, String> {
        match (&self.per, &self.window) {
            (Some(_), Some(_)) => {
                Err("`per` and `window` exclude each other: a pipeline is keyed or windowed".into())
            }
            (Some(per), None) => Ok(Shape::Keyed { per: per.clone() }),
            (None, None) => Ok(Shape::View),
            (None, Some(window)) => {
                let width_ms = parse_duration_ms(window).map_err(|e| format!("`window`: {e}"))?;
                if width_ms == 0 || 86_400_000 % width_ms != 0 {
                    return Err(format!(
                        "`window` = {window:?} must divide one day, e.g. \"5m\", \"1h\", \"1d\""
                    ));
                }
                let lateness_ms =
                    parse_duration_ms(&self.lateness).map_err(|e| format!("`lateness`: {e}"))?;
                match (&self.extent, &self.extents) {
                    (Some(extent), None) => {
                        let extent =
                            extent.extent().ok_or_else(|| format!("`extent` must be `{EXTENT_FORM}`"))?;
                        Ok(Shape::Windowed { width_ms, lateness_ms, extent })
                    }
                    (None, Some(extents)) => {
                        let extents = self.extents_of(extents)?;
                        let (since, until) = (self.since.clone(), self.until.clone());
                        for (header, name) in [("since", &since), ("until", &until)] {
                            if let Some(name) = name
                                && !matches!(extents.get(name), Some(Extent::Interval { .. }))
                            {
                                return Err(format!(
                                    "`{header}` names {name}, which has no extent `{{ from, to }}`"
                                ));
                            }
                        }
                        Ok(Shape::Joined { width_ms, lateness_ms, extents, since, until })
                    }
                    _ => Err(format!(
                        "a windowed pipeline needs `extent`, or `[extents]` with one for each source: `{EXTENT_FORM}`"
                    )),
                }
            }
        }
    }

    fn extents_of(
        &self,
        extents: &BTreeMap<String, ExtentHeader>,
    ) -> Result<BTreeMap<String, Extent>, String> {
        let of = |(name, extent): (&String, &ExtentHeader)| match extent.extent() {
            _ if !self.sources.contains(name) => {
                Err(format!("`extents` names {name}, which is not a source"))
            }
            Some(extent) => Ok((name.clone(), extent)),
            None => Err(format!("the extent of {name} must be `{EXTENT_FORM}`")),
        };
        extents.iter().map(of).collect()
    }
}

/// Parses a duration such as "90s", "5m", "1h" or "1d" into milliseconds.
pub fn parse_duration_ms(text: &str) -> Result<i64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => {
            return Err(format!(
                "{text:?} is not a duration; write a number and ms, s, m, h or d, e.g. \"90s\""
            ));
        }
    };
    number
        .parse::<i64>()
        .ok()
        .and_then(|n| n.checked_mul(unit_ms))
        .ok_or_else(|| format!("{text:?} is not a duration"))
}
