//! Asks a server that speaks Prometheus' HTTP API: Prometheus, VictoriaMetrics, Thanos, Mimir.

use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use super::answer::{Answer, Matrix, Series, error_text};
use super::refusal::Refusal;
use super::remote::{self, SeriesQuery, StepSeries};

/// Longest answer, bytes: some 10,000 series of an hour.
const ANSWER_BYTES: u64 = 32 << 20;
/// Most series of one answer.
const MOST_SERIES: usize = 100_000;
/// Waits before a question is asked again.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The server.
pub(super) struct Client {
    agent: Agent,
    base: String,
    /// Value of the header `Authorization`.
    authorization: Option<String>,
    patience: Duration,
    allow_partial: bool,
    /// Different warnings of the server, the first ones.
    pub warnings: Vec<String>,
    pub queries: u64,
}

impl Client {
    /// `url` is the address before `/api/v1`.
    pub(super) fn new(
        url: &str,
        authorization: Option<String>,
        patience: Duration,
        allow_partial: bool,
    ) -> Result<Self, String> {
        let base = url.trim_end_matches('/').to_owned();
        let Some(host) = base.strip_prefix("http://").or_else(|| base.strip_prefix("https://")) else {
            return Err("the address must begin with http:// or https://".into());
        };
        if host.split('/').next().is_some_and(|host| host.contains('@')) {
            return Err(
                "the address holds a user name or password; give them with --user and --password-file, or a token \
                 with --bearer-token-file"
                    .into()
            );
        }
        if base.contains(['?', '#']) {
            return Err("give the address before /api/v1, without a query".into());
        }
        let config = Agent::config_builder()
            .timeout_global(Some(patience))
            .http_status_as_error(false)
            // Another server would get the token or password.
            .max_redirects(0)
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .user_agent("tidegate");
        let agent = config.build().new_agent();
        Ok(Self { agent, base, authorization, patience, allow_partial, warnings: Vec::new(), queries: 0 })
    }

    /// Names of metrics that match a selector between two times, ms since the epoch.
    pub(super) fn names(&mut self, selector: &str, from_ms: i64, to_ms: i64) -> Result<Vec<String>, Refusal> {
        let (from, to) = (seconds(from_ms), seconds(to_ms));
        let pairs = [("match[]", selector), ("start", &from), ("end", &to)];
        let body = self.get("/api/v1/label/__name__/values", &pairs)?;
        self.data::<Vec<String>>(&body)
    }

    /// The last value in each step, from `from_ms` to `to_ms`; `use_series` takes each series.
    pub(super) fn last_values(
        &mut self,
        selector: &str,
        (from_ms, to_ms, step_ms): (i64, i64, i64),
        use_series: &mut dyn FnMut(Series<'_>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        // Prometheus looks back for minutes where it is not told how far, and would fill gaps.
        // Before its version 3 a range has both of its ends, hence a step less 1 ms.
        let query = format!("last_over_time({selector}[{}ms])", step_ms - 1);
        let (from, to, step) = (seconds(from_ms), seconds(to_ms), seconds(step_ms));
        // VictoriaMetrics moves start and end, unless its cache is left out.
        let pairs =
            [("query", query.as_str()), ("start", &from), ("end", &to), ("step", &step), ("nocache", "1")];
        let body = self.get("/api/v1/query_range", &pairs)?;
        let matrix = self.data::<Matrix<'_>>(&body)?;
        if matrix.result.len() > MOST_SERIES {
            return Err(Refusal::TooMuch(format!("the answer has more than {MOST_SERIES} series")));
        }
        matrix.result.into_iter().try_for_each(use_series)
    }

    /// The same by remote read.
    pub(super) fn read_last_values(
        &mut self,
        wanted: &SeriesQuery<'_>,
        use_series: &mut dyn FnMut(Series<'_>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let body = wanted.body()?;
        let all = self.ask(|client| client.read_once(wanted, &body))?;
        if all.len() > MOST_SERIES {
            return Err(Refusal::TooMuch(format!("the answer has more than {MOST_SERIES} series")));
        }
        all.into_iter().try_for_each(|StepSeries { labels, values }| {
            let values = values.iter().map(|(at_ms, text)| (*at_ms as f64 / 1e3, text.as_str())).collect();
            use_series(Series { metric: labels, values })
        })
    }

    /// What is in an answer. Its warnings and a partial answer are failures, unless allowed.
    fn data<'a, D: Deserialize<'a>>(&mut self, body: &'a str) -> Result<D, Refusal> {
        let answer: Answer<D> = serde_json::from_str(body).map_err(|error| {
            Refusal::Failed(format!("the answer is not one of Prometheus' HTTP API: {error}"))
        })?;
        let partial = answer.is_partial.then(|| "the answer is partial (isPartial)".to_owned());
        for warning in partial.into_iter().chain(answer.warnings) {
            let warning: String = warning.chars().take(300).collect();
            if !self.allow_partial {
                return Err(Refusal::Failed(format!(
                    "the server warns that its answer may lack something: {warning}; --allow-partial takes it"
                )));
            }
            if self.warnings.len() < 20 && !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
        match answer.data {
            Some(data) if answer.status == "success" => Ok(data),
            _ => Err(Refusal::Failed(format!("the answer has status {:.40} and no data", answer.status))),
        }
    }

    fn get(&mut self, path: &str, pairs: &[(&str, &str)]) -> Result<String, Refusal> {
        self.ask(|client| client.get_once(path, pairs))
    }

    /// Asks again after a failure that may pass.
    fn ask<T>(&mut self, once: impl Fn(&Self) -> Result<T, (Refusal, bool)>) -> Result<T, Refusal> {
        let mut waits = RETRY_AFTER.iter();
        loop {
            self.queries += 1;
            match once(self) {
                Ok(answer) => return Ok(answer),
                Err((refusal, passes)) => match waits.next() {
                    Some(wait) if passes => std::thread::sleep(*wait),
                    _ => return Err(refusal),
                },
            }
        }
    }

    /// The answer's text; or why not, and whether that may pass.
    fn get_once(&self, path: &str, pairs: &[(&str, &str)]) -> Result<String, (Refusal, bool)> {
        let mut request = self.agent.get(format!("{}{path}", self.base)).query_pairs(pairs.iter().copied());
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut response = request.call().map_err(|error| self.failed(error))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string();
        let body = body.map_err(|error| self.failed(error))?;
        match status {
            200 => Ok(body),
            _ => Err(refused(status, error_text(&body))),
        }
    }

    /// The series of a remote read; or why not, and whether that may pass.
    fn read_once(&self, wanted: &SeriesQuery<'_>, body: &[u8]) -> Result<Vec<StepSeries>, (Refusal, bool)> {
        let mut request = self.agent.post(format!("{}{}", self.base, remote::PATH));
        for (name, value) in remote::HEADERS {
            request = request.header(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut response = request.send(body).map_err(|error| self.failed(error))?;
        let status = response.status().as_u16();
        if status == 200 {
            return wanted.series(response).map_err(|refusal| (refusal, false));
        }
        let said = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string().unwrap_or_default();
        let said = error_text(&said).or_else(|| plain(&said));
        Err(match status {
            // Servers without it say so in each of these ways.
            400 | 404 | 405 | 501 => {
                let what = said.map_or_else(String::new, |text| format!(": {text}"));
                let what = format!("the answer to {} is {status}{what}", remote::PATH);
                (Refusal::Failed(format!("{what}; if it has no remote read, leave out --remote-read")), false)
            }
            status => refused(status, said),
        })
    }

    /// Why there is no answer, and whether that may pass.
    fn failed(&self, error: ureq::Error) -> (Refusal, bool) {
        match error {
            ureq::Error::Timeout(_) => {
                (Refusal::TooMuch(format!("no answer within {} s", self.patience.as_secs())), true)
            }
            ureq::Error::BodyExceedsLimit(_) => {
                (Refusal::TooMuch(format!("the answer is longer than {} MiB", ANSWER_BYTES >> 20)), false)
            }
            error => (Refusal::Failed(error.to_string()), true),
        }
    }
}

/// The first words of an answer that is plain text.
fn plain(body: &str) -> Option<String> {
    let line: String = body.trim().chars().filter(|letter| !letter.is_control()).take(300).collect();
    (!line.is_empty() && !line.starts_with('<')).then_some(line)
}

/// Why an answer of this status is none, and whether that may pass.
fn refused(status: u16, said: Option<String>) -> (Refusal, bool) {
    let said = said.map_or_else(String::new, |text| format!(": {text}"));
    let what = format!("the answer is {status}{said}");
    match status {
        401 | 403 => {
            (Refusal::Failed(format!("{what}; give a token with --bearer-token-file, or --user")), false)
        }
        300..=399 => (Refusal::Failed(format!("{what}; give the address that it leads to")), false),
        404 => (Refusal::Failed(format!("{what}; give the address before /api/v1")), false),
        // Too many samples, or too long a query.
        422 => (Refusal::TooMuch(what), false),
        503 | 504 => (Refusal::TooMuch(what), true),
        429 | 500..=599 => (Refusal::Failed(what), true),
        _ => (Refusal::Failed(what), false),
    }
}

/// Seconds since the epoch, as the API takes them.
fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms.div_euclid(1_000), ms.rem_euclid(1_000))
}
