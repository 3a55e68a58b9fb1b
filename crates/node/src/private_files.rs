//! Files of Tidegate are its own: they tell who ran what, and at what price.

use nix::sys::stat::{Mode, umask};

/// Keeps other users of the machine from the files and folders that this process makes: 0600 and
/// 0700, and what a site's umask takes away beyond that.
///
/// A umask that keeps others out and lets a group in is left as it is, so that a site can grant a
/// group to read (`UMask=0027` of a unit). Files for other users, such as notices to jobs, get
/// their mode where they are made.
pub fn keep_files_private() {
    // The umask can be read only by setting it.
    let before = umask(Mode::S_IRWXG | Mode::S_IRWXO);
    if before.contains(Mode::S_IRWXO) {
        umask(before);
    }
}
