//! Rows of different lengths → one rectangle of token ids.

use anyhow::{Result, bail};

use super::tokenize::Encoded;

/// How long the rows of a rectangle become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadTo {
    /// As long as the longest of them.
    Longest,
    /// Exactly this long.
    Fixed(usize),
    /// As long as the longest of them, rounded up to a multiple: fewer distinct shapes to compile kernels for.
    Multiple(usize),
}

impl PadTo {
    /// The padded length of rows of which the longest has `longest` tokens.
    ///
    /// A fixed length shorter than the longest row is not lengthened; [`pad`] refuses it.
    pub fn length(self, longest: usize) -> usize {
        match self {
            PadTo::Longest | PadTo::Multiple(0) => longest,
            PadTo::Fixed(length) => length,
            PadTo::Multiple(multiple) => longest.next_multiple_of(multiple),
        }
    }
}

/// A rectangle of `rows × length` tokens, row-major, padded on the right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padded {
    /// Token ids `[rows, length]`.
    pub ids: Vec<i32>,
    /// Segment of each token `[rows, length]`: 0, or 1 in the second text of a pair.
    pub type_ids: Vec<i32>,
    /// True tokens of each row `[rows]`; what follows them is padding.
    pub lengths: Vec<usize>,
    /// Rows.
    pub rows: usize,
    /// Tokens in each row, padding included.
    pub length: usize,
}

impl Padded {
    /// 1 for a token and 0 for padding, `[rows, length]` row-major: Hugging Face's `attention_mask`.
    pub fn mask(&self) -> Vec<i32> {
        self.lengths.iter().flat_map(|&tokens| (0..self.length).map(move |i| i32::from(i < tokens))).collect()
    }

    /// Share of the rectangle that is padding, from 0 to 1.
    pub fn waste(&self) -> f64 {
        let cells = self.rows * self.length;
        1.0 - self.lengths.iter().sum::<usize>() as f64 / cells.max(1) as f64
    }
}

/// Pads `rows` with `pad_id` (and segment 0) into one rectangle.
///
/// # Errors
/// If a row is longer than a fixed length, or an id does not fit in 31 bits.
pub fn pad(rows: &[&Encoded], pad_id: u32, to: PadTo) -> Result<Padded> {
    let longest = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
    let length = to.length(longest);
    if longest > length {
        bail!("a row of {longest} tokens does not fit in a batch of length {length}");
    }
    let pad_id = i32::try_from(pad_id)?;
    let mut padded = Padded {
        ids: Vec::with_capacity(rows.len() * length),
        type_ids: Vec::with_capacity(rows.len() * length),
        lengths: rows.iter().map(|row| row.ids.len()).collect(),
        rows: rows.len(),
        length,
    };
    for (i, row) in rows.iter().enumerate() {
        for &id in &row.ids {
            padded.ids.push(i32::try_from(id)?);
        }
        padded.type_ids.extend(row.type_ids.iter().map(|&id| i32::from(id)));
        padded.ids.resize((i + 1) * length, pad_id);
        padded.type_ids.resize((i + 1) * length, 0);
    }
    Ok(padded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(ids: &[u32]) -> Encoded {
        Encoded { ids: ids.to_vec(), type_ids: ids.iter().map(|id| (id % 2) as u8).collect(), truncated: false }
    }

    #[test]
    fn pads_on_the_right() {
        let (a, b) = (row(&[5, 6, 7]), row(&[8]));
        let padded = pad(&[&a, &b], 9, PadTo::Longest).expect("fits");
        assert_eq!(padded.ids, [5, 6, 7, 8, 9, 9]);
        assert_eq!(padded.type_ids, [1, 0, 1, 0, 0, 0]);
        assert_eq!(padded.mask(), [1, 1, 1, 1, 0, 0]);
        assert_eq!((padded.rows, padded.length, padded.lengths.as_slice()), (2, 3, [3, 1].as_slice()));
        assert!((padded.waste() - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(pad(&[&a, &b], 9, PadTo::Multiple(8)).expect("fits").length, 8);
        assert_eq!(pad(&[&a, &b], 9, PadTo::Fixed(4)).expect("fits").length, 4);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let a = row(&[5, 6, 7]);
        let error = pad(&[&a], 0, PadTo::Fixed(2)).expect_err("too long").to_string();
        assert_eq!(error, "a row of 3 tokens does not fit in a batch of length 2");
        assert!(pad(&[&row(&[u32::MAX])], 0, PadTo::Longest).is_err());
        assert_eq!(pad(&[], 0, PadTo::Longest).expect("nothing").rows, 0);
    }

    proptest! {
        #[test]
        fn keeps_every_token(
            rows in proptest::collection::vec(proptest::collection::vec(1u32..1000, 0..20), 1..9),
            multiple in 0usize..10,
        ) {
            let rows: Vec<Encoded> = rows.iter().map(|ids| row(ids)).collect();
            let padded = pad(&rows.iter().collect::<Vec<_>>(), 0, PadTo::Multiple(multiple)).expect("fits");
            prop_assert_eq!(padded.ids.len(), padded.rows * padded.length);
            prop_assert_eq!(padded.type_ids.len(), padded.ids.len());
            prop_assert_eq!(padded.mask().len(), padded.ids.len());
            for (i, row) in rows.iter().enumerate() {
                let line = &padded.ids[i * padded.length..(i + 1) * padded.length];
                prop_assert!(line.iter().zip(&row.ids).all(|(&a, &b)| a as u32 == b));
                prop_assert!(line[row.ids.len()..].iter().all(|&id| id == 0));
            }
        }
    }
}
