//! Sequences in the making: which tokens each has, and which rows the cache holds.
//!
//! Row 0 of a sequence holds the [None] token, row k the token of step k − 1; row k predicts the
//! token of step k, told its position. The keys and values of a row depend on that position too, so
//! a row is final only once the position of the next step is.

use std::sync::Arc;

use ao_core::{Error, Result};
use tch::{Kind, Tensor};

use super::cache::Cache;
use super::few_row::{FewRow, Row};
use crate::model::{Conditioning, Decoder};

/// One sequence: its order and the tokens so far.
#[derive(Debug, Clone)]
pub struct Line {
    /// Positions in the order of their steps, a permutation of 0..T.
    pub order: Vec<u32>,
    /// Tokens of the first steps, in generation order.
    pub tokens: Vec<u32>,
    /// Rows in the cache.
    pub(super) cached: usize,
}

impl Line {
    /// A sequence of `order.len()` tokens of which the first `tokens.len()` steps are given.
    pub fn new(order: Vec<u32>, tokens: Vec<u32>) -> Line {
        Line { order, tokens, cached: 0 }
    }

    /// Steps still to be made.
    pub fn left(&self) -> usize {
        self.order.len() - self.tokens.len()
    }

    /// Takes steps back to `count` tokens.
    pub fn truncate(&mut self, count: usize) {
        self.tokens.truncate(count);
        self.keep_rows(self.tokens.len() + 1);
    }

    /// Takes the known tokens back to the first `from` and puts `order` behind their positions,
    /// which it must complete to a permutation.
    pub fn reorder(&mut self, from: usize, order: &[u32]) {
        self.tokens.truncate(from);
        self.order[from..].copy_from_slice(order);
        self.keep_rows(from); // row `from` was told another position
    }

    /// Forgets the rows of the cache from `count` on.
    pub(super) fn keep_rows(&mut self, count: usize) {
        self.cached = self.cached.min(count);
    }
}

/// What one sequence takes part in a pass with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ask<'a> {
    /// Rows before this one that the cache lacks are forwarded, causal, and stay in it.
    pub until: usize,
    /// Positions that copies of the last of these rows predict; the copies see neither each other
    /// nor it, and do not stay.
    pub copies: &'a [u32],
    /// How many of the last rows are wanted.
    pub wanted: usize,
}

/// Where the rows that [`Session::pass`] gives belong: (sequence, number among its wanted rows).
pub fn places(asks: &[Ask]) -> Vec<(usize, usize)> {
    let of = |(r, ask): (usize, &Ask)| (0..ask.wanted).map(move |j| (r, j));
    asks.iter().enumerate().flat_map(of).collect()
}

/// A batch of sequences over one cache.
pub struct Session<'a> {
    model: &'a dyn Decoder,
    conditioning: &'a Conditioning,
    /// Makes the passes, where there is one; else libtorch does.
    few_row: Option<Arc<FewRow>>,
    cache: Cache,
    /// The first row that the family has: 0, or 1 where there is no [None].
    first: usize,
    /// The sequences.
    pub lines: Vec<Line>,
    /// Rows forwarded so far, padding not counted.
    pub rows_forwarded: u64,
}

impl<'a> Session<'a> {
    /// A session over `lines`, whose cache is allocated here for all their steps.
    pub fn new(
        model: &'a dyn Decoder,
        conditioning: &'a Conditioning,
        mut lines: Vec<Line>,
    ) -> Session<'a> {
        let config = model.config();
        let first = model.given();
        for line in &mut lines {
            line.cached = first; // a row that does not exist is never missing
        }
        let slots = lines.iter().map(|l| l.order.len()).max().unwrap_or(0);
        let head_size = config.n_embd() / config.n_head();
        let sizes = [config.n_layer(), lines.len(), config.n_head(), slots, head_size];
        let cache = Cache::new(sizes, model.compute(), model.device());
        Session { model, conditioning, few_row: None, cache, first, lines, rows_forwarded: 0 }
    }

    /// Lets `few_row`, made from the same model, make the passes.
    pub fn with_few_row(mut self, few_row: Option<Arc<FewRow>>) -> Session<'a> {
        self.few_row = few_row;
        self
    }

    /// The hidden rows that predict the next `sizes[r]` tokens of each sequence, each of them given
    /// the tokens so far alone: (Σ sizes, C), sequence by sequence, ready for the head.
    ///
    /// # Errors
    /// When a size is beyond the steps left.
    pub fn advance(&mut self, sizes: &[usize]) -> Result<Tensor> {
        let orders: Vec<Vec<u32>> = self
            .lines
            .iter()
            .zip(sizes)
            .map(|(line, &size)| {
                let t = line.tokens.len();
                line.order.get(t + 1..t + size).map(<[u32]>::to_vec).unwrap_or_default()
            })
            .collect();
        let asks: Vec<Ask> = self
            .lines
            .iter()
            .zip(sizes)
            .zip(&orders)
            .map(|((line, &size), copies)| match size {
                0 => Ask::default(),
                _ => Ask { until: line.tokens.len() + 1, copies, wanted: size },
            })
            .collect();
        self.pass(&asks)
    }

    /// One pass: the wanted rows, (Σ wanted, C), sequence by sequence.
    ///
    /// # Errors
    /// When a sequence has not the tokens or steps that it is asked for.
    pub fn pass(&mut self, asks: &[Ask]) -> Result<Tensor> {
        let mut starts = Vec::with_capacity(asks.len());
        let (mut counts, mut causal) = (starts.clone(), starts.clone());
        for (line, ask) in self.lines.iter().zip(asks) {
            let own = ask.until.saturating_sub(line.cached);
            let count = own + ask.copies.len();
            let fits = ask.until <= line.tokens.len() + 1
                && line.cached + count <= line.order.len()
                && ask.wanted <= count
                && (own > 0 || ask.copies.is_empty());
            if asks.len() != self.lines.len() || !fits {
                return Err(Error::usage(format!(
                    "decoding asks for {count} rows after {} of {} steps; this is a fault of the \
                     program",
                    line.tokens.len(),
                    line.order.len()
                )));
            }
            starts.push(line.cached - self.first);
            counts.push(count);
            causal.push(own);
        }
        let total: usize = counts.iter().sum();
        let hidden = match self.few_row.clone() {
            Some(few_row) => {
                let (rows, wanted) = self.rows(asks, &causal, &counts);
                few_row.pass(&rows, &wanted, &mut self.cache)
            }
            None => tch::no_grad(|| {
                let rows = counts.iter().copied().max().unwrap_or(0);
                let (input, targets) = self.input(asks, &counts, rows);
                let mut attend = self.cache.block(&starts, &counts, &causal, rows);
                let hidden =
                    self.model.forward(&input, &targets, self.conditioning, &mut attend, 0.0);
                wanted_rows(&hidden, asks, &counts, rows)
            }),
        };
        for (line, ask) in self.lines.iter_mut().zip(asks) {
            line.cached = line.cached.max(ask.until);
        }
        self.rows_forwarded += total as u64;
        Ok(hidden)
    }

    /// The rows of a pass one after the other, and which of them are wanted.
    fn rows(&self, asks: &[Ask], causal: &[usize], counts: &[usize]) -> (Vec<Row>, Vec<usize>) {
        let (mut rows, mut wanted) = (Vec::new(), Vec::new());
        for (r, (line, ask)) in self.lines.iter().zip(asks).enumerate() {
            let start = line.cached - self.first;
            for j in 0..counts[r] {
                let (held, target) = row_of(line, ask, j);
                let slot = start + j;
                let visible = if j < causal[r] { slot } else { start + causal[r] - 1 };
                rows.push(Row { line: r, slot, visible, held, target });
            }
            wanted.extend(rows.len() - ask.wanted..rows.len());
        }
        (rows, wanted)
    }

    /// After a pass with copies, puts the keys and values of copy `copy − 1` of sequence `r` in the
    /// place of its last row, as if that had been told the copy's position; 0 leaves the row.
    pub fn keep_copy(&mut self, r: usize, copy: usize) {
        if copy > 0 {
            let slot = self.lines[r].cached - self.first - 1;
            self.cache.move_slot(r, slot + copy, slot);
        }
    }

    /// Input rows (B, R, C) and their targets (B, R).
    fn input(&self, asks: &[Ask], counts: &[usize], rows: usize) -> (Tensor, Tensor) {
        let size = asks.len() * rows;
        let (mut tokens, mut positions) = (vec![0i64; size], vec![0i64; size]);
        let (mut targets, mut none) = (vec![0i64; size], vec![false; size]);
        for (r, (line, ask)) in self.lines.iter().zip(asks).enumerate() {
            for j in 0..counts[r] {
                let at = r * rows + j;
                let (held, target) = row_of(line, ask, j);
                targets[at] = i64::from(target);
                match held {
                    None => none[at] = true,
                    Some((token, position)) => {
                        tokens[at] = i64::from(token);
                        positions[at] = i64::from(position);
                    }
                }
            }
        }
        let (b, r, device) = (asks.len() as i64, rows as i64, self.model.device());
        let integers = |values: &[i64]| Tensor::from_slice(values).view([b, r]).to_device(device);
        let mut input = self.model.token_rows(&integers(&tokens))
            + self.model.position_rows(&integers(&positions));
        if let Some(row) = self.model.none_row().filter(|_| none.contains(&true)) {
            let none = Tensor::from_slice(&none).view([b, r, 1]).to_device(device);
            input = row.where_self(&none, &input);
        }
        let targets = integers(&targets);
        if let Some(rows) = self.model.target_rows(&targets) {
            input += rows;
        }
        (input, targets)
    }

    /// The keys and values so far.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The kind of hidden rows.
    pub fn kind(&self) -> Kind {
        self.model.kind()
    }
}

/// What row j of a pass holds, a token and its position or [None], and the position it predicts.
fn row_of(line: &Line, ask: &Ask, j: usize) -> (Option<(u32, u32)>, u32) {
    let row = (line.cached + j).min(ask.until - 1);
    let copy = (line.cached + j).checked_sub(ask.until);
    let target = copy.map_or(line.order[row], |c| ask.copies[c]);
    (row.checked_sub(1).map(|step| (line.tokens[step], line.order[step])), target)
}

fn wanted_rows(hidden: &Tensor, asks: &[Ask], counts: &[usize], rows: usize) -> Tensor {
    let c = hidden.size()[2];
    let flat = hidden.reshape([-1, c]);
    let index: Vec<i64> = asks
        .iter()
        .zip(counts)
        .enumerate()
        .flat_map(|(r, (ask, &count))| {
            (r * rows + count - ask.wanted..r * rows + count).map(|i| i as i64)
        })
        .collect();
    if index.len() == asks.len() * rows {
        return flat;
    }
    flat.index_select(0, &Tensor::from_slice(&index).to_device(hidden.device()))
}
