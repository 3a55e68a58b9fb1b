//! The log that a command delivers to: `--log` and its options.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate_collect::agent::Connect;
use tidegate_collect::log_sink::{DirectLogSink, HttpLogSink, Identity, LogSink, Roots};
use tidegate_log::{DataDir, KafkaLog, KafkaOptions, KafkaUrl, LogError};

use crate::error::CommandError;

/// Partitions of a topic created on Kafka, the same as for the other commands.
const PARTITIONS_ON_KAFKA: u32 = 8;
/// Timeout of an append to Kafka. It is retried later; records wait in the spool.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Address of a log.
#[derive(Debug, Clone)]
pub enum Destination {
    /// A Kafka cluster.
    Kafka(KafkaUrl),
    /// The server of a `tidegate up --ingest`.
    Http(String),
    /// A data folder on this machine, which nobody else may have open.
    Folder(PathBuf),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("kafka://") {
            return text.parse().map(Self::Kafka).map_err(|error: LogError| error.to_string());
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            return http(text).map(Self::Http);
        }
        match text.split_once("://") {
            Some((scheme, _)) => Err(format!(
                "{scheme}:// is not known; write kafka://HOST:PORT, http(s)://HOST:PORT or a folder"
            )),
            None if text.is_empty() => Err("write kafka://HOST:PORT, http://HOST:PORT or a folder".into()),
            None => Ok(Self::Folder(text.into())),
        }
    }
}

fn http(text: &str) -> Result<String, String> {
    let url: url::Url = text.parse().map_err(|error| format!("{text:?} is no URL: {error}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it holds a user name or password; give a token with --log-token-file".into());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("write http://HOST:PORT with nothing behind it".into());
    }
    Ok(text.trim_end_matches('/').into())
}

/// Log and credentials of a command.
#[derive(Debug, Clone, Args)]
pub struct DestinationArgs {
    /// Event log: kafka://HOST:PORT[,HOST:PORT...][/PREFIX], http://HOST:PORT of a `tidegate up
    /// --ingest`, or a data folder
    #[arg(long, value_name = "URL", env = "TIDEGATE_LOG")]
    log: Option<Destination>,

    /// librdkafka property of the Kafka client, e.g. security.protocol=SASL_SSL; may be given
    /// several times
    #[arg(long = "kafka-property", value_name = "KEY=VALUE")]
    properties: Vec<String>,

    /// File with librdkafka properties, one KEY=VALUE a line. Keep passwords here: other users can
    /// read a command line
    #[arg(long, value_name = "FILE", env = "TIDEGATE_KAFKA_CONFIG")]
    kafka_config: Option<PathBuf>,

    /// File with a token for an http:// or https:// log, made by `tidegate token new`; read again
    /// when the server refuses it
    #[arg(long, value_name = "FILE", env = "TIDEGATE_LOG_TOKEN_FILE")]
    log_token_file: Option<PathBuf>,

    /// File with the certificate (PEM) that vouches for an https:// log [default: those that this
    /// system trusts]
    #[arg(long, value_name = "FILE", env = "TIDEGATE_LOG_CA")]
    log_ca: Option<PathBuf>,

    /// Certificate (PEM) to show to an https:// log in place of a token, if its server has
    /// --tls-client-ca; read again when the server refuses it
    #[arg(long, value_name = "FILE", requires = "log_key", env = "TIDEGATE_LOG_CERT")]
    log_cert: Option<PathBuf>,

    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "log_cert", env = "TIDEGATE_LOG_KEY")]
    log_key: Option<PathBuf>,
}

impl DestinationArgs {
    /// Returns how to open the log once it can be reached. Errors that can be known now are
    /// returned now.
    pub fn connect(&self) -> Result<Connect, CommandError> {
        let log = self.log.as_ref().ok_or(
            "no log is named; give --log kafka://HOST:PORT, --log http://HOST:PORT of a `tidegate up --ingest`, or a folder",
        )?;
        Ok(match log {
            Destination::Kafka(url) => {
                let options = self.kafka(url)?;
                Box::new(move || {
                    let log = KafkaLog::open(options.clone())?;
                    Ok(Box::new(DirectLogSink::new(Arc::new(log), PARTITIONS_ON_KAFKA)) as Box<dyn LogSink>)
                })
            }
            Destination::Http(url) => {
                let (url, args) = (url.clone(), self.clone());
                args.http(&url)?;
                Box::new(move || {
                    args.http(&url).map(|log_sink| Box::new(log_sink) as Box<dyn LogSink>).map_err(|reason| {
                        LogError::ServerRefused { url: url.clone(), doing: "connecting".into(), reason }
                    })
                })
            }
            Destination::Folder(folder) => {
                let folder = folder.clone();
                Box::new(move || {
                    let log_sink = DirectLogSink::open_folder(DataDir::open(&folder)?)?;
                    Ok(Box::new(log_sink) as Box<dyn LogSink>)
                })
            }
        })
    }

    /// Whether a log is named.
    pub fn is_named(&self) -> bool {
        self.log.is_some()
    }

    /// Whether the log is behind a server, which knows who sends.
    pub fn is_http(&self) -> bool {
        matches!(self.log, Some(Destination::Http(_)))
    }

    fn kafka(&self, url: &KafkaUrl) -> Result<KafkaOptions, CommandError> {
        let mut options = KafkaOptions::new(url.clone());
        options.timeout = TIMEOUT;
        if let Some(file) = &self.kafka_config {
            options.read_properties(file)?;
        }
        self.properties.iter().try_for_each(|property| options.add_argument(property))?;
        Ok(options)
    }

    fn http(&self, url: &str) -> Result<HttpLogSink, String> {
        let token = self.token()?;
        if url.starts_with("http://") {
            if self.log_cert.is_some() {
                return Err(format!("{url} is without TLS, so --log-cert is never shown; write https://"));
            }
            return Ok(HttpLogSink::new(url, token.as_deref()));
        }
        let roots = self.log_ca.as_deref().map_or_else(|| Ok(Roots::of_system()), Roots::from_file)?;
        let files = self.log_cert.as_deref().zip(self.log_key.as_deref());
        let identity = files.map(|(certificate, key)| Identity::from_files(certificate, key)).transpose()?;
        Ok(HttpLogSink::over_tls(url, token.as_deref(), roots, identity))
    }

    fn token(&self) -> Result<Option<String>, String> {
        let Some(file) = &self.log_token_file else { return Ok(None) };
        let token =
            fs::read_to_string(file).map_err(|e| format!("read the token {}: {e}", file.display()))?;
        match token.trim() {
            "" => Err(format!("{} holds no token", file.display())),
            token => Ok(Some(token.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_recognised() {
        assert!(matches!("kafka://k:9092/gpu".parse(), Ok(Destination::Kafka(_))));
        assert!(matches!("http://h:8433/".parse(), Ok(Destination::Http(url)) if url == "http://h:8433"));
        assert!(matches!("some/folder".parse(), Ok(Destination::Folder(_))));
        for (wrong, what) in [
            ("kafka://k", "has no port"),
            ("http://me:secret@h", "--log-token-file"),
            ("http://", "no URL"),
            ("mqtt://h", "mqtt:// is not known"),
            ("", "or a folder"),
        ] {
            let error = wrong.parse::<Destination>().unwrap_err();
            assert!(error.contains(what), "{wrong}: {error}");
        }
    }
}
