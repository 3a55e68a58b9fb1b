//! What an assistant can do: ask, describe, find questions, explain a job or a decision.

use serde_json::{Value, json};
use tidegate_lake::pipeline::Pipeline;
use tidegate_server::{Encoded, Format, Overrides, QueryError, QueryLimits};

use crate::commands::{CommandError, Committed, DataArgs, explain};

/// Rows of a query unless the assistant asks for others, and at most.
const ROWS: u64 = 200;
const ROWS_MAX: u64 = 10_000;
/// Longest answer, bytes: an assistant has to read it.
const ANSWER_BYTES: usize = 512 << 10;
/// Questions that are listed at a time.
const QUESTIONS: usize = 30;

/// The tables of a data folder, and what is known about them.
pub(super) struct Tools {
    data: DataArgs,
    pipelines: Vec<Pipeline>,
    tables: Committed,
}

impl Tools {
    pub async fn open(data: DataArgs, limits: QueryLimits) -> Result<Self, CommandError> {
        let pipelines = data.load_pipelines()?;
        let tables = Committed::open(&data, QueryLimits { rows_max: ROWS_MAX, ..limits }).await?;
        Ok(Self { data, pipelines, tables })
    }

    /// The tools, as assistants are told of them.
    pub fn list() -> Value {
        let tool = |name: &str, title: &str, about: &str, properties: Value, required: &[&str]| {
            json!({
                "name": name,
                "title": title,
                "description": about,
                "inputSchema": {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": false,
                },
                "annotations": {"readOnlyHint": true, "openWorldHint": false},
            })
        };
        let text = |about: &str| json!({"type": "string", "description": about});
        let rows = json!({
            "type": "integer", "minimum": 1, "maximum": ROWS_MAX,
            "description": format!("Most rows of the answer; {ROWS} if it is left out"),
        });
        json!([
            tool(
                "questions",
                "Find questions",
                "Lists questions that tables answer, each with its table and a query to begin with",
                json!({"about": text("Words that the question, its table or its query has, e.g. `idle team`; all if it is left out")}),
                &[],
            ),
            tool(
                "describe",
                "Describe tables",
                "Lists tables with what a row of each is, or the columns of one with their units",
                json!({"table": text("Name of a table; all tables are listed if it is left out")}),
                &[],
            ),
            tool(
                "ask",
                "Ask the tables",
                "Runs one query that reads, and gives its rows as a JSON array of objects",
                json!({"sql": text("One SELECT"), "max_rows": rows}),
                &["sql"],
            ),
            tool(
                "explain_job",
                "Explain a job",
                "Tells why a job waits, where its GPU time went, and what would help most",
                json!({
                    "job": text("Id of the job, as the scheduler names it"),
                    "cluster": text("Its cluster; needed if several have a job of this id"),
                }),
                &["job"],
            ),
            tool(
                "explain_decision",
                "Explain a decision",
                "Tells why the autopilot decided on an action, what else it considered, and what came of it",
                json!({"action": text("Id of the action, as in the table `decisions`")}),
                &["action"],
            ),
        ])
    }

    /// Uses a tool; `None` if there is none of this name. What it says, or why it failed.
    pub async fn call(&mut self, name: &str, arguments: &Value) -> Option<Result<String, String>> {
        let text = |name: &str| arguments[name].as_str();
        let missing = |name: &str| Err(format!("the argument {name:?} is missing, a text"));
        Some(match name {
            "questions" => Ok(self.questions(text("about").unwrap_or_default())),
            "describe" => match text("table") {
                Some(table) => self.query(&format!("describe {table}"), ROWS_MAX).await,
                None => self.query("describe tables", ROWS_MAX).await,
            },
            "ask" => match text("sql") {
                Some(sql) => {
                    let rows = arguments["max_rows"].as_u64().unwrap_or(ROWS).clamp(1, ROWS_MAX);
                    self.query(sql, rows).await
                }
                None => missing("sql"),
            },
            "explain_job" => match text("job") {
                Some(job) => {
                    let explained = explain::job_as_json(&self.data, job, text("cluster")).await;
                    explained.map_err(|error| error.to_string())
                }
                None => missing("job"),
            },
            "explain_decision" => match text("action") {
                Some(action) => {
                    let explained = explain::decision_as_json(&self.data, action).await;
                    explained.map_err(|error| error.to_string())
                }
                None => missing("action"),
            },
            _ => return None,
        })
    }

    /// Questions that have all these words somewhere.
    fn questions(&self, about: &str) -> String {
        let words: Vec<String> = about.split_whitespace().map(str::to_lowercase).collect();
        let answered = self.pipelines.iter().filter_map(|pipeline| {
            let (question, sql) = (pipeline.question.as_deref()?, pipeline.example.as_deref()?);
            let all = format!("{question} {} {} {sql}", pipeline.name, pipeline.doc).to_lowercase();
            words.iter().all(|word| all.contains(word)).then(
                || json!({"question": question, "table": pipeline.name, "about": pipeline.doc, "sql": sql}),
            )
        });
        let found: Vec<Value> = answered.collect();
        let more = found.len().saturating_sub(QUESTIONS);
        let listed = json!({"questions": found[..found.len() - more], "more": more});
        listed.to_string()
    }

    /// Runs a query on what is committed by now; returns its rows as JSON.
    async fn query(&mut self, sql: &str, rows_max: u64) -> Result<String, String> {
        let explained = |error: QueryError| match error.hint() {
            Some(hint) => format!("{error}\nhint: {hint}"),
            None => error.to_string(),
        };
        self.tables.refresh().await.map_err(|e| e.to_string())?;
        let overrides = Overrides { rows_max: Some(rows_max), time_max: None };
        let rows = self.tables.service().query(sql, overrides).await.map_err(explained)?;
        let mut encoded = Encoded::new(rows, Format::Json).map_err(explained)?;
        let mut json = Vec::new();
        loop {
            match encoded.next().await {
                Ok(Some(piece)) => json.extend(piece),
                Ok(None) => break,
                Err(QueryError::TooManyRows { limit }) => {
                    return Err(format!(
                        "there are more than {limit} rows; add LIMIT, aggregate, or give max_rows, up to {ROWS_MAX}"
                    ));
                }
                Err(error) => return Err(explained(error)),
            }
            if json.len() > ANSWER_BYTES {
                return Err(format!("the answer has more than {} KiB; select less", ANSWER_BYTES >> 10));
            }
        }
        String::from_utf8(json).map_err(|error| error.to_string())
    }
}
