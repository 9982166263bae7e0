//! The generator behind every draw of the toolkit: ChaCha with 8 rounds, used as a function of
//! coordinates. Frozen: `docs/formats.md` states it and a golden file of rows keeps it.
//!
//! A [`Stream`] is named by (seed, domain, index). The key is the seed as a little-endian u64 in
//! bytes 0..8 and the domain's number in bytes 8..16, the rest zero; the index is the ChaCha stream
//! (nonce). So any row, sample or epoch can be made by anyone, in any thread, without replaying
//! those before it, and two purposes never share a stream.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What a stream is for. The numbers are part of the format and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Domain {
    /// Generation orders, one stream per row.
    Orders = 1,
    /// The shuffle of training sequences, one stream per epoch.
    Shuffle = 2,
    /// The tokens of a sample, one stream per sample.
    Sample = 3,
    /// Initial weights, one stream per parameter.
    Init = 4,
    /// Dropout masks, one stream per optimizer step.
    Dropout = 5,
    /// Mask times and masks of masked diffusion, one stream per sequence.
    Masking = 6,
    /// Orderings of contexts in ensembled scoring, one stream per sequence.
    Ensemble = 7,
    /// Spans and positions chosen for scoring, one stream per sequence.
    Spans = 8,
    /// Choice of the shard folder when several are mixed, one stream per sequence.
    Mixture = 9,
}

/// An endless sequence of draws, fixed by (seed, domain, index).
#[derive(Debug, Clone)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream at these coordinates.
    pub fn new(seed: u64, domain: Domain, index: u64) -> Self {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&(domain as u64).to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(index);
        Stream(rng)
    }

    /// The next 32 bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// The next 64 bits (two 32-bit words, low one first).
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in 0..bound without bias (Lemire's multiply and reject); `bound` must not be 0.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0);
        let mut product = u64::from(self.next_u32()) * u64::from(bound);
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// Uniform in [0, 1) with 53 random bits.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Standard normal, by Box and Muller's polar-free form; two uniforms a draw.
    pub fn normal(&mut self) -> f64 {
        let u = 1.0 - self.uniform(); // (0, 1]: the logarithm stays finite
        let v = self.uniform();
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Shuffles `row` in place (Fisher and Yates from the end, `below(i + 1)` at index i).
    #[inline]
    pub fn shuffle<T>(&mut self, row: &mut [T]) {
        for i in (1..row.len()).rev() {
            let j = self.below(i as u32 + 1) as usize;
            row.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_each_coordinate() {
        let draw = |s, d, i| Stream::new(s, d, i).next_u64();
        let base = draw(1, Domain::Orders, 5);
        assert_eq!(base, draw(1, Domain::Orders, 5));
        assert_ne!(base, draw(2, Domain::Orders, 5));
        assert_ne!(base, draw(1, Domain::Sample, 5));
        assert_ne!(base, draw(1, Domain::Orders, 6));
    }

    #[test]
    fn below_is_uniform_over_a_bound_that_does_not_divide_the_range() {
        let mut stream = Stream::new(7, Domain::Orders, 0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[stream.below(7) as usize] += 1;
        }
        let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 1e4).powi(2) / 1e4).sum();
        assert!(chi < 22.5, "chi-square with 6 degrees of freedom: {chi}"); // p = 0.001
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut stream = Stream::new(3, Domain::Init, 0);
        let draws: Vec<f64> = (0..100_000).map(|_| stream.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.015 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
