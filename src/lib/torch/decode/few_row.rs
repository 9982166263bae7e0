//! A causal network's pass for few rows, on kernels of our own.
//!
//! One token a step forwards one row a sequence. libtorch spends most of such a step on starting
//! some forty operations a block and on reading the weights badly; here a step reads each weight
//! once, computes no padding, and shares a few large pieces of work among threads. A row's result
//! does not depend on the rows beside it, so neither does a sample on its batch, to the last bit.
//! That is why on a CPU it makes every pass of decoding, in f32 and with weights in bf16
//! (activations stay in f32), however many rows there are. It reads the same description of the
//! network as libtorch's pass, and tests hold the two together.

use ao_core::family::Activation;
use half::bf16;
use tch::{Device, Kind, Tensor};

use crate::kernels::attention::attend;
use crate::kernels::elementwise::{
    add, add_gated, gelu_in_place, gelu_tanh_in_place, layer_norm, modulate, rms_norm,
};
use crate::kernels::matmul::{Matrix, matmul, matmul_into};
use crate::kernels::pool::{self, SharedRows};
use crate::kernels::simd::{self, Element, Level};
use crate::network::attention::{Cache, CacheMemory, CacheShape, CachedRow};
use crate::network::{
    Base, Linear, NORM_EPS, Network, Norm, NormKind, Stored, Target, TensorSlice, Transformer,
};

/// Rows from which on the steps between products are shared among threads.
const SHARED_ROWS: usize = 16;

/// A network whose passes are made here.
pub struct FewRow {
    weights: Weights,
}

enum Weights {
    Float(Model<f32>),
    Half(Model<bf16>),
}

impl FewRow {
    /// The network's passes at the level of instructions in use; `None` where they are libtorch's:
    /// on a GPU, in f64 and f16, and of a network that is no [`Transformer`].
    pub fn new(network: &dyn Network) -> Option<FewRow> {
        FewRow::at(simd::level(), network)
    }

    /// As [`FewRow::new`], at a level.
    pub fn at(level: Level, network: &dyn Network) -> Option<FewRow> {
        let (transformer, base) = (network.transformer()?, network.base());
        if base.device() != Device::Cpu || base.kind() != Kind::Float {
            return None;
        }
        let weights = match base.compute {
            Kind::Float => Weights::Float(Model::new(level, transformer, base)),
            Kind::BFloat16 => Weights::Half(Model::new(level, transformer, base)),
            _ => return None,
        };
        Some(FewRow { weights })
    }

    /// One pass: the hidden rows of `wanted`, (wanted, C). Keys and values of all rows go into their
    /// slots of the cache.
    pub fn pass(&self, rows: &[CachedRow], wanted: &[usize], cache: &mut Cache) -> Tensor {
        let (values, width) = match &self.weights {
            Weights::Float(model) => (model.pass(rows, wanted, cache.memory()), model.width),
            Weights::Half(model) => (model.pass(rows, wanted, cache.memory()), model.width),
        };
        Tensor::from_slice(&values).view([wanted.len() as i64, width as i64])
    }
}

/// A matrix in the compute kind and its bias.
struct Product<T> {
    weight: TensorSlice<T>,
    bias: Option<TensorSlice<f32>>,
    width: usize,
}

/// A norm of the width.
struct RowNorm {
    kind: NormKind,
    weight: TensorSlice<f32>,
    bias: Option<TensorSlice<f32>>,
}

struct Block<T> {
    ln_1: RowNorm,
    c_attn: Product<T>,
    qk_norm: Option<[TensorSlice<f32>; 2]>,
    attn_proj: Product<T>,
    ln_2: RowNorm,
    c_fc: Product<T>,
    activation: Activation,
    mlp_proj: Product<T>,
    /// What the target brings, (T, 6C) for adaLN and (T, C) where it is added.
    table: Option<TensorSlice<f32>>,
}

/// A [`Transformer`] as plain memory.
struct Model<T> {
    level: Level,
    width: usize,
    heads: usize,
    wte: TensorSlice<f32>,
    wpe: TensorSlice<f32>,
    none: Option<TensorSlice<f32>>,
    /// What the target adds to the input.
    target: Option<TensorSlice<f32>>,
    /// Own position and target each take half of the input, from one table.
    halves: bool,
    adaln: bool,
    blocks: Vec<Block<T>>,
    ln_f: RowNorm,
    last: Option<TensorSlice<f32>>,
}

impl<T: Stored + Element> Product<T> {
    fn new(linear: &Linear) -> Product<T> {
        Product {
            weight: TensorSlice::new(&linear.weight),
            bias: linear.bias.as_ref().map(TensorSlice::new),
            width: linear.weight.size()[1] as usize,
        }
    }

    fn matrix(&self) -> Matrix<'_, T> {
        Matrix { weight: &self.weight, bias: self.bias.as_deref(), width: self.width }
    }
}

impl RowNorm {
    fn new(norm: &Norm) -> RowNorm {
        let bias = norm.bias.as_ref().map(TensorSlice::new);
        RowNorm { kind: norm.kind, weight: TensorSlice::new(&norm.weight), bias }
    }

    fn apply(&self, x: &[f32], out: &mut [f32]) {
        match self.kind {
            NormKind::Rms => rms_norm(x, &self.weight, NORM_EPS as f32, out),
            NormKind::Layer => layer_norm(x, &self.weight, NORM_EPS as f32, out),
        }
        if let Some(bias) = &self.bias {
            add(out, bias);
        }
    }
}

impl<T: Stored + Element> Model<T> {
    fn new(level: Level, transformer: &Transformer, base: &Base) -> Model<T> {
        let conditioning = tch::no_grad(|| transformer.conditioning());
        let floats = |tensor: &Tensor| TensorSlice::<f32>::new(tensor);
        let blocks = transformer.blocks.iter().enumerate().map(|(i, block)| Block {
            ln_1: RowNorm::new(&block.ln_1),
            c_attn: Product::new(&block.c_attn),
            qk_norm: block.qk_norm.as_ref().map(|norms| norms.each_ref().map(floats)),
            attn_proj: Product::new(&block.attn_proj),
            ln_2: RowNorm::new(&block.ln_2),
            c_fc: Product::new(&block.c_fc),
            activation: block.activation,
            mlp_proj: Product::new(&block.mlp_proj),
            table: conditioning.blocks.get(i).map(floats),
        });
        Model {
            level,
            width: base.config.n_embd(),
            heads: base.config.n_head(),
            wte: floats(base.tokens.weight()),
            wpe: floats(&transformer.wpe),
            none: transformer.none.as_ref().map(floats),
            target: match &transformer.target {
                Target::Input(table) => Some(floats(table)),
                _ => None,
            },
            halves: matches!(transformer.target, Target::Halves),
            adaln: matches!(transformer.target, Target::Adaln { .. }),
            blocks: blocks.collect(),
            ln_f: RowNorm::new(&transformer.ln_f),
            last: conditioning.last.as_ref().map(floats),
        }
    }

    fn pass(&self, rows: &[CachedRow], wanted: &[usize], cache: CacheMemory<T>) -> Vec<f32> {
        let (heads, head_size) = (self.heads, self.width / self.heads);
        let shape = CacheShape { layers: self.blocks.len(), heads, head_size };
        assert_eq!(cache.shape(), shape, "a cache of another network");
        // The rows of each sequence, and the number of the first of them.
        let numbered = |next: &mut usize, group| {
            let first = *next;
            *next += <[CachedRow]>::len(group);
            Some((group, first))
        };
        let groups: Vec<(&[CachedRow], usize)> =
            rows.chunk_by(|a, b| a.sequence == b.sequence).scan(0, numbered).collect();
        pool::enter(|| {
            let (n, c) = (rows.len(), self.width);
            let mut x = self.input(rows);
            let (mut h, mut y) = (vec![0f32; n * c], vec![0f32; n * c]);
            let (mut qkv, mut inner) = (vec![0f32; n * 3 * c], vec![0f32; n * 4 * c]);
            for (layer, block) in self.blocks.iter().enumerate() {
                let table = block.table.as_deref();
                if let Some(table) = table.filter(|_| !self.adaln) {
                    for (x, row) in x.chunks_exact_mut(c).zip(rows) {
                        add(x, &table[row.aim as usize * c..][..c]);
                    }
                }
                // Part i of what the target brings to row r: shift, scale and gate, twice.
                let part = |r: usize, i: usize| {
                    let start = rows[r].aim as usize * 6 * c + i * c;
                    table.filter(|_| self.adaln).map(|table| &table[start..start + c])
                };
                let norm = |x: &[f32], norm: &RowNorm, first: usize, out: &mut [f32]| {
                    let out = SharedRows::new(out, c);
                    let unit = if n < SHARED_ROWS { n } else { 4 };
                    pool::split(n, unit, usize::MAX, &|range, _| {
                        for r in range {
                            // SAFETY: every row is in one range.
                            let out = unsafe { out.part(r, 0, c) };
                            norm.apply(&x[r * c..][..c], out);
                            if let Some((shift, scale)) = part(r, first).zip(part(r, first + 1)) {
                                modulate(out, shift, scale);
                            }
                        }
                    });
                };
                let add_branch = |x: &SharedRows, i: usize, r: usize, column: usize, v: &[f32]| {
                    // SAFETY: every row and column is handed on once.
                    let x = unsafe { x.part(r, column, v.len()) };
                    match part(r, i) {
                        Some(gate) => add_gated(x, &gate[column..], v),
                        None => add(x, v),
                    }
                };

                norm(&x, &block.ln_1, 0, &mut h);
                matmul_into(self.level, block.c_attn.matrix(), &h, &mut qkv);
                self.attention(block, &groups, &qkv, &cache, layer, &mut y);
                let out = SharedRows::new(&mut x, c);
                matmul(self.level, block.attn_proj.matrix(), &y, &|r, column, values| {
                    add_branch(&out, 2, r, column, values);
                });

                norm(&x, &block.ln_2, 3, &mut h);
                let out = SharedRows::new(&mut inner, 4 * c);
                matmul(self.level, block.c_fc.matrix(), &h, &|r, column, values| {
                    match block.activation {
                        Activation::Gelu => gelu_in_place(values),
                        Activation::GeluTanh => gelu_tanh_in_place(values),
                    }
                    // SAFETY: every row and column is handed on once.
                    unsafe { out.part(r, column, values.len()) }.copy_from_slice(values);
                });
                let out = SharedRows::new(&mut x, c);
                matmul(self.level, block.mlp_proj.matrix(), &inner, &|r, column, values| {
                    add_branch(&out, 5, r, column, values);
                });
            }
            let mut out = vec![0f32; wanted.len() * c];
            for (out, &r) in out.chunks_exact_mut(c).zip(wanted) {
                self.ln_f.apply(&x[r * c..][..c], out);
                if let Some(last) = &self.last {
                    let last = &last[rows[r].aim as usize * 2 * c..][..2 * c];
                    modulate(out, &last[..c], &last[c..]);
                }
            }
            out
        })
    }

    /// Token, own position and target of each row, (n, C).
    fn input(&self, rows: &[CachedRow]) -> Vec<f32> {
        let c = self.width;
        let mut x = vec![0f32; rows.len() * c];
        // Where there is a [None], row 0 of the table of positions is its own.
        let first = usize::from(self.none.is_some());
        let own = if self.halves { c / 2 } else { c };
        for (x, row) in x.chunks_exact_mut(c).zip(rows) {
            let none = self.none.as_deref().unwrap_or_default();
            let (token, place) = match row.held {
                Some((token, position)) => {
                    (&self.wte[token as usize * c..][..c], position as usize + first)
                }
                None => (none, 0),
            };
            x.copy_from_slice(token);
            add(x, &self.wpe[place * own..][..own]);
            if self.halves {
                add(&mut x[own..], &self.wpe[row.aim as usize * own..][..own]);
            }
            if let Some(table) = &self.target {
                add(x, &table[row.aim as usize * c..][..c]);
            }
        }
        x
    }

    /// Norms of queries and keys, keys and values into their slots, and each row's look at them.
    fn attention(
        &self,
        block: &Block<T>,
        groups: &[(&[CachedRow], usize)],
        qkv: &[f32],
        cache: &CacheMemory<T>,
        layer: usize,
        y: &mut [f32],
    ) {
        let (c, heads) = (self.width, self.heads);
        let hs = c / heads;
        let out = SharedRows::new(y, c);
        pool::split(groups.len() * heads, 1, usize::MAX, &|range, [scores, _]| {
            let mut normed = vec![0f32; hs];
            for unit in range {
                let (group, first) = groups[unit / heads];
                let head = unit % heads;
                let memory = cache.head(layer, group[0].sequence, head);
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
                    // SAFETY: every row and head is in one task, whose slots nothing writes now.
                    unsafe {
                        let out = out.part(first + r, head * hs, hs);
                        attend(self.level, &normed, memory, seen, scores, out);
                    }
                }
            }
        });
    }
}
