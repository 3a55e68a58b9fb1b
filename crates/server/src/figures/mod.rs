//! The cluster's figures as gauges: answers of SQL, on pages of their own beside the metrics of
//! this process.
//!
//! A page is asked when it is scraped, by one query at a time, and counts for some seconds. Each
//! query has a bound of series, and says how many it left out; a query that fails leaves out its
//! own gauges only.

mod cluster;
mod gpus;
mod page;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tokio::sync::Mutex;

use crate::answers::Answers;
use crate::error::QueryError;
use crate::format::Format;
use crate::query::Overrides;
use crate::question::Question;

pub(crate) use cluster::CLUSTER;
pub(crate) use gpus::GPUS;

/// All queries of a page together; Prometheus waits for 10 s, by default.
const WITHIN: Duration = Duration::from_secs(8);
/// A page counts this long: several may scrape it.
const COUNTS_FOR: Duration = Duration::from_secs(5);
/// Longest answer of one query that is read, bytes.
const ANSWER_BYTES: usize = 8 << 20;

/// A page of figures.
#[derive(Debug)]
pub(crate) struct Page {
    /// Prefix of the metrics about the page itself.
    prefix: &'static str,
    figures: &'static [Figure],
}

/// Gauges that one query answers.
#[derive(Debug)]
struct Figure {
    name: &'static str,
    /// A `SELECT` of the labels and of a column for each gauge.
    sql: &'static str,
    /// Columns that become labels.
    labels: &'static [&'static str],
    gauges: &'static [Gauge],
    /// Most rows that count: those with the largest first gauge.
    most: usize,
}

/// A gauge, and the column with its values.
#[derive(Debug)]
struct Gauge {
    column: &'static str,
    name: &'static str,
    help: &'static str,
}

/// Rows of a query by column; a column without a value is left out.
type Rows = Vec<Map<String, Value>>;

/// A page that is asked when somebody scrapes it.
pub(crate) struct Figures {
    answers: Answers,
    page: &'static Page,
    newest: Mutex<Option<(Instant, String)>>,
}

impl Figures {
    pub fn new(answers: Answers, page: &'static Page) -> Self {
        Self { answers, page, newest: Mutex::default() }
    }

    /// The page, in OpenMetrics. Who asks while it is made waits for the same one.
    pub async fn text(&self) -> String {
        let mut newest = self.newest.lock().await;
        if let Some((at, text)) = &*newest
            && at.elapsed() < COUNTS_FOR
        {
            return text.clone();
        }
        let begun = Instant::now();
        let mut answered = Vec::with_capacity(self.page.figures.len());
        for figure in self.page.figures {
            let left = WITHIN.saturating_sub(begun.elapsed());
            let rows = self.rows(figure, left).await;
            if let Err(error) = &rows {
                tracing::warn!(figure = figure.name, %error, "a figure for Prometheus was not answered");
            }
            answered.push((figure, rows.ok()));
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let text = page::text(self.page.prefix, &answered, now_s, begun.elapsed());
        *newest = Some((Instant::now(), text.clone()));
        text
    }

    async fn rows(&self, figure: &Figure, left: Duration) -> Result<Rows, QueryError> {
        let time_max = Some(left.min(self.answers.time_max()));
        let question = Question::plain(figure.bounded_sql(), Format::Jsonl);
        let overrides = Overrides { rows_max: None, time_max };
        let mut answer = self.answers.answer(&question, overrides).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = answer.next().await? {
            bytes.extend(piece);
            if bytes.len() > ANSWER_BYTES {
                return Err(QueryError::Internal(format!("its rows take more than {ANSWER_BYTES} bytes")));
            }
        }
        let rows = serde_json::Deserializer::from_slice(&bytes).into_iter().collect::<Result<_, _>>();
        rows.map_err(|error| QueryError::Internal(error.to_string()))
    }
}

impl Figure {
    /// The query with its bound, and a column `of_all` with the number of all rows.
    fn bounded_sql(&self) -> String {
        let Self { sql, labels, gauges, most, .. } = self;
        let order = labels.iter().map(|label| format!("\"{label}\"")).collect::<Vec<_>>().join(", ");
        let weight = gauges[0].column;
        format!(
            "SELECT *, count(*) OVER () AS of_all FROM ({sql}) ORDER BY {weight} DESC NULLS LAST, {order} LIMIT {most}"
        )
    }
}
