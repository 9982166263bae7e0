//! Rows: what a network is shown of a text, one row a token, and the table that tokens come from.

use std::cell::RefCell;

use tch::{Device, Tensor};

/// The token and the position that a row without either holds: the [None] row of causal networks.
pub const NONE: i64 = -1;

/// Rows of several sequences, i64 (B, R) each.
pub struct Rows {
    /// The token that each row holds; [`NONE`] in a row without one.
    pub tokens: Tensor,
    /// The text position of that token; [`NONE`] in a row without one.
    pub held: Tensor,
    /// The text position that the row predicts.
    pub aims: Tensor,
    /// σ̄ of each sequence, (B), for networks that are conditioned on the time.
    pub sigma: Option<Tensor>,
}

impl Rows {
    /// Rows of plain numbers, each of the three B·R long, on `device`.
    pub fn new(b: usize, [tokens, held, aims]: [&[i64]; 3], device: Device) -> Rows {
        let shape = [b as i64, tokens.len().checked_div(b).unwrap_or(0) as i64];
        let of = |values: &[i64]| Tensor::from_slice(values).view(shape).to_device(device);
        Rows { tokens: of(tokens), held: of(held), aims: of(aims), sigma: None }
    }

    /// Whole texts i64 (B, T) as bidirectional networks see them: every row predicts its own place.
    pub fn of_texts(tokens: Tensor, sigma: Option<Tensor>) -> Rows {
        let (b, t) = (tokens.size()[0], tokens.size()[1]);
        let positions = Tensor::arange(t, (tch::Kind::Int64, tokens.device()));
        let positions = positions.unsqueeze(0).expand([b, t], false);
        Rows { tokens, held: positions.shallow_clone(), aims: positions, sigma }
    }
}

/// The token table (V, C).
///
/// Its gradient is not left to autograd, which would make a second table: in training the rows that
/// occur are leaves of their own, and [`TokenTable::add_gradients`] adds theirs up.
pub struct TokenTable {
    weight: Tensor,
    frozen: bool,
    /// Ids and their rows, of the passes whose gradients were not added yet.
    leaves: RefCell<Vec<[Tensor; 2]>>,
}

impl TokenTable {
    /// A table over `weight` (V, C).
    pub fn new(weight: Tensor) -> TokenTable {
        TokenTable { weight, frozen: false, leaves: RefCell::default() }
    }

    /// From now on rows have no gradients.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// The weight (V, C).
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Rows of the tokens (…) i64, to (…, C); [`NONE`] gives some row.
    pub fn rows(&self, tokens: &Tensor) -> Tensor {
        let ids = tokens.clamp_min(0);
        let rows = tch::no_grad(|| Tensor::embedding(&self.weight, &ids, -1, false, false));
        if self.frozen {
            return rows;
        }
        let rows = rows.detach().set_requires_grad(true);
        self.leaves.borrow_mut().push([ids, rows.shallow_clone()]);
        rows
    }

    /// Adds the gradients of all rows since the last call to `into` (V, C).
    pub fn add_gradients(&self, into: &Tensor) {
        tch::no_grad(|| {
            for [ids, rows] in self.leaves.borrow_mut().drain(..) {
                let gradient = rows.grad();
                if gradient.defined() {
                    let c = *rows.size().last().unwrap_or(&1);
                    let mut into = into.shallow_clone();
                    let _ = into.index_add_(0, &ids.view([-1]), &gradient.view([-1, c]));
                }
            }
        });
    }
}
