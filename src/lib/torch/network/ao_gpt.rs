//! AO-GPT: a decoder-only transformer that predicts text in any order.
//!
//! Sources: arXiv 2506.19935 and its published code. Row k of a sequence with order σ holds the
//! token at σ_{k−1} (row 0 the [None] token) and predicts the one at σ_k, told which by adaLN: a
//! table over target positions modulates every norm. Row n of the published model, whose logits are
//! thrown away and which nothing sees, is not computed. The paper's other ways of telling the
//! target (figure 5 of its v1, a to c) keep the block and leave out adaLN.

use ao_core::family::{Activation, AoGptConfig, ModelConfig, PositionEncoding};
use tch::{Kind, Tensor};

use super::decoder::{Attend, Base, Conditioning, Decoder, base};
use super::layers::{Attention, Linear, Mlp, cast, drop, rms_norm};
use super::parts::{BlockParts, Parts};
use super::weights::Weights;

struct Block {
    ln_1: Tensor,
    attn: Attention,
    ln_2: Tensor,
    mlp: Mlp,
    /// adaLN's projection of the target's code.
    ada: Option<Linear>,
    /// The block's own table of target positions.
    wtpe: Option<Tensor>,
}

/// The model over views of its weights.
pub struct AoGpt {
    base: Base,
    encoding: PositionEncoding,
    wpe: Tensor,
    wtpe: Option<Tensor>,
    wnonee: Tensor,
    blocks: Vec<Block>,
    ln_f: Tensor,
    ada_final: Option<Linear>,
}

impl AoGpt {
    /// The model over `weights`, multiplying matrices in `compute`. Gradients flow to the views
    /// where the weights require them.
    pub fn new(config: &ModelConfig, weights: &Weights, compute: Kind, threads: usize) -> AoGpt {
        let whole = config;
        let config: &AoGptConfig = whole.of().expect("of this family");
        let base = base(whole, weights, compute, threads);
        let (compute, master) = (base.compute, weights.flat().kind());
        let adaln = config.position_encoding == PositionEncoding::Adaln;
        let get = |name: &str| weights.get(name);
        let blocks = (0..config.n_layer)
            .map(|i| {
                let name = |part: &str| format!("transformer.h.{i}.{part}");
                Block {
                    ln_1: get(&name("ln_1.weight")),
                    attn: Attention::new(weights, &name("attn"), config.n_head, compute),
                    ln_2: get(&name("ln_2.weight")),
                    mlp: Mlp::new(weights, &name("mlp"), Activation::Gelu, compute),
                    ada: adaln.then(|| Linear::new(weights, &name("adaLN.1"), master)),
                    wtpe: weights.find(&name("wtpe.weight")),
                }
            })
            .collect();
        let ada_final = "transformer.final_layer.adaLN_final.1";
        AoGpt {
            base,
            encoding: config.position_encoding,
            wpe: get("transformer.wpe.weight"),
            wtpe: weights.find("transformer.wtpe.weight"),
            wnonee: get("transformer.wnonee.weight"),
            blocks,
            ln_f: get("transformer.final_layer.ln_f.weight"),
            ada_final: adaln.then(|| Linear::new(weights, ada_final, master)),
        }
    }
}

impl Decoder for AoGpt {
    fn base(&self) -> &Base {
        &self.base
    }

    fn freeze(&mut self) {
        for block in &mut self.blocks {
            block.attn.freeze();
            block.mlp.freeze();
        }
        self.base.head.freeze();
    }

    /// adaLN: shift, 1 + scale and gate of attention, then of the MLP, (T, 6C) a block, and shift
    /// and 1 + scale of the final norm, (T, 2C). Tables that blocks add: those, (T, C).
    fn conditioning(&self) -> Conditioning {
        let of_block = |block: &Block| match self.encoding {
            PositionEncoding::PerBlock => block.wtpe.as_ref().map(Tensor::shallow_clone),
            PositionEncoding::EveryBlock => self.wtpe.as_ref().map(Tensor::shallow_clone),
            PositionEncoding::Input | PositionEncoding::Adaln => None,
        };
        let (Some(wtpe), Some(ada_final)) = (&self.wtpe, &self.ada_final) else {
            return Conditioning {
                blocks: self.blocks.iter().filter_map(of_block).collect(),
                last: None,
            };
        };
        let c = self.base.config.n_embd() as i64;
        let silu = wtpe.silu(); // (T, cond)
        // Adding one to the scales here spares an addition per row and block.
        let mut ones = vec![0f32; 6 * c as usize];
        for at in [1, 4] {
            ones[at * c as usize..(at + 1) * c as usize].fill(1.0);
        }
        let ones = Tensor::from_slice(&ones).to_kind(self.kind()).to_device(self.device());
        let ada = |block: &Block| block.ada.as_ref().map(|ada| ada.forward(&silu) + &ones);
        let last = ada_final.forward(&silu) + ones.narrow(0, 0, 2 * c);
        Conditioning { blocks: self.blocks.iter().filter_map(ada).collect(), last: Some(last) }
    }

    fn none_row(&self) -> Option<Tensor> {
        Some(&self.wnonee + self.wpe.narrow(0, 0, 1))
    }

    fn position_rows(&self, positions: &Tensor) -> Tensor {
        // Row 0 of the table is [None]'s.
        Tensor::embedding(&self.wpe, &(positions + 1), -1, false, false)
    }

    fn target_rows(&self, targets: &Tensor) -> Option<Tensor> {
        match (self.encoding, &self.wtpe) {
            (PositionEncoding::Input, Some(table)) => {
                Some(Tensor::embedding(table, targets, -1, false, false))
            }
            _ => None,
        }
    }

    fn parts(&self) -> Option<Parts> {
        let block = |block: &Block| {
            let (c_attn, attn_proj, qk_norm) = block.attn.parts();
            let (c_fc, mlp_proj) = block.mlp.parts();
            let (ln_1, ln_2) = (block.ln_1.shallow_clone(), block.ln_2.shallow_clone());
            BlockParts { ln_1, c_attn, qk_norm, attn_proj, ln_2, c_fc, mlp_proj }
        };
        let input = self.encoding == PositionEncoding::Input;
        Some(Parts {
            wte: self.base.wte.shallow_clone(),
            wpe: self.wpe.shallow_clone(),
            wnonee: self.wnonee.shallow_clone(),
            target: self.wtpe.as_ref().filter(|_| input).map(Tensor::shallow_clone),
            blocks: self.blocks.iter().map(block).collect(),
            ln_f: self.ln_f.shallow_clone(),
            head: self.base.head.parts(),
            heads: self.base.config.n_head(),
        })
    }

    fn forward(
        &self,
        rows: &Tensor,
        targets: &Tensor,
        conditioning: &Conditioning,
        attend: &mut dyn Attend,
        dropout: f64,
    ) -> Tensor {
        let c = self.base.config.n_embd() as i64;
        let adaln = self.encoding == PositionEncoding::Adaln;
        let mut x = drop(rows, dropout);
        for (layer, block) in self.blocks.iter().enumerate() {
            let table = conditioning.block(layer, targets); // (B, R, 6C) or (B, R, C)
            let Some(table) = table.as_ref().filter(|_| adaln) else {
                if let Some(table) = table {
                    x = &x + table;
                }
                let a = block.attn.forward(layer, &rms_norm(&x, &block.ln_1), attend);
                x = &x + drop(&cast(&a, x.kind()), dropout);
                let m = block.mlp.forward(&rms_norm(&x, &block.ln_2));
                x = &x + drop(&cast(&m, x.kind()), dropout);
                continue;
            };
            let part = |i: i64| table.narrow(-1, i * c, c); // (B, R, C)
            let (shift_a, scale_a, gate_a) = (part(0), part(1), part(2));
            let (shift_m, scale_m, gate_m) = (part(3), part(4), part(5));

            let h = shift_a.addcmul(&rms_norm(&x, &block.ln_1), &scale_a);
            let a = block.attn.forward(layer, &h, attend);
            x = x.addcmul(&gate_a, &drop(&cast(&a, x.kind()), dropout));

            let h = shift_m.addcmul(&rms_norm(&x, &block.ln_2), &scale_m);
            let m = block.mlp.forward(&h);
            x = x.addcmul(&gate_m, &drop(&cast(&m, x.kind()), dropout));
        }
        let x = rms_norm(&x, &self.ln_f);
        let Some(last) = &conditioning.last else { return x };
        let table = Tensor::embedding(last, targets, -1, false, false);
        table.narrow(-1, 0, c).addcmul(&x, &table.narrow(-1, c, c))
    }
}
