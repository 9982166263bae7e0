//! What training, scoring and decoding ask of a causal model, whichever its family.
//!
//! A sequence is read in generation order. Row k holds the token of step k − 1 and predicts that of
//! step k, whose position it may be told; row 0 holds the [None] token. Families without a [None]
//! token have no row 0: the first token of an order is given and not predicted.

use ao_core::config::ModelConfig;
use ao_core::{Error, Result};
use tch::{Device, Kind, Tensor};

use super::ao_gpt::ao_gpt;
use super::batch::Batch;
use super::gpt2::gpt2;
use super::head::Head;
use super::sigma_gpt::sigma_gpt;
use super::transformer::Transformer;
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

/// What depends on a row's target position alone, computed once per position and not per token.
#[derive(Default)]
pub struct Conditioning {
    /// Of each block, (T, width) each; empty where the family adds positions to the input alone.
    pub(super) blocks: Vec<Tensor>,
    /// Of the final norm, (T, width).
    pub(super) last: Option<Tensor>,
}

impl Conditioning {
    /// The tables of the blocks, (T, width) each, and that of the final norm.
    pub fn tables(&self) -> (&[Tensor], Option<&Tensor>) {
        (&self.blocks, self.last.as_ref())
    }

    /// The rows of block `layer` for targets (B, R): (B, R, width).
    pub(super) fn block(&self, layer: usize, targets: &Tensor) -> Option<Tensor> {
        self.blocks.get(layer).map(|table| Tensor::embedding(table, targets, -1, false, false))
    }
}

/// The parts that every family has, and its sizes.
pub struct Base {
    /// Architecture and sizes.
    pub config: ModelConfig,
    pub(super) wte: Tensor,
    pub(super) head: Head,
    pub(super) compute: Kind,
}

/// A causal model over views of its weights.
pub trait Decoder {
    /// Sizes, token table and head.
    fn base(&self) -> &Base;

    /// Keeps copies of the weights in the compute kind: for scoring and decoding, not training.
    fn freeze(&mut self);

    /// The tables for all target positions.
    fn conditioning(&self) -> Conditioning {
        Conditioning::default()
    }

    /// The row that holds [None], (1, C); `None` in families without it.
    fn none_row(&self) -> Option<Tensor>;

    /// What a row's own position adds to its token: i64 text positions (…) to (…, C).
    fn position_rows(&self, positions: &Tensor) -> Tensor;

    /// What a row's target position adds to the input: i64 (…) to (…, C); `None` where nothing.
    fn target_rows(&self, targets: &Tensor) -> Option<Tensor>;

    /// The blocks and the final norm: rows (B, R, C) with targets i64 (B, R) to the head's input,
    /// (B, R, C). `rows` are complete, target rows added.
    fn forward(
        &self,
        rows: &Tensor,
        targets: &Tensor,
        conditioning: &Conditioning,
        attend: &mut dyn Attend,
        dropout: f64,
    ) -> Tensor;

    /// The model as plain data, which kernels beside libtorch read; `None` where it is something
    /// else than a [`Transformer`].
    fn transformer(&self) -> Option<&Transformer>;

    /// Architecture and sizes.
    fn config(&self) -> &ModelConfig {
        &self.base().config
    }

    /// The head: logits, NLL and its gradients.
    fn head(&self) -> &Head {
        &self.base().head
    }

    /// The device that the weights are on.
    fn device(&self) -> Device {
        self.base().wte.device()
    }

    /// The kind of rows, norms and sums: that of the weights.
    fn kind(&self) -> Kind {
        self.base().wte.kind()
    }

    /// The kind that attention and its cache are in.
    fn compute(&self) -> Kind {
        self.base().compute
    }

    /// Leading tokens of an order that are given and not predicted: 1 in families without [None].
    fn given(&self) -> usize {
        usize::from(!self.config().predicts_first())
    }

    /// Token embeddings, (…) i64 to (…, C).
    fn token_rows(&self, tokens: &Tensor) -> Tensor {
        Tensor::embedding(&self.base().wte, tokens, -1, false, false)
    }

    /// The input rows of whole sequences: [None] where the family has it, then the tokens but the
    /// last, (B, T − given, C).
    ///
    /// `token_rows` are the embeddings of tokens 0..T−1 in generation order, (B, T−1, C); `order`
    /// is i64 (B, T).
    fn input_rows(&self, token_rows: &Tensor, order: &Tensor) -> Tensor {
        let (b, t, c) = (order.size()[0], order.size()[1], token_rows.size()[2]);
        let held = token_rows + self.position_rows(&order.narrow(1, 0, t - 1));
        let rows = match self.none_row() {
            Some(none) => Tensor::cat(&[none.view([1, 1, c]).expand([b, 1, c], false), held], 1),
            None => held,
        };
        match self.target_rows(&self.targets(order)) {
            Some(targets) => rows + targets,
            None => rows,
        }
    }

    /// The positions that rows predict: `order` (B, T) without those given, (B, T − given).
    fn targets(&self, order: &Tensor) -> Tensor {
        let given = self.given() as i64;
        order.narrow(1, given, order.size()[1] - given)
    }

    /// The head's input for whole sequences, (B, T − given, C), without gradients: scoring.
    fn hidden(&self, batch: &Batch, conditioning: &Conditioning) -> Tensor {
        tch::no_grad(|| {
            let tokens = batch.tokens_tensor(self.device());
            let order = batch.order_tensor(self.device());
            let held = self.token_rows(&tokens.narrow(1, 0, batch.length as i64 - 1));
            let rows = self.input_rows(&held, &order);
            let mut attend = CausalAttention { dropout: 0.0 };
            self.forward(&rows, &self.targets(&order), conditioning, &mut attend, 0.0)
        })
    }

    /// NLL of every target of a batch along its orders, nats, (B, T) in generation order; 0 where
    /// padded or given.
    fn nll(&self, batch: &Batch, conditioning: &Conditioning) -> Vec<f64> {
        let given = self.given();
        if batch.length <= given {
            return vec![0.0; batch.targets.len()];
        }
        let hidden = self.hidden(batch, conditioning);
        batch.with_given(given, self.head().nll(&hidden, &batch.targets_after(given)))
    }
}

/// Names of the parameters whose gradients are not left to autograd: the head's come with the loss,
/// and the token table's need only the rows that occur, not a second table.
#[derive(Debug, Clone, Copy)]
pub struct HandNames {
    /// The token table (V, C).
    pub token_table: &'static str,
    /// The head's weight (V, C); the token table where they are tied.
    pub head_weight: &'static str,
    /// The head's bias (V), where the family has one.
    pub head_bias: &'static str,
}

impl HandNames {
    /// Those of a decoder.
    pub fn of_decoder(config: &ModelConfig) -> HandNames {
        let token_table = "transformer.wte.weight";
        let head_weight = config.tied().map_or("lm_head.weight", |(_, table)| table);
        HandNames { token_table, head_weight, head_bias: "lm_head.bias" }
    }

    /// Those of an encoder.
    pub fn of_encoder() -> HandNames {
        HandNames {
            token_table: "vocab_embed.embedding",
            head_weight: "output_layer.linear.weight",
            head_bias: "output_layer.linear.bias",
        }
    }

    /// As a list.
    pub fn list(&self) -> [&'static str; 3] {
        [self.token_table, self.head_weight, self.head_bias]
    }
}

/// The parts of `Base` for a decoder's config.
pub(super) fn base(config: &ModelConfig, weights: &Weights, compute: Kind) -> Base {
    // A model in f64 is exact throughout.
    let compute = if weights.flat().kind() == Kind::Double { Kind::Double } else { compute };
    let names = HandNames::of_decoder(config);
    let head = weights.get(names.head_weight);
    Base {
        config: config.clone(),
        wte: weights.get(names.token_table),
        head: Head::new(head, weights.find(names.head_bias), compute),
        compute,
    }
}

/// The decoder that `config` names, over `weights`, multiplying matrices in `compute`. Gradients
/// flow to the views where the weights require them.
///
/// # Errors
/// When the architecture is no decoder.
pub fn decoder(
    config: &ModelConfig,
    weights: &Weights,
    compute: Kind,
    _threads: usize,
) -> Result<Box<dyn Decoder>> {
    Ok(match config {
        ModelConfig::AoGpt(c) => Box::new(ao_gpt(c, weights, compute)),
        ModelConfig::SigmaGpt(_) | ModelConfig::SigmaOfficial(_) => {
            Box::new(sigma_gpt(config, weights, compute))
        }
        ModelConfig::Gpt2(c) => Box::new(gpt2(c, weights, compute)),
        ModelConfig::Radd(_) | ModelConfig::Mdlm(_) | ModelConfig::Sedd(_) => {
            return Err(Error::usage(format!(
                "arch {} is an encoder; this needs a decoder (ao-gpt, sigma-gpt, gpt2)",
                config.arch()
            )));
        }
    })
}
