//! Properties of every page.

/// Opening tags in order, void elements left out; panics unless all elements nest.
pub fn element_tree(page: &str) -> Vec<String> {
    const VOID: [&str; 3] = ["meta", "wbr", "br"];
    let (mut open, mut seen): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let name: String = rest.chars().take_while(|c| !c.is_whitespace() && *c != '>').collect();
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "near {:.80}", rest);
        } else if !name.starts_with('!') && !VOID.contains(&name.as_str()) {
            seen.push(name.clone());
            // Raw text: up to its own end tag.
            if name == "script" || name == "style" {
                rest = &rest[rest.find(&format!("</{name}>")).unwrap()..];
            }
            open.push(name);
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    seen
}

pub fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

/// Asserts the properties of every page, whatever its data.
pub fn assert_sound(page: &str) {
    element_tree(page);
    for word in ["NaN", "inf%", ">inf<", "Infinity", "undefined"] {
        assert!(!page.contains(word), "{word} in the page");
    }
    for address in ["http:", "https:", "//cdn", "@import", "url(", "src="] {
        assert!(!page.contains(address), "{address} in the page");
    }
}
