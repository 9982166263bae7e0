//! The bidirectional transformer of SEDD, which RADD and MDLM share: rotary positions, LayerNorm,
//! and in SEDD and MDLM adaLN by the time (arXiv 2310.16834, its published code).
//!
//! It reads a text of which some tokens are the mask id and says, of every masked position, how
//! likely each real id is there: RADD and MDLM as log-probabilities (MDLM's SUBS parameterisation:
//! no mass on the mask, and tokens that are not masked stay as they are), SEDD as concrete scores.

use ao_core::family::{DditShape, MdlmConfig, ModelConfig, RaddConfig, SeddConfig, TIME_WIDTH};
use tch::{IndexOp, Kind, Tensor};

use super::attention::{Attention, CacheShape};
use super::base::{Base, HandNames, Network};
use super::head::Head;
use super::layers::{LayerNorm, Linear, alone, cast, drop, gelu_tanh, silu};
use super::rows::{Rows, TokenTable};
use super::weights::Weights;

use crate::device::Runtime;

struct Block {
    norm1: LayerNorm,
    attn_qkv: Linear,
    attn_out: Linear,
    norm2: LayerNorm,
    mlp_in: Linear,
    mlp_out: Linear,
    ada: Option<Linear>,
}

/// The time's path: a sinusoid and two layers.
struct TimeMap {
    first: Linear,
    second: Linear,
}

/// The network over views of its weights.
pub struct Ddit {
    base: Base,
    shape: DditShape,
    time: Option<TimeMap>,
    blocks: Vec<Block>,
    norm_final: LayerNorm,
    ada_final: Option<Linear>,
    /// cos and sin of the rotary angles, (T, hs) each.
    rotary: [Tensor; 2],
    time_conditioned: bool,
}

/// The network of a RADD, an MDLM or a SEDD.
///
/// # Panics
/// When `config` is of another family: a mistake in the list of families.
pub fn ddit(config: &ModelConfig, weights: &Weights, runtime: &Runtime) -> Box<dyn Network> {
    let radd = config.of::<RaddConfig>().map(RaddConfig::shape);
    let mdlm = || config.of::<MdlmConfig>().map(MdlmConfig::shape);
    let sedd = || config.of::<SeddConfig>().map(SeddConfig::shape);
    let shape = radd.or_else(mdlm).or_else(sedd).expect("a family of this transformer");
    Box::new(Ddit::new(config, shape, weights, runtime))
}

impl Ddit {
    fn new(config: &ModelConfig, shape: DditShape, weights: &Weights, runtime: &Runtime) -> Ddit {
        let (compute, master) = (runtime.compute_of(weights), weights.flat().kind());
        let names = HandNames {
            token_table: "vocab_embed.embedding",
            head_weight: "output_layer.linear.weight",
            head_bias: "output_layer.linear.bias",
        };
        let (weight, bias) = (weights.get(names.head_weight), weights.get(names.head_bias));
        let (real, mask) = (shape.vocab_size as i64, shape.mask_id as i64);
        // No mass is on the mask: a row behind the real ids is no part of the head.
        let head = if mask == real {
            Head::new(weight.narrow(0, 0, real), Some(bias.narrow(0, 0, real)), compute)
        } else {
            Head::new(weight, Some(bias), compute).excluding(mask)
        };
        let conditioned = shape.cond_dim.is_some();
        let ada = |name: &str| conditioned.then(|| Linear::new(weights, name, master));
        let blocks = (0..shape.n_layer)
            .map(|i| {
                let name = |part: &str| format!("blocks.{i}.{part}");
                let linear = |part: &str| Linear::new(weights, &name(part), compute);
                Block {
                    norm1: LayerNorm::new(weights, &name("norm1")),
                    attn_qkv: linear("attn_qkv"),
                    attn_out: linear("attn_out"),
                    norm2: LayerNorm::new(weights, &name("norm2")),
                    mlp_in: linear("mlp.0"),
                    mlp_out: linear("mlp.2"),
                    ada: ada(&name("adaLN_modulation")),
                }
            })
            .collect();
        Ddit {
            base: Base {
                config: config.clone(),
                tokens: TokenTable::new(weights.get(names.token_table)),
                head,
                compute,
                names,
            },
            time: conditioned.then(|| TimeMap {
                first: Linear::new(weights, "sigma_map.mlp.0", master),
                second: Linear::new(weights, "sigma_map.mlp.2", master),
            }),
            blocks,
            norm_final: LayerNorm::new(weights, "output_layer.norm_final"),
            ada_final: ada("output_layer.adaLN_modulation"),
            rotary: rotary(&shape, weights),
            time_conditioned: config.capabilities().masks.is_some_and(|m| m.time_conditioned),
            shape,
        }
    }

    fn attention(
        &self,
        layer: usize,
        h: &Tensor,
        rotary: &[Tensor; 2],
        attention: &mut dyn Attention,
    ) -> Tensor {
        let (b, r, c) = (h.size()[0], h.size()[1], h.size()[2]);
        let heads = self.shape.n_head as i64;
        let block = &self.blocks[layer];
        let qkv = block.attn_qkv.forward(h).view([b, r, 3, heads, c / heads]);
        let split = |i: i64| qkv.i((.., .., i)).transpose(1, 2); // (B, H, R, hs)
        let rotate = |x: &Tensor| cast(&rotate(&cast(x, h.kind()), rotary), self.base.compute);
        attention.store(layer, &rotate(&split(1)), &split(2));
        let y = attention.look(layer, &rotate(&split(0)));
        block.attn_out.forward(&y.transpose(1, 2).reshape([b, r, c]))
    }
}

impl Network for Ddit {
    fn base(&self) -> &Base {
        &self.base
    }

    fn freeze(&mut self) {
        for block in &mut self.blocks {
            for linear in
                [&mut block.attn_qkv, &mut block.attn_out, &mut block.mlp_in, &mut block.mlp_out]
            {
                linear.freeze();
            }
        }
        let ada = self.blocks.iter_mut().map(|block| &mut block.ada).chain([&mut self.ada_final]);
        let time = self.time.iter_mut().flat_map(|time| [&mut time.first, &mut time.second]);
        ada.flatten().chain(time).for_each(Linear::freeze);
        self.base.freeze();
    }

    fn cache_shape(&self) -> CacheShape {
        let (layers, heads) = (self.shape.n_layer, self.shape.n_head);
        CacheShape { layers, heads, head_size: self.shape.head_size() }
    }

    fn forward(&self, rows: &Rows, attention: &mut dyn Attention, dropout: f64) -> Tensor {
        let c = self.shape.n_embd as i64;
        let mut x = self.base.tokens.rows(&rows.tokens);
        let condition = self.time.as_ref().map(|time| {
            let none = || Tensor::zeros([x.size()[0]], (x.kind(), x.device()));
            let sigma = rows.sigma.as_ref().filter(|_| self.time_conditioned);
            time.forward(&sigma.map_or_else(none, |sigma| cast(sigma, x.kind()))) // (B, 1, cond)
        });
        let modulation = |ada: &Option<Linear>| {
            ada.as_ref().zip(condition.as_ref()).map(|(ada, x)| ada.forward(x))
        };
        let angles = |table: &Tensor| {
            Tensor::embedding(table, &rows.held, -1, false, false).unsqueeze(1) // (B, 1, R, hs)
        };
        let rotary = self.rotary.each_ref().map(angles);
        for (layer, block) in self.blocks.iter().enumerate() {
            let table = modulation(&block.ada); // (B, 1, 6C)
            let part = |i: i64| table.as_ref().map(|t| t.narrow(-1, i * c, c));
            let h = modulate(&block.norm1.forward(&x), part(0), part(1));
            let a = self.attention(layer, &h, &rotary, attention);
            x = add_gated(&x, &drop(&cast(&a, x.kind()), dropout), part(2));
            let h = modulate(&block.norm2.forward(&x), part(3), part(4));
            let m = block.mlp_out.forward(&gelu_tanh(block.mlp_in.forward(&h)));
            x = add_gated(&x, &drop(&cast(&m, x.kind()), dropout), part(5));
        }
        let table = modulation(&self.ada_final); // (B, 1, 2C)
        let part = |i: i64| table.as_ref().map(|t| t.narrow(-1, i * c, c));
        modulate(&self.norm_final.forward(&x), part(0), part(1))
    }
}

/// Rotates queries or keys (B, H, R, hs) by their angles (B, 1, R, hs); the two halves of a head are
/// the coordinates of its planes.
fn rotate(x: &Tensor, [cos, sin]: &[Tensor; 2]) -> Tensor {
    let half = x.size()[3] / 2;
    let (first, second) = (x.narrow(-1, 0, half), x.narrow(-1, half, half));
    x * cos + Tensor::cat(&[-second, first], -1) * sin
}

impl TimeMap {
    /// σ (B) to the vector that modulates the norms, (B, 1, cond).
    fn forward(&self, sigma: &Tensor) -> Tensor {
        let half = (TIME_WIDTH / 2) as i64;
        let options = (sigma.kind(), sigma.device());
        let frequency = (Tensor::arange(half, options) * (-(10_000f64.ln()) / half as f64)).exp();
        let wave = alone(&sigma.view([-1, 1, 1]), |sigma| {
            let angle = sigma * &frequency; // (B, 1, 128)
            Tensor::cat(&[angle.cos(), angle.sin()], -1)
        }); // (B, 1, 256)
        silu(self.second.forward(&silu(self.first.forward(&wave))))
    }
}

/// Angles p·10000^(−2i/hs) of the planes i of a head, at positions p: their cos and sin, (T, hs).
fn rotary(shape: &DditShape, weights: &Weights) -> [Tensor; 2] {
    let hs = shape.head_size() as i64;
    let options = (Kind::Double, weights.flat().device());
    let power = Tensor::arange(hs / 2, options) * (-2.0 / hs as f64 * 10_000f64.ln());
    // The published code has the frequencies in f32, which long sequences feel.
    let frequency = power.exp().to_kind(Kind::Float).to_kind(weights.flat().kind());
    let position = Tensor::arange(shape.block_size as i64, (frequency.kind(), options.1));
    let angle = position.unsqueeze(1) * frequency.unsqueeze(0); // (T, hs/2)
    let angle = Tensor::cat(&[&angle, &angle], -1);
    [angle.cos(), angle.sin()]
}

fn modulate(x: &Tensor, shift: Option<Tensor>, scale: Option<Tensor>) -> Tensor {
    match shift.zip(scale) {
        Some((shift, scale)) => x * (scale + 1.0) + shift,
        None => x.shallow_clone(),
    }
}

fn add_gated(x: &Tensor, branch: &Tensor, gate: Option<Tensor>) -> Tensor {
    match gate {
        Some(gate) => x + gate * branch,
        None => x + branch,
    }
}
