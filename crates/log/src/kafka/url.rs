use std::fmt;
use std::str::FromStr;

use crate::LogError;

/// Longest prefix: with a dot and the longest name of a topic it stays within Kafka's 249
/// characters.
const MAX_PREFIX_BYTES: usize = 48;
const DEFAULT_PREFIX: &str = "tidegate";

/// Where a log on Kafka is: `kafka://HOST:PORT[,HOST:PORT...][/PREFIX]`.
///
/// Topics, consumer groups and transactional ids of the log all begin with the prefix and a dot, so
/// that one cluster holds several logs and one prefixed ACL covers a log.
///
/// ```
/// let url: tidegate_log::KafkaUrl = "kafka://kafka-0:9092,kafka-1:9092/gpu".parse()?;
/// assert_eq!((url.servers(), url.prefix()), ("kafka-0:9092,kafka-1:9092", "gpu"));
/// # Ok::<(), tidegate_log::LogError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaUrl {
    servers: String,
    prefix: String,
}

impl KafkaUrl {
    /// Addresses to begin with, as librdkafka's `bootstrap.servers` has them.
    pub fn servers(&self) -> &str {
        &self.servers
    }

    /// Prefix of the names of all topics, groups and transactional ids of this log.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl fmt::Display for KafkaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kafka://{}/{}", self.servers, self.prefix)
    }
}

impl FromStr for KafkaUrl {
    type Err = LogError;

    fn from_str(url: &str) -> Result<Self, LogError> {
        let refuse = |what: String| LogError::InvalidKafkaUrl { url: url.into(), what };
        let rest =
            url.strip_prefix("kafka://").ok_or_else(|| refuse("it does not begin with kafka://".into()))?;
        let (servers, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        for server in servers.split(',') {
            check_server(server).map_err(|what| refuse(format!("{server:?} {what}")))?;
        }
        let prefix = if prefix.is_empty() { DEFAULT_PREFIX } else { prefix };
        check_prefix(prefix).map_err(|what| refuse(format!("the prefix {prefix:?} {what}")))?;
        Ok(Self { servers: servers.into(), prefix: prefix.into() })
    }
}

fn check_server(server: &str) -> Result<(), &'static str> {
    if server.contains('@') {
        return Err("holds a user name; give it as the properties sasl.username and sasl.password");
    }
    let (host, port) = server.rsplit_once(':').ok_or("has no port")?;
    if host.is_empty() || (host.contains(':') && !(host.starts_with('[') && host.ends_with(']'))) {
        return Err("has no host name or address before its port (an IPv6 address stands in brackets)");
    }
    if host.contains(|c: char| c.is_whitespace() || "/?#".contains(c)) {
        return Err("is no host name");
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err("has no port from 1 to 65535"),
    }
}

fn check_prefix(prefix: &str) -> Result<(), &'static str> {
    if prefix.len() > MAX_PREFIX_BYTES {
        return Err("is longer than 48 bytes");
    }
    match prefix.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c)) {
        true => Ok(()),
        false => Err("holds other characters than a-z, A-Z, 0-9, '.', '-' and '_'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes_are_told_apart() {
        for (text, servers, prefix) in [
            ("kafka://k:9092", "k:9092", "tidegate"),
            ("kafka://k:9092/", "k:9092", "tidegate"),
            ("kafka://a:1,b:2,[::1]:3/site.a", "a:1,b:2,[::1]:3", "site.a"),
        ] {
            let url: KafkaUrl = text.parse().unwrap();
            assert_eq!((url.servers(), url.prefix()), (servers, prefix));
            assert_eq!(url.to_string().parse::<KafkaUrl>().unwrap(), url);
        }
    }

    #[test]
    fn a_wrong_address_says_what_is_wrong_with_it() {
        for (text, what) in [
            ("k:9092", "does not begin with kafka://"),
            ("kafka://", "\"\" has no port"),
            ("kafka://k", "\"k\" has no port"),
            ("kafka://k:0", "no port from 1 to 65535"),
            ("kafka://a:1,:2", "\":2\" has no host"),
            ("kafka://::1:9092", "in brackets"),
            ("kafka://me:secret@k:9092", "sasl.username"),
            ("kafka://k:9092/a/b", "\"a/b\" holds other characters"),
            ("kafka://k:9092/0123456789012345678901234567890123456789012345678", "longer than 48"),
        ] {
            let refused = text.parse::<KafkaUrl>().unwrap_err().to_string();
            assert!(refused.contains(what), "{refused}");
        }
    }
}
