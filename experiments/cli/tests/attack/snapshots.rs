//! Attacks on what snapshots come by: files that `ccplane snapshot` reads, keys, and the folder of `quic serve --keep`.

use ccplane_alg::Algorithm;
use ccplane_algs::Aurora;
use ccplane_snapshot::{SigningKey, Snapshot, Terms};
use ccplane_testing::{attack_scale, skipped};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn ccplane(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ccplane")).args(args).current_dir(dir).output().unwrap()
}

/// Returns the exit code and all output.
fn said(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let output = ccplane(dir, args);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Another snapshot of Aurora's network.
fn learned(created_by: &str) -> Snapshot {
    let shipped = Aurora::default().policies().remove(0);
    let mut parts = Snapshot::built_in(shipped.snapshot).unwrap().into_parts();
    parts.provenance.created_by = created_by.to_owned();
    Snapshot::new(parts).unwrap()
}

const TERMS: Terms = Terms { sequence: 5, expires_s: u64::MAX };

#[test]
fn no_corrupt_signature_is_called_ok() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let key = SigningKey::generate().unwrap();
    let good = learned("a test").sign(&key, TERMS).to_bytes();
    fs::write(dir.join("key.pub"), key.verifying_key().to_text()).unwrap();
    let verify = |bytes: &[u8], more: &[&str]| {
        fs::write(dir.join("s"), bytes).unwrap();
        said(dir, &[&["snapshot", "verify", "s"], more].concat())
    };
    assert_eq!(verify(&good, &[]).0, Some(3));
    assert_eq!(verify(&good, &["--key", "key.pub"]).0, Some(0));
    let section = good.len() - 120;
    for at in (section..good.len()).step_by(attack_scale(7, 1)) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        for more in [&[][..], &["--key", "key.pub"]] {
            let (code, text) = verify(&bad, more);
            assert_eq!(code, Some(2), "byte {at}: {text}");
            assert!(!text.contains("ok"), "byte {at}: {text}");
        }
    }
    // An S that is not reduced, and a key of small order.
    let mut bad = good.clone();
    bad[section + 24 + 32 + 32..].fill(0xff);
    assert_eq!(verify(&bad, &[]).0, Some(2));
    let mut bad = good.clone();
    bad[section + 24..section + 56].fill(0);
    assert_eq!(verify(&bad, &[]).0, Some(2));
    let expired = learned("a test").sign(&key, Terms { expires_s: 1, ..TERMS }).to_bytes();
    let (code, text) = verify(&expired, &["--key", "key.pub"]);
    assert!(code == Some(2) && text.contains("expired"), "{text}");
    assert_eq!(verify(&expired, &["--key", "key.pub", "--allow-older"]).0, Some(0));
}

#[test]
fn only_secrets_that_are_secret_sign() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("s"), learned("a test").to_bytes()).unwrap();
    assert_eq!(said(dir, &["snapshot", "keygen", "key"]).0, Some(0));
    let sign = |key: &str| said(dir, &["snapshot", "sign", "s", "--key", key, "--out", "signed"]);
    let digits = fs::read_to_string(dir.join("key.pub")).unwrap();
    fs::write(dir.join("bare"), digits.split(' ').nth(1).unwrap()).unwrap();
    for public in ["key.pub", "bare"] {
        fs::set_permissions(dir.join(public), Permissions::from_mode(0o600)).unwrap();
        let (code, text) = sign(public);
        assert!(code == Some(2) && text.contains("public"), "{public}: {text}");
    }
    for mode in [0o640, 0o604, 0o660, 0o602] {
        fs::set_permissions(dir.join("key"), Permissions::from_mode(mode)).unwrap();
        let (code, text) = sign("key");
        assert!(code == Some(2) && text.contains("readable by others"), "{mode:o}: {text}");
    }
    fs::set_permissions(dir.join("key"), Permissions::from_mode(0o600)).unwrap();
    assert!(!dir.join("signed").exists());
    assert_eq!(sign("key").0, Some(0));
    let (code, text) = said(dir, &["snapshot", "verify", "signed", "--key", "key"]);
    assert!(code == Some(2) && text.contains("secret"), "{text}");
    // What a stranger puts where the new file is written first is not written through.
    let victim = dir.join("victim");
    fs::write(&victim, "mine").unwrap();
    symlink(&victim, dir.join("signed.new")).unwrap();
    assert_eq!(sign("key").0, Some(0));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
}

/// Starts `quic serve --keep` and stops it: returns the snapshot that its flows begin with, and its standard error.
fn begins_with(dir: &Path, more: &[&str]) -> Result<(Option<String>, String), (Option<i32>, String)> {
    fs::create_dir_all(dir.join("served")).unwrap();
    let first = ["quic", "serve", "served", "--listen", "127.0.0.1:0", "--json", "--config", "c.toml"];
    let arguments = [&first[..], &["--algorithm", "aurora", "--learn", "--keep", "kept"], more].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccplane"));
    command.args(arguments).current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut line, mut errors) = (String::new(), String::new());
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGINT);
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let code = child.wait().unwrap().code();
    match serde_json::from_str::<serde_json::Value>(&line) {
        Ok(said) => Ok((said["snapshot"].as_str().map(str::to_owned), errors)),
        Err(_) => Err((code, errors)),
    }
}

/// Writes a promoted snapshot as a server keeps it.
fn keep(dir: &Path, snapshot: &Snapshot) -> String {
    let (kept, name) = (dir.join("kept"), snapshot.hash().to_string());
    fs::write(kept.join("aurora.active"), &name).unwrap();
    fs::write(kept.join(format!("{name}.snapshot")), snapshot.to_bytes()).unwrap();
    let policy = Aurora::default().policies().remove(0).policy;
    fs::write(kept.join(format!("{name}.safetensors")), policy).unwrap();
    name
}

#[test]
fn a_kept_folder_of_somebody_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, kept) = (dir.path(), dir.path().join("kept"));
    fs::write(dir.join("c.toml"), "").unwrap();
    fs::create_dir(&kept).unwrap();
    fs::set_permissions(&kept, Permissions::from_mode(0o755)).unwrap();
    let name = keep(dir, &learned("an earlier server"));
    // The folder's owner may change, and root without a word would become that user.
    let staying: &[&str] = if geteuid().is_root() { &["--user", "root"] } else { &[] };
    let own = begins_with(dir, staying).unwrap();
    assert_eq!(own.0, Some(name.clone()), "{}", own.1);

    let refused = |what: &str| {
        let (code, text) = begins_with(dir, staying).unwrap_err();
        assert!(code == Some(2) && text.contains("kept"), "{what}: {code:?}, {text}");
    };
    for mode in [0o777, 0o775, 0o757, 0o1777] {
        fs::set_permissions(&kept, Permissions::from_mode(mode)).unwrap();
        refused("others may write to it");
    }
    fs::set_permissions(&kept, Permissions::from_mode(0o700)).unwrap();
    fs::rename(&kept, dir.join("elsewhere")).unwrap();
    symlink("elsewhere", &kept).unwrap();
    refused("a link");
    fs::remove_file(&kept).unwrap();
    fs::rename(dir.join("elsewhere"), &kept).unwrap();

    // A folder of ours with somebody else's files, or links, begins with what ships, and says so.
    let ignored = |what: &str| {
        let (begun, text) = begins_with(dir, staying).unwrap();
        assert_eq!(begun, None, "{what}");
        assert!(text.contains("flows begin with the snapshot that ships"), "{what}: {text}");
    };
    for file in ["aurora.active".to_owned(), format!("{name}.snapshot"), format!("{name}.safetensors")] {
        let path = kept.join(&file);
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        ignored("a file that others may write to");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        fs::rename(&path, dir.join("moved")).unwrap();
        symlink(dir.join("moved"), &path).unwrap();
        ignored("a link to a file");
        fs::rename(dir.join("moved"), &path).unwrap();
    }
    assert_eq!(begins_with(dir, staying).unwrap().0, Some(name.clone()), "all is as it was");
    if !geteuid().is_root() {
        return skipped("kept folders of another user", "only root gives files away");
    }
    let file = kept.join(format!("{name}.snapshot"));
    chown(&file, Some(65_534), None).unwrap();
    ignored("another user's file");
    chown(&file, Some(0), None).unwrap();
    chown(&kept, Some(65_534), None).unwrap();
    refused("another user's folder");
}

#[test]
fn what_is_kept_needs_a_signature_where_one_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("kept")).unwrap();
    let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let config = format!(
        "learn.require_signed = true\nlearn.keys = [\"{}\"]\nlearn.state = {:?}\n",
        key.verifying_key().to_hex(),
        dir.join("state"),
    );
    fs::write(dir.join("c.toml"), config).unwrap();
    let snapshot = learned("an earlier server");
    let begins = |more: &[&str]| begins_with(dir, more).unwrap();
    for (kept, why) in [
        (snapshot.clone(), "not signed"),
        (snapshot.clone().sign(&other, TERMS), "not trusted"),
        (snapshot.clone().sign(&key, Terms { expires_s: 1, ..TERMS }), "expired"),
    ] {
        keep(dir, &kept);
        let (begun, text) = begins(&[]);
        assert!(begun.is_none() && text.contains(why), "{why}: {text}");
    }
    let name = keep(dir, &snapshot.clone().sign(&key, TERMS));
    assert_eq!(begins(&[]).0, Some(name));
    // What was taken is remembered: an older one, put back, is a replay.
    let older = keep(dir, &learned("years ago").sign(&key, Terms { sequence: 4, ..TERMS }));
    let (begun, text) = begins(&[]);
    assert!(begun.is_none() && text.contains("--allow-older"), "{text}");
    assert_eq!(begins(&["--allow-older"]).0, Some(older));
}
