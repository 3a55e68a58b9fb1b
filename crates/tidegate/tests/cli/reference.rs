//! Every table and column has a description, and the reference pages match the pipelines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use arrow::array::AsArray;
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::pipeline::Plan;
use tidegate_lake::pipeline::shipped;
use tidegate_server::access::permissions_page;
use tidegate_server::openapi::openapi;
use tidegate_server::{Overrides, QueryLimits, QueryService, reference};
use url::Url;

use crate::access::Site;

async fn plan() -> Plan {
    Plan::compile(shipped()).await.unwrap()
}

/// Runs a query and returns its rows as text.
async fn texts(service: &QueryService, sql: &str) -> Vec<Vec<String>> {
    let mut rows = service.query(sql, Overrides::default()).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let mut found = Vec::new();
    while let Some(batch) = rows.next().await.unwrap() {
        for row in 0..batch.num_rows() {
            let text = |column: &arrow::array::ArrayRef| {
                let column = arrow::compute::cast(column, &arrow::datatypes::DataType::Utf8).unwrap();
                column.as_string::<i32>().value(row).to_owned()
            };
            found.push(batch.columns().iter().map(text).collect());
        }
    }
    found
}

/// A query service over a lake without events. The folder must outlive it.
async fn over_empty_lake(plan: &Plan) -> (tempfile::TempDir, QueryService) {
    let empty = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(empty.path()).unwrap();
    let catalog = committed_catalog(&root, plan, Limits::default()).await.unwrap();
    let service = QueryService::new(CatalogSource::fixed(catalog), QueryLimits::default()).unwrap();
    (empty, service)
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_lists_every_table_and_column() {
    let plan = plan().await;
    let (_empty, service) = over_empty_lake(&plan).await;

    let tables: BTreeMap<String, String> =
        texts(&service, "describe").await.into_iter().map(|row| (row[0].clone(), row[3].clone())).collect();
    let planned: Vec<String> = plan.tables().iter().map(|t| t.name.clone()).collect();
    assert!(
        planned.iter().all(|t| tables.contains_key(t)) && tables.len() == planned.len(),
        "{:?}",
        tables.keys()
    );
    for (table, doc) in &tables {
        assert!(!doc.trim().is_empty(), "{table} has no description");
        let columns = texts(&service, &format!("describe {table}")).await;
        for column in &columns {
            assert!(!column[2].trim().is_empty(), "{table}.{} has no description", column[0]);
        }
        // The described columns are the actual ones.
        let standard = format!(
            "SELECT column_name FROM information_schema.columns WHERE table_name = '{table}' ORDER BY ordinal_position"
        );
        let described: Vec<_> = columns.iter().map(|c| vec![c[0].clone()]).collect();
        assert_eq!(texts(&service, &standard).await, described, "{table}");
        // Catalogues have rows without any event.
        let rows = texts(&service, &format!("SELECT * FROM {table}")).await.len();
        let is_catalogue = shipped().iter().any(|p| p.name == *table && p.sources.is_empty());
        assert_eq!(rows > 0, is_catalogue, "{table}");
    }
    assert_eq!(texts(&service, "show tables;").await.len(), tables.len());
    assert!(texts(&service, "DESCRIBE FUNCTIONS").await.iter().any(|f| f[0] == "gpu_ms"));
}

/// Compares a generated page with the file, or writes it with TIDEGATE_BLESS=1.
fn is_as_written(name: &str, page: &str) {
    let file = Path::new("../../docs/reference").join(name);
    if std::env::var_os("TIDEGATE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&file, page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/{name} does not fit the pipelines; run this test with TIDEGATE_BLESS=1 and commit the file"
    );
}

#[tokio::test]
async fn the_documentation_is_up_to_date() {
    let tables = plan().await.tables();
    is_as_written("tables.md", &reference::markdown(tables.iter().map(AsRef::as_ref)));
    is_as_written("questions.md", &reference::questions(shipped().iter()));
    is_as_written("permissions.md", &permissions_page());
    is_as_written("pipelines.md", &reference::pipelines(&shipped()).unwrap());
    is_as_written("openapi.json", &format!("{:#}\n", openapi()));
}

/// Each route in the code is described, and each path described is a route that takes its method.
#[test]
fn openapi_has_the_routes_there_are() {
    let described = openapi();
    let described = described["paths"].as_object().unwrap();
    let files =
        ["http.rs", "ingest.rs", "metrics_door.rs", "page_door.rs", "rehearsal.rs", "steering/routes.rs"];
    let sources = files.map(|file| std::fs::read_to_string(Path::new("../server/src").join(file)).unwrap());
    // Files of the page are no interface.
    let routes: BTreeSet<&str> = (sources.iter().flat_map(|source| source.split(".route(\"").skip(1)))
        .map(|rest| rest.split('"').next().unwrap())
        .filter(|path| !path.starts_with("/page/") && *path != "/v1/openapi.json")
        .collect();
    let paths: BTreeSet<&str> = described.keys().map(String::as_str).collect();
    assert_eq!(paths, routes);

    let mut site = Site::new();
    site.start();
    // An answer of `/v1/changes` does not end; cli::page reads it.
    for (path, methods) in described.iter().filter(|(path, _)| *path != "/v1/changes") {
        for method in methods.as_object().unwrap().keys() {
            let answer = site.ask("", &format!("{} {path}", method.to_uppercase()), &[], b"");
            // Here no autopilot runs.
            let there_is = answer.status != 404 || path.starts_with("/v1/autopilot");
            assert!(there_is && answer.status != 405, "{method} {path}: {}", answer.status);
            let responses = &methods[method]["responses"];
            assert!(responses[answer.status.to_string()].is_object(), "{method} {path}: {}", answer.status);
        }
    }
    let served = site.get("", "/v1/openapi.json").json();
    assert_eq!(served, openapi());
}

/// Links to the generated pages, and from them, lead to files and headings that are there.
#[test]
fn links_of_the_generated_pages_hold() {
    let page = |name: &str| std::fs::read_to_string(Path::new("../../docs/reference").join(name)).unwrap();
    let headings: BTreeSet<String> =
        (page("tables.md").lines()).filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
    for name in ["questions.md", "pipelines.md"] {
        for link in page(name).split("](tables.md#").skip(1) {
            let heading = link.split(')').next().unwrap();
            assert!(headings.contains(heading), "{name} links to tables.md#{heading}");
        }
        for link in page(name).split("](../").skip(1) {
            let path = Path::new("../../docs").join(link.split([')', '#']).next().unwrap());
            assert!(path.exists(), "{name} links to {}", path.display());
        }
    }
    let readme = std::fs::read_to_string("../../README.md").unwrap();
    assert!(!readme.contains("(docs/tables.md") && !readme.contains("(docs/questions.md"), "they moved");
}

#[test]
fn every_table_names_the_question_it_answers() {
    let mut asked = BTreeSet::new();
    // Intermediate steps of stored pipelines are not tables.
    for pipeline in shipped().iter().filter(|p| p.stored) {
        let name = &pipeline.name;
        let question = pipeline.question.as_ref().unwrap_or_else(|| panic!("{name} has no `question`"));
        assert!(question.ends_with('?') && !question.contains('\n'), "{name}: {question}");
        assert!(
            asked.insert(question.to_lowercase()),
            "{name} answers what another table answers: {question}"
        );
        let example = pipeline.example.as_ref().unwrap_or_else(|| panic!("{name} has no `example`"));
        assert!(
            example.split_whitespace().any(|word| word == name),
            "the example of {name} reads another table"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_runs() {
    let (_empty, service) = over_empty_lake(&plan().await).await;
    for example in shipped().iter().filter_map(|p| p.example.as_ref()) {
        texts(&service, example).await;
    }
}
