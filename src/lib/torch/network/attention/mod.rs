//! How rows look at each other: the only part in which training, scoring and decoding differ.

mod cache;

use tch::{Device, Tensor};

pub use cache::{Cache, CacheMemory, CacheShape, CachedAttention, CachedRow};

/// Rows that look at each other. A network hands in the keys and values of each block, then asks.
pub trait Attention {
    /// Takes the keys and values (B, H, R, hs) of the rows in block `layer`.
    fn store(&mut self, layer: usize, k: &Tensor, v: &Tensor);

    /// What queries (B, H, R, hs) find in block `layer`: (B, H, R, hs).
    fn look(&mut self, layer: usize, q: &Tensor) -> Tensor;
}

/// Every row sees itself and the rows before it.
#[derive(Default)]
pub struct Causal {
    /// Dropout on the attention weights.
    pub dropout: f64,
    /// Keys and values of the block at hand.
    kept: Option<[Tensor; 2]>,
}

impl Causal {
    /// With `dropout` on the attention weights.
    pub fn new(dropout: f64) -> Causal {
        Causal { dropout, kept: None }
    }
}

impl Attention for Causal {
    fn store(&mut self, _: usize, k: &Tensor, v: &Tensor) {
        self.kept = Some([k.shallow_clone(), v.shallow_clone()]);
    }

    fn look(&mut self, _: usize, q: &Tensor) -> Tensor {
        let [k, v] = self.kept.take().expect("a network stores before it looks");
        attend([q, &k, &v], None, self.dropout, true)
    }
}

/// Every row sees every row that is no padding.
pub struct Bidirectional {
    /// (B, 1, 1, R) bool, false where padded; none where nothing is.
    mask: Option<Tensor>,
    kept: Option<[Tensor; 2]>,
}

impl Bidirectional {
    /// For sequences of `lengths` tokens in rows of `width`.
    pub fn new(lengths: &[usize], width: usize, device: tch::Device) -> Bidirectional {
        let padded = lengths.iter().any(|&n| n != width);
        let mask = padded.then(|| {
            // A row that sees nothing would be NaN.
            let valid: Vec<bool> =
                lengths.iter().flat_map(|&n| (0..width).map(move |i| i < n.max(1))).collect();
            let shape = [lengths.len() as i64, 1, 1, width as i64];
            Tensor::from_slice(&valid).view(shape).to_device(device)
        });
        Bidirectional { mask, kept: None }
    }
}

impl Attention for Bidirectional {
    fn store(&mut self, _: usize, k: &Tensor, v: &Tensor) {
        self.kept = Some([k.shallow_clone(), v.shallow_clone()]);
    }

    fn look(&mut self, _: usize, q: &Tensor) -> Tensor {
        let [k, v] = self.kept.take().expect("a network stores before it looks");
        attend([q, &k, &v], self.mask.as_ref(), 0.0, false)
    }
}

/// Rows of queries that libtorch's kernel takes together, or a multiple of them.
const TOGETHER: i64 = 32;

/// What queries find among keys and values, (B, H, R, hs) each.
///
/// On a CPU libtorch rounds products of few rows by where they lie in memory, which depends on the
/// threads and on the neighbours; rows of zeros that nobody reads fill each part of the queries.
fn attend([q, k, v]: [&Tensor; 3], mask: Option<&Tensor>, dropout: f64, causal: bool) -> Tensor {
    let of = |q: &Tensor| {
        Tensor::scaled_dot_product_attention(q, k, v, mask, dropout, causal, None, false)
    };
    let rows = q.size()[2];
    if q.device() != Device::Cpu || q.requires_grad() || mask.is_some() || rows % TOGETHER == 0 {
        return of(q);
    }
    of(&q.constant_pad_nd([0, 0, 0, TOGETHER - rows % TOGETHER])).narrow(2, 0, rows)
}
