//! Sampled texts as token lists: how varied they are, and what a protocol makes of them.

use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::FxHashSet;
use serde::Serialize;

/// How generative perplexity is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// SEDD's and AO-GPT's: the sampler's own tokens; the arithmetic mean of the samples'
    /// perplexities.
    Sedd,
    /// MDLM's: the text, tokenized again for the reference and cut behind the first end of text;
    /// one perplexity over the tokens of all samples.
    Mdlm,
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Protocol::Sedd => "sedd",
            Protocol::Mdlm => "mdlm",
        })
    }
}

/// How varied one text is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Variety {
    /// Entropy of its token frequencies, nats.
    pub unigram_entropy_nats: f64,
    /// Distinct tokens over tokens.
    pub distinct_1: f64,
    /// Distinct pairs over pairs of neighbours; null for fewer than 2 tokens.
    pub distinct_2: Option<f64>,
    /// Distinct triples over triples of neighbours.
    pub distinct_3: Option<f64>,
    /// Share of runs of four tokens that stood before in the same text (seq-rep-4 of Welleck et al.
    /// 2020, arXiv 1908.04319); null for fewer than 4 tokens.
    pub repetition: Option<f64>,
}

impl Variety {
    /// That of a text of at least one token.
    pub fn of(tokens: &[u32]) -> Variety {
        let share = |n| distinct_share(tokens, n);
        Variety {
            unigram_entropy_nats: unigram_entropy(tokens),
            distinct_1: share(1).unwrap_or(0.0),
            distinct_2: share(2),
            distinct_3: share(3),
            repetition: share(4).map(|distinct| 1.0 - distinct),
        }
    }
}

/// −Σ p ln p over the frequencies of the tokens, nats.
pub fn unigram_entropy(tokens: &[u32]) -> f64 {
    let mut counts: HashMap<u32, u64> = HashMap::new();
    for &token in tokens {
        *counts.entry(token).or_default() += 1;
    }
    // Sorted, so that the sum is the same in every run.
    let mut counts: Vec<u64> = counts.into_values().collect();
    counts.sort_unstable();
    let total = tokens.len() as f64;
    let sum: f64 = counts.iter().map(|&c| c as f64 / total * (c as f64 / total).ln()).sum();
    (-sum).max(0.0)
}

fn distinct_share(tokens: &[u32], n: usize) -> Option<f64> {
    let runs = (tokens.len() + 1).checked_sub(n).filter(|&runs| runs > 0)?;
    let distinct: FxHashSet<&[u32]> = tokens.windows(n).collect();
    Some(distinct.len() as f64 / runs as f64)
}

/// Runs of n tokens over many texts: how many, and how many distinct ones.
#[derive(Debug, Clone, Default)]
struct Runs<T> {
    seen: FxHashSet<T>,
    total: u64,
}

impl<T: Eq + Hash> Runs<T> {
    fn add(&mut self, runs: impl Iterator<Item = T>) {
        for run in runs {
            self.total += 1;
            self.seen.insert(run);
        }
    }

    fn share(&self) -> Option<f64> {
        (self.total > 0).then(|| self.seen.len() as f64 / self.total as f64)
    }
}

/// How varied a set of texts is.
#[derive(Debug, Clone, Default)]
pub struct SetVariety {
    entropies: Vec<f64>,
    repetitions: Vec<f64>,
    ones: Runs<u32>,
    twos: Runs<[u32; 2]>,
    threes: Runs<[u32; 3]>,
}

impl SetVariety {
    /// Adds a text.
    pub fn add(&mut self, tokens: &[u32], variety: &Variety) {
        self.entropies.push(variety.unigram_entropy_nats);
        self.repetitions.extend(variety.repetition);
        self.ones.add(tokens.iter().copied());
        self.twos.add(tokens.windows(2).map(|w| [w[0], w[1]]));
        self.threes.add(tokens.windows(3).map(|w| [w[0], w[1], w[2]]));
    }

    /// The mean over texts of their unigram entropy, nats.
    pub fn unigram_entropy_nats(&self) -> Option<f64> {
        mean(&self.entropies)
    }

    /// The mean over texts of their repetition.
    pub fn repetition(&self) -> Option<f64> {
        mean(&self.repetitions)
    }

    /// Distinct runs over runs of 1, 2 and 3 tokens of all texts together.
    pub fn distinct(&self) -> [Option<f64>; 3] {
        [self.ones.share(), self.twos.share(), self.threes.share()]
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The tokens up to the first end of text, that one included. An end of text in front of all marks
/// the start, as in samples of models that begin with one.
pub fn cut_behind_end(tokens: &[u32], end: Option<u32>) -> &[u32] {
    let found = tokens.iter().skip(1).position(|&token| Some(token) == end);
    found.map_or(tokens, |at| &tokens[..at + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_that_of_the_frequencies() {
        assert_eq!(unigram_entropy(&[7, 7, 7]), 0.0);
        assert!((unigram_entropy(&[1, 2, 3, 4]) - 4f64.ln()).abs() < 1e-15);
        let exact = -(0.75 * 0.75f64.ln() + 0.25 * 0.25f64.ln());
        assert!((unigram_entropy(&[5, 5, 9, 5]) - exact).abs() < 1e-15);
    }

    #[test]
    fn a_text_that_goes_round_in_circles_shows_it() {
        let text = [1, 2, 1, 2, 1, 2, 1, 2];
        let variety = Variety::of(&text);
        assert_eq!(variety.distinct_1, 2.0 / 8.0);
        assert_eq!(variety.distinct_2, Some(2.0 / 7.0));
        assert_eq!(variety.distinct_3, Some(2.0 / 6.0));
        assert_eq!(variety.repetition, Some(1.0 - 2.0 / 5.0));
        assert_eq!(Variety::of(&[1, 2, 3]).repetition, None);
        assert_eq!(Variety::of(&[3]).distinct_2, None);
    }

    #[test]
    fn distinct_runs_of_a_set_are_counted_over_all_texts_and_never_across_two() {
        let mut set = SetVariety::default();
        for text in [[1, 2, 3, 4], [1, 2, 3, 5]] {
            set.add(&text, &Variety::of(&text));
        }
        assert_eq!(set.distinct(), [Some(5.0 / 8.0), Some(4.0 / 6.0), Some(3.0 / 4.0)]);
        assert_eq!(set.repetition(), Some(0.0));
        assert_eq!(SetVariety::default().distinct(), [None; 3]);
    }

    #[test]
    fn a_text_is_cut_behind_its_first_end_unless_that_is_its_start() {
        assert_eq!(cut_behind_end(&[4, 5, 0, 6, 0], Some(0)), [4, 5, 0]);
        assert_eq!(cut_behind_end(&[0, 4, 5, 0, 6], Some(0)), [0, 4, 5, 0]);
        assert_eq!(cut_behind_end(&[4, 5, 6], Some(0)), [4, 5, 6]);
        assert_eq!(cut_behind_end(&[4, 5, 6], None), [4, 5, 6]);
        assert_eq!(cut_behind_end(&[], Some(0)), [0u32; 0]);
    }
}
