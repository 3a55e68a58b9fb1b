//! The token file: principals with hashes of their tokens and names of their certificates, as TOML.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::value::Datetime;

use super::certificate::CertificateName;
use super::permission::Role;
use super::principal::{Bounds, Principal};
use super::token::TokenHash;

/// Longest token file, bytes: some 50,000 principals.
const MAX_BYTES: u64 = 16 << 20;
/// Longest name of a principal, cluster, node or team, bytes.
const MAX_NAME_BYTES: usize = 128;

/// The principals of a file, by what they show.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub tokens: HashMap<TokenHash, Arc<Holder>>,
    pub certificates: HashMap<CertificateName, Arc<Holder>>,
}

/// A principal, and the end of its entry in seconds since the epoch.
#[derive(Debug)]
pub(super) struct Holder {
    pub principal: Principal,
    pub expires: Option<i64>,
}

/// One principal, as the file has it. It is known by a token, a certificate, or either.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name of the principal, unique in the file.
    pub id: String,
    /// What it is to the site.
    pub role: Role,
    /// Hash of its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<TokenHash>,
    /// Name of its certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateName>,
    /// When both end, RFC 3339 in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Datetime>,
    /// Of an agent or watcher: its cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Of an agent: its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Of a viewer: the teams whose rows it sees; all if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teams: Vec<String>,
}

/// The file's content.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenFile {
    /// The principals, oldest first.
    #[serde(default, rename = "token")]
    pub tokens: Vec<Entry>,
}

/// A token file cannot be read, or says what cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the token file {}: {what}", file.display())]
pub struct TokenFileError {
    file: PathBuf,
    what: String,
}

impl TokenFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`TokenFileError`] if it cannot be read, or an entry is not whole.
    pub fn read(file: &Path) -> Result<Self, TokenFileError> {
        Self::load(file).map(|(read, _)| read)
    }

    /// A file and its principals.
    pub(super) fn load(file: &Path) -> Result<(Self, Holders), TokenFileError> {
        let failed = |what: String| TokenFileError { file: file.to_owned(), what };
        let mut text = String::new();
        let opened = File::open(file).map_err(|e| failed(e.to_string()))?;
        opened.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|e| failed(e.to_string()))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(failed(format!("it is longer than {MAX_BYTES} bytes")));
        }
        Self::parse(&text).map_err(failed)
    }

    fn parse(text: &str) -> Result<(Self, Holders), String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Placed {
            #[serde(default, rename = "token")]
            tokens: Vec<Spanned<Entry>>,
        }
        let placed: Placed = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut lines = LineNumbers::of(text);
        let lines: Vec<usize> = placed.tokens.iter().map(|entry| lines.at(entry.span().start)).collect();
        let read = Self { tokens: placed.tokens.into_iter().map(Spanned::into_inner).collect() };
        let known = read.holders(&lines)?;
        Ok((read, known))
    }

    /// Changes a file, or makes it. Two processes that do so take turns; a reader sees the old file
    /// or the new one, whole. It is for its user alone.
    ///
    /// # Errors
    /// [`TokenFileError`] if the file cannot be read or written, `change` fails, or an entry of the
    /// new file is not whole.
    pub fn change(
        file: &Path,
        change: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), TokenFileError> {
        let failed = |what: String| TokenFileError { file: file.to_owned(), what };
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
        let _lock = folder.map_err(|e| failed(format!("its folder cannot be locked: {e}")))?;
        let mut read = if file.exists() { Self::read(file)? } else { Self::default() };
        change(&mut read).map_err(failed)?;
        read.write(file)
    }

    fn write(&self, file: &Path) -> Result<(), TokenFileError> {
        let failed = |what: String| TokenFileError { file: file.to_owned(), what };
        self.holders(&[]).map_err(failed)?;
        let text = toml::to_string(self).map_err(|e| failed(e.to_string()))?;
        let aside = file.with_extension("new");
        let write = || {
            let mut out =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
            out.write_all(HEADER.as_bytes())?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            std::fs::rename(&aside, file)
        };
        write().map_err(|e: std::io::Error| failed(format!("it cannot be written: {e}")))
    }

    /// The principals. `lines` has the line of each entry, where the entries come from a text.
    fn holders(&self, lines: &[usize]) -> Result<Holders, String> {
        let named = |at: usize| match lines.get(at) {
            Some(line) => format!("token {:?} (line {line})", self.tokens[at].id),
            None => format!("token {:?}", self.tokens[at].id),
        };
        let (mut ids, mut hashes, mut certificates) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut found = Holders::default();
        for (at, entry) in self.tokens.iter().enumerate() {
            let of = |what: String| format!("{}: {what}", named(at));
            let twice = |before: usize, what: &str| {
                of(format!("its {what} is also that of {}; each needs its own", named(before)))
            };
            name("id", &entry.id).map_err(of)?;
            if let Some(before) = ids.insert(&entry.id, at) {
                return Err(twice(before, "id"));
            }
            let expires = entry.expires.as_ref().map(seconds).transpose().map_err(of)?;
            let bounds = entry.bounds().map_err(of)?;
            let principal = Principal { id: entry.id.as_str().into(), role: entry.role, bounds };
            let holder = Arc::new(Holder { principal, expires });
            if entry.sha256.is_none() && entry.certificate.is_none() {
                return Err(of("it has neither sha256 nor certificate, so nobody can be it".into()));
            }
            if let Some(hash) = entry.sha256 {
                if let Some(before) = hashes.insert(hash, at) {
                    return Err(twice(before, "hash"));
                }
                found.tokens.insert(hash, Arc::clone(&holder));
            }
            if let Some(certificate) = &entry.certificate {
                if let Some(before) = certificates.insert(certificate, at) {
                    return Err(twice(before, &format!("certificate name {certificate}")));
                }
                found.certificates.insert(certificate.clone(), holder);
            }
        }
        Ok(found)
    }
}

/// Finds the lines of places in a text, which are asked for in order.
struct LineNumbers<'a> {
    text: &'a [u8],
    passed: usize,
    line: usize,
}

impl<'a> LineNumbers<'a> {
    fn of(text: &'a str) -> Self {
        Self { text: text.as_bytes(), passed: 0, line: 1 }
    }

    fn at(&mut self, place: usize) -> usize {
        let between = self.text.get(self.passed..place).unwrap_or_default();
        self.line += between.iter().filter(|byte| **byte == b'\n').count();
        self.passed = self.passed.max(place);
        self.line
    }
}

const HEADER: &str =
    "# Who may reach this Tidegate; `tidegate token` writes it. Tokens themselves are not here.\n\n";

impl Entry {
    /// What the principal is bound to. An entry says exactly what its role needs.
    fn bounds(&self) -> Result<Bounds, String> {
        let role = self.role;
        let (cluster, nodes, teams) = match role {
            Role::Agent => (true, true, false),
            Role::Watcher => (true, false, false),
            Role::Viewer => (false, false, !self.teams.is_empty()),
            _ => (false, false, false),
        };
        for (key, is_there, fits) in [
            ("cluster", self.cluster.is_some(), cluster),
            ("nodes", !self.nodes.is_empty(), nodes),
            ("teams", !self.teams.is_empty(), teams),
        ] {
            match (is_there, fits) {
                (true, false) => return Err(format!("{key} does not fit the role {role}; leave it out")),
                (false, true) => return Err(format!("the role {role} needs {key}")),
                _ => {}
            }
        }
        self.cluster.iter().try_for_each(|cluster| name("cluster", cluster))?;
        self.nodes.iter().try_for_each(|node| name("node", node))?;
        self.teams.iter().try_for_each(|team| name("team", team))?;
        Ok(match (role, &self.cluster) {
            (Role::Agent, Some(cluster)) => {
                Bounds::Nodes { cluster: cluster.clone(), nodes: self.nodes.clone() }
            }
            (Role::Watcher, Some(cluster)) => Bounds::Cluster(cluster.clone()),
            _ if teams => Bounds::Teams(self.teams.clone().into()),
            _ => Bounds::Whole,
        })
    }
}

/// Names are compared with parts of `agent/NODE@CLUSTER`, so they must not look like one.
fn name(what: &str, text: &str) -> Result<(), String> {
    let fits = |letter: char| !letter.is_control() && (what == "team" || !matches!(letter, '/' | '@'));
    match !text.is_empty() && text.len() <= MAX_NAME_BYTES && text.chars().all(fits) {
        true => Ok(()),
        false => Err(format!(
            "{what} {text:?} is empty, longer than {MAX_NAME_BYTES} bytes, or has `/`, `@` or control characters"
        )),
    }
}

/// Seconds since the epoch of a time in UTC.
fn seconds(time: &Datetime) -> Result<i64, String> {
    let parsed = chrono::DateTime::parse_from_rfc3339(&time.to_string());
    let parsed = parsed.map_err(|_| format!("expires = {time} is no moment; write 2027-01-01T00:00:00Z"))?;
    Ok(parsed.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(more: &str) -> String {
        format!("[[token]]\nid = \"a\"\nsha256 = \"{}\"\n{more}", "0f".repeat(32))
    }

    #[test]
    fn an_entry_says_exactly_what_its_role_needs() {
        let read = |text: &str| -> Result<Option<Bounds>, String> {
            let (_, found) = TokenFile::parse(text)?;
            Ok(found.tokens.into_values().next().map(|holder| holder.principal.bounds.clone()))
        };
        let nodes = Bounds::Nodes { cluster: "c".into(), nodes: vec!["n1".into()] };
        assert_eq!(read(&entry("role = \"agent\"\ncluster = \"c\"\nnodes = [\"n1\"]")), Ok(Some(nodes)));
        assert_eq!(read(&entry("role = \"viewer\"")), Ok(Some(Bounds::Whole)));
        for (wrong, word) in [
            ("role = \"agent\"\ncluster = \"c\"", "needs nodes"),
            ("role = \"agent\"\nnodes = [\"n\"]", "needs cluster"),
            ("role = \"operator\"\nteams = [\"t\"]", "teams does not fit"),
            ("role = \"watcher\"\ncluster = \"a/b\"", "cluster \"a/b\""),
            ("role = \"local\"", "unknown variant"),
            ("role = \"viewer\"\nexpires = 2027-01-01", "is no moment"),
            ("role = \"viewer\"\nteam = \"t\"", "unknown field"),
        ] {
            let refused = read(&entry(wrong)).unwrap_err();
            assert!(refused.contains(word), "{wrong}: {refused}");
        }
        let short = entry("role = \"viewer\"").replace("0f0f", "0f");
        assert!(read(&short).unwrap_err().contains("64 hexadecimal"));
    }

    #[test]
    fn what_two_entries_share_is_named_with_both_lines() {
        let entry = |id: &str, hash: &str, name: &str| {
            let hash = hash.repeat(32);
            format!(
                "[[token]]\nid = \"{id}\"\nrole = \"viewer\"\nsha256 = \"{hash}\"\ncertificate = \"{name}\"\n\n"
            )
        };
        let one = entry("a", "0f", "email:ann@example.org");
        for (other, what) in [
            (entry("a", "0e", "cn:b"), "its id is"),
            (entry("b", "0f", "cn:b"), "its hash is"),
            (entry("b", "0e", "email:ann@example.org"), "its certificate name email:ann@example.org is"),
        ] {
            let refused = TokenFile::parse(&format!("# Who\n\n{one}{other}")).unwrap_err();
            assert!(refused.contains("(line 3)") && refused.contains("(line 9)"), "{refused}");
            assert!(refused.contains(what), "{refused}");
        }
        let kinds = one.clone() + &entry("b", "0e", "cn:ann@example.org");
        assert_eq!(TokenFile::parse(&kinds).unwrap().1.certificates.len(), 2, "kinds are apart");
        let nobody = TokenFile::parse("[[token]]\nid = \"a\"\nrole = \"viewer\"").unwrap_err();
        assert!(nobody.contains("neither sha256 nor certificate"), "{nobody}");
    }

    #[test]
    fn certificate_names_say_their_kind_and_stand_for_one() {
        for name in ["email:ann@example.org", "uri:spiffe://site/ann", "dns:ann.example", "cn:Änn O'Hara"] {
            assert_eq!(name.parse::<CertificateName>().map(|read| read.to_string()), Ok(name.to_owned()));
        }
        for (name, what) in [
            ("ann@example.org", "says no kind"),
            ("EMAIL:ann@example.org", "says no kind"),
            ("spiffe://site/ann", "says no kind"),
            ("email:", "is empty"),
            ("cn: Ann", "a space"),
            ("email:änn@example.org", "not ASCII"),
            ("cn:Ann\u{1b}[2J", "control characters"),
            ("cn:Ann\u{202e}", "control characters"),
            ("dns:*.example", "has a *"),
            (&format!("cn:{}", "a".repeat(600)), "longer than 512"),
        ] {
            let refused = name.parse::<CertificateName>().unwrap_err();
            assert!(refused.contains(what), "{name}: {refused}");
        }
    }

    #[test]
    fn what_is_written_is_read_for_its_user_alone() {
        use std::os::unix::fs::PermissionsExt;

        let folder = std::env::temp_dir().join(format!("tidegate-tokens-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("tokens.toml");
        let whole: TokenFile =
            toml::from_str(&entry("role = \"viewer\"\nexpires = 2027-01-01T00:00:00Z")).unwrap();
        whole.write(&file).unwrap();
        assert_eq!(TokenFile::read(&file).unwrap(), whole);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
