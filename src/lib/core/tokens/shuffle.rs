//! A shuffle of 0..n that needs no memory: position i of an epoch is computed, not looked up.
//!
//! A balanced Feistel network of eight rounds permutes 0..2^(2h), the smallest such range that
//! holds n; a value outside 0..n is put through again until it falls inside (cycle walking, Black
//! and Rogaway 2002), at most a few times, as 2^(2h) < 4n. Round keys are eight u64 draws of
//! [`Stream`] (seed, [`Domain::Shuffle`], epoch); the round function is the finalizer of SplitMix64
//! over half ⊕ key. Frozen, like the generator.

use crate::rng::{Domain, Stream};

const ROUNDS: usize = 8;

/// The order in which an epoch visits 0..n.
#[derive(Debug, Clone)]
pub struct EpochShuffle {
    keys: [u64; ROUNDS],
    half_bits: u32,
    n: u64,
}

impl EpochShuffle {
    /// The permutation of 0..`n` that belongs to (seed, epoch).
    pub fn new(seed: u64, epoch: u64, n: u64) -> Self {
        let mut stream = Stream::new(seed, Domain::Shuffle, epoch);
        let keys = std::array::from_fn(|_| stream.next_u64());
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        EpochShuffle { keys, half_bits: bits.div_ceil(2).max(1), n }
    }

    /// How many positions there are.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Whether there is nothing to visit.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// What the epoch visits at position `i`, which must be below `n`.
    pub fn at(&self, i: u64) -> u64 {
        debug_assert!(i < self.n);
        let mut x = self.round_trip(i);
        while x >= self.n {
            x = self.round_trip(x);
        }
        x
    }

    fn round_trip(&self, x: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.half_bits);
        let (mut left, mut right) = ((x >> self.half_bits) & mask, x & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_visited_once() {
        for n in [1u64, 2, 3, 5, 16, 17, 1000, 4097] {
            let shuffle = EpochShuffle::new(3, 1, n);
            let mut seen: Vec<u64> = (0..n).map(|i| shuffle.at(i)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>(), "{n}");
        }
    }

    #[test]
    fn the_permutations_of_three_are_about_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..6000 {
            let shuffle = EpochShuffle::new(9, epoch, 3);
            *counts.entry([shuffle.at(0), shuffle.at(1), shuffle.at(2)]).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        let chi: f64 = counts.values().map(|&c| f64::from(c - 1000).powi(2) / 1000.0).sum();
        assert!(chi < 25.7, "chi-square with 5 degrees of freedom: {chi}"); // p = 0.0001
    }

    #[test]
    fn epochs_and_seeds_differ_and_large_ranges_work() {
        let n = u64::MAX / 2;
        let a = EpochShuffle::new(0, 0, n).at(5);
        assert_ne!(a, EpochShuffle::new(0, 1, n).at(5));
        assert_ne!(a, EpochShuffle::new(1, 0, n).at(5));
        assert!(a < n);
    }

    #[test]
    fn the_shuffle_is_frozen() {
        let shuffle = EpochShuffle::new(1, 2, 10);
        let row: Vec<u64> = (0..10).map(|i| shuffle.at(i)).collect();
        assert_eq!(row, FROZEN);
    }

    const FROZEN: [u64; 10] = [3, 5, 1, 9, 8, 2, 6, 4, 0, 7];
}
