//! The head's NLL on a CPU: logits in tiles that stay in the cache between the product that makes
//! them and the sum that reads them. Logits of whole rows go to memory and back, and a fresh buffer
//! of their size costs as much as the product.

use half::bf16;
use tch::{Device, Kind, Tensor};

use super::head::{Head, logits_into};
use super::layers::cast;
use super::tensor_slice::{TensorSlice, slice};
use crate::kernels::gemm;
use crate::kernels::matmul::Matrix;
use crate::kernels::running::{Running, add_parts};

/// Ids and rows of a tile of bf16 logits: 2 MB.
const TILE: usize = 1024;
const TILE_ROWS: usize = 1024;

impl Head {
    /// [`Head::nll`] in f32 or bf16. Rows that are not counted are left out.
    pub(super) fn nll_by_tiles(&self, hidden: &Tensor, targets: &[i64]) -> Vec<f64> {
        let width = *hidden.size().last().unwrap_or(&1);
        let vocab = self.vocab_size();
        let rows = hidden.reshape([-1, width]);
        assert_eq!(rows.size()[0], targets.len() as i64, "one target a row");
        assert!(targets.iter().all(|&t| t < vocab as i64), "a target is beyond the vocabulary");
        let counted: Vec<i64> =
            (0..targets.len() as i64).filter(|&i| targets[i as usize] >= 0).collect();
        let rows = if counted.len() == targets.len() {
            rows
        } else {
            rows.index_select(0, &Tensor::from_slice(&counted))
        };
        let rows = cast(&rows, self.compute).contiguous();
        let weight = cast(&self.weight, self.compute).contiguous();
        let bias = self.bias_row(self.compute);
        let ids: Vec<i64> = counted.iter().map(|&row| targets[row as usize]).collect();
        let scores = if self.compute == Kind::Float {
            let of = TensorSlice::<f32>::new;
            let (rows, weight, bias) = (of(&rows), of(&weight), of(&bias));
            let matrix = Matrix { weight: &weight, bias: Some(&bias), width: width as usize };
            gemm::nll(&rows, matrix, &ids)
        } else {
            self.nll_by_bf16_tiles(&rows, &weight, &bias, &ids)
        };
        let mut out = vec![0.0; targets.len()];
        counted.iter().zip(scores).for_each(|(&row, score)| out[row as usize] = score);
        out
    }

    /// By libtorch's products, which know bf16.
    fn nll_by_bf16_tiles(
        &self,
        rows: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        ids: &[i64],
    ) -> Vec<f64> {
        let vocab = self.vocab_size();
        // Tiles of nearly equal width.
        let tile = vocab.div_ceil(vocab.div_ceil(TILE));
        let most = ids.len().clamp(1, TILE_ROWS);
        let buffer = Tensor::empty([(most * tile) as i64], (self.compute, Device::Cpu));
        let mut out = Vec::with_capacity(ids.len());
        for (i, ids) in ids.chunks(most).enumerate() {
            let n = ids.len();
            let rows = rows.narrow(0, (i * most) as i64, n as i64);
            let mut running = vec![Running::default(); n];
            for first in (0..vocab).step_by(tile) {
                let w = tile.min(vocab - first);
                let part = |t: &Tensor| t.narrow(0, first as i64, w as i64);
                let mut logits = buffer.narrow(0, 0, (n * w) as i64).view([n as i64, w as i64]);
                logits_into(&mut logits, &rows, &part(weight).tr(), &part(bias));
                let logits = slice::<bf16>(&logits).unwrap_or_default();
                add_parts(logits, w, first, ids, &mut running);
            }
            out.extend(running.iter().map(Running::nll));
        }
        out
    }
}
