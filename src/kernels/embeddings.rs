//! Embeddings of packed tokens: rows of tables are summed, normalised and partly dropped.
//!
//! Nothing is kept for backward: looking up again costs next to nothing.

use crate::kernels::attention::Rows;
use crate::kernels::backward::NormGradient;
use crate::kernels::dropout::{Dropout, Masks, Site, mask_in_place};
use crate::kernels::layer::{mask_at, places};
use crate::kernels::math::add_assign;
use crate::kernels::norm::{Norm, normalize, normalize_backward, scale_shift_in_place};
use crate::kernels::rows::{Pieces, for_blocks};

/// The tables, row-major, and what follows the sum of their rows.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// `[vocabulary, d]`.
    pub word: &'a [f32],
    /// `[positions, d]`.
    pub position: &'a [f32],
    /// `[token types, d]`, where the model has them.
    pub token_type: Option<&'a [f32]>,
    /// `[d]`.
    pub norm: Norm<'a>,
    /// Added to the variance.
    pub eps: f32,
}

/// Which row of each table a token takes.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Rows of the word table. `[tokens]`.
    pub ids: &'a [u32],
    /// Rows of the position table. `[tokens]`.
    pub positions: &'a [u32],
    /// Rows of the token-type table. `[tokens]`.
    pub types: &'a [u32],
    /// Which tokens belong together.
    pub rows: Rows<'a>,
}

/// The number of the embeddings among the layers, for dropout: none has it.
const LAYER: usize = usize::MAX;

fn masks(dropout: Option<Dropout>) -> Masks {
    dropout.map_or(Masks::NONE, |d| Masks::new(d.seed, LAYER, Site::Embeddings, d.hidden))
}

impl Tables<'_> {
    fn look_up(&self, tokens: &Tokens<'_>, t: usize, row: &mut [f32]) {
        let d = row.len();
        row.copy_from_slice(&self.word[tokens.ids[t] as usize * d..][..d]);
        add_assign(row, &self.position[tokens.positions[t] as usize * d..][..d]);
        if let Some(table) = self.token_type {
            add_assign(row, &table[tokens.types[t] as usize * d..][..d]);
        }
    }
}

/// Hidden states `[tokens, d]`.
///
/// # Panics
/// If a token lies outside its table: a bug in the caller.
pub fn forward(tables: &Tables<'_>, tokens: &Tokens<'_>, dropout: Option<Dropout>) -> Vec<f32> {
    tokens.rows.check();
    let (d, count) = (tables.norm.gamma.len(), tokens.rows.tokens());
    let (places, masks) = (places(tokens.rows), masks(dropout));
    let mut out = vec![0.0f32; count * d];
    let pieces = Pieces::new(&mut out);
    for_blocks(count, 0, |block, _| {
        for t in block {
            // SAFETY: every token is in one block, and a block is one job's.
            let row = unsafe { pieces.piece(t * d, d) };
            tables.look_up(tokens, t, row);
            normalize::<f32>(row, tables.eps);
            scale_shift_in_place(row, tables.norm.gamma, tables.norm.beta);
            if !masks.is_none() {
                mask_in_place(mask_at(&masks, places[t]), row);
            }
        }
    });
    out
}

/// Backward of [`forward`]: `gradient` of its output becomes that of the sum of the tables' rows, and those of the
/// normalisation are added to `norm`.
pub fn backward(
    tables: &Tables<'_>,
    tokens: &Tokens<'_>,
    dropout: Option<Dropout>,
    gradient: &mut [f32],
    norm: NormGradient<&mut [f32]>,
) {
    let (d, count) = (tables.norm.gamma.len(), tokens.rows.tokens());
    assert_eq!(gradient.len(), count * d, "the gradient does not fit the output");
    let (places, masks) = (places(tokens.rows), masks(dropout));
    let pieces = Pieces::new(gradient);
    let sums = for_blocks(count, 2 * d, |block, sums| {
        let mut normalized = vec![0.0f32; d];
        for t in block {
            // SAFETY: every token is in one block, and a block is one job's.
            let row = unsafe { pieces.piece(t * d, d) };
            tables.look_up(tokens, t, &mut normalized);
            let rstd = normalize::<f32>(&mut normalized, tables.eps);
            if !masks.is_none() {
                mask_in_place(mask_at(&masks, places[t]), row);
            }
            normalize_backward(row, &normalized, rstd, tables.norm.gamma, sums);
        }
    });
    add_assign(norm.gamma, &sums[..d]);
    add_assign(norm.beta, &sums[d..]);
}
