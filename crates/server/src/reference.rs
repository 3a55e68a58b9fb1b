//! Reference of tables, columns and functions: for `describe`, for `GET /v1/tables`, and for the
//! documentation.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use serde::Serialize;
use tidegate_lake::catalog::Catalog;
use tidegate_lake::functions;
use tidegate_lake::pipeline::graph::{Graph, Kind};
use tidegate_lake::pipeline::{Pipeline, SUBJECTS};
use tidegate_lake::table::{Layout, TableSpec};

use crate::error::QueryError;

/// A table as the reference shows it.
#[derive(Debug, Serialize)]
pub struct TableDoc {
    /// Name in SQL.
    pub name: String,
    /// What a row is.
    pub doc: String,
    /// Columns that together name a row; none for events as they came and for views.
    pub key: Vec<String>,
    /// The question that it answers, for tables of pipelines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// A query to begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub example: Option<String>,
    /// In the order of the table.
    pub columns: Vec<ColumnDoc>,
}

/// A column as the reference shows it.
#[derive(Debug, Serialize)]
pub struct ColumnDoc {
    /// Name in SQL.
    pub name: String,
    /// Type in SQL, e.g. `bigint`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Meaning, with unit.
    pub doc: String,
}

/// A function as the reference shows it.
#[derive(Debug, Serialize)]
pub struct FunctionDoc {
    /// Name in SQL.
    pub name: &'static str,
    /// A call, with the names of its parameters.
    pub usage: &'static str,
    /// What it returns, with unit.
    pub doc: &'static str,
}

impl From<&TableSpec> for TableDoc {
    fn from(spec: &TableSpec) -> Self {
        let column = |c: &tidegate_lake::table::Column| ColumnDoc {
            name: c.name.clone(),
            type_name: type_name(&c.data_type),
            doc: c.doc.clone(),
        };
        let columns = spec.columns.iter().map(column).collect();
        // The key of a raw table names what an event is about, and there are many events about it.
        let key = if spec.layout == Layout::Raw { Vec::new() } else { spec.key.clone() };
        let (question, example) = (None, None);
        Self { name: spec.name.clone(), doc: spec.doc.clone(), key, question, example, columns }
    }
}

/// Every table that the catalog has, with the question that it answers.
pub(crate) fn tables(catalog: &Catalog) -> Vec<TableDoc> {
    let described = |spec: &Arc<TableSpec>| {
        let question = catalog.questions.get(&spec.name);
        TableDoc {
            question: question.map(|asked| asked.text.clone()),
            example: question.and_then(|asked| asked.example.clone()),
            ..TableDoc::from(spec.as_ref())
        }
    };
    catalog.specs.values().map(described).collect()
}

/// Functions that the lake adds to SQL.
pub fn functions() -> Vec<FunctionDoc> {
    functions::DOCS.iter().map(|(name, usage, doc)| FunctionDoc { name, usage, doc }).collect()
}

/// The SQL name of a type.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text".into(),
        DataType::Int64 => "bigint".into(),
        DataType::Float64 => "double".into(),
        DataType::Boolean => "boolean".into(),
        DataType::Timestamp(_, Some(_)) => "timestamp (UTC)".into(),
        other => other.to_string(),
    }
}

/// Answers `describe`, `describe TABLE`, `describe functions` and `show tables`; `None` for
/// everything else.
pub(crate) fn answer(catalog: &Catalog, sql: &str) -> Result<Option<RecordBatch>, QueryError> {
    let words: Vec<String> = sql
        .trim()
        .trim_end_matches(';')
        .split_whitespace()
        .map(|word| word.trim_matches('"').to_lowercase())
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["describe" | "desc"] | ["describe" | "desc" | "show", "tables"] => describe_tables(catalog),
        ["describe" | "desc" | "show", "functions"] => describe_functions(),
        ["describe" | "desc", name] | ["describe" | "desc", "table", name] => describe_table(catalog, name),
        _ => return Ok(None),
    }
    .map(Some)
}

fn describe_tables(catalog: &Catalog) -> Result<RecordBatch, QueryError> {
    let tables: Vec<TableDoc> = catalog.specs.values().map(|spec| TableDoc::from(spec.as_ref())).collect();
    let kind = |name: &str| if catalog.views.contains(name) { "view" } else { "table" };
    texts([
        ("table_name", tables.iter().map(|t| t.name.clone()).collect()),
        ("kind", tables.iter().map(|t| kind(&t.name).to_owned()).collect()),
        ("one_row_per", tables.iter().map(|t| t.key.join(", ")).collect()),
        ("description", tables.iter().map(|t| first_sentence(&t.doc).to_owned()).collect()),
    ])
}

/// A list is read at a glance; the whole description is in the documentation.
fn first_sentence(doc: &str) -> &str {
    doc.find(". ").map_or(doc, |end| &doc[..=end])
}

fn describe_table(catalog: &Catalog, name: &str) -> Result<RecordBatch, QueryError> {
    let spec = catalog.specs.get(name).ok_or_else(|| QueryError::UnknownTable {
        name: name.to_owned(),
        tables: catalog.specs.keys().cloned().collect(),
    })?;
    let columns = TableDoc::from(spec.as_ref()).columns;
    texts([
        ("column_name", columns.iter().map(|c| c.name.clone()).collect()),
        ("type", columns.iter().map(|c| c.type_name.clone()).collect()),
        ("description", columns.iter().map(|c| c.doc.clone()).collect()),
    ])
}

fn describe_functions() -> Result<RecordBatch, QueryError> {
    let functions = functions();
    texts([
        ("function", functions.iter().map(|f| f.name.to_owned()).collect()),
        ("usage", functions.iter().map(|f| f.usage.to_owned()).collect()),
        ("description", functions.iter().map(|f| f.doc.to_owned()).collect()),
    ])
}

fn texts<const N: usize>(columns: [(&str, Vec<String>); N]) -> Result<RecordBatch, QueryError> {
    let columns = columns.map(|(name, values)| (name, Arc::new(StringArray::from(values)) as ArrayRef));
    RecordBatch::try_from_iter(columns).map_err(|e| QueryError::Internal(e.to_string()))
}

/// The reference as a page of the documentation.
pub fn markdown<'a>(specs: impl Iterator<Item = &'a TableSpec>) -> String {
    let mut tables: Vec<TableDoc> = specs.map(TableDoc::from).collect();
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    let mut page = String::from(
        "# Tables\n\n\
         What `tidegate sql` and `POST /v1/sql` can ask. Also there: `tidegate sql describe`, `tidegate sql \"describe jobs\"`.\n\
         Times are UTC; GPUs are thousandths of a GPU; GPU time is GPU × milliseconds (half a GPU for a second is 500).\n\
         Any column may be NULL. Made from the pipelines by a test; do not edit.\n\n\
         | Table | One row per | What it holds |\n|---|---|---|\n",
    );
    for table in &tables {
        page.push_str(&format!(
            "| [{0}](#{0}) | {1} | {2} |\n",
            table.name,
            table.key.join(", "),
            cell(&table.doc)
        ));
    }
    for table in &tables {
        page.push_str(&format!(
            "\n## {}\n\n{}\n\n| Column | Type | Meaning |\n|---|---|---|\n",
            table.name, table.doc
        ));
        for column in &table.columns {
            page.push_str(&format!("| {} | {} | {} |\n", column.name, column.type_name, cell(&column.doc)));
        }
    }
    page.push_str("\n## Functions\n\nBeside those of DataFusion SQL:\n\n| Usage | Meaning |\n|---|---|\n");
    for function in functions() {
        page.push_str(&format!("| `{}` | {} |\n", function.usage, cell(function.doc)));
    }
    page
}

/// The questions that pipelines answer as a page of the documentation, in the order of the tables'
/// names.
pub fn questions<'a>(pipelines: impl Iterator<Item = &'a Pipeline>) -> String {
    let mut answers: Vec<(&Pipeline, &str)> =
        pipelines.filter_map(|p| Some((p, p.question.as_deref()?))).collect();
    answers.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    let mut page = String::from(
        "# Which number answers which question\n\n\
         A question, the table that answers it, and a query for `tidegate sql` to begin with. What its columns are, with units, is in\n\
         [tables.md](tables.md). Made from the pipelines by a test; do not edit.\n\n\
         | Question | Table |\n|---|---|\n",
    );
    for (pipeline, question) in &answers {
        page.push_str(&format!("| [{}](#{}) | {} |\n", cell(question), anchor(question), pipeline.name));
    }
    for (pipeline, question) in &answers {
        page.push_str(&format!(
            "\n## {question}\n\n[{0}](tables.md#{0}): {1}\n",
            pipeline.name, pipeline.doc
        ));
        if let Some(example) = &pipeline.example {
            page.push_str(&format!("\n```sql\n{}\n```\n", in_lines(example)));
        }
    }
    page
}

/// The graph of the shipped pipelines as a page of the documentation, a diagram per subject.
///
/// # Errors
/// The message of [`Graph::new`], if pipelines do not fit together.
pub fn pipelines(pipelines: &[Pipeline]) -> Result<String, String> {
    let graph = Graph::new(pipelines).map_err(|e| e.to_string())?;
    let mut page = String::from(
        "# Pipelines\n\n\
         Which table is computed from which, by subject: the folders of [pipelines/](../../pipelines). Arrows lead from a\n\
         source to the tables that are computed from it. Cylinders are events as they came, slanted boxes are catalogues\n\
         (CSV files), boxes are tables that are kept up to date, rounded boxes are views that are computed when a query\n\
         asks for them. Dashed tables belong to another subject.\n\n\
         `tidegate pipeline graph --of ledger_1h` draws everything that one table is computed from. The columns are in\n\
         [tables.md](tables.md). What a pipeline file is: [design/pipelines.md](../design/pipelines.md). Made from the\n\
         pipelines by a test; do not edit.\n",
    );
    for (subject, about) in SUBJECTS {
        let part = graph.of_subject(subject).map_err(|e| e.to_string())?;
        page.push_str(&format!("\n## {subject}\n\n{about}\n\n```mermaid\n{}```\n\n", part.mermaid()));
        page.push_str("| Table | Computed | What it holds |\n|---|---|---|\n");
        let mut own: Vec<&Pipeline> = pipelines.iter().filter(|p| p.subject() == Some(subject)).collect();
        own.sort_by(|a, b| a.name.cmp(&b.name));
        for pipeline in own {
            let node = part.nodes.iter().find(|node| node.name == pipeline.name);
            let when = node.map_or("", |node| match node.kind {
                Kind::View => "when asked",
                Kind::Catalog => "from a CSV file",
                _ => &node.when,
            });
            let name = match pipeline.stored {
                true => format!("[{0}](tables.md#{0})", pipeline.name),
                false => format!("{} (intermediate)", pipeline.name),
            };
            page.push_str(&format!("| {name} | {when} | {} |\n", cell(first_sentence(&pipeline.doc))));
        }
    }
    Ok(page)
}

/// What Markdown readers make of a heading to link to it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// A query with each of its main parts on a line of its own.
fn in_lines(sql: &str) -> String {
    let begins = [" FROM ", " WHERE ", " GROUP BY ", " ORDER BY "];
    begins.iter().fold(sql.to_owned(), |sql, begin| sql.replace(begin, &format!("\n{}", &begin[1..])))
}

/// Text inside a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
