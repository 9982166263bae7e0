//! The keys and values of rows already forwarded, in memory that is allocated once a batch.

use tch::{Device, Kind, Tensor};

use crate::kernels::attention::HeadCache;
use crate::model::{Attend, Stored};

/// Keys and values, one pair of (B, H, slots, hs) a layer; slot k of a sequence is its row k.
pub struct Cache {
    /// (layers, 2, B, H, slots, hs).
    all: Tensor,
    /// Views of it.
    layers: Vec<[Tensor; 2]>,
}

/// The memory of a cache on the CPU, for threads that each use their own part.
pub(super) struct CacheMemory<T> {
    data: *mut T,
    /// Layers, sequences, heads, slots, head size.
    sizes: [usize; 5],
}

// SAFETY: it is a place; who reads or writes there gives a word of their own.
unsafe impl<T: Sync> Sync for CacheMemory<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for CacheMemory<T> {}

impl<T> CacheMemory<T> {
    /// Layers, heads and head size.
    pub fn shape(&self) -> [usize; 3] {
        let [layers, _, heads, _, hs] = self.sizes;
        [layers, heads, hs]
    }

    /// The keys and values of one head of one sequence in block `layer`.
    ///
    /// # Panics
    /// When there is no such block, sequence or head.
    pub fn head(&self, layer: usize, line: usize, head: usize) -> HeadCache<T> {
        let [layers, b, heads, slots, hs] = self.sizes;
        assert!(layer < layers && line < b && head < heads);
        let place = |which: usize| (((layer * 2 + which) * b + line) * heads + head) * slots * hs;
        let (keys, values) = (self.data.wrapping_add(place(0)), self.data.wrapping_add(place(1)));
        HeadCache { keys, values, slots }
    }
}

/// One pass of rows over a cache: writes the rows' keys and values into their slots, then lets each
/// row see what the mask allows of all slots in use.
pub(super) struct BlockAttention<'a> {
    cache: &'a mut Cache,
    /// Slot of the first row of each sequence.
    starts: &'a [usize],
    /// Rows of each sequence; those behind are padding.
    counts: &'a [usize],
    /// Slots in use once the rows are in.
    slots: i64,
    /// (1 or B, 1, R, slots) bool; none where every row sees every slot.
    mask: Option<Tensor>,
}

impl Cache {
    /// All zero. `sizes`: layers, sequences, heads, slots, head size.
    pub fn new(sizes: [usize; 5], kind: Kind, device: Device) -> Cache {
        let [layers, b, heads, slots, hs] = sizes.map(|n| n as i64);
        let all = Tensor::zeros([layers, 2, b, heads, slots, hs], (kind, device));
        let part = |layer, which| all.select(0, layer).select(0, which);
        let views = (0..layers).map(|layer| [part(layer, 0), part(layer, 1)]).collect();
        Cache { layers: views, all }
    }

    /// Its memory.
    ///
    /// # Panics
    /// When it is of another kind, or not on the CPU.
    pub(super) fn memory<T: Stored>(&mut self) -> CacheMemory<T> {
        let fits = self.all.kind() == T::KIND && self.all.device() == Device::Cpu;
        assert!(fits, "a cache of {:?}", self.all.kind());
        let size = self.all.size();
        let sizes = [0, 2, 3, 4, 5].map(|i| size[i] as usize);
        CacheMemory { data: self.all.data_ptr() as *mut T, sizes }
    }

    /// The keys and values of a layer, (B, H, slots, hs) each: views, for tests and inspection.
    pub fn layer(&self, layer: usize) -> (Tensor, Tensor) {
        let [k, v] = &self.layers[layer];
        (k.shallow_clone(), v.shallow_clone())
    }

    /// Copies slot `from` of sequence `r` to slot `to`, in all layers.
    pub(super) fn move_slot(&mut self, r: usize, from: usize, to: usize) {
        for kept in self.layers.iter().flatten() {
            let own = kept.select(0, r as i64); // (H, slots, hs)
            own.select(1, to as i64).copy_(&own.select(1, from as i64));
        }
    }

    /// A pass of `counts[r]` rows of sequence r into the slots from `starts[r]` on; the first
    /// `causal[r]` of them see the slots up to their own, the others the slots before the last
    /// causal row, and themselves.
    pub(super) fn block<'a>(
        &'a mut self,
        starts: &'a [usize],
        counts: &'a [usize],
        causal: &[usize],
        rows: usize,
    ) -> BlockAttention<'a> {
        let slots = starts.iter().zip(counts).map(|(s, c)| s + c).max().unwrap_or(0);
        let device = self.layers.first().map_or(Device::Cpu, |l| l[0].device());
        let alike = [starts, counts, causal].iter().all(|v| v.iter().all(|x| *x == v[0]));
        let mask = if alike && rows == 1 {
            None
        } else {
            let sequences = if alike { 1 } else { starts.len() };
            let mut mask = vec![false; sequences * rows * slots];
            for r in 0..sequences {
                for j in 0..rows {
                    let line = &mut mask[(r * rows + j) * slots..][..slots];
                    if j >= counts[r] {
                        line[0] = true; // padding; a row that sees nothing would be NaN
                    } else if j < causal[r] {
                        line[..=starts[r] + j].fill(true);
                    } else {
                        line[..starts[r] + causal[r] - 1].fill(true);
                        line[starts[r] + j] = true;
                    }
                }
            }
            let sizes = [sequences as i64, 1, rows as i64, slots as i64];
            Some(Tensor::from_slice(&mask).view(sizes).to_device(device))
        };
        BlockAttention { cache: self, starts, counts, slots: slots as i64, mask }
    }
}

impl Attend for BlockAttention<'_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let rows = q.size()[2];
        let alike = self.starts.iter().all(|&s| s == self.starts[0])
            && self.counts.iter().all(|&c| c as i64 == rows);
        for (kept, new) in self.cache.layers[layer].iter().zip([k, v]) {
            if alike {
                kept.narrow(2, self.starts[0] as i64, rows).copy_(new);
                continue;
            }
            for (r, (&start, &count)) in self.starts.iter().zip(self.counts).enumerate() {
                if count > 0 {
                    let (r, count) = (r as i64, count as i64);
                    let own = new.select(0, r).narrow(1, 0, count);
                    kept.select(0, r).narrow(1, start as i64, count).copy_(&own);
                }
            }
        }
        let [k, v] = &self.cache.layers[layer];
        let (k, v) = (k.narrow(2, 0, self.slots), v.narrow(2, 0, self.slots));
        Tensor::scaled_dot_product_attention(q, &k, &v, self.mask.as_ref(), 0.0, false, None, false)
    }
}
