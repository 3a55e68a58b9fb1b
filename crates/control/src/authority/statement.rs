//! Texts that people and autopilots sign: a few lines `name value`, in a fixed order.
//!
//! Each names its cluster, what it is about, its place in a sequence, what it follows on, and when
//! it ends, so that a signature given once is none for another cluster, another time or another
//! predecessor.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use ssh_key::sha2::{Digest, Sha256};

/// Longest signed text, bytes.
pub(crate) const MOST_BYTES: u64 = 4096;
/// Longest time from a statement to its end.
const LONGEST: TimeDelta = TimeDelta::days(366);
/// How far the clocks of two machines may be apart.
const CLOCKS: TimeDelta = TimeDelta::minutes(5);

/// `sha256:` and the hash of the bytes in hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    digits.fold("sha256:".to_owned(), |text, digits| text + &digits)
}

/// As what a policy may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActsAs {
    /// For the whole cluster.
    Policy,
    /// For the owners that the acting policy names.
    Canary,
}

impl ActsAs {
    fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Canary => "canary",
        }
    }
}

/// What people sign to let a policy act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyStatement {
    /// The cluster on which it may act.
    pub cluster: String,
    /// As what.
    pub acts_as: ActsAs,
    /// Number among the cluster's policies, from 1.
    pub sequence: u64,
    /// [`hash`] of the statement before it; `None` for the first.
    pub after: Option<String>,
    /// When it can no longer be adopted.
    pub expires: DateTime<Utc>,
    /// [`hash`] of the policy file.
    pub policy: String,
}

impl PolicyStatement {
    /// The text to sign.
    pub fn text(&self) -> String {
        let Self { cluster, acts_as, sequence, after, expires, policy } = self;
        let after = after.as_deref().unwrap_or("none");
        format!(
            "tidegate policy\ncluster {cluster}\nacts-as {}\nsequence {sequence}\nafter {after}\nexpires {}\npolicy {policy}\n",
            acts_as.name(),
            time(*expires)
        )
    }

    /// Parses such a text.
    ///
    /// # Errors
    /// It is not one; the message names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Lines::of(text, "tidegate policy")?;
        let parsed = Self {
            cluster: lines.value("cluster")?.to_owned(),
            acts_as: match lines.value("acts-as")? {
                "policy" => ActsAs::Policy,
                "canary" => ActsAs::Canary,
                other => return Err(format!("acts-as {other}: write policy or canary")),
            },
            sequence: lines.number("sequence")?,
            after: Some(lines.value("after")?.to_owned()).filter(|after| after != "none"),
            expires: lines.time("expires")?,
            policy: lines.value("policy")?.to_owned(),
        };
        lines.end(&parsed.text())?;
        Ok(parsed)
    }

    /// Whether it can still be adopted.
    ///
    /// # Errors
    /// It ended, or would hold for too long.
    pub fn check_expiry(&self, now: DateTime<Utc>) -> Result<(), String> {
        let at = time(self.expires);
        if self.expires <= now {
            return Err(format!("it expired at {at}; sign a new one"));
        }
        if self.expires - now > LONGEST {
            return Err(format!("it expires at {at}; write a time within {} days", LONGEST.num_days()));
        }
        Ok(())
    }
}

/// What a person signs to approve an action, or the restart of a canary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalStatement {
    /// The cluster.
    pub cluster: String,
    /// The action, or the canary.
    pub action: String,
    /// The plan that decided it, a hash of all that it was made from; or the canary's beginning.
    pub plan: String,
    /// When it was given, µs since 1970: its number among approvals.
    pub given_us: i64,
    /// When it ends, µs since 1970.
    pub expires_us: i64,
}

impl ApprovalStatement {
    /// How long an approval is taken up.
    pub const LASTS: TimeDelta = TimeDelta::days(1);

    /// An approval that is given now.
    pub fn given(cluster: &str, action: &str, plan: &str, now: DateTime<Utc>) -> Self {
        Self {
            cluster: cluster.to_owned(),
            action: action.to_owned(),
            plan: plan.to_owned(),
            given_us: now.timestamp_micros(),
            expires_us: (now + Self::LASTS).timestamp_micros(),
        }
    }

    /// The text to sign.
    pub fn text(&self) -> String {
        let Self { cluster, action, plan, given_us, expires_us } = self;
        format!(
            "tidegate approve\ncluster {cluster}\naction {action}\nplan {plan}\nsequence {given_us}\nexpires-us {expires_us}\n"
        )
    }

    /// Parses such a text.
    ///
    /// # Errors
    /// It is not one; the message names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Lines::of(text, "tidegate approve")?;
        let parsed = Self {
            cluster: lines.value("cluster")?.to_owned(),
            action: lines.value("action")?.to_owned(),
            plan: lines.value("plan")?.to_owned(),
            given_us: lines.number("sequence")?,
            expires_us: lines.number("expires-us")?,
        };
        lines.end(&parsed.text())?;
        Ok(parsed)
    }

    /// Whether it counts at a time.
    ///
    /// # Errors
    /// It is from the future, has ended, or would hold for too long.
    pub fn check_time(&self, at_us: i64) -> Result<(), String> {
        let micros = |delta: TimeDelta| delta.num_microseconds().unwrap_or(i64::MAX);
        if self.given_us > at_us.saturating_add(micros(CLOCKS)) {
            return Err("it was given later than now; set the clocks".to_owned());
        }
        if self.expires_us < at_us {
            return Err("it has expired; approve again".to_owned());
        }
        if self.expires_us.saturating_sub(self.given_us) > micros(Self::LASTS) {
            return Err(format!("it holds for more than {} h; approve again", Self::LASTS.num_hours()));
        }
        Ok(())
    }
}

/// What a person signs to switch the autopilot on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchStatement {
    /// The cluster.
    pub cluster: String,
    /// When it was given, µs since 1970: its number among switches.
    pub given_us: i64,
}

impl SwitchStatement {
    /// A switch that is given now.
    pub fn given(cluster: &str, now: DateTime<Utc>) -> Self {
        Self { cluster: cluster.to_owned(), given_us: now.timestamp_micros() }
    }

    /// The text to sign.
    pub fn text(&self) -> String {
        let Self { cluster, given_us } = self;
        format!("tidegate switch\ncluster {cluster}\nswitch on\nsequence {given_us}\n")
    }

    /// Parses such a text.
    ///
    /// # Errors
    /// It is not one; the message names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Lines::of(text, "tidegate switch")?;
        let cluster = lines.value("cluster")?.to_owned();
        lines.value("switch")?;
        let parsed = Self { cluster, given_us: lines.number("sequence")? };
        lines.end(&parsed.text())?;
        Ok(parsed)
    }
}

/// A time as statements spell it.
pub(crate) fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The lines of a statement, read in their order.
struct Lines<'a> {
    text: &'a str,
    lines: std::str::Lines<'a>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str, title: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        match lines.next() {
            Some(first) if first == title && text.len() as u64 <= MOST_BYTES => Ok(Self { text, lines }),
            _ => Err(format!("its first line is not {title:?}")),
        }
    }

    fn value(&mut self, name: &str) -> Result<&'a str, String> {
        let value = self.lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.ok_or_else(|| format!("the line `{name} ...` is missing or not in its place"))
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<T, String> {
        let value = self.value(name)?;
        value.parse().map_err(|_| format!("{name} {value:?} is not a number"))
    }

    fn time(&mut self, name: &str) -> Result<DateTime<Utc>, String> {
        let value = self.value(name)?;
        let at = DateTime::parse_from_rfc3339(value);
        at.map(|at| at.to_utc())
            .map_err(|_| format!("{name} {value:?} is not a time such as 2027-01-31T00:00:00Z"))
    }

    /// Whether the text is exactly what its values make.
    fn end(self, same: &str) -> Result<(), String> {
        match self.text == same {
            true => Ok(()),
            false => Err(format!("it is not written as {same:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn policy() -> PolicyStatement {
        PolicyStatement {
            cluster: "prod".to_owned(),
            acts_as: ActsAs::Policy,
            sequence: 7,
            after: Some(hash(b"before")),
            expires: at("2026-12-31T00:00:00Z"),
            policy: hash(b"name = \"site\"\n"),
        }
    }

    #[test]
    fn hashes_are_those_of_sha256sum() {
        assert_eq!(hash(b""), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn a_statement_is_read_as_it_is_written_and_no_other_text_is_one() {
        let canary = PolicyStatement { acts_as: ActsAs::Canary, after: None, ..policy() };
        for statement in [policy(), canary] {
            assert_eq!(PolicyStatement::parse(&statement.text()), Ok(statement));
        }
        let approval = ApprovalStatement::given("prod", "lend-1", "0123", at("2026-11-26T00:00:00Z"));
        assert_eq!(ApprovalStatement::parse(&approval.text()), Ok(approval.clone()));
        let switch = SwitchStatement { cluster: "prod".to_owned(), given_us: 9 };
        assert_eq!(SwitchStatement::parse(&switch.text()), Ok(switch.clone()));
        let text = policy().text();
        for wrong in [
            text.replace("sequence 7", "sequence 07"),
            text.replace("sequence 7", "sequence -7"),
            text.replace("acts-as policy", "acts-as boss"),
            text.replace("cluster prod\n", ""),
            text.replace("expires ", "expires  "),
            text.clone() + "more\n",
            text.trim_end().to_owned(),
            approval.text(),
            switch.text().replace("switch on", "switch off"),
            "x".repeat(5000),
        ] {
            assert!(PolicyStatement::parse(&wrong).is_err(), "{wrong}");
        }
        assert!(SwitchStatement::parse(&switch.text().replace("switch on", "switch off")).is_err());
    }

    #[test]
    fn statements_end() {
        let until = |now: &str| policy().check_expiry(at(now));
        assert!(until("2026-12-30T23:59:59Z").is_ok());
        assert!(until("2026-12-31T00:00:00Z").unwrap_err().contains("expired"));
        assert!(until("2025-12-01T00:00:00Z").unwrap_err().contains("within 366 days"));
        let given = at("2026-11-26T00:00:00Z");
        let approval = ApprovalStatement::given("prod", "lend-1", "0123", given);
        let when = |approval: &ApprovalStatement, hours: i64| {
            approval.check_time((given + TimeDelta::hours(hours)).timestamp_micros())
        };
        assert!(when(&approval, 0).is_ok() && when(&approval, 24).is_ok());
        assert!(when(&approval, 25).unwrap_err().contains("expired"));
        assert!(when(&approval, -1).unwrap_err().contains("later than now"));
        let long = ApprovalStatement { expires_us: i64::MAX, ..approval };
        assert!(when(&long, 0).unwrap_err().contains("more than 24 h"));
    }
}
