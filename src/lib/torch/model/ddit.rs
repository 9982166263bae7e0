//! The bidirectional transformer of SEDD, which RADD and MDLM share: rotary positions, LayerNorm,
//! and in SEDD and MDLM adaLN by the time (arXiv 2310.16834, its published code).

use ao_core::config::{DditShape, TIME_WIDTH};
use tch::{IndexOp, Kind, Tensor};

use super::layers::{LayerNorm, Linear, cast, drop};
use super::weights::Weights;

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

/// Blocks and final norm over views of the weights.
pub(super) struct Ddit {
    shape: DditShape,
    time: Option<TimeMap>,
    blocks: Vec<Block>,
    norm_final: LayerNorm,
    ada_final: Option<Linear>,
    /// cos and sin of the rotary angles, (T, hs) each.
    rotary: [Tensor; 2],
    compute: Kind,
}

impl Ddit {
    pub fn new(shape: &DditShape, weights: &Weights, compute: Kind) -> Ddit {
        let master = weights.flat().kind();
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
            shape: shape.clone(),
            time: conditioned.then(|| TimeMap {
                first: Linear::new(weights, "sigma_map.mlp.0", master),
                second: Linear::new(weights, "sigma_map.mlp.2", master),
            }),
            blocks,
            norm_final: LayerNorm::new(weights, "output_layer.norm_final"),
            ada_final: ada("output_layer.adaLN_modulation"),
            rotary: rotary(shape, weights),
            compute,
        }
    }

    pub fn freeze(&mut self) {
        for block in &mut self.blocks {
            for linear in
                [&mut block.attn_qkv, &mut block.attn_out, &mut block.mlp_in, &mut block.mlp_out]
            {
                linear.freeze();
            }
        }
    }

    /// Rows (B, R, C) of masked sequences to the head's input, (B, R, C).
    ///
    /// `valid` is bool (B, R), false where padded; `None` where nothing is. `sigma` is the time's
    /// input, (B), for families that have one.
    pub fn forward(
        &self,
        rows: &Tensor,
        valid: Option<&Tensor>,
        sigma: &Tensor,
        dropout: f64,
    ) -> Tensor {
        let c = self.shape.n_embd as i64;
        let condition = self.time.as_ref().map(|time| time.forward(sigma)); // (B, cond)
        let modulation = |ada: &Option<Linear>| {
            ada.as_ref().zip(condition.as_ref()).map(|(ada, x)| ada.forward(x).unsqueeze(1))
        };
        let mask = valid.map(|v| v.unsqueeze(1).unsqueeze(1)); // (B, 1, 1, R)
        let mut x = rows.shallow_clone();
        for block in &self.blocks {
            let table = modulation(&block.ada); // (B, 1, 6C)
            let part = |i: i64| table.as_ref().map(|t| t.narrow(-1, i * c, c));
            let h = modulate(&block.norm1.forward(&x), part(0), part(1));
            let a = drop(&cast(&self.attention(block, &h, mask.as_ref()), x.kind()), dropout);
            x = add_gated(&x, &a, part(2));
            let h = modulate(&block.norm2.forward(&x), part(3), part(4));
            let m = block.mlp_out.forward(&block.mlp_in.forward(&h).gelu("tanh"));
            x = add_gated(&x, &drop(&cast(&m, x.kind()), dropout), part(5));
        }
        let table = modulation(&self.ada_final); // (B, 1, 2C)
        let part = |i: i64| table.as_ref().map(|t| t.narrow(-1, i * c, c));
        modulate(&self.norm_final.forward(&x), part(0), part(1))
    }

    fn attention(&self, block: &Block, h: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let (b, r, c) = (h.size()[0], h.size()[1], h.size()[2]);
        let heads = self.shape.n_head as i64;
        let qkv = block.attn_qkv.forward(h).view([b, r, 3, heads, c / heads]);
        let split = |i: i64| qkv.i((.., .., i)).transpose(1, 2); // (B, H, R, hs)
        let turn = |x: &Tensor| cast(&self.turn(&cast(x, h.kind())), self.compute);
        let (q, k) = (turn(&split(0)), turn(&split(1)));
        let y =
            Tensor::scaled_dot_product_attention(&q, &k, &split(2), mask, 0.0, false, None, false);
        block.attn_out.forward(&y.transpose(1, 2).reshape([b, r, c]))
    }

    /// Rotates queries or keys (B, H, R, hs) by their positions; the two halves of a head are the
    /// coordinates of its planes.
    fn turn(&self, x: &Tensor) -> Tensor {
        let (rows, half) = (x.size()[2], x.size()[3] / 2);
        let [cos, sin] = [&self.rotary[0], &self.rotary[1]].map(|t| t.narrow(0, 0, rows));
        let (first, second) = (x.narrow(-1, 0, half), x.narrow(-1, half, half));
        let turned = Tensor::cat(&[-second, first], -1);
        x * cos + turned * sin
    }
}

impl TimeMap {
    /// σ (B) to the vector that modulates the norms, (B, cond).
    fn forward(&self, sigma: &Tensor) -> Tensor {
        let half = (TIME_WIDTH / 2) as i64;
        let options = (sigma.kind(), sigma.device());
        let frequency = (Tensor::arange(half, options) * (-(10_000f64.ln()) / half as f64)).exp();
        let angle = sigma.unsqueeze(1) * frequency.unsqueeze(0); // (B, 128)
        let wave = Tensor::cat(&[angle.cos(), angle.sin()], -1); // (B, 256)
        self.second.forward(&self.first.forward(&wave).silu()).silu()
    }
}

/// Angles p·10000^(−2i/hs) of the planes i of a head, at positions p.
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
