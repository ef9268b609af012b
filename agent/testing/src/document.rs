//! Inputs and checks for the fuzz targets of TOML documents.
use ccplane_files::document::DocumentError;

/// Longest text, bytes: what is spliced grows.
const MAX_BYTES: usize = 1 << 14;
/// Bytes of `input` that say one splice: where to, from where, how much.
const SPLICE_BYTES: usize = 5;

/// One of `texts` with pieces of its own put elsewhere, as `input` says; `None` if it says nothing, or nothing is left.
pub fn spliced(texts: &[&str], input: &[u8]) -> Option<String> {
    let (which, splices) = input.split_first()?;
    let mut bytes = texts[usize::from(*which) % texts.len()].as_bytes().to_vec();
    for splice in splices.chunks_exact(SPLICE_BYTES) {
        let at = |a, b| usize::from(u16::from_le_bytes([a, b])) % bytes.len();
        let (to, from, len) = (at(splice[0], splice[1]), at(splice[2], splice[3]), usize::from(splice[4]));
        let piece = bytes[from..bytes.len().min(from + len)].to_vec();
        let end = bytes.len().min(to + len / 2);
        bytes.splice(to..end, piece);
        bytes.truncate(MAX_BYTES);
        if bytes.is_empty() {
            return None;
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A refusal of `text` shows one of its lines, and a place in it.
pub fn points_into(text: &str, refusal: &DocumentError) {
    let DocumentError::Invalid { line, column, text: shown, .. } = refusal else { panic!("{refusal}") };
    assert_eq!(text.lines().nth(line - 1).unwrap_or_default(), shown);
    assert!(*column <= shown.chars().count() + 1, "{line}:{column}");
}

/// Hashes the wording of a refusal, without the names and numbers in it.
pub fn way(refusal: &DocumentError) -> u64 {
    let text = refusal.to_string();
    let words = text.rsplit('\n').next().unwrap_or_default().chars().filter(|c| c.is_alphabetic());
    words.take(24).fold(7, |way: u64, c| way.wrapping_mul(31).wrapping_add(u64::from(u32::from(c))))
}
