//! Parses OpenSSH's `allowed_signers` file: `principals [options] keytype key [comment]`, see
//! ssh-keygen(1), ALLOWED SIGNERS.

use chrono::{DateTime, Local, NaiveDateTime, TimeZone, Utc};
use ssh_key::PublicKey;

use super::JOURNAL;

/// A line of the file: a person and a key.
#[derive(Debug, Clone)]
pub(super) struct Allowed {
    /// Names of the person.
    pub principals: Vec<String>,
    /// Their key.
    pub key: PublicKey,
    namespaces: Option<String>,
    after: Option<DateTime<Utc>>,
    before: Option<DateTime<Utc>>,
}

impl Allowed {
    /// Whether a namespace is listed by its full name.
    fn names(&self, namespace: &str) -> bool {
        self.namespaces.iter().flat_map(|names| names.split(',')).any(|name| name == namespace)
    }

    /// Checks that the key counts in `namespace` at `now`.
    ///
    /// # Errors
    /// It does not; the message says why.
    pub(super) fn may(&self, namespace: &str, now: DateTime<Utc>) -> Result<(), String> {
        let who = self.principals.join(",");
        if namespace == JOURNAL && !self.names(JOURNAL) {
            return Err(format!("{who} is not listed with namespaces=\"{JOURNAL}\""));
        }
        if let Some(patterns) = self.namespaces.as_ref().filter(|patterns| !among(patterns, namespace)) {
            return Err(format!("{who} may sign in {patterns} only, not in {namespace}"));
        }
        let day = |at: &DateTime<Utc>| at.format("%FT%TZ").to_string();
        if let Some(after) = self.after.filter(|after| now < *after) {
            return Err(format!("{who} may sign from {} on", day(&after)));
        }
        if let Some(before) = self.before.filter(|before| now > *before) {
            return Err(format!("{who} might sign until {}", day(&before)));
        }
        Ok(())
    }
}

/// Parses all lines that name people and their keys.
///
/// # Errors
/// A line cannot be used. An unknown option is an error: it restricts the key in a way that we
/// could not enforce.
pub(super) fn parse(text: &str) -> Result<Vec<Allowed>, String> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let kept = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    kept.map(|(number, line)| allowed(line).map_err(|why| format!("line {number}: {why}"))).collect()
}

fn allowed(line: &str) -> Result<Allowed, String> {
    let form = || "write `principal[,principal] [options] keytype key`".to_owned();
    let (principals, rest) = line.split_once(char::is_whitespace).ok_or_else(form)?;
    let principals: Vec<String> = principals.trim_matches('"').split(',').map(str::to_owned).collect();
    if principals.iter().any(|name| name.is_empty() || name.contains(['*', '?', '!'])) {
        return Err(format!(
            "{:?}: a pattern names nobody; list each person with their key, or two signatures could be one person's",
            principals.join(",")
        ));
    }
    let rest = rest.trim_start();
    let mut line = Allowed {
        principals,
        key: match PublicKey::from_openssh(rest) {
            Ok(key) => key,
            Err(_) => {
                let (_, key) = split_options(rest).ok_or_else(form)?;
                PublicKey::from_openssh(key).map_err(|e| format!("the key cannot be read: {e}"))?
            }
        },
        namespaces: None,
        after: None,
        before: None,
    };
    if PublicKey::from_openssh(rest).is_err() {
        let (options, _) = split_options(rest).ok_or_else(form)?;
        for option in split(options, ',') {
            line.take(option)?;
        }
    }
    Ok(line)
}

impl Allowed {
    fn take(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let value = value.trim_matches('"');
        match name.to_ascii_lowercase().as_str() {
            "namespaces" => self.namespaces = Some(value.to_owned()),
            "valid-after" => self.after = Some(time(value)?),
            "valid-before" => self.before = Some(time(value)?),
            "cert-authority" => {
                return Err("certificates are not read; list the people's own keys".to_owned());
            }
            _ => {
                return Err(format!(
                    "{name:?} is not an option; known are namespaces, valid-after, valid-before"
                ));
            }
        }
        Ok(())
    }
}

/// Options and the rest of the line; blanks within quotes belong to an option.
fn split_options(text: &str) -> Option<(&str, &str)> {
    let options = split(text, ' ').next()?;
    Some((options, text[options.len()..].trim_start()))
}

/// Splits at `by` outside of quotes.
fn split(text: &str, by: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"';
        !quoted && (c == by || (by == ' ' && c == '\t'))
    })
}

/// Parses `YYYYMMDD[HHMM[SS]][Z]`: local time, or UTC with Z.
fn time(text: &str) -> Result<DateTime<Utc>, String> {
    let wrong =
        || format!("{text:?} is not a time; write YYYYMMDD or YYYYMMDDHHMM[SS], with a Z after it for UTC");
    let (digits, utc) = text.strip_suffix('Z').map_or((text, false), |digits| (digits, true));
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let whole = match digits.len() {
        8 => format!("{digits}000000"),
        12 => format!("{digits}00"),
        14 => digits.to_owned(),
        _ => return Err(wrong()),
    };
    let at = NaiveDateTime::parse_from_str(&whole, "%Y%m%d%H%M%S").map_err(|_| wrong())?;
    match utc {
        true => Ok(at.and_utc()),
        // In an hour that the clocks repeat, the first one counts.
        false => Local.from_local_datetime(&at).earliest().map(|at| at.to_utc()).ok_or_else(wrong),
    }
}

/// Whether a list of patterns matches the name: `*` is any text, `?` any character; a match of a
/// pattern after `!` excludes it.
fn among(patterns: &str, name: &str) -> bool {
    let mut named = false;
    for pattern in patterns.split(',') {
        match pattern.strip_prefix('!') {
            Some(not) if fits(not.as_bytes(), name.as_bytes()) => return false,
            Some(_) => {}
            None => named |= fits(pattern.as_bytes(), name.as_bytes()),
        }
    }
    named
}

fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            fits(rest, name) || name.split_first().is_some_and(|(_, name)| fits(pattern, name))
        }
        (Some((b'?', pattern)), Some((_, name))) => fits(pattern, name),
        (Some((one, pattern)), Some((other, name))) => one == other && fits(pattern, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";

    fn one(line: &str) -> Result<Allowed, String> {
        Ok(parse(line)?.remove(0))
    }

    #[test]
    fn lines_are_read_as_openssh_writes_them() {
        let text = format!(
            "# people\n\nanna@a.org,anna {KEY} anna's laptop\nben namespaces=\"git,tidegate-*\",valid-before=\"20261231Z\" {KEY}\n"
        );
        let lines = parse(&text).unwrap();
        assert_eq!(lines[0].principals, ["anna@a.org", "anna"]);
        assert_eq!((lines.len(), lines[1].namespaces.as_deref()), (2, Some("git,tidegate-*")));
        assert_eq!(lines[1].before.unwrap().to_rfc3339(), "2026-12-31T00:00:00+00:00");
    }

    #[test]
    fn a_key_counts_in_its_namespaces_and_its_time() {
        let line =
            one(&format!("b namespaces=\"tidegate-*,!tidegate-policy\",valid-after=\"202601010000Z\",valid-before=\"20260201Z\" {KEY}"))
                .unwrap();
        let at = |text: &str| time(text).unwrap();
        assert!(line.may("tidegate-approve", at("20260115Z")).is_ok());
        assert!(line.may("tidegate-policy", at("20260115Z")).unwrap_err().contains("only"));
        assert!(line.may("git", at("20260115Z")).is_err());
        assert!(
            line.may("tidegate-approve", at("20251231235959Z")).unwrap_err().contains("2026-01-01T00:00:00Z")
        );
        assert!(line.may("tidegate-approve", at("20260201000001Z")).is_err());
    }

    #[test]
    fn what_cannot_be_kept_is_an_error_with_its_line() {
        for (line, said) in [
            ("anna", "line 1: write `principal"),
            ("*@a.org KEY", "names nobody"),
            ("a cert-authority KEY", "certificates"),
            ("a no-touch KEY", "is not an option"),
            ("a valid-after=\"1 May\" KEY", "is not a time"),
            ("a ssh-ed25519 AAAA", "the key cannot be read"),
        ] {
            let error = parse(&line.replace("KEY", KEY)).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
        assert!(time("20260230Z").is_err() && time("2026Z").is_err());
    }
}
