//! The socket in the file system: private from its first moment, and never taken from a program that still listens.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket};

use crate::error::GatewayError;

/// The longest path of a socket: the kernel's field, less its closing zero and the name it is made under.
const PATH_BYTES_MAX: usize = 107 - DRAFT.len();
/// What the socket is called until its permissions are right.
const DRAFT: &str = ".new";

/// A socket that is listened on. Its file goes away with it.
#[derive(Debug)]
pub struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Socket {
    /// Makes the socket, with these permissions, as many waiting to be taken as this, and the folder it lies in if that is not there (private, then). What a
    /// daemon that died left behind is replaced; a socket that answers is not.
    pub fn bind(path: &Path, mode: u32, listen_backlog: u32) -> Result<Self, GatewayError> {
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
        let mut draft = path.as_os_str().to_owned();
        draft.push(DRAFT);
        let draft = PathBuf::from(draft);
        let made = || -> io::Result<(UnixListener, u64)> {
            remove(&draft)?;
            let socket = UnixSocket::new_stream()?;
            socket.bind(&draft)?;
            fs::set_permissions(&draft, Permissions::from_mode(mode))?;
            let listener = socket.listen(listen_backlog)?;
            fs::rename(&draft, path)?;
            Ok((listener, fs::symlink_metadata(path)?.ino()))
        };
        let (listener, inode) = made().map_err(failed)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            inode,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Only our own: somebody may have put another in its place.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode);
        if ours {
            // What cannot be removed is replaced by the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
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
    use crate::limits::LISTEN_BACKLOG;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[tokio::test]
    async fn the_socket_is_private_and_goes_away_with_its_door() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/effectd.sock");
        let socket = Socket::bind(&path, 0o600, LISTEN_BACKLOG).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let living = Socket::bind(&path, 0o660, LISTEN_BACKLOG).unwrap();
        assert_eq!(mode(&path), 0o660);
        let refused = Socket::bind(&path, 0o600, LISTEN_BACKLOG).unwrap_err();
        assert!(matches!(refused, GatewayError::InUse(_)), "{refused}");
        drop(living);
        fs::write(&path, "a file").unwrap();
        let refused = Socket::bind(&path, 0o600, LISTEN_BACKLOG).unwrap_err();
        assert!(matches!(refused, GatewayError::NotASocket(_)), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_told() {
        let path = PathBuf::from("/tmp").join("x".repeat(120));
        assert!(matches!(
            Socket::bind(&path, 0o600, LISTEN_BACKLOG),
            Err(GatewayError::TooLong { max: 103, .. })
        ));
    }
}
