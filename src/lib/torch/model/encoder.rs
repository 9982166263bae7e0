//! Masked diffusion: RADD, MDLM and SEDD as the scorer, the trainer and the samplers see them.
//!
//! All three read a sequence of which some tokens are the mask id and say, of every masked
//! position, how likely each real id is there. RADD and MDLM say it as log-probabilities (MDLM's
//! SUBS parameterisation: no mass on the mask, and tokens that are not masked stay as they are);
//! SEDD as concrete scores, p(y)/p(mask) ratios, which depend on the noise level σ.

use ao_core::config::{DditShape, LogLinear, ModelConfig};
use ao_core::{Error, Result};
use tch::{Device, Kind, Tensor};

use super::ddit::Ddit;
use super::decoder::HandNames;
use super::head::{Head, HeadGradients};
use super::weights::Weights;

/// An encoder over views of its weights.
pub struct Encoder {
    config: ModelConfig,
    shape: DditShape,
    table: Tensor,
    trunk: Ddit,
    head: Head,
    whole_head: Head,
}

impl Encoder {
    /// The encoder that `config` names, over `weights`, multiplying matrices in `compute`.
    ///
    /// # Errors
    /// When the architecture is no encoder.
    pub fn new(
        config: &ModelConfig,
        weights: &Weights,
        compute: Kind,
        _threads: usize,
    ) -> Result<Encoder> {
        let shape = match config {
            ModelConfig::Radd(c) => c.shape(),
            ModelConfig::Mdlm(c) => c.shape(),
            ModelConfig::Sedd(c) => c.shape(),
            _ => {
                return Err(Error::usage(format!(
                    "arch {} is a decoder; this needs an encoder (radd, mdlm, sedd)",
                    config.arch()
                )));
            }
        };
        let compute = if weights.flat().kind() == Kind::Double { Kind::Double } else { compute };
        let names = HandNames::of_encoder();
        let (weight, bias) = (weights.get(names.head_weight), weights.get(names.head_bias));
        let whole_head = Head::new(weight.shallow_clone(), Some(bias.shallow_clone()), compute);
        let (real, mask) = (shape.vocab_size as i64, shape.mask_id as i64);
        let head = if mask == real {
            Head::new(weight.narrow(0, 0, real), Some(bias.narrow(0, 0, real)), compute)
        } else {
            Head::new(weight, Some(bias), compute).excluding(mask)
        };
        Ok(Encoder {
            config: config.clone(),
            table: weights.get(names.token_table),
            trunk: Ddit::new(&shape, weights, compute),
            shape,
            head,
            whole_head,
        })
    }

    /// Keeps copies of the weights in the compute kind: for scoring and sampling, not training.
    pub fn freeze(&mut self) {
        self.trunk.freeze();
        self.head.freeze();
        self.whole_head.freeze();
    }

    /// Architecture and sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The transformer's sizes, with the mask id.
    pub fn shape(&self) -> &DditShape {
        &self.shape
    }

    /// The head over real ids: no mass is on the mask. Its NLL of a masked position's token is
    /// that of RADD and MDLM; SEDD's scores, normalised over the real ids, have the same form.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Where the gradients of [`Encoder::head`] are added up, in a buffer of the weights' layout.
    pub fn head_gradients(&self, gradients: &Weights) -> HeadGradients {
        let names = HandNames::of_encoder();
        // The row of a mask that comes after the real ids is no part of that head.
        let rows = self.head.vocab_size() as i64;
        HeadGradients {
            weight: gradients.get(names.head_weight).narrow(0, 0, rows),
            bias: Some(gradients.get(names.head_bias).narrow(0, 0, rows)),
        }
    }

    /// The device that the weights are on.
    pub fn device(&self) -> Device {
        self.table.device()
    }

    /// The kind of rows and norms: that of the weights.
    pub fn kind(&self) -> Kind {
        self.table.kind()
    }

    /// The noise schedule: SEDD's has its ε; RADD and MDLM mask with probability t.
    pub fn noise(&self) -> LogLinear {
        match &self.config {
            ModelConfig::Sedd(c) => LogLinear { eps: c.noise_eps },
            ModelConfig::Radd(_) => LogLinear { eps: 1e-3 },
            _ => LogLinear { eps: 0.0 },
        }
    }

    /// Whether the network is told the noise level; else its time input is 0 or it has none.
    pub fn is_told_the_time(&self) -> bool {
        match &self.config {
            ModelConfig::Sedd(_) => true,
            ModelConfig::Mdlm(c) => c.time_conditioning,
            _ => false,
        }
    }

    /// Token embeddings, (…) i64, mask ids among them, to (…, C).
    pub fn token_rows(&self, tokens: &Tensor) -> Tensor {
        Tensor::embedding(&self.table, tokens, -1, false, false)
    }

    /// Rows (B, T, C) to the head's input (B, T, C), with gradients where the weights have them.
    ///
    /// `sigma` is σ̄ of each sequence, used by families that are told the time. `lengths` are the
    /// tokens of each sequence; rows behind them are padding that nothing sees.
    pub fn forward(&self, rows: &Tensor, lengths: &[usize], sigma: &[f64], dropout: f64) -> Tensor {
        let (b, t) = (rows.size()[0], rows.size()[1]);
        let padded = lengths.iter().any(|&n| n as i64 != t);
        let valid = padded.then(|| {
            let valid: Vec<bool> =
                lengths.iter().flat_map(|&n| (0..t as usize).map(move |i| i < n.max(1))).collect();
            Tensor::from_slice(&valid).view([b, t]).to_device(self.device())
        });
        let told = self.is_told_the_time();
        let sigma: Vec<f64> = sigma.iter().map(|&s| if told { s } else { 0.0 }).collect();
        let sigma = Tensor::from_slice(&sigma).to_kind(self.kind()).to_device(self.device());
        self.trunk.forward(rows, valid.as_ref(), &sigma, dropout)
    }

    /// The head's input for masked sequences i64 (B, T), without gradients.
    pub fn hidden(&self, masked: &Tensor, lengths: &[usize], sigma: &[f64]) -> Tensor {
        tch::no_grad(|| self.forward(&self.token_rows(masked), lengths, sigma, 0.0))
    }

    /// Logits over all rows of the head, the mask's included, f32 or f64: (N, C) to (N, V + 1).
    pub fn whole_logits(&self, hidden: &Tensor) -> Tensor {
        self.whole_head.logits(hidden)
    }

    /// What SEDD takes off its logits to make them log-scores at noise level σ̄:
    /// log(e^σ − 1) + log V; 0 for other families.
    pub fn score_offset(&self, sigma: f64) -> f64 {
        if self.scales_by_sigma() { log_expm1(sigma) + self.log_vocabulary() } else { 0.0 }
    }

    /// What is taken off SEDD's logits to make them log-scores in units of a = 1/(e^σ − 1), the
    /// score of a token that is certain: [`Encoder::score_offset`] + log a, in which the powers of
    /// σ cancel where SEDD scales by it.
    pub fn score_shift(&self, sigma: f64) -> f64 {
        if self.scales_by_sigma() { self.log_vocabulary() } else { -log_expm1(sigma) }
    }

    fn scales_by_sigma(&self) -> bool {
        matches!(&self.config, ModelConfig::Sedd(c) if c.scale_by_sigma)
    }

    fn log_vocabulary(&self) -> f64 {
        (self.shape.vocab_size as f64).ln()
    }
}

/// log(e^σ − 1): expm1 keeps small σ exact, and large σ would overflow it.
fn log_expm1(sigma: f64) -> f64 {
    if sigma < 0.5 { sigma.exp_m1().ln() } else { sigma + (-(-sigma).exp()).ln_1p() }
}
