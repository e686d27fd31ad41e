//! The unix socket and its file: private from the start, never taken from a program that still listens, and restored when
//! somebody removes it.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "the door, and its file")]

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket};

use crate::error::GatewayError;
use crate::limits::LISTEN_BACKLOG;

/// The longest path: what fits into the kernel's `sun_path`, less its closing zero and [`DRAFT`].
const PATH_BYTES_MAX: usize = 107 - DRAFT.len();
/// The suffix of the file's name until its permissions are set.
const DRAFT: &str = ".new";

/// A listening socket. Dropping it removes its file.
#[derive(Debug)]
pub struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Its file at the last check.
    file: Metadata,
    /// The last error that was logged about the file.
    fault: Option<String>,
}

impl Socket {
    /// Creates the socket with these permissions, in a folder that exists. Replaces the socket of a dead daemon, but not one that
    /// answers.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, GatewayError> {
        if path.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
            return Err(GatewayError::TooLong { path: path.to_owned(), max: PATH_BYTES_MAX });
        }
        let failed = |source| GatewayError::Socket { path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(GatewayError::NoFolder(folder.to_owned()));
        }
        check_free(path)?;
        let made = || -> io::Result<(UnixListener, Metadata)> {
            let draft = draft(path);
            let listener = listen(&draft, mode)?;
            fs::rename(&draft, path)?;
            Ok((listener, fs::symlink_metadata(path)?))
        };
        let (listener, file) = made().map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), file, fault: None })
    }

    /// Creates the file again if it is gone, with the mode and the owners that it had. Another file at its path is left alone, and
    /// logged once.
    pub(crate) fn restore(&mut self) {
        let fault = match fs::symlink_metadata(&self.path) {
            Ok(found) if is_same(&found, &self.file) => {
                self.file = found;
                None
            }
            Ok(_) => Some("there is another file at the socket's path; move it away".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.create_again() {
                Ok(()) => {
                    tracing::warn!(path = %self.path.display(), "the socket was removed and has been created again");
                    None
                }
                Err(error) => Some(format!("the socket was removed and cannot be created again: {error}")),
            },
            Err(error) => Some(format!("the socket's file cannot be read: {error}")),
        };
        if let Some(fault) = fault.as_deref().filter(|_| fault != self.fault) {
            tracing::error!(path = %self.path.display(), "clients cannot reach the daemon: {fault}");
        }
        self.fault = fault;
    }

    fn create_again(&mut self) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            make_private(folder)?;
        }
        let draft = draft(&self.path);
        let listener = listen(&draft, self.file.mode() & 0o777)?;
        if let Err(error) = lchown(&draft, Some(self.file.uid()), Some(self.file.gid())) {
            tracing::warn!(%error, "the previous owner of the socket cannot be restored");
        }
        // Unlike a rename, a link does not replace a file that somebody created meanwhile.
        let linked = fs::hard_link(&draft, &self.path);
        remove(&draft)?;
        linked?;
        self.file = fs::symlink_metadata(&self.path)?;
        self.listener = listener;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Only our own file: somebody may have replaced it.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| is_same(&found, &self.file));
        if ours {
            // The next start replaces a file that cannot be removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether both are one file. The kernel does not reuse the inode while the listener is open.
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn draft(path: &Path) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(DRAFT);
    PathBuf::from(draft)
}

/// Listens on a new socket. Nobody can connect before its permissions are set.
fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    remove(path)?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(LISTEN_BACKLOG)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Creates a private folder; leaves an existing one as it is: the operator may share it with a group on purpose.
pub fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).recursive(true).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Refuses a path where another program listens, or that is not a socket.
fn check_free(path: &Path) -> Result<(), GatewayError> {
    match fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(GatewayError::NotASocket(path.to_owned())),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => Err(GatewayError::InUse(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(source) => Err(GatewayError::Socket { path: path.to_owned(), source }),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[tokio::test]
    async fn the_socket_is_private_and_is_removed_when_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/effectd.sock");
        let folder = path.parent().unwrap();
        let refused = Socket::bind(&path, 0o600).unwrap_err();
        assert!(matches!(&refused, GatewayError::NoFolder(missing) if missing == folder), "{refused}");
        assert!(!folder.exists());
        make_private(folder).unwrap();
        let socket = Socket::bind(&path, 0o600).unwrap();
        assert_eq!((mode(&path), mode(folder)), (0o600, 0o700));
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let living = Socket::bind(&path, 0o660).unwrap();
        assert_eq!(mode(&path), 0o660);
        let refused = Socket::bind(&path, 0o600).unwrap_err();
        assert!(matches!(refused, GatewayError::InUse(_)), "{refused}");
        drop(living);
        fs::write(&path, "a file").unwrap();
        let refused = Socket::bind(&path, 0o600).unwrap_err();
        assert!(matches!(refused, GatewayError::NotASocket(_)), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }

    #[tokio::test]
    async fn a_socket_that_was_removed_is_made_again_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/effectd.sock");
        make_private(path.parent().unwrap()).unwrap();
        let mut socket = Socket::bind(&path, 0o660).unwrap();
        // An operator has given it another mode since.
        fs::set_permissions(&path, Permissions::from_mode(0o606)).unwrap();
        socket.restore();
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        socket.restore();
        assert_eq!(mode(&path), 0o606);
        let (client, accepted) =
            tokio::join!(tokio::net::UnixStream::connect(&path), socket.listener.accept());
        assert!(client.is_ok() && accepted.is_ok());
        // What others put there is theirs, whether it is a file, a socket that answers, or one that does not.
        for foreign in ["file", "living", "dead"] {
            fs::remove_file(&path).unwrap();
            let listener = match foreign {
                "file" => {
                    fs::write(&path, "a file").unwrap();
                    None
                }
                _ => Some(std::os::unix::net::UnixListener::bind(&path).unwrap()),
            };
            let _living = listener.filter(|_| foreign == "living");
            let theirs = fs::symlink_metadata(&path).unwrap();
            socket.restore();
            assert!(is_same(&fs::symlink_metadata(&path).unwrap(), &theirs), "{foreign}");
            assert!(socket.fault.is_some(), "{foreign}");
        }
        fs::remove_file(&path).unwrap();
        socket.restore();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        assert_eq!(socket.fault, None);
        drop(socket);
        assert!(!path.exists(), "also the new one is removed");
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_told() {
        let path = PathBuf::from("/tmp").join("x".repeat(120));
        assert!(matches!(Socket::bind(&path, 0o600), Err(GatewayError::TooLong { max: 103, .. })));
    }
}
