//! The noise levels of an encoder's bound: how they are spread over sequences and draws, and what
//! of a bound's error that leaves.
//!
//! A level is a share z in [0, 1) of the levels' range: k = 1 + ⌊n·z⌋, λ = 1 − z, or t. A bound
//! depends on it far more than on the text, so levels are stratified *over sequences*: of 64
//! consecutive sequences each lies in another 64th of the range, of any 2, 4, … that begin at a
//! multiple of it in another half, quarter, … (a nested scramble of the van der Corput sequence;
//! Owen 1995). The K draws of one sequence are scrambled independently of each other. Each level is
//! uniform by itself, so every sequence's value is unbiased; and draws of one sequence are
//! independent, so that their spread says how much they vary.
//!
//! [`Curve`] is the mean of scores as a function of the level. What it says of a score is not an
//! error where levels are spread evenly; [`Curve::imbalance`] is what is left where they are not.

use std::sync::LazyLock;

use crate::rng::{Domain, Stream};

/// Strata of the range of levels, and sequences that share a scramble.
pub const STRATA: usize = 64;
/// Bits of a stratum's number.
const BITS: u32 = STRATA.trailing_zeros();
/// Streams of scrambles lie behind those of masks, which are numbered by draw.
const SCRAMBLES: u64 = 1 << 63;

/// The levels of a run's draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    seed: u64,
}

impl Levels {
    /// Those of a seed.
    pub fn new(seed: u64) -> Levels {
        Levels { seed }
    }

    /// The stratum of draw `draw` of sequence `sequence`, below [`STRATA`].
    pub fn stratum(self, sequence: u64, draw: u64) -> usize {
        let block = sequence / STRATA as u64;
        let mut stream = Stream::new(self.seed, Domain::Masking, SCRAMBLES + block);
        let flips = (0..=draw).fold(0, |_, _| stream.next_u64());
        scrambled(sequence as usize % STRATA, flips)
    }

    /// The strata of the first `draws` draws of a sequence.
    pub fn strata(self, sequence: u64, draws: usize) -> Vec<usize> {
        let block = sequence / STRATA as u64;
        let mut stream = Stream::new(self.seed, Domain::Masking, SCRAMBLES + block);
        let at = sequence as usize % STRATA;
        (0..draws).map(|_| scrambled(at, stream.next_u64())).collect()
    }

    /// The level of a draw as a share in [0, 1): uniform within its stratum by the next number of
    /// `stream`.
    pub fn share(self, sequence: u64, draw: u64, stream: &mut Stream) -> f64 {
        (self.stratum(sequence, draw) as f64 + stream.uniform()) / STRATA as f64
    }
}

/// The bits of `at` reversed, each flipped by the bit of `flips` that belongs to those before it.
fn scrambled(at: usize, flips: u64) -> usize {
    let (mut node, mut stratum) = (1, 0);
    for bit in 0..BITS {
        let digit = at >> bit & 1;
        stratum = 2 * stratum + (digit ^ (flips >> node & 1) as usize);
        node = 2 * node + digit;
    }
    stratum
}

/// The mean residual score a token as a function of the level's stratum, a sum of cosines.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its value in each stratum, nats a token.
    pub values: [f64; STRATA],
    /// Coefficients beside the constant.
    pub terms: usize,
}

impl Curve {
    /// Fits residuals by weighted least squares, with at most `terms` cosines: `tokens` and `sums`
    /// are those of each stratum.
    pub fn fit(tokens: &[f64; STRATA], sums: &[f64; STRATA], terms: usize) -> Curve {
        let mut terms = terms.min(STRATA - 1);
        loop {
            if let Some(coefficients) = least_squares(tokens, sums, terms + 1) {
                let value =
                    |z| coefficients.iter().enumerate().map(|(q, c)| c * COSINES[q][z]).sum();
                return Curve { values: std::array::from_fn(value), terms };
            }
            // Some cosines cannot be told apart in the strata that were drawn.
            if terms == 0 {
                return Curve { values: [0.0; STRATA], terms };
            }
            terms /= 2;
        }
    }

    /// The variance, over scrambles, of Σ tokens · curve at one draw of each sequence, nats²; given
    /// are their numbers, ascending, and tokens. It is 0 for whole blocks of equal lengths.
    ///
    /// Where the two children of a node of the tree of halves hold a and b tokens, it adds
    /// (a − b)²·h², h being half the difference between the curve's means over two sibling
    /// intervals of that size, each pair of which is as likely.
    pub fn imbalance(&self, sequences: impl Iterator<Item = (u64, f64)>) -> f64 {
        let mut by_depth = Vec::new(); // of h², the deepest first
        let mut means = self.values.to_vec();
        while means.len() > 1 {
            let squares: f64 = means.chunks(2).map(|p| ((p[0] - p[1]) / 2.0).powi(2)).sum();
            by_depth.push(squares / (means.len() / 2) as f64);
            means = means.chunks(2).map(|p| (p[0] + p[1]) / 2.0).collect();
        }
        by_depth.reverse();
        let mut variance = 0.0;
        let mut block = None;
        let mut nodes = [0.0; 2 * STRATA];
        let mut close = |nodes: &[f64; 2 * STRATA]| {
            for node in 1..STRATA {
                let uneven = nodes[2 * node] - nodes[2 * node + 1];
                variance += uneven * uneven * by_depth[node.ilog2() as usize];
            }
        };
        for (sequence, tokens) in sequences {
            let (number, at) = (sequence / STRATA as u64, sequence as usize % STRATA);
            if block != Some(number) {
                close(&nodes);
                (block, nodes) = (Some(number), [0.0; 2 * STRATA]);
            }
            let mut node = 1;
            for bit in 0..BITS {
                node = 2 * node + (at >> bit & 1);
                nodes[node] += tokens;
            }
        }
        close(&nodes);
        variance
    }
}

/// cos(π·q·x) at the middle of stratum z, by q and z.
static COSINES: LazyLock<[[f64; STRATA]; STRATA]> = LazyLock::new(|| {
    let at =
        |q: usize, z: usize| std::f64::consts::PI * q as f64 * (z as f64 + 0.5) / STRATA as f64;
    std::array::from_fn(|q| std::array::from_fn(|z| at(q, z).cos()))
});

/// Coefficients of the first `count` cosines for sums of weighted values, by Cholesky's factors of the normal equations; `None`
/// where they do not determine them.
fn least_squares(weights: &[f64; STRATA], sums: &[f64; STRATA], count: usize) -> Option<Vec<f64>> {
    let basis = &*COSINES;
    let product =
        |a: &[f64], b: &[f64]| -> f64 { (0..STRATA).map(|z| weights[z] * a[z] * b[z]).sum() };
    let total: f64 = weights.iter().sum();
    let mut lower = vec![vec![0.0; count]; count];
    let mut solved = Vec::with_capacity(count);
    for i in 0..count {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let left = product(&basis[i], &basis[j]) - known;
            if i > j {
                lower[i][j] = left / lower[j][j];
            } else if left > 1e-6 * total {
                lower[i][i] = left.sqrt();
            } else {
                return None;
            }
        }
        let right: f64 = (0..STRATA).map(|z| sums[z] * basis[i][z]).sum();
        let known: f64 = (0..i).map(|k| lower[i][k] * solved[k]).sum();
        solved.push((right - known) / lower[i][i]);
    }
    for i in (0..count).rev() {
        let known: f64 = (i + 1..count).map(|k| lower[k][i] * solved[k]).sum();
        solved[i] = (solved[i] - known) / lower[i][i];
    }
    Some(solved)
}
