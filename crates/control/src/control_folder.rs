//! The kill switch and approvals: files in `autopilot/` of the data folder, outside the data path.
//!
//! The switch is read anew before every change of the cluster. A switch that is missing,
//! unreadable, or says anything but `on` is off.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use tidegate_autopilot::action::ActionId;
use tidegate_autopilot::guard::KillSwitch;

use crate::authority::SignedText;

const ON: &str = "on";
/// What a signature begins with.
const SIGNATURE: &str = "-----BEGIN";

/// Longest file that is read, bytes.
const MOST_BYTES: u64 = 64 << 10;
/// Most approvals that are read at a time; the rest stays.
const MOST_APPROVALS: usize = 1_000;

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

/// The folder with switch and approvals.
#[derive(Debug, Clone)]
pub struct ControlFolder {
    folder: PathBuf,
}

impl ControlFolder {
    /// The folder of a data folder.
    pub fn in_data(data: &Path) -> Self {
        Self { folder: data.join("autopilot") }
    }

    /// The folder with switch and approvals.
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
        format!("{ON}\nby {by} at {at}")
    }

    /// Text of a switch that is on by a signature.
    pub fn on_signed(by: &str, at: &str, signed: &SignedText) -> String {
        format!("{}\n{}{}", Self::on(by, at), signed.text, signed.signature)
    }

    /// Text of a switch that is off, with who paused it and why.
    pub fn paused(by: &str, at: &str, why: Option<&str>) -> String {
        format!("paused by {by} at {at}{}", why.map_or_else(String::new, |why| format!(": {why}")))
    }

    /// Writes an approval of an action by `by`, atomically, with what was signed if anything was.
    ///
    /// # Errors
    /// The file cannot be written, or the text is not an id of an action.
    pub fn approve(&self, action: &str, by: &str, signed: Option<&SignedText>) -> io::Result<()> {
        if !is_id(action) {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("{action:?} is not an id of an action"),
            ));
        }
        let folder = self.folder.join("approved");
        fs::create_dir_all(&folder)?;
        let new = folder.join(format!("{action}.{}", std::process::id()));
        let signed = signed.map_or_else(String::new, |signed| format!("{}{}", signed.text, signed.signature));
        fs::write(&new, format!("{}\n{signed}", by.replace('\n', " ")))?;
        fs::rename(new, folder.join(action))
    }

    /// Approvals that are not taken up yet, by action.
    pub fn approved(&self) -> Vec<Approval> {
        let Ok(files) = fs::read_dir(self.folder.join("approved")) else { return Vec::new() };
        let mut approved: Vec<Approval> = files
            .take(MOST_APPROVALS)
            .filter_map(|file| {
                let file = file.ok()?;
                let action = file.file_name().into_string().ok().filter(|name| is_id(name))?;
                let text = read(&file.path()).ok()?;
                let (by, rest) = text.split_once('\n').unwrap_or((text.as_str(), ""));
                Some(Approval { action, by: by.trim().to_owned(), signed: signed(rest) })
            })
            .collect();
        approved.sort_by(|a, b| a.action.cmp(&b.action));
        approved
    }

    /// Removes approvals that are journaled now.
    pub fn discard(&self, approved: &[Approval]) {
        for Approval { action, .. } in approved {
            // One that stays is taken up again, which changes nothing.
            fs::remove_file(self.folder.join("approved").join(action)).ok();
        }
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

fn is_id(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !name.is_empty() && name.len() <= 100 && name.chars().all(plain)
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
        control.discard(&approved);
        assert!(control.approved().is_empty());
    }
}
