//! A decoder's pass and head for few rows, on kernels of our own.
//!
//! One token a step forwards one row a sequence. libtorch spends most of such a step on starting
//! some forty operations a block and on reading the weights badly; here a step reads each weight
//! once, computes no padding, and shares a few large pieces of work among threads. A row's result
//! does not depend on the rows beside it, so neither does a sample on its batch, to the last bit.
//! On a CPU with AVX-512, in f32 and with weights in bf16 (activations stay in f32); elsewhere, and
//! for many rows, the pass is libtorch's, and tests hold the two together.

use std::sync::Arc;

use half::bf16;
use tch::{Device, Kind, Tensor};

use super::cache::{Cache, CacheMemory};
use crate::kernels::attention::attend;
use crate::kernels::elementwise::{add, add_gated, gelu_in_place, modulate, rms_norm};
use crate::kernels::matmul::{Element, available, matmul};
use crate::kernels::pool::Pool;
use crate::model::{Conditioning, Decoder, MatrixParts, NORM_EPS, Parts, slice};

/// Most rows of a pass; for more, libtorch's kernels are as good.
const MOST_ROWS: usize = 256;
/// Rows from which on the steps between products are shared among threads.
const SHARED_ROWS: usize = 16;

/// One row of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Its sequence.
    pub line: usize,
    /// Its own slot of the cache.
    pub slot: usize,
    /// It sees the slots before this one, and its own.
    pub visible: usize,
    /// The token that it holds and the token's position; none for [None].
    pub held: Option<(u32, u32)>,
    /// The position that it predicts.
    pub target: u32,
}

/// The model as plain memory.
pub struct RowTrunk {
    kind: Trunks,
    /// Threads that share a step.
    pub pool: Arc<Pool>,
}

enum Trunks {
    Float(Trunk<f32>),
    Half(Trunk<bf16>),
}

impl RowTrunk {
    /// The model's rows, where its family, device and kind and this machine allow.
    pub fn new(
        model: &dyn Decoder,
        conditioning: &Conditioning,
        pool: Arc<Pool>,
    ) -> Option<RowTrunk> {
        if model.device() != Device::Cpu || model.kind() != Kind::Float || !available() {
            return None;
        }
        let parts = model.parts()?;
        let kind = match model.compute() {
            Kind::Float => Trunks::Float(Trunk::new(&parts, conditioning)?),
            Kind::BFloat16 => Trunks::Half(Trunk::new(&parts, conditioning)?),
            _ => return None,
        };
        Some(RowTrunk { kind, pool })
    }

    /// Whether so many rows are better computed here.
    pub(super) fn takes(&self, rows: usize) -> bool {
        rows <= MOST_ROWS
    }

    /// One pass: the hidden rows of `wanted`, (wanted, C). Keys and values of all rows go into their
    /// slots of the cache.
    pub(super) fn pass(&self, rows: &[Row], wanted: &[usize], cache: &mut Cache) -> Tensor {
        let values = match &self.kind {
            Trunks::Float(trunk) => {
                // SAFETY: the type is that of the kind.
                trunk.pass(&self.pool, rows, wanted, unsafe { cache.memory(Kind::Float) })
            }
            Trunks::Half(trunk) => {
                // SAFETY: as above.
                trunk.pass(&self.pool, rows, wanted, unsafe { cache.memory(Kind::BFloat16) })
            }
        };
        let count = wanted.len() as i64;
        let width = if count == 0 { 0 } else { values.len() as i64 / count };
        Tensor::from_slice(&values).view([count, width])
    }

    /// Logits of hidden rows (N, C) on the CPU, into the first N·V of `out`.
    pub fn logits(&self, hidden: &Tensor, out: &mut [f32]) {
        let hidden = hidden.to_kind(Kind::Float).contiguous();
        // SAFETY: contiguous and f32 by the line above.
        let hidden = unsafe { slice::<f32>(&hidden) };
        match &self.kind {
            Trunks::Float(trunk) => trunk.logits(&self.pool, hidden, out),
            Trunks::Half(trunk) => trunk.logits(&self.pool, hidden, out),
        }
    }
}

/// The elements of a tensor that nothing writes while the trunk lives.
struct View<T> {
    data: *const T,
    length: usize,
    _keep: Tensor,
}

// SAFETY: the memory is only read, through `get`; the tensor is kept, not used.
unsafe impl<T: Sync> Sync for View<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for View<T> {}

impl<T> View<T> {
    /// # Safety
    /// `T` must be the tensor's kind.
    unsafe fn new(tensor: &Tensor) -> View<T> {
        let tensor = tensor.detach().contiguous();
        View { data: tensor.data_ptr() as *const T, length: tensor.numel(), _keep: tensor }
    }

    fn get(&self) -> &[T] {
        // SAFETY: the kept tensor owns the memory.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}

struct Matrix<T> {
    weight: View<T>,
    bias: Vec<f32>,
    k: usize,
}

struct RowBlock<T> {
    ln_1: Vec<f32>,
    c_attn: Matrix<T>,
    qk_norm: Option<[Vec<f32>; 2]>,
    attn_proj: Matrix<T>,
    ln_2: Vec<f32>,
    c_fc: Matrix<T>,
    mlp_proj: Matrix<T>,
    /// What the target brings, (T, 6C) for adaLN and (T, C) where it is added.
    table: Option<View<f32>>,
}

struct Trunk<T> {
    width: usize,
    heads: usize,
    wte: View<f32>,
    wpe: View<f32>,
    wnonee: Vec<f32>,
    target: Option<View<f32>>,
    blocks: Vec<RowBlock<T>>,
    adaln: bool,
    ln_f: Vec<f32>,
    last: Option<View<f32>>,
    head: Matrix<T>,
}

impl<T: Element> Matrix<T> {
    fn new(parts: &MatrixParts, kind: Kind) -> Option<Matrix<T>> {
        let (weight, bias) = (&parts.weight, parts.bias.as_ref());
        if weight.kind() != kind || weight.device() != Device::Cpu {
            return None;
        }
        let k = weight.size()[1] as usize;
        // SAFETY: of that kind by the line above.
        let weight = unsafe { View::new(weight) };
        Some(Matrix { weight, bias: bias.map(floats).unwrap_or_default(), k })
    }

    fn outputs(&self) -> usize {
        self.weight.length / self.k
    }

    /// x·Wᵀ + b, handed to `finish` as [`matmul`] does.
    fn apply(&self, pool: &Pool, x: &[f32], finish: &(impl Fn(usize, usize, &mut [f32]) + Sync)) {
        matmul(pool, self.weight.get(), self.k, x, &|row, column, values| {
            if !self.bias.is_empty() {
                add(values, &self.bias[column..]);
            }
            finish(row, column, values);
        });
    }
}

/// Rows of f32 that several threads write, each its own part.
struct Shared {
    data: *mut f32,
    length: usize,
    width: usize,
}

// SAFETY: `part` hands out parts that do not overlap, by its callers' word.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(values: &mut [f32], width: usize) -> Shared {
        Shared { data: values.as_mut_ptr(), length: values.len(), width }
    }

    /// # Safety
    /// No other part in use may overlap it, and the values must outlive it.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, row: usize, column: usize, length: usize) -> &mut [f32] {
        let start = row * self.width + column;
        assert!(start + length <= self.length);
        // SAFETY: in bounds by the line above; the rest is the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), length) }
    }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.detach().to_kind(Kind::Float).contiguous();
    // SAFETY: contiguous and f32 by the line above.
    unsafe { slice::<f32>(&tensor) }.to_vec()
}

fn table(tensor: Option<&Tensor>) -> Option<View<f32>> {
    // SAFETY: converted to that kind.
    tensor.map(|t| unsafe { View::new(&t.to_kind(Kind::Float)) })
}

impl<T: Element> Trunk<T> {
    fn new(parts: &Parts, conditioning: &Conditioning) -> Option<Trunk<T>> {
        let kind = if size_of::<T>() == 4 { Kind::Float } else { Kind::BFloat16 };
        let (tables, last) = conditioning.tables();
        let width = parts.wte.size()[1] as usize;
        let mut blocks = Vec::new();
        for (i, block) in parts.blocks.iter().enumerate() {
            let norms = block.qk_norm.as_ref();
            blocks.push(RowBlock {
                ln_1: floats(&block.ln_1),
                c_attn: Matrix::new(&block.c_attn, kind)?,
                qk_norm: norms.map(|norms| norms.each_ref().map(floats)),
                attn_proj: Matrix::new(&block.attn_proj, kind)?,
                ln_2: floats(&block.ln_2),
                c_fc: Matrix::new(&block.c_fc, kind)?,
                mlp_proj: Matrix::new(&block.mlp_proj, kind)?,
                table: table(tables.get(i)),
            });
        }
        Some(Trunk {
            width,
            heads: parts.heads,
            wte: table(Some(&parts.wte))?,
            wpe: table(Some(&parts.wpe))?,
            wnonee: floats(&parts.wnonee),
            target: table(parts.target.as_ref()),
            blocks,
            adaln: last.is_some(),
            ln_f: floats(&parts.ln_f),
            last: table(last),
            head: Matrix::new(&parts.head, kind)?,
        })
    }

    fn pass(&self, pool: &Pool, rows: &[Row], wanted: &[usize], cache: CacheMemory<T>) -> Vec<f32> {
        let shape = [self.blocks.len(), self.heads, self.width / self.heads];
        assert_eq!(cache.shape(), shape, "a cache of another model");
        // The rows of each sequence, and the number of the first of them.
        let numbered = |next: &mut usize, group| {
            let first = *next;
            *next += <[Row]>::len(group);
            Some((group, first))
        };
        let groups: Vec<(&[Row], usize)> =
            rows.chunk_by(|a, b| a.line == b.line).scan(0, numbered).collect();
        pool.enter(|| {
            let (n, c) = (rows.len(), self.width);
            let mut x = self.input(rows);
            let (mut h, mut y) = (vec![0f32; n * c], vec![0f32; n * c]);
            let (mut qkv, mut inner) = (vec![0f32; n * 3 * c], vec![0f32; n * 4 * c]);
            for (layer, block) in self.blocks.iter().enumerate() {
                let table = block.table.as_ref().map(View::get);
                if let Some(table) = table.filter(|_| !self.adaln) {
                    for (x, row) in x.chunks_exact_mut(c).zip(rows) {
                        add(x, &table[row.target as usize * c..][..c]);
                    }
                }
                // Part i of what the target brings to row r: shift, scale and gate, twice.
                let part = |r: usize, i: usize| {
                    let start = rows[r].target as usize * 6 * c + i * c;
                    table.filter(|_| self.adaln).map(|table| &table[start..start + c])
                };
                let norm = |x: &[f32], weight: &[f32], first: usize, out: &mut [f32]| {
                    let out = Shared::new(out, c);
                    let most = if n < SHARED_ROWS { n } else { n.div_ceil(4) };
                    pool.split(n, most, usize::MAX, &|range, _| {
                        for r in range {
                            // SAFETY: every row is in one range.
                            let out = unsafe { out.part(r, 0, c) };
                            rms_norm(&x[r * c..][..c], weight, NORM_EPS as f32, out);
                            if let Some((shift, scale)) = part(r, first).zip(part(r, first + 1)) {
                                modulate(out, shift, scale);
                            }
                        }
                    });
                };
                let add_branch = |x: &Shared, i: usize, r: usize, column: usize, v: &[f32]| {
                    // SAFETY: every row and column is handed on once.
                    let x = unsafe { x.part(r, column, v.len()) };
                    match part(r, i) {
                        Some(gate) => add_gated(x, &gate[column..], v),
                        None => add(x, v),
                    }
                };

                norm(&x, &block.ln_1, 0, &mut h);
                let out = Shared::new(&mut qkv, 3 * c);
                block.c_attn.apply(pool, &h, &|r, column, values| {
                    // SAFETY: every row and column is handed on once.
                    unsafe { out.part(r, column, values.len()) }.copy_from_slice(values);
                });
                self.attention(pool, block, &groups, &qkv, &cache, layer, &mut y);
                let out = Shared::new(&mut x, c);
                block.attn_proj.apply(pool, &y, &|r, column, values| {
                    add_branch(&out, 2, r, column, values);
                });

                norm(&x, &block.ln_2, 3, &mut h);
                let out = Shared::new(&mut inner, 4 * c);
                block.c_fc.apply(pool, &h, &|r, column, values| {
                    gelu_in_place(values);
                    // SAFETY: every row and column is handed on once.
                    unsafe { out.part(r, column, values.len()) }.copy_from_slice(values);
                });
                let out = Shared::new(&mut x, c);
                block.mlp_proj.apply(pool, &inner, &|r, column, values| {
                    add_branch(&out, 5, r, column, values);
                });
            }
            let mut out = vec![0f32; wanted.len() * c];
            for (out, &r) in out.chunks_exact_mut(c).zip(wanted) {
                rms_norm(&x[r * c..][..c], &self.ln_f, NORM_EPS as f32, out);
                if let Some(last) = &self.last {
                    let last = &last.get()[rows[r].target as usize * 2 * c..][..2 * c];
                    modulate(out, &last[..c], &last[c..]);
                }
            }
            out
        })
    }

    /// Token, own position and target of each row, (n, C).
    fn input(&self, rows: &[Row]) -> Vec<f32> {
        let c = self.width;
        let mut x = vec![0f32; rows.len() * c];
        for (x, row) in x.chunks_exact_mut(c).zip(rows) {
            let (token, place) = match row.held {
                // Row 0 of the table of positions is [None]'s.
                Some((token, position)) => {
                    (&self.wte.get()[token as usize * c..][..c], position as usize + 1)
                }
                None => (self.wnonee.as_slice(), 0),
            };
            x.copy_from_slice(token);
            add(x, &self.wpe.get()[place * c..][..c]);
            if let Some(table) = &self.target {
                add(x, &table.get()[row.target as usize * c..][..c]);
            }
        }
        x
    }

    /// Norms of queries and keys, keys and values into their slots, and each row's look at them.
    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        pool: &Pool,
        block: &RowBlock<T>,
        groups: &[(&[Row], usize)],
        qkv: &[f32],
        cache: &CacheMemory<T>,
        layer: usize,
        y: &mut [f32],
    ) {
        let (c, heads) = (self.width, self.heads);
        let hs = c / heads;
        let out = Shared::new(y, c);
        pool.split(groups.len() * heads, 1, usize::MAX, &|range, scores| {
            let mut normed = vec![0f32; hs];
            for unit in range {
                let (group, first) = groups[unit / heads];
                let head = unit % heads;
                let memory = cache.head(layer, group[0].line, head);
                let value = |r: usize, which: usize| {
                    &qkv[(first + r) * 3 * c + which * c + head * hs..][..hs]
                };
                let norm = |x: &[f32], which: usize, out: &mut [f32]| match &block.qk_norm {
                    Some(norms) => rms_norm(x, &norms[which], NORM_EPS as f32, out),
                    None => out.copy_from_slice(x),
                };
                for (r, row) in group.iter().enumerate() {
                    norm(value(r, 1), 1, &mut normed);
                    // SAFETY: only this task writes the slots of this sequence and head.
                    unsafe { memory.put(row.slot, &normed, value(r, 2)) };
                }
                for (r, row) in group.iter().enumerate() {
                    norm(value(r, 0), 0, &mut normed);
                    let seen = (row.visible, row.slot);
                    // SAFETY: every row and head is in one task, whose slots nothing writes now; a
                    // trunk exists only where the vectors are available.
                    unsafe {
                        let out = out.part(first + r, head * hs, hs);
                        attend(&normed, memory, seen, scores, out);
                    }
                }
            }
        });
    }

    fn logits(&self, pool: &Pool, hidden: &[f32], out: &mut [f32]) {
        let width = self.head.outputs();
        let out = Shared::new(out, width);
        self.head.apply(pool, hidden, &|r, column, values| {
            // SAFETY: every row and column is handed on once.
            unsafe { out.part(r, column, values.len()) }.copy_from_slice(values);
        });
    }
}
