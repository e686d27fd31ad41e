//! The socket in the file system: private from its first moment, never taken from a program that still listens, and made again
//! when somebody removes it.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket};

use crate::error::GatewayError;
use crate::limits::LISTEN_BACKLOG;

/// The longest path of a socket: the kernel's field, less its closing zero and the name it is made under.
const PATH_BYTES_MAX: usize = 107 - DRAFT.len();
/// What the socket is called until its permissions are right.
const DRAFT: &str = ".new";

/// A socket that is listened on. Its file goes away with it.
#[derive(Debug)]
pub struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Its file, as it was last seen.
    file: Metadata,
    /// What was last logged about a file that is not ours.
    complaint: Option<String>,
}

impl Socket {
    /// Makes the socket, with these permissions, and the folder it lies in if that is not there (private, then). What a daemon that
    /// died left behind is replaced; a socket that answers is not.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, GatewayError> {
        if path.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
            return Err(GatewayError::TooLong {
                path: path.to_owned(),
                max: PATH_BYTES_MAX,
            });
        }
        let failed = |source| GatewayError::Socket {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            make_private(folder).map_err(failed)?;
        }
        check_free(path)?;
        let made = || -> io::Result<(UnixListener, Metadata)> {
            let draft = draft(path);
            let listener = listen(&draft, mode)?;
            fs::rename(&draft, path)?;
            Ok((listener, fs::symlink_metadata(path)?))
        };
        let (listener, file) = made().map_err(failed)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            file,
            complaint: None,
        })
    }

    /// Makes the file again, with the mode and the owners that it had, if it is gone. Whatever else lies at its path is somebody's
    /// and stays; the log says so once.
    pub(crate) fn keep(&mut self) {
        let complaint = match fs::symlink_metadata(&self.path) {
            Ok(found) if is_same(&found, &self.file) => {
                self.file = found;
                None
            }
            Ok(_) => Some("something else lies at the socket's path; move it away".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.make_again() {
                Ok(()) => {
                    tracing::warn!(path = %self.path.display(), "the socket was removed; it was made again");
                    None
                }
                Err(error) => Some(format!(
                    "the socket was removed and cannot be made again: {error}"
                )),
            },
            Err(error) => Some(format!("the socket cannot be looked at: {error}")),
        };
        if let Some(complaint) = complaint.as_deref().filter(|_| complaint != self.complaint) {
            tracing::error!(path = %self.path.display(), "nobody reaches the daemon: {complaint}");
        }
        self.complaint = complaint;
    }

    fn make_again(&mut self) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            make_private(folder)?;
        }
        let draft = draft(&self.path);
        let listener = listen(&draft, self.file.mode() & 0o777)?;
        if let Err(error) = lchown(&draft, Some(self.file.uid()), Some(self.file.gid())) {
            tracing::warn!(%error, "the socket cannot have the owners that it had");
        }
        // Unlike a rename, a link never replaces what somebody put there in this moment.
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
        // Only our own: somebody may have put another in its place.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| is_same(&found, &self.file));
        if ours {
            // What cannot be removed is replaced by the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether both are one file. Its number is not used again while its listener is open.
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// What the socket of this path is called until it is ready.
fn draft(path: &Path) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(DRAFT);
    PathBuf::from(draft)
}

/// Listens on a new socket, with these permissions from its first moment that anybody can connect.
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

/// A folder that is there is left as it is: it may be one that the operator shares with a group on purpose.
fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).recursive(true).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether nobody listens at the path, and what is there may be replaced.
fn check_free(path: &Path) -> Result<(), GatewayError> {
    match fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(GatewayError::NotASocket(path.to_owned())),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => Err(GatewayError::InUse(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(source) => Err(GatewayError::Socket {
                path: path.to_owned(),
                source,
            }),
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
    async fn the_socket_is_private_and_goes_away_with_its_door() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/effectd.sock");
        let socket = Socket::bind(&path, 0o600).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
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
        let mut socket = Socket::bind(&path, 0o660).unwrap();
        // An operator has given it another mode since.
        fs::set_permissions(&path, Permissions::from_mode(0o606)).unwrap();
        socket.keep();
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        socket.keep();
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
            socket.keep();
            assert!(
                is_same(&fs::symlink_metadata(&path).unwrap(), &theirs),
                "{foreign}"
            );
            assert!(socket.complaint.is_some(), "{foreign}");
        }
        fs::remove_file(&path).unwrap();
        socket.keep();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        assert_eq!(socket.complaint, None);
        drop(socket);
        assert!(!path.exists(), "also the new one goes away with its door");
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_told() {
        let path = PathBuf::from("/tmp").join("x".repeat(120));
        assert!(matches!(
            Socket::bind(&path, 0o600),
            Err(GatewayError::TooLong { max: 103, .. })
        ));
    }
}
