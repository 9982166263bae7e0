//! AO-GPT: a decoder-only transformer that predicts text in any order.
//!
//! Sources: arXiv 2506.19935 and its published code. Row k of a sequence with order σ holds the
//! token at σ_{k−1} (row 0 the [None] token) and predicts the one at σ_k, told which by adaLN: a
//! table over target positions modulates every norm. Row n of the published model, whose logits are
//! thrown away and which nothing sees, is not computed.

use ao_core::config::AoGptConfig;
use tch::{Device, IndexOp, Kind, Tensor};

use super::batch::Batch;
use super::head::Head;
use super::layers::{Linear, cast, rms_norm};
use super::weights::Weights;

/// How rows look at each other: the only part in which training, scoring and decoding differ.
pub trait Attend {
    /// Attention of block `layer`: q, k, v (B, H, R, hs) to (B, H, R, hs).
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor;
}

/// Every row sees itself and the rows before it.
pub struct CausalAttention {
    /// Dropout on the attention weights.
    pub dropout: f64,
}

impl Attend for CausalAttention {
    fn attend(&mut self, _: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        Tensor::scaled_dot_product_attention::<Tensor>(
            q,
            k,
            v,
            None,
            self.dropout,
            true,
            None,
            false,
        )
    }
}

struct Block {
    ln_1: Tensor,
    c_attn: Linear,
    attn_proj: Linear,
    q_norm: Tensor,
    k_norm: Tensor,
    ln_2: Tensor,
    c_fc: Linear,
    mlp_proj: Linear,
    ada: Linear,
}

/// The model over views of its weights.
pub struct AoGpt {
    config: AoGptConfig,
    wte: Tensor,
    wpe: Tensor,
    wtpe: Tensor,
    wnonee: Tensor,
    blocks: Vec<Block>,
    ln_f: Tensor,
    ada_final: Linear,
    head: Head,
    compute: Kind,
}

/// adaLN's output for every target position, computed once per position and not per token.
///
/// Shift, 1 + scale and gate of attention, then of the MLP.
pub struct Conditioning {
    blocks: Vec<Tensor>, // (T, 6C) each
    last: Tensor,        // (T, 2C)
}

impl AoGpt {
    /// The model over `weights`, multiplying matrices in `compute`. Gradients flow to the views
    /// where the weights require them.
    pub fn new(config: &AoGptConfig, weights: &Weights, compute: Kind, threads: usize) -> AoGpt {
        // A model in f64 is exact throughout.
        let compute = if weights.flat().kind() == Kind::Double { Kind::Double } else { compute };
        let master = weights.flat().kind();
        let get = |name: &str| weights.get(name);
        let blocks = (0..config.n_layer)
            .map(|i| {
                let name = |part: &str| format!("transformer.h.{i}.{part}");
                let linear = |part: &str| Linear::new(weights, &name(part), compute);
                Block {
                    ln_1: get(&name("ln_1.weight")),
                    c_attn: linear("attn.c_attn"),
                    attn_proj: linear("attn.c_proj"),
                    q_norm: get(&name("attn.q_norm.weight")),
                    k_norm: get(&name("attn.k_norm.weight")),
                    ln_2: get(&name("ln_2.weight")),
                    c_fc: linear("mlp.c_fc"),
                    mlp_proj: linear("mlp.c_proj"),
                    ada: Linear::new(weights, &name("adaLN.1"), master),
                }
            })
            .collect();
        AoGpt {
            config: config.clone(),
            wte: get("transformer.wte.weight"),
            wpe: get("transformer.wpe.weight"),
            wtpe: get("transformer.wtpe.weight"),
            wnonee: get("transformer.wnonee.weight"),
            blocks,
            ln_f: get("transformer.final_layer.ln_f.weight"),
            ada_final: Linear::new(weights, "transformer.final_layer.adaLN_final.1", master),
            head: Head::new(get("lm_head.weight"), weights.find("lm_head.bias"), compute, threads),
            compute,
        }
    }

    /// Keeps copies of the weights in the compute kind: for scoring and decoding, not training.
    pub fn freeze(&mut self) {
        for block in &mut self.blocks {
            for linear in
                [&mut block.c_attn, &mut block.attn_proj, &mut block.c_fc, &mut block.mlp_proj]
            {
                linear.freeze();
            }
        }
        self.head.freeze();
    }

    /// Sizes.
    pub fn config(&self) -> &AoGptConfig {
        &self.config
    }

    /// The head: logits, NLL and its gradients.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The device that the weights are on.
    pub fn device(&self) -> Device {
        self.wte.device()
    }

    /// The kind of rows, norms and sums: that of the weights.
    pub fn kind(&self) -> Kind {
        self.wpe.kind()
    }

    /// The kind that attention and its cache are in.
    pub fn compute(&self) -> Kind {
        self.compute
    }

    /// adaLN's tables for all target positions.
    pub fn conditioning(&self) -> Conditioning {
        let c = self.config.n_embd as i64;
        let silu = self.wtpe.silu(); // (T, cond)
        // Adding one to the scales here spares an addition per row and block.
        let mut ones = vec![0f32; 6 * c as usize];
        for at in [1, 4] {
            ones[at * c as usize..(at + 1) * c as usize].fill(1.0);
        }
        let ones = Tensor::from_slice(&ones).to_kind(self.kind()).to_device(self.device());
        let blocks = self.blocks.iter().map(|b| b.ada.forward(&silu) + &ones).collect();
        let last = self.ada_final.forward(&silu) + ones.narrow(0, 0, 2 * c);
        Conditioning { blocks, last }
    }

    /// Token embeddings, (…) i64 to (…, C).
    pub fn token_rows(&self, tokens: &Tensor) -> Tensor {
        Tensor::embedding(&self.wte, tokens, -1, false, false)
    }

    /// The [None] row, (1, C).
    pub fn none_row(&self) -> Tensor {
        &self.wnonee + self.wpe.narrow(0, 0, 1)
    }

    /// Embeddings of own positions, (…) i64 text positions to (…, C).
    pub fn position_rows(&self, positions: &Tensor) -> Tensor {
        Tensor::embedding(&self.wpe, &(positions + 1), -1, false, false)
    }

    /// The input rows of whole sequences: [None], then the tokens but the last, (B, T, C).
    ///
    /// `token_rows` are the embeddings of tokens 0..T−1 in generation order, (B, T−1, C); `order`
    /// is i64 (B, T).
    pub fn input_rows(&self, token_rows: &Tensor, order: &Tensor) -> Tensor {
        let (b, t) = (order.size()[0], order.size()[1]);
        let c = self.config.n_embd as i64;
        let none = self.none_row().view([1, 1, c]).expand([b, 1, c], false);
        if t == 1 {
            return none;
        }
        let held = token_rows + self.position_rows(&order.narrow(1, 0, t - 1));
        Tensor::cat(&[none, held], 1) // (B, T, C)
    }

    /// The blocks and the final norm: rows (B, R, C) with targets i64 (B, R) to the head's input,
    /// (B, R, C).
    pub fn forward(
        &self,
        rows: &Tensor,
        targets: &Tensor,
        conditioning: &Conditioning,
        attend: &mut dyn Attend,
        dropout: f64,
    ) -> Tensor {
        let c = self.config.n_embd as i64;
        let mut x = drop(rows, dropout);
        for (layer, block) in self.blocks.iter().enumerate() {
            let table = Tensor::embedding(&conditioning.blocks[layer], targets, -1, false, false);
            let part = |i: i64| table.narrow(-1, i * c, c); // (B, R, C)
            let (shift_a, scale_a, gate_a) = (part(0), part(1), part(2));
            let (shift_m, scale_m, gate_m) = (part(3), part(4), part(5));

            let h = shift_a.addcmul(&rms_norm(&x, &block.ln_1), &scale_a);
            let a = self.attention(layer, block, &h, attend);
            x = x.addcmul(&gate_a, &drop(&cast(&a, x.kind()), dropout));

            let h = shift_m.addcmul(&rms_norm(&x, &block.ln_2), &scale_m);
            let m = block.mlp_proj.forward(&block.c_fc.forward(&h).gelu("none"));
            x = x.addcmul(&gate_m, &drop(&cast(&m, x.kind()), dropout));
        }
        let table = Tensor::embedding(&conditioning.last, targets, -1, false, false);
        let (shift, scale) = (table.narrow(-1, 0, c), table.narrow(-1, c, c));
        shift.addcmul(&rms_norm(&x, &self.ln_f), &scale)
    }

    fn attention(
        &self,
        layer: usize,
        block: &Block,
        h: &Tensor,
        attend: &mut dyn Attend,
    ) -> Tensor {
        let (b, r) = (h.size()[0], h.size()[1]);
        let heads = self.config.n_head as i64;
        let hs = self.config.head_size() as i64;
        let qkv = block.c_attn.forward(h).view([b, r, 3, heads, hs]);
        let split = |i: i64| qkv.i((.., .., i)).transpose(1, 2); // (B, H, R, hs)
        let norm = |x: Tensor, weight: &Tensor| {
            cast(&rms_norm(&cast(&x, self.kind()), weight), self.compute)
        };
        let q = norm(split(0), &block.q_norm);
        let k = norm(split(1), &block.k_norm);
        let y = attend.attend(layer, &q, &k, &split(2)); // (B, H, R, hs)
        let y = y.transpose(1, 2).reshape([b, r, heads * hs]);
        block.attn_proj.forward(&y)
    }

    /// The head's input for whole sequences, (B, T, C), without gradients: scoring.
    pub fn hidden(&self, batch: &Batch, conditioning: &Conditioning) -> Tensor {
        tch::no_grad(|| {
            let tokens = batch.tokens_tensor(self.device());
            let order = batch.order_tensor(self.device());
            let held = self.token_rows(&tokens.narrow(1, 0, batch.length as i64 - 1));
            let rows = self.input_rows(&held, &order);
            self.forward(&rows, &order, conditioning, &mut CausalAttention { dropout: 0.0 }, 0.0)
        })
    }

    /// NLL of every target of a batch along its orders, nats, (B, T) in generation order; 0 where
    /// padded.
    pub fn nll(&self, batch: &Batch, conditioning: &Conditioning) -> Vec<f64> {
        let hidden = self.hidden(batch, conditioning);
        self.head.nll(&hidden, &batch.targets)
    }
}

/// Dropout in training, nothing at 0.
fn drop(x: &Tensor, p: f64) -> Tensor {
    if p > 0.0 { x.dropout(p, true) } else { x.shallow_clone() }
}
