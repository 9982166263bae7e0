//! The head: from hidden rows to logits, to NLL, and to the gradients of a mean NLL, chunk by
//! chunk, so that the logits of a whole batch never exist.

use half::bf16;
use tch::{Device, Kind, Tensor};

use super::layers::cast;
use crate::kernels::softmax;

/// Most bytes of logits that exist at a time.
const CHUNK_BYTES: usize = 160 << 20;

/// The output layer, (V, C) with an optional bias (V).
pub struct Head {
    weight: Tensor,
    bias: Option<Tensor>,
    compute: Kind,
    threads: usize,
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
    pub(crate) fn new(weight: Tensor, bias: Option<Tensor>, compute: Kind, threads: usize) -> Head {
        Head { weight, bias, compute, threads, excluded: None }
    }

    /// The same head with no mass on row `id`: an encoder's mask.
    pub(crate) fn excluding(self, id: i64) -> Head {
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

    /// Logits of hidden rows (N, C): (N, V), in f32 or f64 whatever they were multiplied in.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        let weight = cast(&self.weight, self.compute);
        let bias = self.bias.as_ref().map(|_| self.bias_row(self.compute));
        let logits = cast(hidden, self.compute).linear(&weight, bias.as_ref());
        if logits.kind() == Kind::Double { logits } else { cast(&logits, Kind::Float) }
    }

    /// NLL of `targets` given hidden rows (…, C), in nats, f64; 0 where a target is negative.
    ///
    /// # Panics
    /// When a target is not below V, or there are not as many as rows.
    pub fn nll(&self, hidden: &Tensor, targets: &[i64]) -> Vec<f64> {
        tch::no_grad(|| {
            let weight = cast(&self.weight, self.compute).tr();
            let bias = self.bias_row(self.compute);
            let mut out = Vec::with_capacity(targets.len());
            self.chunks(hidden, targets, |rows, targets, buffer| {
                logits_into(buffer, &rows, &weight, &bias);
                out.extend(self.nll_of_logits(buffer, targets));
            });
            out
        })
    }

    /// NLL of `targets` and the gradients of their weighted sum `scale · Σ nll`: those of the head
    /// are added to `gradients`, that of `hidden` is returned, (…, C) in f32 (f64 in f64).
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
        scale: f64,
        gradients: &HeadGradients,
    ) -> (Vec<f64>, Tensor) {
        tch::no_grad(|| {
            let width = *hidden.size().last().unwrap_or(&1);
            let cast_weight = cast(&self.weight, self.compute);
            let weight = cast_weight.tr();
            let bias = self.bias_row(self.compute);
            let mut out = Vec::with_capacity(targets.len());
            let mut hidden_gradients = Vec::new();
            self.chunks(hidden, targets, |rows, targets, buffer| {
                logits_into(buffer, &rows, &weight, &bias);
                out.extend(self.gradient_of_logits(buffer, targets, scale));
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
            let gradient = Tensor::cat(&hidden_gradients, 0).view(&hidden.size()[..]);
            debug_assert_eq!(gradient.size().last(), Some(&width));
            (out, gradient)
        })
    }

    fn bias_row(&self, kind: Kind) -> Tensor {
        let bias = match &self.bias {
            Some(bias) => cast(bias, kind),
            None => Tensor::zeros([self.vocab_size() as i64], (kind, self.weight.device())),
        };
        let Some(id) = self.excluded else { return bias };
        let bias = bias.copy();
        let _ = bias.narrow(0, id, 1).fill_(f64::NEG_INFINITY);
        bias
    }

    /// Calls `work` with chunks of rows (n, C), their targets, and a kept buffer (n, V).
    fn chunks(
        &self,
        hidden: &Tensor,
        targets: &[i64],
        mut work: impl FnMut(Tensor, &[i64], &mut Tensor),
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
            let n = part.len() as i64;
            let rows = rows.narrow(0, (i * most) as i64, n);
            if part.len() == most {
                work(rows, part, &mut buffer);
            } else {
                work(rows, part, &mut buffer.narrow(0, 0, n));
            }
        }
    }

    fn nll_of_logits(&self, logits: &Tensor, targets: &[i64]) -> Vec<f64> {
        let width = self.vocab_size();
        if logits.device() == Device::Cpu {
            // SAFETY: the buffer is contiguous, of that kind, and borrowed for the call.
            match logits.kind() {
                Kind::Float => unsafe {
                    return softmax::nll_rows::<f32>(slice(logits), width, targets, self.threads);
                },
                Kind::BFloat16 => unsafe {
                    return softmax::nll_rows::<bf16>(slice(logits), width, targets, self.threads);
                },
                _ => {}
            }
        }
        nll_by_operations(logits, targets).0
    }

    fn gradient_of_logits(&self, logits: &mut Tensor, targets: &[i64], scale: f64) -> Vec<f64> {
        let (width, threads) = (self.vocab_size(), self.threads);
        if logits.device() == Device::Cpu {
            let scale = scale as f32;
            // SAFETY: the buffer is contiguous, of that kind, and nothing else reads it meanwhile.
            match logits.kind() {
                Kind::Float => unsafe {
                    let rows = slice_mut::<f32>(logits);
                    return softmax::gradient_rows(rows, width, targets, scale, threads);
                },
                Kind::BFloat16 => unsafe {
                    let rows = slice_mut::<bf16>(logits);
                    return softmax::gradient_rows(rows, width, targets, scale, threads);
                },
                _ => {}
            }
        }
        let (nll, log_softmax, counted, index) = {
            let (nll, parts) = nll_by_operations(logits, targets);
            (nll, parts.0, parts.1, parts.2)
        };
        let gradient = log_softmax.exp();
        let ones = Tensor::ones_like(&index).to_kind(gradient.kind());
        let gradient = gradient.scatter_add(1, &index, &(-ones)) * counted * scale;
        logits.copy_(&gradient);
        nll
    }
}

/// The same in libtorch's operations, for other devices and f64: NLL, and (log-softmax (N, V),
/// counted (N, 1), target index (N, 1)).
fn nll_by_operations(logits: &Tensor, targets: &[i64]) -> (Vec<f64>, (Tensor, Tensor, Tensor)) {
    let kind = if logits.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    let targets = Tensor::from_slice(targets).to_device(logits.device()).view([-1, 1]);
    let counted = targets.ge(0).to_kind(kind);
    let index = targets.clamp_min(0);
    let log_softmax = logits.to_kind(kind).log_softmax(-1, kind);
    let nll = -(log_softmax.gather(1, &index, false) * &counted);
    let nll = Vec::<f64>::try_from(nll.to_kind(Kind::Double).to_device(Device::Cpu).view([-1]));
    (nll.unwrap_or_default(), (log_softmax, counted, index))
}

/// rows·weight + bias, into a kept buffer: a fresh one of this size costs as much as the product.
fn logits_into(buffer: &mut Tensor, rows: &Tensor, weight: &Tensor, bias: &Tensor) {
    let _ = bias.addmm_out(buffer, rows, weight);
}

/// The elements of a contiguous CPU tensor.
///
/// # Safety
/// `T` must be the tensor's kind.
pub(crate) unsafe fn slice<T>(tensor: &Tensor) -> &[T] {
    assert!(tensor.is_contiguous());
    // SAFETY: contiguous, and of this kind by the caller's word; the borrow keeps the storage.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr() as *const T, tensor.numel()) }
}

/// As [`slice`], to write.
///
/// # Safety
/// As [`slice`], and no other view of the storage may be used meanwhile.
pub(crate) unsafe fn slice_mut<T>(tensor: &mut Tensor) -> &mut [T] {
    assert!(tensor.is_contiguous());
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr() as *mut T, tensor.numel()) }
}
