//! Whether queries can be answered: a real one is asked.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::answers::Answers;
use crate::format::Format;
use crate::query::Overrides;
use crate::question::Question;

/// An answer that takes longer is none: who asks has a limit of their own, often a second or two.
const WITHIN: Duration = Duration::from_secs(2);
/// An answer counts this long for whoever asks: anybody may, without a token, and a query for each
/// would take the places of those who have one.
const COUNTS_FOR: Duration = Duration::from_millis(500);
/// It is planned, run and encoded where all queries are, and there are its tables always.
const ASKED: &str = "SELECT count(*) AS tables FROM information_schema.tables";

/// The number of tables, or why no query is answered.
type Found = Result<usize, String>;

/// The newest answer, and when it came. One query is asked at a time; whoever asks meanwhile waits
/// for it.
#[derive(Default)]
pub(crate) struct Readiness(Mutex<Option<(Instant, Found)>>);

impl Readiness {
    /// The number of tables, or why no query is answered.
    pub async fn tables(&self, answers: &Answers) -> Found {
        let mut newest = self.0.lock().await;
        if let Some((at, found)) = &*newest
            && at.elapsed() < COUNTS_FOR
        {
            return found.clone();
        }
        let found = tables(answers).await;
        *newest = Some((Instant::now(), found.clone()));
        found
    }
}

async fn tables(answers: &Answers) -> Found {
    let tables = answers.catalog().map_err(|e| e.to_string())?.tables.len();
    if tables == 0 {
        return Err("the tables are not open yet".into());
    }
    let overrides = Overrides { rows_max: None, time_max: Some(WITHIN) };
    let asked = async {
        let mut answer = answers.answer(&Question::plain(ASKED, Format::Csv), overrides).await?;
        while answer.next().await?.is_some() {}
        Ok::<_, crate::QueryError>(())
    };
    asked.await.map_err(|e| format!("a query of the tables' names was not answered: {e}"))?;
    Ok(tables)
}
