//! "Did you mean …?": the known word nearest to an unknown one.

/// The number of insertions, deletions and substitutions of characters that turn `a` into `b`
/// (Levenshtein's distance, by Wagner and Fischer's table kept one row at a time).
pub fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The candidate nearest to `word`, letter case and surrounding blanks aside, if it is near enough to be a slip:
/// at most one edit per three characters, and at least one.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.trim().to_lowercase();
    let wanted = plain(word);
    let allowed = (wanted.chars().count() / 3).max(1);
    candidates
        .into_iter()
        // Lengths alone bound the distance from below, and spare the table for texts that are no names at all.
        .filter(|candidate| candidate.len() < 256)
        .map(|candidate| (edit_distance(&wanted, &plain(candidate)), candidate))
        .filter(|&(distance, _)| distance <= allowed)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// At most `limit` names in quotes, each cut to 40 characters, and how many were left out.
pub fn list<S: AsRef<str>>(names: &[S], limit: usize) -> String {
    let left_out = names.len().saturating_sub(limit);
    let shown: Vec<String> = names.iter().take(limit).map(|name| quote(name.as_ref())).collect();
    match left_out {
        0 => shown.join(", "),
        n => format!("{} and {n} more", shown.join(", ")),
    }
}

/// A name in quotes, cut to 40 characters, control characters escaped.
pub fn quote(name: &str) -> String {
    let cut: String = name.chars().take(40).collect();
    if cut.len() < name.len() { format!("{cut:?}…") } else { format!("{cut:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_edits() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("Straße", "Strasse"), 2);
    }

    #[test]
    fn suggests_slips_only() {
        let columns = ["sentence", "Label ", "idx"];
        assert_eq!(nearest("label", columns), Some("Label "));
        assert_eq!(nearest("sentense", columns), Some("sentence"));
        assert_eq!(nearest("text", columns), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn lists_are_short() {
        assert_eq!(list(&["a", "b", "c"], 2), "\"a\", \"b\" and 1 more");
        assert_eq!(quote(&"x".repeat(50)), format!("\"{}\"…", "x".repeat(40)));
        assert_eq!(quote("a\nb"), "\"a\\nb\"");
    }

    proptest! {
        #[test]
        fn is_a_metric(a in "[ab]{0,6}", b in "[ab]{0,6}", c in "[ab]{0,6}") {
            prop_assert_eq!(edit_distance(&a, &b), edit_distance(&b, &a));
            prop_assert_eq!(edit_distance(&a, &b) == 0, a == b);
            prop_assert!(edit_distance(&a, &c) <= edit_distance(&a, &b) + edit_distance(&b, &c));
        }
    }
}
