//! The frame of every page: head, style and script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("assets/report.css");
const SCRIPT: &str = include_str!("assets/report.js");
/// Nothing is fetched, whatever the data says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Returns a whole page with the given content.
pub fn page(title: &str, content: Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (content) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}
