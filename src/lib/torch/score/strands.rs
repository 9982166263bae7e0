//! Predictions after many orderings of growing contexts, each made from the one before.
//!
//! A strand is one sequence under one line of orderings. To predict a token after an ordering
//! π of i tokens takes the rows of π's tokens and, in the last row, the logits. A row's keys and
//! values depend on the tokens before it and on its own target, the token that follows in π: so of
//! the ordering before, the rows stay valid whose tokens and targets are the same, and only those
//! behind are forwarded. Many strands share a pass: their rows lie one after the other, without
//! padding, and attention alone goes strand by strand. Only the last row of a strand goes through
//! the head.

use std::ops::Range;

use ao_core::Result;
use ao_core::score::Cost;
use ao_core::score::orderings::Ordering;
use tch::{Device, Kind, Tensor};

use crate::model::{Attend, Conditioning, Decoder};

/// Rows of a pass that matrix products are large enough with.
const ROWS: usize = 2048;
/// Most bytes of keys and values that are held.
const CACHE_BYTES: usize = 1 << 30;

/// Where a strand's orderings come from.
pub enum Source {
    /// Drawn: entries are steps of the order.
    Drawn(Ordering),
    /// Given: for each step asked for, in turn, the positions before it.
    Given(std::vec::IntoIter<Vec<u32>>),
}

/// One sequence under one line of orderings.
pub struct Strand<'a> {
    /// Token ids in text order.
    pub tokens: &'a [u32],
    /// The order, whose step t is predicted after orderings of its first t positions.
    pub order: &'a [u32],
    /// The steps that are predicted, ascending.
    pub steps: &'a [usize],
    /// The orderings.
    pub source: Source,
}

impl Strand<'_> {
    /// Rows of its longest context.
    pub fn longest(&self) -> usize {
        self.steps.last().map_or(0, |&step| step + 1)
    }

    /// The positions before step `step`, then the one that it predicts.
    fn path(&mut self, step: usize) -> Vec<u32> {
        let mut path: Vec<u32> = match &mut self.source {
            Source::Drawn(line) => line.of(step).iter().map(|&s| self.order[s as usize]).collect(),
            Source::Given(contexts) => contexts.next().unwrap_or_default(),
        };
        path.push(self.order[step]);
        path
    }
}

/// How many strands whose longest context has `length` rows go through the model together.
pub fn wave(model: &dyn Decoder, length: usize) -> usize {
    let config = model.config();
    let bytes = if model.compute() == Kind::Float { 4 } else { 2 };
    let strand = 2 * config.n_layer() * config.n_embd() * length.max(1) * bytes;
    // A strand forwards about a quarter of its length a step.
    let rows = if model.device() == Device::Cpu { ROWS } else { 8 * ROWS };
    (4 * rows / length.max(1)).clamp(1, 256).min((CACHE_BYTES / strand).max(1))
}

/// NLL in nats of each strand's predicted tokens, in the order of its steps.
///
/// # Errors
/// Only from libtorch.
pub fn predict(
    model: &dyn Decoder,
    conditioning: &Conditioning,
    strands: &mut [Strand],
    cost: &mut Cost,
) -> Result<Vec<Vec<f64>>> {
    let slots = strands.iter().map(Strand::longest).max().unwrap_or(0);
    let passes = strands.iter().map(|s| s.steps.len()).max().unwrap_or(0);
    let first = model.given();
    let mut cache = Ragged::new(model, strands.len(), slots);
    let mut cached: Vec<Vec<u32>> = vec![Vec::new(); strands.len()];
    let mut nll = vec![Vec::new(); strands.len()];
    for pass in 0..passes {
        let mut rows = Rows::default();
        let mut live = Vec::new();
        let mut targets = Vec::new();
        for (slot, strand) in strands.iter_mut().enumerate() {
            let Some(&step) = strand.steps.get(pass) else { continue };
            let path = strand.path(step);
            // Row k is told by path[..=k]; the last one's logits are wanted, so it runs anew.
            let same = cached[slot].iter().zip(&path).take_while(|(a, b)| a == b).count();
            let start = same.clamp(first, path.len() - 1);
            rows.add(strand.tokens, &path, start..path.len());
            cache.place(slot, start - first, path.len() - start);
            targets.push(i64::from(strand.tokens[strand.order[step] as usize]));
            cached[slot] = path;
            live.push(slot);
        }
        cost.rows_forwarded += rows.tokens.len() as u64;
        cost.rows_through_head += live.len() as u64;
        let hidden = tch::no_grad(|| {
            let (input, targets) = rows.input(model);
            let hidden = model.forward(&input, &targets, conditioning, &mut cache, 0.0);
            hidden.squeeze_dim(0).index_select(0, &cache.last_rows(model.device()))
        });
        let scores = model.head().nll(&hidden, &targets);
        for (slot, score) in live.into_iter().zip(scores) {
            nll[slot].push(score);
        }
        cache.parts.clear();
    }
    Ok(nll)
}

/// The rows of a pass, those of one strand after those of another.
#[derive(Default)]
struct Rows {
    tokens: Vec<i64>,
    positions: Vec<i64>,
    targets: Vec<i64>,
    /// Rows that hold [None].
    none: Vec<bool>,
}

impl Rows {
    fn add(&mut self, tokens: &[u32], path: &[u32], range: Range<usize>) {
        for k in range {
            let held = k.checked_sub(1).map(|k| path[k]);
            self.none.push(held.is_none());
            self.tokens.push(held.map_or(0, |p| i64::from(tokens[p as usize])));
            self.positions.push(held.map_or(0, i64::from));
            self.targets.push(i64::from(path[k]));
        }
    }

    /// (1, N, C), and the targets (1, N).
    fn input(&self, model: &dyn Decoder) -> (Tensor, Tensor) {
        let integers =
            |values: &[i64]| Tensor::from_slice(values).unsqueeze(0).to_device(model.device());
        let mut input = model.token_rows(&integers(&self.tokens))
            + model.position_rows(&integers(&self.positions));
        if let Some(row) = model.none_row().filter(|_| self.none.contains(&true)) {
            let none = Tensor::from_slice(&self.none).view([1, -1, 1]).to_device(model.device());
            input = row.where_self(&none, &input);
        }
        let targets = integers(&self.targets);
        if let Some(rows) = model.target_rows(&targets) {
            input += rows;
        }
        (input, targets)
    }
}

/// Keys and values of every strand, and attention over rows that lie one after the other.
struct Ragged {
    /// Of each layer, keys and values (strands, H, slots, hs).
    layers: Vec<[Tensor; 2]>,
    parts: Vec<Part>,
    rows: usize,
}

/// One strand's rows in a pass.
struct Part {
    slot: i64,
    /// Its first row in the pass.
    at: i64,
    /// Rows before it in the cache.
    start: i64,
    count: i64,
    /// (count, start + count); none for a single row, which sees all.
    mask: Option<Tensor>,
}

impl Ragged {
    fn new(model: &dyn Decoder, strands: usize, slots: usize) -> Ragged {
        let config = model.config();
        let (heads, layers) = (config.n_head() as i64, config.n_layer());
        let sizes = [strands as i64, heads, slots as i64, config.n_embd() as i64 / heads];
        let options = (model.compute(), model.device());
        let kept = || [Tensor::zeros(sizes, options), Tensor::zeros(sizes, options)];
        Ragged { layers: (0..layers).map(|_| kept()).collect(), parts: Vec::new(), rows: 0 }
    }

    /// The next rows of the pass: `count` of strand `slot`, behind `start` that it has.
    fn place(&mut self, slot: usize, start: usize, count: usize) {
        if self.parts.is_empty() {
            self.rows = 0;
        }
        let device = self.layers.first().map_or(Device::Cpu, |l| l[0].device());
        let mask = (count > 1).then(|| {
            let width = start + count;
            let seen: Vec<bool> =
                (0..count).flat_map(|r| (0..width).map(move |c| c <= start + r)).collect();
            Tensor::from_slice(&seen).view([count as i64, width as i64]).to_device(device)
        });
        let at = self.rows as i64;
        let (slot, start) = (slot as i64, start as i64);
        self.rows += count;
        self.parts.push(Part { slot, at, start, count: count as i64, mask });
    }

    /// The last row of each strand in the pass.
    fn last_rows(&self, device: Device) -> Tensor {
        let rows: Vec<i64> = self.parts.iter().map(|p| p.at + p.count - 1).collect();
        Tensor::from_slice(&rows).to_device(device)
    }
}

impl Attend for Ragged {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let [keys, values] = &self.layers[layer];
        let mut out = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let seen = [(keys, k), (values, v)].map(|(kept, new)| {
                let kept = kept.narrow(0, part.slot, 1).narrow(2, 0, part.start + part.count);
                kept.narrow(2, part.start, part.count).copy_(&new.narrow(2, part.at, part.count));
                kept
            });
            let q = q.narrow(2, part.at, part.count);
            let mask = part.mask.as_ref();
            out.push(Tensor::scaled_dot_product_attention(
                &q, &seen[0], &seen[1], mask, 0.0, false, None, false,
            ));
        }
        Tensor::cat(&out, 2) // (1, H, N, hs)
    }
}
