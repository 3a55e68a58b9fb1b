//! Opens the sockets. A stale Unix socket is replaced; a running agent's is not.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::{ReceiverError, ReceiverOptions};

/// Sockets opened by [`bind`]. Dropping them removes the Unix socket's file.
pub(super) struct Listeners {
    pub unix: Option<UnixListener>,
    pub tcp: Option<TcpListener>,
    _file: Option<SocketFile>,
}

impl Listeners {
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }
}

/// Removes the socket file when dropped, unless another agent has replaced it.
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|now| now.ino() == self.inode);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// Opens the sockets that the options name.
pub(super) fn bind(options: &ReceiverOptions) -> Result<Listeners, ReceiverError> {
    let tcp = options.tcp.map(bind_tcp).transpose()?;
    let (mut unix, mut file) = (None, None);
    if let Some(path) = &options.socket {
        let listener = bind_unix(path)?;
        let failed = |source| ReceiverError::Socket { path: path.clone(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        let inode = std::fs::symlink_metadata(path).map_err(failed)?.ino();
        file = Some(SocketFile { path: path.clone(), inode });
        if let Some(group) = &options.group {
            give_to_group(path, group)?;
        }
        // Up to here, only the agent's own user can connect.
        std::fs::set_permissions(path, PermissionsExt::from_mode(options.mode)).map_err(failed)?;
        unix = Some(listener);
    }
    Ok(Listeners { unix, tcp, _file: file })
}

fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ReceiverError> {
    if !address.ip().is_loopback() {
        return Err(ReceiverError::NotLoopback { address });
    }
    let listener = TcpListener::bind(address).map_err(|source| ReceiverError::Tcp { address, source })?;
    listener.set_nonblocking(true).map_err(|source| ReceiverError::Tcp { address, source })?;
    Ok(listener)
}

fn bind_unix(path: &Path) -> Result<UnixListener, ReceiverError> {
    let failed = |source| ReceiverError::Socket { path: path.to_path_buf(), source };
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        result => return result.map_err(failed),
    }
    let there = std::fs::symlink_metadata(path).map_err(failed)?;
    if !there.file_type().is_socket() {
        return Err(ReceiverError::NotASocket { path: path.to_path_buf() });
    }
    match UnixStream::connect(path) {
        // Nobody listens: the agent that made it is gone.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(failed(error)),
        _ => return Err(ReceiverError::InUse { path: path.to_path_buf() }),
    }
    std::fs::remove_file(path).map_err(failed)?;
    UnixListener::bind(path).map_err(failed)
}

fn give_to_group(path: &Path, group: &str) -> Result<(), ReceiverError> {
    let failed = |what: String| ReceiverError::Group { path: path.to_path_buf(), group: group.into(), what };
    let found = nix::unistd::Group::from_name(group)
        .map_err(|error| failed(error.to_string()))?
        .ok_or_else(|| failed("there is no such group".into()))?;
    chown(path, None, Some(found.gid.as_raw())).map_err(|error| failed(error.to_string()))
}
