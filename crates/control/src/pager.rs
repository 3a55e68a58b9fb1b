//! Sends alerts about the autopilot itself to Alertmanager (API v2, `POST /api/v2/alerts`), and a
//! heartbeat alert that ends when the autopilot does, so that a dead one pages too.
//!
//! Delivery runs on a thread of its own: the loop hands over what fires and goes on. An alert is
//! retried until it was accepted once, then repeated while it fires, as Alertmanager expects. A
//! resolved alert is sent until that was accepted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_autopilot::slo::Alert;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// Time limit of one delivery.
const PATIENCE: Duration = Duration::from_secs(10);
/// First wait after a failed delivery. It doubles with each further failure, up to the time between
/// repeats.
const RETRY: Duration = Duration::from_secs(1);
/// Name of the heartbeat alert.
pub const ALIVE: &str = "TidegateAutopilotAlive";

/// Where pages go: `[pager]` of the deployment file. Exactly one of the three addresses is set. An
/// address that holds a secret is given by file or environment, so that no shared file and no
/// record holds it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagerConfig {
    /// The address, e.g. `http://alertmanager:9093/api/v2/alerts`.
    url: Option<String>,
    /// File that holds the address, beside the deployment file.
    url_file: Option<PathBuf>,
    /// Environment variable that holds the address.
    url_env: Option<String>,
    /// Seconds between repeats of firing alerts and the heartbeat; 60 by default.
    repeat_every_s: Option<u64>,
    /// Seconds after the autopilot's last step at which the heartbeat ends; 300 by default.
    dead_after_s: Option<u64>,
}

impl PagerConfig {
    /// What is wrong with the section, for people.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let ways = [self.url.is_some(), self.url_file.is_some(), self.url_env.is_some()];
        if ways.iter().filter(|way| **way).count() != 1 {
            problems.push("[pager] takes one of url, url_file and url_env".to_owned());
        }
        if let Some(url) = &self.url {
            if url.contains('@') || url.contains('?') {
                let mend = "give an address that holds a secret by url_file or url_env";
                problems.push(format!("[pager] url holds a user name or a query: {mend}"));
            }
            problems.extend(not_http(url).map(|why| format!("[pager] url {why}")));
        }
        for (name, value, most) in
            [("repeat_every_s", self.repeat_every_s, 3_600), ("dead_after_s", self.dead_after_s, 86_400)]
        {
            if value.is_some_and(|value| !(1..=most).contains(&value)) {
                problems.push(format!("[pager] {name} is {}; use 1 to {most}", value.unwrap_or_default()));
            }
        }
        problems
    }

    /// The address. `folder` is that of the deployment file.
    ///
    /// # Errors
    /// It cannot be read, or is not an address. The message does not quote it: it may be a secret.
    fn address(&self, folder: &Path) -> Result<String, String> {
        let (from, url) = match (&self.url, &self.url_file, &self.url_env) {
            (Some(url), ..) => ("[pager] url".to_owned(), url.clone()),
            (_, Some(file), _) => {
                let file = folder.join(file);
                let text =
                    std::fs::read_to_string(&file).map_err(|e| format!("read {}: {e}", file.display()))?;
                (file.display().to_string(), text.trim().to_owned())
            }
            (_, _, Some(name)) => {
                let value = std::env::var(name).map_err(|_| format!("[pager] url_env: {name} is not set"))?;
                (name.clone(), value)
            }
            _ => return Err("[pager] takes one of url, url_file and url_env".to_owned()),
        };
        match not_http(&url) {
            Some(why) => Err(format!("{from} {why}")),
            None => Ok(url),
        }
    }
}

fn not_http(url: &str) -> Option<String> {
    let http = url.starts_with("http://") || url.starts_with("https://");
    (!http).then(|| "is not an address; write http://HOST:PORT/api/v2/alerts or https://...".to_owned())
}

/// Name of the alert about journal entries that do not count.
pub const JOURNAL: &str = "TidegateAutopilotJournal";

/// Something that pages beside the objectives: journal entries that do not count, or of which
/// earlier lives of the autopilot died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// Since when, µs since 1970.
    pub since_us: i64,
    /// What, in words.
    pub why: String,
}

/// What is to be delivered.
#[derive(Debug, Default)]
struct PagerState {
    alarm: Option<Alarm>,
    standing: Vec<Alert>,
    /// Resolved, and not delivered as such yet.
    ended: Vec<Alert>,
    /// When the autopilot stepped last as the holder of the lease.
    alive: Option<DateTime<Utc>>,
    /// Something changed since the last delivery began.
    news: bool,
    /// Why the first of a series of deliveries failed; taken by [`Pager::trouble`].
    trouble: Option<String>,
    stops: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<PagerState>,
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PagerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running pager.
#[derive(Debug)]
pub struct Pager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Pager {
    /// Starts paging for `cluster`. `folder` is that of the deployment file.
    ///
    /// # Errors
    /// There is no address.
    pub fn start(config: &PagerConfig, folder: &Path, cluster: &str) -> Result<Self, String> {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let agent = Agent::config_builder().timeout_global(Some(PATIENCE)).tls_config(tls).build();
        let line = Delivery {
            url: config.address(folder)?,
            agent: Agent::new_with_config(agent),
            cluster: cluster.to_owned(),
            repeat: Duration::from_secs(config.repeat_every_s.unwrap_or(60)),
            dead_after: chrono::Duration::seconds(config.dead_after_s.unwrap_or(300).cast_signed()),
            since: Utc::now(),
        };
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("pager".to_owned()).spawn(move || line.run(&theirs));
        Ok(Self { shared, thread: Some(thread.map_err(|e| format!("start the pager: {e}"))?) })
    }

    /// Hands over what fires now, after a step as the holder of the lease. Does not block.
    pub fn report(&self, standing: Vec<Alert>, alarm: Option<Alarm>) {
        let mut state = self.shared.lock();
        let over = |alert: &Alert| !standing.iter().any(|now| is_same_alert(now, alert));
        let ended: Vec<Alert> = state.standing.iter().filter(|alert| over(alert)).cloned().collect();
        state.news |= !ended.is_empty()
            || standing.len() != state.standing.len() - ended.len()
            || alarm != state.alarm
            || state.alive.is_none();
        state.alarm = alarm;
        state.ended.extend(ended);
        state.standing = standing;
        state.alive = Some(Utc::now());
        self.shared.news.notify_one();
    }

    /// Hands over something that pages without a step: the autopilot does not act. It is no sign of
    /// life. One that fires already keeps its beginning.
    pub fn alarm(&self, alarm: Alarm) {
        let mut state = self.shared.lock();
        if state.alarm.as_ref().is_none_or(|known| known.why != alarm.why) {
            (state.alarm, state.news) = (Some(alarm), true);
            self.shared.news.notify_one();
        }
    }

    /// Why deliveries began to fail; returned once for each series of failures.
    pub fn trouble(&self) -> Option<String> {
        self.shared.lock().trouble.take()
    }
}

impl Drop for Pager {
    /// Waits for the delivery that runs. The heartbeat is not ended early: to stop the autopilot
    /// for good, silence its alert.
    fn drop(&mut self) {
        self.shared.lock().stops = true;
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn is_same_alert(one: &Alert, other: &Alert) -> bool {
    (one.series, one.burn, one.since_us) == (other.series, other.burn, other.since_us)
}

/// State of the delivery thread.
struct Delivery {
    url: String,
    agent: Agent,
    cluster: String,
    repeat: Duration,
    dead_after: chrono::Duration,
    since: DateTime<Utc>,
}

impl Delivery {
    fn run(&self, shared: &Shared) {
        let mut wait = self.repeat;
        let mut failing = false;
        loop {
            let mut state = shared.lock();
            if !state.stops && (failing || !state.news) {
                // After a failure, changes do not shorten the wait.
                let quiet = |state: &mut PagerState| !state.stops && (failing || !state.news);
                state = match shared.news.wait_timeout_while(state, wait, quiet) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
            let stops = state.stops;
            let (standing, ended, alive) = (state.standing.clone(), state.ended.clone(), state.alive);
            let alarm = state.alarm.clone();
            state.news = false;
            drop(state);
            if alive.is_some() || alarm.is_some() {
                match self.deliver(&standing, &ended, alarm.as_ref(), alive) {
                    Ok(()) => {
                        shared.lock().ended.retain(|alert| !ended.contains(alert));
                        (wait, failing) = (self.repeat, false);
                    }
                    Err(why) => {
                        if !failing {
                            shared.lock().trouble = Some(why);
                        }
                        wait = if failing { (wait * 2).min(self.repeat) } else { RETRY.min(self.repeat) };
                        failing = true;
                    }
                }
            }
            if stops {
                return;
            }
        }
    }

    /// The error does not name the address: it may hold a secret.
    fn deliver(
        &self,
        standing: &[Alert],
        ended: &[Alert],
        alarm: Option<&Alarm>,
        alive: Option<DateTime<Utc>>,
    ) -> Result<(), String> {
        let mut body = self.body(standing, ended, alive, Utc::now());
        if let (Value::Array(alerts), Some(alarm)) = (&mut body, alarm) {
            alerts.push(self.alarm(alarm, Utc::now()));
        }
        let text = body.to_string();
        let sent = self.agent.post(&self.url).header("Content-Type", "application/json").send(text);
        sent.map(drop).map_err(|error| match error {
            ureq::Error::StatusCode(code) => format!("it says {code}"),
            ureq::Error::Timeout(_) => format!("no answer within {} s", PATIENCE.as_secs()),
            ureq::Error::Io(error) => error.kind().to_string(),
            _ => "it cannot be reached".to_owned(),
        })
    }

    /// An alarm in Alertmanager's format. It ends by itself when it is not repeated.
    fn alarm(&self, alarm: &Alarm, now: DateTime<Utc>) -> Value {
        let at = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Millis, true);
        json!({
            "labels": {"alertname": JOURNAL, "cluster": self.cluster, "severity": "page"},
            "annotations": {"summary": alarm.why},
            "startsAt": at(DateTime::from_timestamp_micros(alarm.since_us).unwrap_or(now)),
            "endsAt": at(now + self.dead_after),
        })
    }

    /// Alerts in Alertmanager's format. Firing ones end by themselves if they are not repeated.
    fn body(
        &self,
        standing: &[Alert],
        ended: &[Alert],
        alive: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Value {
        let at = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Millis, true);
        let one = |alert: &Alert, ends: DateTime<Utc>| {
            let kind = alert.series.kind.map(|kind| kind.name());
            let since = DateTime::from_timestamp_micros(alert.since_us).unwrap_or(now);
            json!({
                "labels": {
                    "alertname": "TidegateAutopilotSlo", "cluster": self.cluster, "severity": alert.burn.severity(),
                    "objective": alert.series.objective.name(), "kind": kind.unwrap_or("all"), "burn": alert.burn.name(),
                },
                "annotations": {"summary": alert.why},
                "startsAt": at(since),
                "endsAt": at(ends),
            })
        };
        let living = |alive: DateTime<Utc>| {
            json!({
                "labels": {"alertname": ALIVE, "cluster": self.cluster, "severity": "none"},
                "annotations": {"summary": "the autopilot acts; page when this ends"},
                "startsAt": at(self.since),
                "endsAt": at(alive + self.dead_after),
            })
        };
        let standing = standing.iter().map(|alert| one(alert, now + self.dead_after));
        let ended = ended.iter().map(|alert| one(alert, now));
        Value::Array(standing.chain(ended).chain(alive.map(living)).collect())
    }
}

#[cfg(test)]
mod tests;
