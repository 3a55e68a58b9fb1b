//! Answers of Prometheus' HTTP API, as far as they are asked for.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The frame of every answer.
#[derive(Debug, Deserialize)]
pub(super) struct Answer<D> {
    pub status: String,
    pub data: Option<D>,
    #[serde(default)]
    pub error: String,
    #[serde(default)]
    pub warnings: Vec<String>,
    /// VictoriaMetrics: some of its storage did not answer.
    #[serde(default, rename = "isPartial")]
    pub is_partial: bool,
}

/// What `query_range` answers.
#[derive(Debug, Deserialize)]
pub(super) struct Matrix<'a> {
    #[serde(borrow)]
    pub result: Vec<Series<'a>>,
}

/// A time series.
#[derive(Debug, Deserialize)]
pub(super) struct Series<'a> {
    pub metric: BTreeMap<String, String>,
    /// Times in seconds since the epoch, and numbers as text.
    #[serde(borrow)]
    pub values: Vec<(f64, &'a str)>,
}

impl Series<'_> {
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.metric.get(name).map(String::as_str)
    }
}

/// An error's text, where the answer is one.
pub(super) fn error_text(body: &str) -> Option<String> {
    let answer: Answer<serde_json::Value> = serde_json::from_str(body).ok()?;
    (!answer.error.is_empty()).then(|| answer.error.chars().take(300).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_both_servers_are_read() {
        let text = r#"{"status":"success","isPartial":false,"data":{"resultType":"matrix","result":[
            {"metric":{"gpu":"0","err":"a \"b\""},"values":[[1700000000,"1"],[1700000060.5,"NaN"]]}]},
            "stats":{"seriesFetched":"1"},"warnings":["one"]}"#;
        let answer: Answer<Matrix<'_>> = serde_json::from_str(text).unwrap();
        let series = &answer.data.unwrap().result[0];
        assert_eq!(series.label("err"), Some("a \"b\""));
        assert_eq!(series.values, [(1_700_000_000.0, "1"), (1_700_000_060.5, "NaN")]);
        assert_eq!((answer.warnings.len(), answer.is_partial), (1, false));
        let error = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
        assert_eq!(error_text(error).as_deref(), Some("parse error"));
        assert_eq!(error_text("<html>"), None);
    }
}
