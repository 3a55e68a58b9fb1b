//! The kill switch, approvals and rejections: files in `autopilot/` of the data folder, outside the
//! data path.
//!
//! The switch is read anew before every change of the cluster. A switch that is missing,
//! unreadable, or says anything but `on` is off.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use tidegate_autopilot::action::ActionId;
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::intent::PersonRejection;

use crate::authority::SignedText;

const ON: &str = "on";
/// What a signature begins with.
const SIGNATURE: &str = "-----BEGIN";

/// Longest file that is read, bytes.
const MOST_BYTES: u64 = 64 << 10;
/// Most approvals, and most rejections, that are read at a time; the rest stays.
const MOST_FILES: usize = 1_000;
/// Folders of approvals and of rejections, with one file an action.
const APPROVED: &str = "approved";
const REJECTED: &str = "rejected";
/// Longest name of a person and longest reason that are kept, bytes.
const MOST_NAME_BYTES: usize = 256;
const MOST_WHY_BYTES: usize = 1_024;

/// An approval of an action by a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The action.
    pub action: ActionId,
    /// Login of the approver; without a signature it is only a claim.
    pub by: String,
    /// What the approver signed, if they did.
    pub signed: Option<SignedText>,
}

/// A rejection of an action by a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The action.
    pub action: ActionId,
    /// Who rejects it: a claim, as rejecting takes no signature.
    pub by: String,
    /// Why.
    pub why: Option<String>,
}

impl From<Rejection> for PersonRejection {
    fn from(Rejection { action, by, why }: Rejection) -> Self {
        Self { action, by, why }
    }
}

/// What the switch says, of whom, since when and why, as far as its text tells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SwitchText {
    /// Who switched.
    pub by: Option<String>,
    /// When.
    pub at: Option<DateTime<Utc>>,
    /// Why it was paused.
    pub why: Option<String>,
}

/// The folder with switch, approvals and rejections.
#[derive(Debug, Clone)]
pub struct ControlFolder {
    folder: PathBuf,
}

impl ControlFolder {
    /// The folder of a data folder.
    pub fn in_data(data: &Path) -> Self {
        Self { folder: data.join("autopilot") }
    }

    /// The folder itself.
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// Reads the switch.
    pub fn switch(&self) -> KillSwitch {
        match read(&self.file()) {
            Ok(text) if text.lines().next().map(str::trim) == Some(ON) => KillSwitch::On,
            Ok(_) => KillSwitch::Paused,
            Err(_) => KillSwitch::Unreadable,
        }
    }

    /// The switch's text, for people.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn describe(&self) -> io::Result<String> {
        match read(&self.file()) {
            Err(missing) if missing.kind() == ErrorKind::NotFound => Ok("never switched on".to_owned()),
            // The first two lines are for people; a signature may follow.
            read => read.map(|text| text.lines().take(2).collect::<Vec<_>>().join("\n").trim().to_owned()),
        }
    }

    /// Who switched, when and why.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn who_switched(&self) -> io::Result<SwitchText> {
        self.describe().map(|text| SwitchText::parse(&text))
    }

    /// What was signed with the switch, if anything.
    pub fn signed_switch(&self) -> Option<SignedText> {
        signed(read(&self.file()).ok()?.splitn(3, '\n').nth(2)?)
    }

    /// Replaces the switch's text, atomically; see [`Self::on`] and [`Self::paused`].
    ///
    /// # Errors
    /// The file cannot be written. To stop the autopilot then, stop its process.
    pub fn set(&self, text: &str) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let new = self.folder.join(format!("switch.{}", std::process::id()));
        fs::write(&new, format!("{text}\n"))?;
        fs::File::open(&new)?.sync_all()?;
        fs::rename(new, self.file())
    }

    /// Text of a switch that is on.
    pub fn on(by: &str, at: &str) -> String {
        format!("{ON}\nby {} at {at}", one_line(by, MOST_NAME_BYTES))
    }

    /// Text of a switch that is on by a signature.
    pub fn on_signed(by: &str, at: &str, signed: &SignedText) -> String {
        format!("{}\n{}{}", Self::on(by, at), signed.text, signed.signature)
    }

    /// Text of a switch that is off, with who paused it and why.
    pub fn paused(by: &str, at: &str, why: Option<&str>) -> String {
        let why = why.map_or_else(String::new, |why| format!(": {}", one_line(why, MOST_WHY_BYTES)));
        format!("paused by {} at {at}{why}", one_line(by, MOST_NAME_BYTES))
    }

    /// Writes an approval of an action by `by`, atomically, with what was signed if anything was.
    ///
    /// # Errors
    /// The file cannot be written, or the text is not an id of an action.
    pub fn approve(&self, action: &str, by: &str, signed: Option<&SignedText>) -> io::Result<()> {
        let signed = signed.map_or_else(String::new, |signed| format!("{}{}", signed.text, signed.signature));
        self.write(APPROVED, action, &format!("{}\n{signed}", one_line(by, MOST_NAME_BYTES)))
    }

    /// Writes a rejection of an action by `by`, atomically.
    ///
    /// # Errors
    /// The file cannot be written, or the text is not an id of an action.
    pub fn reject(&self, action: &str, by: &str, why: Option<&str>) -> io::Result<()> {
        let why = why.map_or_else(String::new, |why| one_line(why, MOST_WHY_BYTES));
        self.write(REJECTED, action, &format!("{}\n{why}\n", one_line(by, MOST_NAME_BYTES)))
    }

    /// Approvals that are not taken up yet, by action.
    pub fn approved(&self) -> Vec<Approval> {
        let approval = |(action, text): (ActionId, String)| {
            let (by, rest) = text.split_once('\n').unwrap_or((text.as_str(), ""));
            Approval { action, by: one_line(by, MOST_NAME_BYTES), signed: signed(rest) }
        };
        self.read_all(APPROVED).into_iter().map(approval).collect()
    }

    /// Rejections that are not taken up yet, by action.
    pub fn rejected(&self) -> Vec<Rejection> {
        let rejection = |(action, text): (ActionId, String)| {
            let mut lines = text.lines();
            let by = one_line(lines.next().unwrap_or_default(), MOST_NAME_BYTES);
            let why = lines.next().map(|why| one_line(why, MOST_WHY_BYTES)).filter(|why| !why.is_empty());
            Rejection { action, by, why }
        };
        self.read_all(REJECTED).into_iter().map(rejection).collect()
    }

    /// Removes approvals and rejections that are journaled now. One that stays is taken up again,
    /// which changes nothing.
    pub fn discard(&self, approved: &[Approval], rejected: &[Rejection]) {
        for Approval { action, .. } in approved {
            fs::remove_file(self.folder.join(APPROVED).join(action)).ok();
        }
        for Rejection { action, .. } in rejected {
            fs::remove_file(self.folder.join(REJECTED).join(action)).ok();
        }
    }

    fn write(&self, folder: &str, action: &str, text: &str) -> io::Result<()> {
        if !is_id(action) {
            let why = format!("{action:?} is not an id of an action");
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let folder = self.folder.join(folder);
        fs::create_dir_all(&folder)?;
        let new = folder.join(format!("{action}.{}", std::process::id()));
        fs::write(&new, text)?;
        fs::rename(new, folder.join(action))
    }

    /// The texts of a folder by action.
    fn read_all(&self, folder: &str) -> Vec<(ActionId, String)> {
        let Ok(files) = fs::read_dir(self.folder.join(folder)) else { return Vec::new() };
        let text = |file: io::Result<fs::DirEntry>| {
            let file = file.ok()?;
            let action = file.file_name().into_string().ok().filter(|name| is_id(name))?;
            Some((action, read(&file.path()).ok()?))
        };
        let mut texts: Vec<(ActionId, String)> = files.take(MOST_FILES).filter_map(text).collect();
        texts.sort();
        texts
    }

    fn file(&self) -> PathBuf {
        self.folder.join("switch")
    }
}

/// The text of a file of at most [`MOST_BYTES`].
fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(file)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// A text and the signature behind it; `None` without a signature.
fn signed(text: &str) -> Option<SignedText> {
    let (text, signature) = text.split_at(text.find(SIGNATURE)?);
    Some(SignedText { text: text.to_owned(), signature: signature.trim().to_owned() })
}

impl SwitchText {
    /// Reads what [`ControlFolder::on`] and [`ControlFolder::paused`] write; of any other text
    /// nothing is known.
    fn parse(text: &str) -> Self {
        let (who, rest) = match text.strip_prefix(ON) {
            Some(rest) => (rest.strip_prefix("\nby "), ""),
            None => (text.strip_prefix("paused by "), ": "),
        };
        let Some(who) = who else { return Self::default() };
        // A name may hold " at " too, but no time follows there.
        let mut times = who.match_indices(" at ").filter_map(|(at, between)| {
            let after = &who[at + between.len()..];
            let (time, why) = after.split_once(rest).filter(|_| !rest.is_empty()).unwrap_or((after, ""));
            let time = DateTime::parse_from_rfc3339(time).ok()?.to_utc();
            Some((who[..at].to_owned(), time, Some(why.to_owned()).filter(|why| !why.is_empty())))
        });
        let Some((by, at, why)) = times.next() else { return Self::default() };
        Self { by: Some(by), at: Some(at), why }
    }
}

/// Whether a text may be an action's id, and so the name of a file.
fn is_id(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !name.is_empty() && name.len() <= 100 && name.chars().all(plain)
}

/// A text as one line of at most so many bytes.
fn one_line(text: &str, most_bytes: usize) -> String {
    let text = text[..text.floor_char_boundary(most_bytes)].trim();
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_plainly_on_is_off() {
        let folder = tempfile::tempdir().unwrap();
        let control = ControlFolder::in_data(folder.path());
        assert_eq!(control.switch(), KillSwitch::Unreadable);
        assert_eq!(control.describe().unwrap(), "never switched on");
        control.set(&ControlFolder::on("anna", "now")).unwrap();
        assert_eq!(control.switch(), KillSwitch::On);
        control.set(&ControlFolder::paused("anna", "now", Some("on call"))).unwrap();
        assert_eq!(control.switch(), KillSwitch::Paused);
        assert_eq!(control.describe().unwrap(), "paused by anna at now: on call");
        assert_eq!(control.signed_switch(), None);
        let text = SignedText { text: "tidegate switch\n".to_owned(), signature: "-----BEGIN\nA".to_owned() };
        control.set(&ControlFolder::on_signed("anna", "now", &text)).unwrap();
        assert_eq!((control.switch(), control.signed_switch()), (KillSwitch::On, Some(text)));
        assert_eq!(control.describe().unwrap(), "on\nby anna at now");
        fs::write(folder.path().join("autopilot/switch"), "one").unwrap();
        assert_eq!(control.switch(), KillSwitch::Paused);
        fs::remove_file(folder.path().join("autopilot/switch")).unwrap();
        fs::create_dir(folder.path().join("autopilot/switch")).unwrap();
        assert_eq!(control.switch(), KillSwitch::Unreadable);
    }

    #[test]
    fn approvals_are_taken_up_once() {
        let folder = tempfile::tempdir().unwrap();
        let control = ControlFolder::in_data(folder.path());
        assert!(control.approved().is_empty());
        let of = |action: &str, by: &str, signed: Option<SignedText>| Approval {
            action: action.to_owned(),
            by: by.to_owned(),
            signed,
        };
        let text = SignedText {
            text: "tidegate approve\naction lend-2\n".to_owned(),
            signature: "-----BEGIN\nAAAA".to_owned(),
        };
        control.approve("lend-1b491e8c244329c8", "anna", None).unwrap();
        control.approve("lend-2", "ben", Some(&text)).unwrap();
        assert!(control.approve("../switch", "anna", None).is_err());
        let approved = control.approved();
        let signed = of("lend-2", "ben", Some(text));
        assert_eq!(approved, [of("lend-1b491e8c244329c8", "anna", None), signed]);
        control.discard(&approved, &[]);
        assert!(control.approved().is_empty());
    }

    #[test]
    fn rejections_stand_beside_approvals_and_are_taken_up_once() {
        let folder = tempfile::tempdir().unwrap();
        let control = ControlFolder::in_data(folder.path());
        assert!(control.rejected().is_empty());
        control.approve("lend-2", "ben", None).unwrap();
        control.reject("lend-2", "anna", Some("the vendor\ncomes\u{1b}[2J at noon")).unwrap();
        control.reject("lend-1", "carl", None).unwrap();
        let wrong = ["../switch", "", "a b", "lend.1", &"x".repeat(101)];
        assert!(wrong.iter().all(|wrong| control.reject(wrong, "anna", None).is_err()));
        let of = |action: &str, by: &str, why: Option<&str>| Rejection {
            action: action.to_owned(),
            by: by.to_owned(),
            why: why.map(str::to_owned),
        };
        let rejected = control.rejected();
        let why = Some("the vendor comes [2J at noon");
        assert_eq!(rejected, [of("lend-1", "carl", None), of("lend-2", "anna", why)]);
        control.discard(&[], &rejected);
        assert!(control.rejected().is_empty() && control.approved().len() == 1);
        // A file by somebody else is bounded when it is read.
        let file = folder.path().join("autopilot/rejected/lend-3");
        fs::write(file, format!("{}\n{}\n", "n".repeat(9_000), "w".repeat(40_000))).unwrap();
        let read = &control.rejected()[0];
        assert_eq!((read.by.len(), read.why.as_ref().unwrap().len()), (MOST_NAME_BYTES, MOST_WHY_BYTES));
    }

    #[test]
    fn who_switched_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let control = ControlFolder::in_data(folder.path());
        assert_eq!(control.who_switched().unwrap(), SwitchText::default());
        let at = "2026-11-26T18:00:00Z";
        let of = |by: &str, why: Option<&str>| SwitchText {
            by: Some(by.to_owned()),
            at: Some(at.parse().unwrap()),
            why: why.map(str::to_owned),
        };
        control.set(&ControlFolder::on("anna over HTTP", at)).unwrap();
        assert_eq!(control.who_switched().unwrap(), of("anna over HTTP", None));
        control.set(&ControlFolder::paused("ann at home", at, None)).unwrap();
        assert_eq!(control.who_switched().unwrap(), of("ann at home", None));
        control.set(&ControlFolder::paused("ben", at, Some("rack 7: it is hot at noon\non"))).unwrap();
        assert_eq!(control.who_switched().unwrap(), of("ben", Some("rack 7: it is hot at noon on")));
        assert_eq!(control.switch(), KillSwitch::Paused);
        fs::write(folder.path().join("autopilot/switch"), "off\n").unwrap();
        assert_eq!(control.who_switched().unwrap(), SwitchText::default());
    }
}
