//! Reads files that belong to users, and writes files into folders that users can change.
//!
//! This process may be root. Whoever can change a folder can put a symbolic link, a pipe, a device
//! or an endless file where a file is expected, also between a check and the use. So what is opened
//! is examined by its descriptor before anything of it is read, and what is written is a new file.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

use nix::fcntl::OFlag;
use nix::unistd::{Uid, User};

/// Mode bits by which others than the owner may write.
const WRITABLE: u32 = 0o022;

/// A file of a user, read whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UserFile {
    pub text: String,
    /// When it was last written, µs since 1970; its owner may claim any time.
    pub modified_us: i64,
    /// Whether others than its owner may write it.
    pub is_writable_by_others: bool,
}

/// The number of a user; `None` if it has no account on this machine.
pub(super) fn uid(user: &str) -> Option<Uid> {
    User::from_name(user).ok().flatten().map(|user| user.uid)
}

/// Reads a file of at most `most_bytes` that belongs to `owner`.
///
/// # Errors
/// It cannot be opened or is not text, or it is no regular file, somebody else's, or too long: then
/// nothing of it was read. A symbolic link at the end of the path is not followed.
pub(super) fn read(path: &Path, owner: Uid, most_bytes: u64) -> io::Result<UserFile> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    // Opens nothing yet: a pipe does not wait, and a device such as a watchdog does not start.
    let place = OFlag::O_PATH | OFlag::O_NOFOLLOW;
    let place = OpenOptions::new().read(true).custom_flags(place.bits()).open(path)?;
    let found = place.metadata()?;
    if found.file_type().is_symlink() {
        return Err(refused("it is a symbolic link, which is not followed; name the file itself".to_owned()));
    }
    if !found.is_file() {
        return Err(refused("it is not a regular file".to_owned()));
    }
    if found.uid() != owner.as_raw() {
        return Err(refused(format!("it belongs to user {} and not to user {owner}", found.uid())));
    }
    let too_long = || refused(format!("it is longer than {most_bytes} bytes"));
    if found.len() > most_bytes {
        return Err(too_long());
    }
    // The very file that was examined, whatever its name leads to by now.
    let file = File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    let mut text = String::new();
    // It may grow while it is read.
    file.take(most_bytes + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most_bytes {
        return Err(too_long());
    }
    let modified = found.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(UserFile {
        text,
        modified_us: i64::try_from(modified.as_micros()).unwrap_or(i64::MAX),
        is_writable_by_others: found.mode() & WRITABLE != 0,
    })
}

/// Writes a file that everybody may read, atomically. What has its name, such as a link somewhere
/// else, is replaced and not written through.
///
/// # Errors
/// The folder cannot be written, or a folder has the name.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut new = tempfile::Builder::new().prefix(".tidegate-").tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    // Whatever the umask: another user is to read it.
    new.as_file().set_permissions(Permissions::from_mode(0o644))?;
    new.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_regular_file_of_its_owner_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let me = Uid::effective();
        fs::write(at("file"), "text").unwrap();
        assert_eq!(read(&at("file"), me, 4).unwrap().text, "text");
        let why = |name: &str, owner, most_bytes| read(&at(name), owner, most_bytes).unwrap_err().to_string();
        assert!(why("file", me, 3).contains("longer than 3 bytes"));
        assert!(why("file", Uid::from_raw(me.as_raw() + 1), 4).contains("belongs to user"));
        symlink(at("file"), at("link")).unwrap();
        assert!(why("link", me, 4).contains("symbolic link"));
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(why("pipe", me, 4).contains("not a regular file"));
        fs::create_dir(at("folder")).unwrap();
        assert!(why("folder", me, 4).contains("not a regular file"));
        // A device of root is not opened, though its length is 0; nor is one by way of a link.
        let root = Uid::from_raw(0);
        assert!(
            read(Path::new("/dev/zero"), root, 4).unwrap_err().to_string().contains("not a regular file")
        );
        // A file of /proc says that it is empty, and is not.
        let endless = read(Path::new("/proc/self/mountinfo"), me, 4).unwrap_err().to_string();
        assert!(endless.contains("longer than 4 bytes"), "{endless}");
        assert!(read(&at("nothing"), me, 4).is_err());
    }

    #[test]
    fn a_link_is_replaced_and_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "keep").unwrap();
        symlink(at("precious"), at("7.notice")).unwrap();
        write(&at("7.notice"), "new").unwrap();
        assert_eq!(fs::read_to_string(at("precious")).unwrap(), "keep");
        assert_eq!(fs::read_to_string(at("7.notice")).unwrap(), "new");
        let mode = fs::symlink_metadata(at("7.notice")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o644);
        fs::create_dir(at("8.notice")).unwrap();
        assert!(write(&at("8.notice"), "new").is_err());
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 3, "nothing is left of what could not be put in place");
    }
}
