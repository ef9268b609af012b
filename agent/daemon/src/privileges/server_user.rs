//! The user that a server becomes where root starts it and names none.

use super::TO_CHANGE_USER;
use caps::CapSet;
use nix::unistd::{Uid, User};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tracing::warn;

/// The user who owns nothing.
const NOBODY: &str = "nobody";
/// Permission to pass through a folder, in the bits of one class.
const PASS: u32 = 0o1;
/// Permissions to list a folder and pass through it, in the bits of one class.
const LIST: u32 = 0o5;

/// The files of a server.
#[derive(Debug)]
pub struct Serves<'a> {
    /// The folder whose files it serves.
    pub folder: &'a Path,
    /// Whether clients write to the folder.
    pub is_writable: bool,
    /// Files, folders and sockets outside the folder that the server opens as its user.
    pub elsewhere: Vec<PathBuf>,
    /// A flag or setting that takes rights of root's after the server has become its user.
    pub needs_root: Option<&'static str>,
}

/// Reasons why a server that root starts stays root.
#[derive(Debug, thiserror::Error)]
enum StaysRoot {
    #[error("{0} takes rights of root's when the server is its user already")]
    Needs(&'static str),
    #[error("clients may write to {}, which belongs to no other user of this machine", .0.display())]
    Writable(PathBuf),
    #[error("user `{user}` cannot read all of {}", folder.display())]
    Unreadable { folder: PathBuf, user: String },
    #[error("{} does not belong to user `{user}`, or is out of that user's reach", path.display())]
    Elsewhere { path: PathBuf, user: String },
    #[error("no user `{NOBODY}` on this machine")]
    NoNobody,
    #[error(
        "this process may not become user `{0}`: it has no capability for that, or its user namespace no such user"
    )]
    Refused(String),
}

/// Returns the number of the user that a server becomes where none was named; `None` if it stays who it is, which it says of root.
///
/// That is the folder's owner; of a folder of root's that is only read, `nobody`, if `all_may_read` what is in it.
pub fn server_user(serves: &Serves<'_>, all_may_read: impl FnOnce() -> bool) -> Option<String> {
    if !Uid::effective().is_root() {
        return None;
    }
    // A folder that is not there is an error of who opens it.
    let folder = fs::canonicalize(serves.folder).ok()?;
    let owner = fs::metadata(&folder).ok()?.uid();
    match chosen(serves, &folder, owner, all_may_read) {
        Ok(user) => Some(user.uid.to_string()),
        Err(why) => {
            warn!(%why, "the server stays root: --user names another user, or root without this line");
            None
        }
    }
}

fn chosen(
    serves: &Serves<'_>,
    folder: &Path,
    owner: u32,
    all_may_read: impl FnOnce() -> bool,
) -> Result<User, StaysRoot> {
    if let Some(setting) = serves.needs_root {
        return Err(StaysRoot::Needs(setting));
    }
    let unreadable =
        |user: &User| StaysRoot::Unreadable { folder: folder.to_owned(), user: user.name.clone() };
    let user = match other_than_root(owner) {
        Some(owner) => owner,
        None if serves.is_writable => return Err(StaysRoot::Writable(folder.to_owned())),
        None => {
            let nobody = User::from_name(NOBODY).ok().flatten().ok_or(StaysRoot::NoNobody)?;
            if !all_may_read() {
                return Err(unreadable(&nobody));
            }
            nobody
        }
    };
    let uid = user.uid.as_raw();
    if !reaches(folder, uid) {
        return Err(unreadable(&user));
    }
    if let Some(path) = serves.elsewhere.iter().find(|path| !is_of(path, uid)) {
        return Err(StaysRoot::Elsewhere { path: path.clone(), user: user.name });
    }
    if may_become(&user) { Ok(user) } else { Err(StaysRoot::Refused(user.name)) }
}

fn other_than_root(uid: u32) -> Option<User> {
    let uid = Uid::from_raw(uid);
    if uid.is_root() { None } else { User::from_uid(uid).ok().flatten() }
}

/// Whether a user may list this folder and pass through those above it. Groups and access lists are not asked.
fn reaches(folder: &Path, uid: u32) -> bool {
    fs::metadata(folder).is_ok_and(|found| allows(&found, uid, LIST)) && passes_to(folder, uid)
}

/// Whether a user may pass through all folders above this path.
fn passes_to(path: &Path, uid: u32) -> bool {
    path.ancestors().skip(1).all(|above| fs::metadata(above).is_ok_and(|found| allows(&found, uid, PASS)))
}

fn allows(found: &Metadata, uid: u32, wanted: u32) -> bool {
    let class = if found.uid() == uid { found.mode() >> 6 } else { found.mode() };
    class & wanted == wanted
}

/// Whether the user reaches and owns what is at this path, or else the folder in which it would be made.
fn is_of(path: &Path, uid: u32) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    let is_there =
        |found: &io::Result<Metadata>| !matches!(found, Err(error) if error.kind() == ErrorKind::NotFound);
    let nearest = path.ancestors().map(|at| (at, fs::metadata(at))).find(|(_, found)| is_there(found));
    let Some((nearest, Ok(found))) = nearest else { return false };
    // Of a link, both the way to it and the way that it leads.
    let leads_to = fs::canonicalize(nearest);
    found.uid() == uid && passes_to(nearest, uid) && leads_to.is_ok_and(|path| passes_to(&path, uid))
}

/// Whether the kernel lets this process take the user's number and groups (user_namespaces(7)).
fn may_become(user: &User) -> bool {
    let proc = |name: &str| fs::read_to_string(Path::new("/proc/self").join(name)).unwrap_or_default();
    TO_CHANGE_USER.iter().all(|one| caps::has_cap(None, CapSet::Effective, *one).unwrap_or(false))
        && proc("setgroups").trim() != "deny"
        && is_mapped(&proc("uid_map"), user.uid.as_raw())
        && is_mapped(&proc("gid_map"), user.gid.as_raw())
}

/// Whether a number is in a map of lines of the first number inside, the first outside, and how many.
fn is_mapped(map: &str, number: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) = (fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A user of no file here.
    const STRANGER: u32 = 4_000_000_000;

    #[test]
    fn a_folder_is_reached_through_folders_that_let_the_user_pass() {
        let dir = tempfile::tempdir().unwrap();
        let above = fs::canonicalize(dir.path()).unwrap();
        let folder = above.join("served");
        fs::create_dir(&folder).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let owner = fs::metadata(&folder).unwrap().uid();
        for (outer, inner, by_owner, by_stranger) in [
            (0o711, 0o755, true, true),
            (0o711, 0o700, true, false),
            (0o700, 0o755, true, false),
            (0o711, 0o711, true, false),
            (0o755, 0o055, false, true),
        ] {
            set(&folder, inner);
            set(&above, outer);
            assert_eq!(reaches(&folder, owner), by_owner, "{outer:o} {inner:o}");
            assert_eq!(reaches(&folder, STRANGER), by_stranger, "{outer:o} {inner:o}");
        }
    }

    #[test]
    fn what_is_not_there_belongs_to_who_has_the_folder_around_it() {
        let dir = tempfile::tempdir().unwrap();
        let owner = fs::metadata(dir.path()).unwrap().uid();
        for name in ["", "none", "none/below"] {
            assert!(is_of(&dir.path().join(name), owner), "{name}");
            assert!(!is_of(&dir.path().join(name), STRANGER), "{name}");
        }
    }

    #[test]
    fn what_lies_in_a_folder_that_is_closed_to_its_owner_is_out_of_reach() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        fs::create_dir(&path).unwrap();
        symlink(&path, dir.path().join("link")).unwrap();
        let owner = fs::metadata(&path).unwrap().uid();
        for (mode, expected) in [(0o700, true), (0o600, false), (0o100, true)] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_of(&path, owner), expected, "{mode:o}");
            assert_eq!(is_of(&dir.path().join("link"), owner), expected, "{mode:o}");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn a_user_namespace_has_the_users_of_its_map() {
        let all = "         0          0 4294967295\n";
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        assert!(is_mapped(all, 0) && is_mapped(all, 65_534) && is_mapped(rootless, 65_534));
        assert!(!is_mapped("         0       1000          1\n", 65_534));
        assert!(!is_mapped("", 0) && !is_mapped("0 0\n", 0));
    }
}
