//! Masked copies of sequences: what an encoder is shown, and which of its rows are asked for.

use ao_core::masking::time_of_count;
use tch::Tensor;

use super::encoder::Encoder;

/// Most of the time that a network without an ε of its own is told: σ̄ is infinite at 1.
const LATEST: f64 = 1.0 - 1e-3;

/// A sequence with masks in it, and the positions whose laws are asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Masked {
    /// Token ids in text order, mask ids among them.
    pub tokens: Vec<u32>,
    /// Positions whose law is asked for; they are masked.
    pub asked: Vec<u32>,
    /// σ̄ of the copy, for families that are told the time.
    pub sigma: f64,
}

impl Encoder {
    /// The head's input at the asked positions of all copies, one copy after the other, (N, C).
    ///
    /// Copies of different lengths are padded together; nothing sees the padding.
    pub fn asked_rows(&self, copies: &[&Masked]) -> Tensor {
        let length = copies.iter().map(|c| c.tokens.len()).max().unwrap_or(0);
        let mut ids = vec![0i64; copies.len() * length];
        let mut index = Vec::new();
        for (b, copy) in copies.iter().enumerate() {
            let row = &mut ids[b * length..];
            row.iter_mut().zip(&copy.tokens).for_each(|(id, &token)| *id = i64::from(token));
            index.extend(copy.asked.iter().map(|&p| (b * length) as i64 + i64::from(p)));
        }
        let width = self.shape().n_embd as i64;
        if index.is_empty() {
            return Tensor::zeros([0, width], (self.kind(), self.device()));
        }
        let ids = Tensor::from_slice(&ids).view([copies.len() as i64, length as i64]);
        let lengths: Vec<usize> = copies.iter().map(|c| c.tokens.len()).collect();
        let sigma: Vec<f64> = copies.iter().map(|c| c.sigma).collect();
        let hidden = self.hidden(&ids.to_device(self.device()), &lengths, &sigma);
        let index = Tensor::from_slice(&index).to_device(self.device());
        tch::no_grad(|| hidden.reshape([-1, width]).index_select(0, &index))
    }

    /// The id that stands for a masked token.
    pub fn mask(&self) -> u32 {
        self.shape().mask_id as u32
    }

    /// σ̄(t), finite for every t up to 1; 0 for families that are not told the time.
    pub fn sigma_at(&self, t: f64) -> f64 {
        if !self.is_told_the_time() {
            return 0.0;
        }
        let noise = self.noise();
        noise.sigma(if noise.eps > 0.0 { t.min(1.0) } else { t.min(LATEST) })
    }

    /// σ̄ where `masked` of `length` tokens are masked and no time is known, as along an order.
    pub fn sigma_of_count(&self, masked: usize, length: usize) -> f64 {
        self.sigma_at(time_of_count(masked, length))
    }
}
