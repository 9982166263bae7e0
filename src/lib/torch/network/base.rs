//! What every network is to the drivers.

use ao_core::family::ModelConfig;
use tch::{Device, Kind, Tensor};

use super::attention::{Attention, Cache, CacheShape, CachedRow};
use super::head::{Head, HeadGradients};
use super::rows::{NONE, Rows, TokenTable};
use super::transformer::Transformer;
use super::weights::Weights;

/// A network over views of its weights.
pub trait Network {
    /// The parts that every network has.
    fn base(&self) -> &Base;

    /// Keeps copies of the weights in the compute kind: for scoring and decoding, not training.
    fn freeze(&mut self);

    /// Rows (B, R) to the head's input (B, R, C), with gradients where the weights have them.
    fn forward(&self, rows: &Rows, attention: &mut dyn Attention, dropout: f64) -> Tensor;

    /// What a cache keeps of each row.
    fn cache_shape(&self) -> CacheShape;

    /// The network as plain data, where it is a [`Transformer`]: on a CPU decoding then has kernels
    /// of our own for it.
    fn transformer(&self) -> Option<&Transformer> {
        None
    }
}

/// One pass of rows over a cache: the hidden rows of `wanted`, (wanted, C), without gradients. Keys
/// and values of all rows go into their slots.
pub fn cached_pass(
    network: &dyn Network,
    rows: &[CachedRow],
    wanted: &[usize],
    cache: &mut Cache,
) -> Tensor {
    let device = network.base().device();
    let of = |get: &dyn Fn(&CachedRow) -> i64| rows.iter().map(get).collect::<Vec<i64>>();
    let tokens = of(&|row| row.held.map_or(NONE, |(token, _)| i64::from(token)));
    let held = of(&|row| row.held.map_or(NONE, |(_, position)| i64::from(position)));
    let aims = of(&|row| i64::from(row.aim));
    let input = Rows::new(1, [&tokens, &held, &aims], device);
    let wanted: Vec<i64> = wanted.iter().map(|&row| row as i64).collect();
    tch::no_grad(|| {
        let hidden = network.forward(&input, &mut cache.attention(rows), 0.0).squeeze_dim(0);
        hidden.index_select(0, &Tensor::from_slice(&wanted).to_device(device))
    })
}

/// The parts that every network has, and its sizes.
pub struct Base {
    /// Architecture and sizes.
    pub config: ModelConfig,
    /// The token table.
    pub tokens: TokenTable,
    /// The head over the ids that can be predicted: logits, losses and their gradients.
    pub head: Head,
    /// The kind that matrices are multiplied in, and that attention and its cache are in.
    pub compute: Kind,
    /// The parameters whose gradients are not left to autograd.
    pub names: HandNames,
}

impl Base {
    /// See [`Network::freeze`].
    pub fn freeze(&mut self) {
        self.tokens.freeze();
        self.head.freeze();
    }

    /// The device that the weights are on.
    pub fn device(&self) -> Device {
        self.tokens.weight().device()
    }

    /// The kind of rows, norms and sums: that of the weights.
    pub fn kind(&self) -> Kind {
        self.tokens.weight().kind()
    }

    /// Leading tokens of an order that are given and not predicted: 1 without a [None] token.
    pub fn given(&self) -> usize {
        usize::from(!self.config.predicts_first())
    }

    /// Where the head's gradients are added up, in a buffer of the weights' layout.
    pub fn head_gradients(&self, gradients: &Weights) -> HeadGradients {
        // Rows of the table behind the head's are no part of it.
        let rows = self.head.vocab_size() as i64;
        HeadGradients {
            weight: gradients.get(self.names.head_weight).narrow(0, 0, rows),
            bias: gradients.find(self.names.head_bias).map(|bias| bias.narrow(0, 0, rows)),
        }
    }

    /// Adds the gradients of the token rows since the last call to those of the table.
    pub fn add_token_gradients(&self, gradients: &Weights) {
        self.tokens.add_gradients(&gradients.get(self.names.token_table));
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
    /// The head's bias (V), where the network has one.
    pub head_bias: &'static str,
}

impl HandNames {
    /// Those of a GPT-like network.
    pub fn of_gpt(config: &ModelConfig) -> HandNames {
        let token_table = "transformer.wte.weight";
        let head_weight = config.tied().map_or("lm_head.weight", |(_, table)| table);
        HandNames { token_table, head_weight, head_bias: "lm_head.bias" }
    }

    /// As a list.
    pub fn list(&self) -> [&'static str; 3] {
        [self.token_table, self.head_weight, self.head_bias]
    }
}
