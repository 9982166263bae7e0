//! The keys and values of rows already forwarded, in memory that is allocated once, and attention
//! over them: of decoding and of ensembles.
//!
//! The rows of a pass lie one after the other, those of one sequence together, without padding.

use tch::{Device, Kind, Tensor};

use super::super::tensor_slice::Stored;
use super::Attention;
use crate::kernels::attention::HeadCache;

/// What a network keeps of a row: keys and values of `layers` × `heads` × `head_size`. A looped
/// network has a layer for each time that a row goes through a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers that store.
    pub layers: usize,
    /// Attention heads of a layer.
    pub heads: usize,
    /// Width of a head.
    pub head_size: usize,
}

impl CacheShape {
    /// Elements of one row.
    pub fn row(&self) -> usize {
        2 * self.layers * self.heads * self.head_size
    }
}

/// One row of a pass over a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedRow {
    /// Its sequence.
    pub sequence: usize,
    /// Its own slot of the cache.
    pub slot: usize,
    /// It sees the slots before this one, and its own.
    pub visible: usize,
    /// The token that it holds and the token's position; none for [None].
    pub held: Option<(u32, u32)>,
    /// The position that it predicts.
    pub aim: u32,
}

/// Keys and values, one pair of (sequences, H, slots, hs) a layer.
pub struct Cache {
    /// (layers, 2, sequences, H, slots, hs).
    all: Tensor,
    /// Views of it.
    layers: Vec<[Tensor; 2]>,
}

/// The memory of a cache on the CPU, for threads that each use their own part.
pub struct CacheMemory<T> {
    data: *mut T,
    /// Layers, sequences, heads, slots, head size.
    sizes: [usize; 5],
}

// SAFETY: it is an address; whoever reads or writes there upholds `HeadCache`'s conditions.
unsafe impl<T: Sync> Sync for CacheMemory<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for CacheMemory<T> {}

impl<T> CacheMemory<T> {
    /// What it keeps of a row.
    pub fn shape(&self) -> CacheShape {
        let [layers, _, heads, _, head_size] = self.sizes;
        CacheShape { layers, heads, head_size }
    }

    /// The keys and values of one head of one sequence in `layer`.
    ///
    /// # Panics
    /// When there is no such layer, sequence or head.
    pub fn head(&self, layer: usize, sequence: usize, head: usize) -> HeadCache<T> {
        let [layers, b, heads, slots, hs] = self.sizes;
        assert!(layer < layers && sequence < b && head < heads);
        let start =
            |which: usize| (((layer * 2 + which) * b + sequence) * heads + head) * slots * hs;
        let (keys, values) = (self.data.wrapping_add(start(0)), self.data.wrapping_add(start(1)));
        HeadCache { keys, values, slots }
    }
}

impl Cache {
    /// All zero, for `sequences` of up to `slots` rows.
    pub fn new(
        shape: CacheShape,
        sequences: usize,
        slots: usize,
        kind: Kind,
        device: Device,
    ) -> Cache {
        let sizes = [shape.layers, 2, sequences, shape.heads, slots, shape.head_size];
        let all = Tensor::zeros(sizes.map(|n| n as i64), (kind, device));
        let part = |layer, which| all.select(0, layer as i64).select(0, which);
        let layers = (0..shape.layers).map(|layer| [part(layer, 0), part(layer, 1)]).collect();
        Cache { layers, all }
    }

    /// Its memory.
    ///
    /// # Panics
    /// When it is of another kind, or not on the CPU.
    pub(crate) fn memory<T: Stored>(&mut self) -> CacheMemory<T> {
        let fits = self.all.kind() == T::KIND && self.all.device() == Device::Cpu;
        assert!(fits, "a cache of {:?}", self.all.kind());
        let size = self.all.size();
        let sizes = [0, 2, 3, 4, 5].map(|i| size[i] as usize);
        CacheMemory { data: self.all.data_ptr() as *mut T, sizes }
    }

    /// The keys and values of a layer, (sequences, H, slots, hs) each: views, for tests.
    pub fn layer(&self, layer: usize) -> (Tensor, Tensor) {
        let [k, v] = &self.layers[layer];
        (k.shallow_clone(), v.shallow_clone())
    }

    /// Copies slot `from` of a sequence to slot `to`, in all layers.
    pub fn move_slot(&mut self, sequence: usize, from: usize, to: usize) {
        for kept in self.layers.iter().flatten() {
            let own = kept.select(0, sequence as i64); // (H, slots, hs)
            own.select(1, to as i64).copy_(&own.select(1, from as i64));
        }
    }

    /// Attention of a pass of `rows`, those of one sequence together and in ascending slots.
    pub fn attention<'a>(&'a mut self, rows: &[CachedRow]) -> CachedAttention<'a> {
        let parts: Vec<Part> = rows
            .chunk_by(|a, b| a.sequence == b.sequence)
            .scan(0, |at, group| {
                let first = *at;
                *at += group.len();
                Some(Part::new(group, first, self.all.device()))
            })
            .collect();
        // Sequences that lie alike go through one product: on a GPU one launch in place of many.
        let alike = parts.windows(2).all(|w| {
            (w[0].slot, w[0].count, &w[0].pattern) == (w[1].slot, w[1].count, &w[1].pattern)
                && w[1].sequence == w[0].sequence + 1
        });
        CachedAttention { cache: self, together: alike && parts.len() > 1, parts }
    }
}

/// One sequence's rows in a pass.
struct Part {
    sequence: i64,
    /// Its first row in the pass.
    at: i64,
    /// Slot of its first row; the others follow.
    slot: i64,
    count: i64,
    /// What each row sees, relative to the first slot: (visible, own).
    pattern: Vec<(usize, usize)>,
    /// (count, slot + count) bool; none where every row sees every slot.
    mask: Option<Tensor>,
}

impl Part {
    fn new(rows: &[CachedRow], at: usize, device: Device) -> Part {
        let (slot, count) = (rows[0].slot, rows.len());
        let width = slot + count;
        let all = rows.iter().all(|row| row.visible >= width.min(row.slot + 1) - 1 && count == 1);
        let mask = (!all).then(|| {
            let mut seen = vec![false; count * width];
            for (line, row) in seen.chunks_mut(width).zip(rows) {
                line[..row.visible].fill(true);
                line[row.slot] = true;
            }
            Tensor::from_slice(&seen).view([count as i64, width as i64]).to_device(device)
        });
        Part {
            sequence: rows[0].sequence as i64,
            at: at as i64,
            slot: slot as i64,
            count: count as i64,
            pattern: rows.iter().map(|row| (row.visible, row.slot)).collect(),
            mask,
        }
    }
}

/// One pass over a cache: writes the rows' keys and values into their slots, then lets each row see
/// what it may. Rows (1, H, N, hs).
pub struct CachedAttention<'a> {
    cache: &'a mut Cache,
    parts: Vec<Part>,
    together: bool,
}

impl CachedAttention<'_> {
    /// The slots `from..to` of the sequences of all parts from `first` on, (count, H, …, hs).
    fn slots(kept: &Tensor, part: &Part, sequences: i64, from: i64, to: i64) -> Tensor {
        kept.narrow(0, part.sequence, sequences).narrow(2, from, to - from)
    }

    /// (1, H, B·R, hs) as (B, H, R, hs).
    fn apart(rows: &Tensor, sequences: i64) -> Tensor {
        let size = rows.size();
        rows.view([size[1], sequences, size[2] / sequences, size[3]]).transpose(0, 1)
    }
}

impl Attention for CachedAttention<'_> {
    fn store(&mut self, layer: usize, k: &Tensor, v: &Tensor) {
        for (kept, new) in self.cache.layers[layer].iter().zip([k, v]) {
            if self.together {
                let (part, b) = (&self.parts[0], self.parts.len() as i64);
                let new = Self::apart(&new.contiguous(), b);
                Self::slots(kept, part, b, part.slot, part.slot + part.count).copy_(&new);
                continue;
            }
            for part in &self.parts {
                let mut to = Self::slots(kept, part, 1, part.slot, part.slot + part.count);
                to.copy_(&new.narrow(2, part.at, part.count));
            }
        }
    }

    fn look(&mut self, layer: usize, q: &Tensor) -> Tensor {
        let [keys, values] = &self.cache.layers[layer];
        let look = |q: &Tensor, part: &Part, sequences: i64| {
            let end = part.slot + part.count;
            let [k, v] = [keys, values].map(|kept| Self::slots(kept, part, sequences, 0, end));
            let mask = part.mask.as_ref();
            Tensor::scaled_dot_product_attention(q, &k, &v, mask, 0.0, false, None, false)
        };
        if self.together {
            let (size, b) = (q.size(), self.parts.len() as i64);
            let found = look(&Self::apart(&q.contiguous(), b), &self.parts[0], b);
            return found.transpose(0, 1).reshape(&size[..]);
        }
        let found: Vec<Tensor> = self
            .parts
            .iter()
            .map(|part| look(&q.narrow(2, part.at, part.count), part, 1))
            .collect();
        Tensor::cat(&found, 2)
    }
}
