//! A checker of well-formedness for the part of XML that the plots use.

/// Checks that tags nest and close, attributes are quoted and unique, and every `&` begins a known entity. Returns
/// the names of the elements.
pub fn elements(text: &str) -> Result<Vec<String>, String> {
    let (mut rest, mut open, mut names) = (text.trim(), Vec::<String>::new(), Vec::new());
    let mut roots = 0;
    while !rest.is_empty() {
        let Some(at) = rest.find('<') else {
            return if open.is_empty() { entities(rest).map(|()| names) } else { Err(format!("{open:?} never close")) };
        };
        let (before, tail) = rest.split_at(at);
        entities(before)?;
        if open.is_empty() && !before.trim().is_empty() {
            return Err(format!("text outside of the root: {before}"));
        }
        let end = tail.find('>').ok_or("a tag never ends")?;
        let tag = &tail[1..end];
        rest = &tail[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let expected = open.pop();
            if expected.as_deref() != Some(name) {
                return Err(format!("</{name}> closes {expected:?}"));
            }
            continue;
        }
        let closed = tag.ends_with('/');
        let tag = tag.trim_end_matches('/');
        let name = tag.split_whitespace().next().ok_or("a tag without a name")?.to_string();
        attributes(&tag[name.len()..])?;
        roots += usize::from(open.is_empty());
        names.push(name.clone());
        if !closed {
            open.push(name);
        }
    }
    match (open.is_empty(), roots) {
        (true, 1) => Ok(names),
        _ => Err(format!("{roots} roots, still open: {open:?}")),
    }
}

fn attributes(mut rest: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    while !rest.trim().is_empty() {
        if !rest.starts_with(' ') {
            return Err(format!("no space before {rest}"));
        }
        let (name, tail) = rest.trim_start().split_once("=\"").ok_or_else(|| format!("no value in {rest}"))?;
        let (value, tail) = tail.split_once('"').ok_or_else(|| format!("an open quote in {rest}"))?;
        if seen.contains(&name) || name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!("attribute '{name}'"));
        }
        if value.contains('<') || value.contains("NaN") || value.contains("inf") {
            return Err(format!("value '{value}' of {name}"));
        }
        entities(value)?;
        seen.push(name);
        rest = tail;
    }
    Ok(())
}

fn entities(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        if !known.iter().any(|entity| text[at..].starts_with(entity)) {
            return Err(format!("a bare & in {text}"));
        }
    }
    Ok(())
}

#[test]
fn the_checker_itself_refuses_what_is_broken() {
    assert_eq!(elements("<a b=\"1\"><c/>x &amp; y</a>"), Ok(vec!["a".into(), "c".into()]));
    for broken in
        ["<a>", "<a></b>", "<a b=1/>", "<a>&x;</a>", "<a b=\"1\" b=\"2\"/>", "<a/><b/>", "x<a/>", "<a b=\"<\"/>"]
    {
        assert!(elements(broken).is_err(), "{broken}");
    }
}
