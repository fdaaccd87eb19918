//! "Did you mean …": the nearest known word to a mistyped one.

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`: the optimal string alignment distance.
pub fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in table.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in table[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(table[i - 2][j - 2] + 1);
            }
            table[i][j] = best;
        }
    }
    table[a.len()][b.len()]
}

/// The known word nearest to `word`, if it is near enough to be what was meant: at most a third of its letters differ,
/// or one begins with the other.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    known
        .into_iter()
        .map(|candidate| (edits(&word, candidate), candidate))
        .filter(|(distance, candidate)| {
            let near = *distance <= candidate.chars().count().max(3) / 3;
            near || (word.len() >= 3 && (candidate.starts_with(&word) || word.starts_with(candidate)))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// ` (did you mean 'x'?)`, or nothing when no known word is near.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|meant| format!(" (did you mean '{meant}'?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = ["precision", "micro_batch", "checkpoint_layers"];
        assert_eq!(nearest("precison", known), Some("precision"));
        assert_eq!(nearest("microbatch", known), Some("micro_batch"));
        assert_eq!(nearest("checkpoint", known), Some("checkpoint_layers"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(edits("ab", "ba"), 1);
        assert_eq!(edits("", "abc"), 3);
    }
}
