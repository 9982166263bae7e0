//! The head: from hidden rows to logits, to NLL or score entropy, and to the gradients of their
//! weighted sum, chunk by chunk, so that the logits of a whole batch never exist.

use std::ops::Range;

use half::bf16;
use tch::{Device, Kind, Tensor};

use super::layers::{MANY, cast};
use super::tensor_slice::{Stored, TensorSlice, slice, slice_mut};
use crate::kernels::matmul::{Matrix, matmul_into};
use crate::kernels::simd::{self, Element};
use crate::kernels::softmax;

/// Most bytes of logits that exist at a time.
const CHUNK_BYTES: usize = 160 << 20;

/// The output layer, (V, C) with an optional bias (V).
pub struct Head {
    pub(super) weight: Tensor,
    bias: Option<Tensor>,
    /// The weight as it was before [`Head::freeze`].
    whole: Tensor,
    pub(super) compute: Kind,
    /// A row that gets no mass.
    excluded: Option<i64>,
}

/// Rows of a chunk, where a row takes so many bytes.
fn chunk_rows(row_bytes: usize, rows: usize) -> usize {
    (CHUNK_BYTES / row_bytes.max(1)).clamp(1, rows.max(1))
}

/// Where the head's gradients are added up; views of the gradient buffer.
pub struct HeadGradients {
    /// (V, C).
    pub weight: Tensor,
    /// (V).
    pub bias: Option<Tensor>,
}

impl Head {
    /// A head over `weight` (V, C) and `bias` (V), multiplied in `compute`.
    pub fn new(weight: Tensor, bias: Option<Tensor>, compute: Kind) -> Head {
        Head { whole: weight.shallow_clone(), weight, bias, compute, excluded: None }
    }

    /// The same head with no mass on row `id`: a mask's.
    pub fn excluding(self, id: i64) -> Head {
        Head { excluded: Some(id), ..self }
    }

    pub(crate) fn freeze(&mut self) {
        self.weight = cast(&self.weight, self.compute);
        self.bias = self.bias.as_ref().map(|b| cast(b, self.compute));
    }

    /// Most bytes of logits that exist at a time, for `rows` rows of `vocab` f32.
    pub fn chunk_bytes(vocab: usize, rows: usize) -> usize {
        4 * vocab * chunk_rows(4 * vocab, rows)
    }

    /// Rows of the head V, padding included.
    pub fn vocab_size(&self) -> usize {
        self.weight.size()[0] as usize
    }

    /// Logits of hidden rows (…, C): (…, V), for draws and ranks. In f32 with sums in f32, whatever
    /// else is multiplied in (f64 in f64): on a CPU the weights may be bf16, rows and logits are
    /// not rounded, and a row's logits depend on it alone.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        if self.multiplies_itself() {
            let mut sizes = hidden.size();
            if let Some(width) = sizes.last_mut() {
                *width = self.vocab_size() as i64;
            }
            let mut out = Tensor::empty(&sizes[..], (Kind::Float, Device::Cpu));
            // SAFETY: nothing else has the new tensor yet.
            if let Some(out) = unsafe { slice_mut(&mut out) } {
                self.logits_into(hidden, out);
            }
            return out;
        }
        let kind = if self.compute == Kind::Double { Kind::Double } else { Kind::Float };
        let bias = self.has_bias().then(|| self.bias_row(kind));
        cast(hidden, kind).linear(&cast(&self.whole, kind), bias.as_ref())
    }

    /// [`Head::logits`] of N rows on the CPU, into the first N·V of `out`.
    ///
    /// # Panics
    /// When `out` is too short.
    pub fn logits_into(&self, hidden: &Tensor, out: &mut [f32]) {
        let rows = hidden.numel() / self.weight.size()[1] as usize;
        let out = &mut out[..rows * self.vocab_size()];
        match self.compute {
            Kind::Float if self.multiplies_itself() => self.multiply::<f32>(hidden, out),
            Kind::BFloat16 if self.multiplies_itself() => self.multiply::<bf16>(hidden, out),
            _ => out.copy_from_slice(&TensorSlice::new(&self.logits(hidden))),
        }
    }

    /// Whether anything is added to the products.
    fn has_bias(&self) -> bool {
        self.bias.is_some() || self.excluded.is_some()
    }

    /// Whether logits come from the toolkit's own kernels.
    fn multiplies_itself(&self) -> bool {
        let known = matches!(self.compute, Kind::Float | Kind::BFloat16);
        known && self.weight.device() == Device::Cpu
    }

    fn multiply<T: Stored + Element>(&self, hidden: &Tensor, out: &mut [f32]) {
        let rows = TensorSlice::<f32>::new(hidden);
        let weight = TensorSlice::<T>::new(&self.weight);
        let bias = self.has_bias().then(|| TensorSlice::<f32>::new(&self.bias_row(Kind::Float)));
        let width = self.weight.size()[1] as usize;
        let matrix = Matrix { weight: &weight, bias: bias.as_deref(), width };
        matmul_into(simd::level(), matrix, &rows, out);
    }

    /// NLL of `targets` given hidden rows (…, C), in nats, f64; 0 where a target is negative.
    ///
    /// On a CPU each sequence of (B, R, C) is multiplied by itself, as in the layers before.
    ///
    /// # Panics
    /// When a target is not below V, or there are not as many as rows.
    pub fn nll(&self, hidden: &Tensor, targets: &[i64]) -> Vec<f64> {
        let size = hidden.size();
        let on_cpu = self.weight.device() == Device::Cpu;
        // Tiles of many rows round each row alike in any company.
        let by_tiles = self.multiplies_itself() && self.vocab_size() >= MANY;
        let whole = by_tiles && size.len() == 3 && size[1] as usize >= MANY;
        let whole = whole && targets.iter().all(|&t| t >= 0);
        if on_cpu && size.len() == 3 && size[0] > 1 && size[1] > 0 && !whole {
            let alone = (0..).zip(targets.chunks(size[1] as usize));
            return alone.flat_map(|(b, own)| self.nll(&hidden.select(0, b), own)).collect();
        }
        if by_tiles && targets.len() >= MANY {
            return tch::no_grad(|| self.nll_by_tiles(hidden, targets));
        }
        self.losses(hidden, targets, &Loss::Nll)
    }

    /// Score entropy of each hidden row (…, C), Σ_y e^u_y − u_target − 1 with u = logits −
    /// `shifts[row]` ([`ao_core::process::score_entropy::Scores::shift`]); 0 where a target is negative. Times
    /// a = 1/(e^σ − 1) it is the score entropy of arXiv 2310.16834.
    ///
    /// # Panics
    /// As [`Head::nll`].
    pub fn score_entropy(&self, hidden: &Tensor, targets: &[i64], shifts: &[f64]) -> Vec<f64> {
        self.losses(hidden, targets, &Loss::ScoreEntropy(shifts))
    }

    fn losses(&self, hidden: &Tensor, targets: &[i64], loss: &Loss) -> Vec<f64> {
        tch::no_grad(|| {
            let weight = cast(&self.weight, self.compute).tr();
            let bias = self.bias_row(self.compute);
            let mut out = Vec::with_capacity(targets.len());
            self.chunks(hidden, targets, |rows, range, buffer| {
                let own = self.multiplies_itself().then(|| self.logits(&rows));
                let logits = own.as_ref().unwrap_or_else(|| {
                    logits_into(buffer, &rows, &weight, &bias);
                    buffer
                });
                out.extend(self.loss_of_logits(logits, &targets[range.clone()], &loss.part(range)));
            });
            out
        })
    }

    /// NLL of `targets` and the gradients of their weighted sum Σ `scales[row]` · nll: those of the
    /// head are added to `gradients`, that of `hidden` is returned, (…, C) in f32 (f64 in f64).
    ///
    /// The loss is computed here with its gradients, under no tape: Σ over rows of
    /// (softmax − onehot)·scale goes back through the head at once, so no logits are kept or
    /// computed twice.
    ///
    /// # Panics
    /// As [`Head::nll`].
    pub fn nll_with_gradients(
        &self,
        hidden: &Tensor,
        targets: &[i64],
        scales: &[f64],
        gradients: &HeadGradients,
    ) -> (Vec<f64>, Tensor) {
        self.with_gradients(hidden, targets, &Loss::Nll, scales, gradients)
    }

    /// [`Head::score_entropy`] and the gradients of its weighted sum, as
    /// [`Head::nll_with_gradients`] has those of the NLL.
    ///
    /// # Panics
    /// As [`Head::nll`].
    pub fn score_entropy_with_gradients(
        &self,
        hidden: &Tensor,
        targets: &[i64],
        shifts: &[f64],
        scales: &[f64],
        gradients: &HeadGradients,
    ) -> (Vec<f64>, Tensor) {
        self.with_gradients(hidden, targets, &Loss::ScoreEntropy(shifts), scales, gradients)
    }

    fn with_gradients(
        &self,
        hidden: &Tensor,
        targets: &[i64],
        loss: &Loss,
        scales: &[f64],
        gradients: &HeadGradients,
    ) -> (Vec<f64>, Tensor) {
        tch::no_grad(|| {
            let cast_weight = cast(&self.weight, self.compute);
            let weight = cast_weight.tr();
            let bias = self.bias_row(self.compute);
            let mut out = Vec::with_capacity(targets.len());
            let mut hidden_gradients = vec![hidden.narrow(0, 0, 0).reshape([0, weight.size()[0]])];
            self.chunks(hidden, targets, |rows, range, buffer| {
                logits_into(buffer, &rows, &weight, &bias);
                let (targets, loss) = (&targets[range.clone()], loss.part(range.clone()));
                out.extend(self.gradient_of_logits(buffer, targets, &loss, &scales[range]));
                hidden_gradients.push(cast(&buffer.mm(&cast_weight), hidden.kind()));
                let mut into = gradients.weight.shallow_clone();
                if into.kind() == buffer.kind() {
                    let _ = into.addmm_(&buffer.tr(), &rows);
                } else {
                    let _ = into.g_add_(&buffer.tr().mm(&rows));
                }
                if let Some(bias) = &gradients.bias {
                    // A product with ones is several times faster than a sum over rows.
                    let ones =
                        Tensor::ones([1, buffer.size()[0]], (buffer.kind(), buffer.device()));
                    let _ = bias.shallow_clone().g_add_(&ones.mm(buffer).view([-1]));
                }
            });
            (out, Tensor::cat(&hidden_gradients, 0).view(&hidden.size()[..]))
        })
    }

    pub(super) fn bias_row(&self, kind: Kind) -> Tensor {
        let bias = match &self.bias {
            Some(bias) => cast(bias, kind),
            None => Tensor::zeros([self.vocab_size() as i64], (kind, self.weight.device())),
        };
        let Some(id) = self.excluded else { return bias };
        let bias = bias.copy();
        let _ = bias.narrow(0, id, 1).fill_(f64::NEG_INFINITY);
        bias
    }

    /// Calls `work` with chunks of rows (n, C), their numbers, and a kept buffer (n, V).
    fn chunks(
        &self,
        hidden: &Tensor,
        targets: &[i64],
        mut work: impl FnMut(Tensor, Range<usize>, &mut Tensor),
    ) {
        let width = *hidden.size().last().unwrap_or(&1);
        let rows = cast(hidden, self.compute).reshape([-1, width]);
        let vocab = self.vocab_size();
        assert_eq!(rows.size()[0], targets.len() as i64, "one target a row");
        assert!(targets.iter().all(|&t| t < vocab as i64), "a target is beyond the vocabulary");
        let bytes = vocab * if self.compute == Kind::Double { 8 } else { 4 };
        let most = chunk_rows(bytes, targets.len());
        let options = (self.compute, self.weight.device());
        let mut buffer = Tensor::empty([most as i64, vocab as i64], options);
        for (i, part) in targets.chunks(most).enumerate() {
            let (start, n) = (i * most, part.len());
            let rows = rows.narrow(0, start as i64, n as i64);
            let range = start..start + n;
            if n == most {
                work(rows, range, &mut buffer);
            } else {
                work(rows, range, &mut buffer.narrow(0, 0, n as i64));
            }
        }
    }

    fn loss_of_logits(&self, logits: &Tensor, targets: &[i64], loss: &Loss) -> Vec<f64> {
        let width = self.vocab_size();
        if let Some(logits) = slice::<f32>(logits) {
            return loss.of_rows(logits, width, targets);
        }
        if let Some(logits) = slice::<bf16>(logits) {
            return loss.of_rows(logits, width, targets);
        }
        loss.by_operations(logits, targets).0
    }

    fn gradient_of_logits(
        &self,
        logits: &mut Tensor,
        targets: &[i64],
        loss: &Loss,
        scales: &[f64],
    ) -> Vec<f64> {
        let width = self.vocab_size();
        // SAFETY: nothing else uses the buffer during the calls.
        if let Some(rows) = unsafe { slice_mut::<f32>(logits) } {
            return loss.gradient_of_rows(rows, width, targets, scales);
        }
        // SAFETY: as above.
        if let Some(rows) = unsafe { slice_mut::<bf16>(logits) } {
            return loss.gradient_of_rows(rows, width, targets, scales);
        }
        let (losses, logs, counted, index) = loss.by_operations(logits, targets);
        let gradient = logs.exp();
        let ones = Tensor::ones_like(&index).to_kind(gradient.kind());
        let scales = column(scales, &gradient) * counted;
        logits.copy_(&(gradient.scatter_add(1, &index, &(-ones)) * scales));
        losses
    }
}

/// What is computed of a row of logits and its target.
enum Loss<'a> {
    /// −log softmax.
    Nll,
    /// Σ e^u − u − 1 with u = logits − the row's shift.
    ScoreEntropy(&'a [f64]),
}

impl Loss<'_> {
    /// The same for some of the rows.
    fn part(&self, range: Range<usize>) -> Loss<'_> {
        match self {
            Loss::Nll => Loss::Nll,
            Loss::ScoreEntropy(shifts) => Loss::ScoreEntropy(&shifts[range]),
        }
    }

    fn of_rows<T: softmax::Logit>(&self, logits: &[T], width: usize, targets: &[i64]) -> Vec<f64> {
        match self {
            Loss::Nll => softmax::nll_rows(logits, width, targets),
            Loss::ScoreEntropy(shifts) => softmax::entropy_rows(logits, width, targets, shifts),
        }
    }

    fn gradient_of_rows<T: softmax::Logit>(
        &self,
        logits: &mut [T],
        width: usize,
        targets: &[i64],
        scales: &[f64],
    ) -> Vec<f64> {
        match self {
            Loss::Nll => softmax::gradient_rows(logits, width, targets, scales),
            Loss::ScoreEntropy(shifts) => {
                softmax::entropy_gradient_rows(logits, width, targets, shifts, scales)
            }
        }
    }

    /// The same in libtorch's operations, for other devices and f64: the losses, the logarithms of
    /// what the gradient is made of (N, V), counted (N, 1), target index (N, 1).
    fn by_operations(
        &self,
        logits: &Tensor,
        targets: &[i64],
    ) -> (Vec<f64>, Tensor, Tensor, Tensor) {
        let kind = if logits.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let targets = Tensor::from_slice(targets).to_device(logits.device()).view([-1, 1]);
        let counted = targets.ge(0).to_kind(kind);
        let index = targets.clamp_min(0);
        let logs = match self {
            Loss::Nll => logits.to_kind(kind).log_softmax(-1, kind),
            Loss::ScoreEntropy(shifts) => {
                let logits = logits.to_kind(kind);
                &logits - column(shifts, &logits)
            }
        };
        let mut loss = -logs.gather(1, &index, false).to_kind(Kind::Double);
        if let Loss::ScoreEntropy(_) = self {
            let total = logs.exp().sum_dim_intlist([-1i64].as_slice(), true, Kind::Double);
            loss = loss + total - 1.0;
        }
        let loss = (loss * &counted).to_device(Device::Cpu).view([-1]);
        (Vec::<f64>::try_from(loss).unwrap_or_default(), logs, counted, index)
    }
}

/// Numbers as a column of the kind and device of `like`, (N, 1).
fn column(values: &[f64], like: &Tensor) -> Tensor {
    Tensor::from_slice(values).to_kind(like.kind()).to_device(like.device()).view([-1, 1])
}

/// rows·weight + bias, into a kept buffer: a fresh one of this size costs as much as the product.
pub(super) fn logits_into(buffer: &mut Tensor, rows: &Tensor, weight: &Tensor, bias: &Tensor) {
    let _ = bias.addmm_out(buffer, rows, weight);
}
