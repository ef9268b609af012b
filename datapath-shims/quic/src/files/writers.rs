//! The right to put files, which clients have by the server's token or by a known certificate.

use super::refusal::Refused;
use crate::Connection;
use crate::tls::Fingerprint;
use hmac::{Hmac, Mac};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// Label of the exporter that a proof is derived from, so that it is valid for one connection and nothing else (RFC
/// 5705).
const EXPORTER_LABEL: &[u8] = b"EXPORTER-ccplane-files-token";
/// Shortest token, bytes; a shorter one could be guessed.
const MIN_TOKEN_BYTES: usize = 16;
/// The longest token, bytes.
const MAX_TOKEN_BYTES: usize = 4096;
/// Random bytes of a generated token; its file has them in hexadecimal.
const MADE_TOKEN_BYTES: usize = 32;

/// Reasons why a token file is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read or created.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path is a folder, a pipe or the like.
    #[error("not a regular file")]
    NotAFile,
    /// The file belongs to another user, who may know the token.
    #[error("owned by user {uid}, not by you or root")]
    Owner {
        /// The owner's user ID.
        uid: u32,
    },
    /// Other users may read or write the file.
    #[error("its mode is {mode:04o}, so that others may read or write it: it wants 0600")]
    Mode {
        /// The file's permissions.
        mode: u32,
    },
    /// The token is too short or too long.
    #[error("{bytes} bytes in it, a token has {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES}")]
    Length {
        /// Length without the line's end.
        bytes: usize,
    },
}

impl From<rustix::io::Errno> for TokenError {
    fn from(errno: rustix::io::Errno) -> TokenError {
        TokenError::Io(errno.into())
    }
}

/// A secret that server and writers share. It is never sent: a proof for one connection is.
#[derive(Clone)]
pub struct Token(Vec<u8>);

/// The HMAC-SHA256 of a connection's exporter under a token.
pub(super) type Proof = [u8; 32];

impl Token {
    /// Reads the token from a file that only its owner may read and write.
    ///
    /// # Errors
    /// Any [`TokenError`].
    pub fn load(path: &Path) -> Result<Token, TokenError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(open(path, flags, Mode::empty())?);
        // The opened file is checked, so that what is checked is what is read.
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(TokenError::NotAFile);
        }
        if stat.st_uid != geteuid().as_raw() && stat.st_uid != 0 {
            return Err(TokenError::Owner { uid: stat.st_uid });
        }
        let mode = stat.st_mode & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Mode { mode });
        }
        let mut secret = Vec::new();
        file.take(MAX_TOKEN_BYTES as u64 + 2).read_to_end(&mut secret)?;
        secret.truncate(secret.trim_ascii_end().len());
        if (MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&secret.len()) {
            Ok(Token(secret))
        } else {
            Err(TokenError::Length { bytes: secret.len() })
        }
    }

    /// Reads the token from a file; first creates one with a random token if the file does not exist.
    ///
    /// # Errors
    /// Any [`TokenError`].
    pub fn load_or_make(path: &Path) -> Result<Token, TokenError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open(path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                let mut random = [0; MADE_TOKEN_BYTES];
                getrandom(&mut random[..], GetRandomFlags::empty())?;
                let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
                File::from(file).write_all(format!("{text}\n").as_bytes())?;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        Token::load(path)
    }

    fn mac(&self, connection: &Connection<'_>) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(&connection.export_key(EXPORTER_LABEL)?);
        Some(mac)
    }

    /// Makes a proof of the token for this connection; `None` before the handshake is done.
    pub(super) fn prove(&self, connection: &Connection<'_>) -> Option<Proof> {
        Some(self.mac(connection)?.finalize().into_bytes().into())
    }

    /// Compares a proof in constant time.
    fn verify(&self, connection: &Connection<'_>, proof: &Proof) -> bool {
        self.mac(connection).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

/// The clients that may put files into a writable folder; none by default.
#[derive(Clone, Default)]
pub struct Writers {
    /// The token whose holders may put.
    pub token: Option<Token>,
    /// The certificates whose holders may put.
    pub certificates: Vec<Fingerprint>,
}

impl Writers {
    /// Whether this client may put, by its certificate or by its proof of the token.
    pub(super) fn admit(&self, connection: &Connection<'_>, proof: Option<&Proof>) -> Result<(), Refused> {
        let certified = connection.peer_fingerprint().is_some_and(|peer| self.certificates.contains(&peer));
        match (&self.token, proof) {
            _ if certified => Ok(()),
            (Some(token), Some(proof)) if token.verify(connection, proof) => Ok(()),
            (_, Some(_)) => Err(Refused::WrongToken),
            (_, None) => Err(Refused::NotAWriter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_token_file_is_made_once_and_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let made = Token::load_or_make(&path).unwrap();
        assert_eq!(made.0.len(), 2 * MADE_TOKEN_BYTES);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(Token::load_or_make(&path).unwrap().0, made.0);
    }

    #[test]
    fn a_token_that_others_may_know_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        Token::load_or_make(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602, 0o610] {
            set_mode(&path, mode);
            assert!(matches!(Token::load(&path), Err(TokenError::Mode { mode: found }) if found == mode));
        }
        set_mode(&path, 0o600);
        for wrong in [&b"short"[..], b"                         \n", &[b'x'; MAX_TOKEN_BYTES + 1]] {
            std::fs::write(&path, wrong).unwrap();
            assert!(matches!(Token::load(&path), Err(TokenError::Length { .. })));
        }
        assert!(matches!(Token::load(dir.path()), Err(TokenError::NotAFile)));
        assert!(matches!(Token::load(Path::new("/dev/zero")), Err(TokenError::NotAFile)));
        let link = dir.path().join("link");
        symlink("elsewhere", &link).unwrap();
        assert!(Token::load_or_make(&link).is_err(), "none is made through a link");
        if geteuid().is_root() {
            std::fs::write(&path, [b'x'; 40]).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(matches!(Token::load(&path), Err(TokenError::Owner { uid: 12345 })));
        } else {
            ccplane_testing::skipped("a foreign token file", "needs root to make one");
        }
    }
}
