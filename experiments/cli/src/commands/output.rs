//! Output of commands: JSON, tables, and foreign text without control characters.

use ccplane_agent::failure::Failure;
pub(crate) use ccplane_agent::output::print;
use serde::Serialize;

/// Prints one JSON object on one line, without characters that control a terminal.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(Failure::runtime)?;
    // JSON escapes control characters below 32 only; any that are left lie within strings.
    let json = |c: char| format!("\\u{:04x}", u32::from(c));
    print(&format!("{}\n", escaped(&text, json)))
}

/// Escapes the characters of foreign text that control a terminal or change the direction of text.
pub(crate) fn shown(text: &str) -> String {
    escaped(text, |c| c.escape_default().to_string())
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let controls = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if controls(c) { escape(c) } else { c.to_string() }).collect()
}

/// The number of spaces between the columns of a table.
const COLUMN_GAP: u16 = 2;

/// Formats rows under a header, with columns aligned at the left and two spaces between them.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header.to_vec()).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, COLUMN_GAP));
    }
    format!("{}\n", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align() {
        let text = table(&["a", "long"], &[vec!["wide".into(), "x".into()], vec!["b".into(), "y".into()]]);
        assert_eq!(text, "a     long\nwide  x\nb     y\n");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            shown("\u{1b}]0;x\u{7} \u{9b}2J \u{202e}é\r\n"),
            "\\u{1b}]0;x\\u{7} \\u{9b}2J \\u{202e}é\\r\\n"
        );
        let json = escaped("\u{9b}\u{7f}", |c| format!("\\u{:04x}", u32::from(c)));
        assert_eq!(json, "\\u009b\\u007f");
    }
}
