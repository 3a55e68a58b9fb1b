//! `tidegate pipeline test`: runs small inputs with known results in every way in which events can
//! be delivered.
//!
//! A case is a folder: `case.toml` (pipeline, map, cluster), `input.csv` or `events.jsonl`, and
//! `expected.csv`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::{SortColumn, lexsort_to_indices, take_record_batch};
use clap::Args;
use serde::Deserialize;
use tidegate_events::Event;
use tidegate_import::{ImportOptions, Mapping, Source};
use tidegate_lake::pipeline::Pipeline;
use tidegate_lake::pipeline::Plan;
use tidegate_lake::testing::equivalence::{Delivery, ViewSelection, tables_after};
use tokio::sync::Semaphore;

use super::json_events;
use crate::commands::import::{one_partition, to_events};
use crate::commands::{CommandError, CommandResult, DataArgs, block_on, chain, folder_url};

const CASE: &str = "case.toml";
const INPUT: &str = "input.csv";
const EVENTS: &str = "events.jsonl";
const EXPECTED: &str = "expected.csv";
/// RFC 3339 in UTC, with fractions of a second only if there are any, as `tidegate sql --format
/// csv` writes it.
const TIME: &str = "%Y-%m-%dT%H:%M:%S%.fZ";
/// Seed of cuts, crashes and disorder. It is the same in every run, so that failures repeat.
const SEED: u64 = 1;

#[derive(Debug, Args)]
#[command(after_help = "A case is a folder with three files:
  case.toml     pipeline = \"usage_1h\", map = \"jobs_csv\" (or a mapping beside it, \"ours.toml\"), cluster = \"test\" (optional)
  input.csv     what is imported; or, without a map, events.jsonl: an event a line, {\"node_event\": {…}}, as Protobuf's JSON has it
  expected.csv  the pipeline's table, sorted by its key; --bless writes it
The exit status is 1 if a result differs.

Examples:
  tidegate pipeline test my_pipelines/tests --pipelines my_pipelines
  tidegate pipeline test my_pipelines/tests --pipelines my_pipelines --quick")]
pub struct TestArgs {
    /// Case folders, or folders of case folders
    #[arg(required = true)]
    folders: Vec<PathBuf>,
    /// Write the result as the expected one; review it before you keep it
    #[arg(long, env = "TIDEGATE_BLESS", value_parser = clap::builder::FalseyValueParser::new())]
    bless: bool,
    /// Run each case in two ways instead of five: all at once, and one of the others in turn
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    data: DataArgs,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    /// Table whose rows are compared.
    pipeline: String,
    /// Name of a shipped mapping, or of a file in the case's folder. Without it, the input is
    /// events.
    map: Option<String>,
    cluster: Option<String>,
}

struct Case {
    folder: PathBuf,
    name: String,
    file: CaseFile,
}

pub fn run(args: &TestArgs) -> CommandResult {
    let cases = find(&args.folders)?;
    let pipelines = args.data.load_pipelines()?;
    let mut failed = 0;
    for (case, results) in block_on(run_all(cases, pipelines, args.quick))?? {
        if args.bless {
            case.bless(&results[0].1)?;
        }
        let expected = case.expected()?;
        for (way, result) in results {
            match first_difference(&expected, &result) {
                None => say!("{:<24} {:<28} ok", case.name, described(way)),
                Some(difference) => {
                    failed += 1;
                    say!("{:<24} {:<28} DIFFERS from {EXPECTED}\n{difference}", case.name, described(way));
                }
            }
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The pipeline's table as CSV, once for each way.
type Results = Vec<(Delivery, String)>;

/// Cases that run concurrently. Most of the time a case waits for the disk, and each has a lake of
/// its own in memory.
const AT_ONCE: usize = 8;

async fn run_all(
    cases: Vec<Case>,
    pipelines: Vec<Pipeline>,
    is_quick: bool,
) -> Result<Vec<(Case, Results)>, CommandError> {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    // One plan for all cases: planning a pipeline takes longer than running it on a few rows.
    let plan = Arc::new(Plan::compile(pipelines).await?);
    let running = cases.into_iter().enumerate().map(|(number, case)| {
        let ways = if is_quick { two_ways(number) } else { Delivery::ALL.to_vec() };
        let (plan, places) = (Arc::clone(&plan), Arc::clone(&places));
        tokio::spawn(async move {
            let _place = places.acquire_owned().await?;
            let results = case
                .results(&plan, &ways)
                .await
                .map_err(|e| format!("case {}: {}", case.name, chain(e.as_ref())))?;
            Ok::<_, CommandError>((case, results))
        })
    });
    let mut done = Vec::new();
    for case in running.collect::<Vec<_>>() {
        done.push(case.await??);
    }
    Ok(done)
}

/// The two ways in which a quick run tests a case: all at once, and one of the other four by the
/// number of the case. Cases are sorted by name, so neighbours on one subject get different ways.
fn two_ways(number: usize) -> Vec<Delivery> {
    let [all_at_once, others @ ..] = Delivery::ALL;
    vec![all_at_once, others[number % others.len()]]
}

fn described(way: Delivery) -> &'static str {
    match way {
        Delivery::OneShot => "all at once",
        Delivery::WindowByWindow => "window by window",
        Delivery::RandomCuts => "in random pieces",
        Delivery::KilledAndResumed => "killed and resumed",
        Delivery::ShuffledWithDuplicates => "shuffled, with duplicates",
        Delivery::OneByOne => "one by one",
    }
}

/// Finds the folders that are cases, and the cases directly below folders that are not.
fn find(folders: &[PathBuf]) -> Result<Vec<Case>, CommandError> {
    let mut found = BTreeSet::new();
    for folder in folders {
        if folder.join(CASE).is_file() {
            found.insert(folder.clone());
            continue;
        }
        let entries =
            std::fs::read_dir(folder).map_err(|e| format!("read folder {}: {e}", folder.display()))?;
        let before = found.len();
        for entry in entries {
            found.extend(Some(entry?.path()).filter(|path| path.join(CASE).is_file()));
        }
        if found.len() == before {
            return Err(format!(
                "{} holds no case: a case is a folder with {CASE}, {INPUT} and {EXPECTED}",
                folder.display()
            )
            .into());
        }
    }
    found.into_iter().map(Case::load).collect()
}

impl Case {
    fn load(folder: PathBuf) -> Result<Self, CommandError> {
        let text = read(&folder.join(CASE))?;
        let file = toml::from_str(&text)
            .map_err(|e| format!("{}: {}", folder.join(CASE).display(), e.to_string().trim_end()))?;
        let name =
            folder.file_name().map_or_else(|| folder.display().to_string(), |n| n.to_string_lossy().into());
        Ok(Self { folder, name, file })
    }

    fn expected(&self) -> Result<String, CommandError> {
        read(&self.folder.join(EXPECTED)).map_err(|e| format!("{e}; --bless writes it").into())
    }

    fn bless(&self, result: &str) -> Result<(), CommandError> {
        let file = self.folder.join(EXPECTED);
        std::fs::write(&file, result).map_err(|e| format!("write {}: {e}", file.display()).into())
    }

    fn events(&self) -> Result<Vec<Event>, CommandError> {
        let cluster = self.file.cluster.as_deref();
        let Some(map) = &self.file.map else { return json_events::read(&self.folder.join(EVENTS), cluster) };
        let own = self.folder.join(map);
        let map = if own.is_file() { own.to_string_lossy().into_owned() } else { map.clone() };
        let options = ImportOptions {
            cluster: self.file.cluster.clone(),
            topics: one_partition(),
            ..ImportOptions::default()
        };
        let (events, summary) =
            to_events(Source::File(self.folder.join(INPUT)), &Mapping::load(&map)?, &options)?;
        if summary.rejected() > 0 {
            let reasons: Vec<_> =
                summary.rows_rejected.iter().map(|(code, rows)| format!("{rows} × {code}")).collect();
            return Err(format!("rows of {INPUT} are refused: {}", reasons.join(", ")).into());
        }
        Ok(events)
    }

    async fn results(&self, plan: &Plan, ways: &[Delivery]) -> Result<Results, CommandError> {
        let table = &self.file.pipeline;
        let Some(planned) = plan.pipelines().find(|planned| planned.pipeline.name == *table) else {
            return Err(format!("there is no pipeline {table:?}; tidegate pipeline list shows them").into());
        };
        let plan = plan.only(&needed(table, plan));
        let events = self.events()?;
        let mut results = Vec::new();
        for &way in ways {
            let folder = tempfile::tempdir()?;
            let root = folder_url(folder.path())?;
            let tables = tables_after(&plan, &root, &events, way, SEED, ViewSelection::Only(table)).await?;
            let rows = tables.get(table).ok_or_else(|| format!("the lake has no table {table}"))?;
            results.push((way, to_csv(rows, &planned.spec.key)?));
        }
        Ok(results)
    }
}

fn read(file: &Path) -> Result<String, CommandError> {
    std::fs::read_to_string(file).map_err(|e| format!("read {}: {e}", file.display()).into())
}

/// Returns the pipeline and all pipelines that it reads. Running others would only take time.
fn needed<'a>(name: &'a str, plan: &'a Plan) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::from([name]);
    let mut unread = vec![name];
    while let Some(name) = unread.pop() {
        let planned = plan.pipelines().find(|planned| planned.pipeline.name == name);
        let sources = planned.into_iter().flat_map(|planned| &planned.pipeline.sources);
        unread.extend(sources.map(String::as_str).filter(|source| names.insert(source)));
    }
    names
}

fn to_csv(rows: &RecordBatch, key: &[String]) -> Result<String, CommandError> {
    let keys: Vec<SortColumn> = key
        .iter()
        .filter_map(|name| rows.column_by_name(name))
        .map(|values| SortColumn { values: values.clone(), options: None })
        .collect();
    let sorted = match keys.is_empty() {
        true => rows.clone(),
        false => take_record_batch(rows, &lexsort_to_indices(&keys, None)?)?,
    };
    let mut bytes = Vec::new();
    arrow::csv::WriterBuilder::new()
        .with_timestamp_tz_format(TIME.into())
        .build(&mut bytes)
        .write(&sorted)?;
    Ok(String::from_utf8(bytes)?)
}

/// Describes the first line in which the result differs from the expected one.
fn first_difference(expected: &str, result: &str) -> Option<String> {
    let (mut left, mut right) = (expected.lines(), result.lines());
    for line in 1.. {
        let (expected, result) = (left.next(), right.next());
        if expected != result {
            let shown = |text: Option<&str>| text.unwrap_or("(no line)").to_owned();
            return Some(format!(
                "  line {line} expected  {}\n  line {line} is        {}",
                shown(expected),
                shown(result)
            ));
        }
        expected?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found_wherever_they_are() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        for (result, says) in [
            ("a\nc\n", "line 2 is        c"),
            ("a\n", "line 2 is        (no line)"),
            ("a\nb\nc\n", "line 3 expected  (no line)"),
        ] {
            let difference = first_difference("a\nb\n", result).unwrap();
            assert!(difference.contains(says), "{difference}");
        }
    }

    #[tokio::test]
    async fn a_pipeline_needs_what_it_reads_and_nothing_else() {
        let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap();
        let left = |name| {
            let only = plan.only(&needed(name, &plan));
            let raw = only.groups.iter().map(|group| group.raw.spec.name.clone()).collect::<Vec<_>>();
            (raw, only.pipelines().map(|planned| planned.pipeline.name.clone()).collect::<BTreeSet<_>>())
        };
        let (raw, pipelines) = left("capacity");
        assert_eq!((raw, pipelines), (vec!["capacity_events".into()], ["capacity".into()].into()));
        let (raw, pipelines) = left("allocations");
        assert_eq!(raw, ["job_events"]);
        assert!(["allocations", "attempts"].iter().all(|name| pipelines.contains(*name)), "{pipelines:?}");
        assert!(!pipelines.contains("usage_1h") && !pipelines.contains("capacity"), "{pipelines:?}");
    }
}
