//! Orderings of a context that grows token by token: the distribution that ensembled scoring averages over.
//!
//! The ensemble (AO-GPT, arXiv 2506.19935, Eq. 7) averages the probability of a token over M
//! orderings of the i tokens before it, the given one among them. Line 0 is the given ordering; each
//! further line starts empty and takes the token of step i at a place that is uniform among i + 1.
//! An ordering of i + 1 tokens is then uniform whenever that of i tokens is, and shares with it all
//! rows before the place: so that is all that has to be computed anew.
//!
//! Frozen: the places of row r of the orders come from stream (seed, Ensemble, r): those of line 1
//! for i = 1, 2, … (`below(i + 1)`), then those of line 2, and so on. More lines leave the first
//! ones as they are.

use crate::rng::{Domain, Stream};

/// One line: the orderings of its contexts, one after the other. Entries are steps of the order.
#[derive(Debug, Clone)]
pub struct Ordering {
    /// Where the token of each step goes.
    places: Vec<u32>,
    steps: Vec<u32>,
}

impl Ordering {
    /// The ordering of the first `count` steps; `count` may not fall from call to call.
    pub fn of(&mut self, count: usize) -> &[u32] {
        while self.steps.len() < count {
            let step = self.steps.len();
            self.steps.insert(self.places[step] as usize, step as u32);
        }
        &self.steps
    }
}

/// The lines of one sequence of `length` tokens along row `row` of the orders; line 0 is the given
/// ordering.
pub fn orderings(seed: u64, row: u64, count: usize, length: usize) -> Vec<Ordering> {
    let mut stream = Stream::new(seed, Domain::Ensemble, row);
    (0..count)
        .map(|line| {
            let places = (0..length as u32)
                .map(|i| if line == 0 || i == 0 { i } else { stream.below(i + 1) })
                .collect();
            Ordering { places, steps: Vec::new() }
        })
        .collect()
}

/// How many orderings `count` tokens have, as far as that is at most `most`.
pub fn distinct(count: usize, most: usize) -> Option<usize> {
    (1..=count).try_fold(1usize, |product, i| product.checked_mul(i).filter(|&p| p <= most))
}

/// All orderings of `count` steps, in lexicographic order; the first is the given one.
pub fn all_orderings(count: usize) -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new()];
    for _ in 0..count {
        all = all
            .into_iter()
            .flat_map(|start: Vec<u32>| {
                let rest: Vec<u32> =
                    (0..count as u32).filter(|step| !start.contains(step)).collect();
                rest.into_iter().map(move |step| [&start[..], &[step]].concat())
            })
            .collect();
    }
    all
}

/// −ln of the mean of exp(−nll), in nats.
pub fn mean_probability(nll: impl Iterator<Item = f64> + Clone) -> f64 {
    let least = nll.clone().fold(f64::INFINITY, f64::min);
    if !least.is_finite() {
        return least; // all are infinite, or there is none
    }
    let (mut sum, mut count) = (0.0, 0.0);
    for x in nll {
        sum += (least - x).exp();
        count += 1.0;
    }
    least - (sum / count).ln()
}

/// The sizes M = 1, 2, 4, … up to `most`, which comes last whatever it is.
pub fn curve_sizes(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> =
        std::iter::successors(Some(1), |m| Some(m * 2)).take_while(|&m| m < most).collect();
    sizes.push(most);
    sizes
}

/// A subset of `count` of the steps `range`, ascending, uniform among all such subsets; all of them
/// where there are no more. Draws from stream (seed, Spans, row).
pub fn subset(seed: u64, row: u64, range: std::ops::Range<usize>, count: usize) -> Vec<usize> {
    let mut steps: Vec<usize> = range.collect();
    if count < steps.len() {
        Stream::new(seed, Domain::Spans, row).shuffle(&mut steps);
        steps.truncate(count);
        steps.sort_unstable();
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_prefix_has_a_uniform_ordering_in_every_line() {
        // 24 orderings of 4 tokens, 6 of 3, each prefix of the same lines.
        const ROWS: u64 = 24_000;
        for size in [2usize, 3, 4] {
            for line in [1usize, 3] {
                let mut counts: HashMap<Vec<u32>, u32> = HashMap::new();
                for row in 0..ROWS {
                    let mut lines = orderings(5, row, 4, 9);
                    let ordering = &mut lines[line];
                    ordering.of(size - 1); // on the way
                    *counts.entry(ordering.of(size).to_vec()).or_default() += 1;
                }
                let kinds = distinct(size, 1000).unwrap();
                assert_eq!(counts.len(), kinds);
                let expected = ROWS as f64 / kinds as f64;
                let chi: f64 =
                    counts.values().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
                // The 0.999 quantiles of chi-square with 1, 5 and 23 degrees of freedom.
                let bound = [10.83, 20.52, 49.73][size - 2];
                assert!(chi < bound, "size {size}, line {line}: {chi}");
            }
        }
    }

    #[test]
    fn lines_are_drawn_independently() {
        // Places of two lines at the same step: a 3 x 3 table of equal cells.
        let mut counts = [0u32; 9];
        for row in 0..9000 {
            let lines = orderings(1, row, 3, 3);
            counts[(lines[1].places[2] * 3 + lines[2].places[2]) as usize] += 1;
        }
        let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 26.12, "{chi}"); // 8 degrees of freedom, 0.999
    }

    #[test]
    fn line_0_is_the_given_ordering_and_more_lines_change_none() {
        let (mut few, mut many) = (orderings(2, 7, 3, 20), orderings(2, 7, 9, 20));
        assert_eq!(few[0].of(20), (0..20).collect::<Vec<_>>());
        for line in 0..3 {
            assert_eq!(few[line].of(20), many[line].of(20));
        }
        let (first, second) = (many[1].of(20).to_vec(), many[2].of(20).to_vec());
        assert_ne!(first, second);
    }

    #[test]
    fn orderings_are_counted_and_listed() {
        assert_eq!((distinct(0, 1), distinct(3, 6), distinct(3, 5)), (Some(1), Some(6), None));
        assert_eq!(distinct(100, usize::MAX), None);
        let all = all_orderings(3);
        assert_eq!((all.len(), &all[0], &all[5]), (6, &vec![0, 1, 2], &vec![2, 1, 0]));
        assert_eq!(all_orderings(0), [Vec::<u32>::new()]);
    }

    #[test]
    fn the_mean_is_of_probabilities_and_survives_their_underflow() {
        let nll = [1.0f64, 3.0];
        let exact = -((-1f64).exp() / 2.0 + (-3f64).exp() / 2.0).ln();
        assert!((mean_probability(nll.iter().copied()) - exact).abs() < 1e-15);
        let shifted = mean_probability(nll.iter().map(|x| x + 5000.0));
        assert!((shifted - exact - 5000.0).abs() < 1e-11);
        assert_eq!(mean_probability([f64::INFINITY].into_iter()), f64::INFINITY);
    }

    #[test]
    fn curves_end_at_the_size_asked_for() {
        assert_eq!(curve_sizes(8), [1, 2, 4, 8]);
        assert_eq!(curve_sizes(6), [1, 2, 4, 6]);
        assert_eq!(curve_sizes(1), [1]);
    }

    #[test]
    fn subsets_are_sorted_and_every_step_is_as_likely() {
        let mut counts = [0u32; 10];
        for row in 0..10_000 {
            let steps = subset(3, row, 2..12, 4);
            assert!(steps.len() == 4 && steps.windows(2).all(|w| w[0] < w[1]));
            steps.iter().for_each(|s| counts[s - 2] += 1);
        }
        let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 4000.0).powi(2) / 4000.0).sum();
        assert!(chi < 27.88, "{chi}"); // at most 9 degrees of freedom, 0.999
        assert_eq!(subset(3, 0, 2..5, 9), [2, 3, 4]);
    }
}
