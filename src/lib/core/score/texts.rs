//! Sampled texts as token lists: how varied they are, and what a protocol makes of them.

use std::collections::HashMap;

use rustc_hash::FxHashSet;
use serde::Serialize;

/// How generative perplexity is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// SEDD's and AO-GPT's: the sampler's own tokens; the arithmetic mean of the samples'
    /// perplexities.
    Sedd,
    /// MDLM's: the whole text, tokenized again for the reference, in chunks of its context; of the
    /// ends of text of a chunk only the first counts; one perplexity over the tokens of all samples.
    Mdlm,
    /// The text tokenized again, up to its first end; one perplexity over the tokens of all samples.
    MdlmFirst,
}

impl Protocol {
    /// Whether texts are tokenized again for the reference.
    pub fn retokenizes(self) -> bool {
        self != Protocol::Sedd
    }

    /// The positions of a chunk whose tokens count, ascending; of the first `given` of them the
    /// reference says nothing, and `end` is its end of text.
    ///
    /// Under [`Protocol::Mdlm`] the first token of a chunk never counts, whatever the reference
    /// (MDLM's `diffusion.py`, @c112c52): an end of text that stands there is the chunk's first.
    pub fn counted(self, chunk: &[u32], given: usize, end: Option<u32>) -> Vec<u32> {
        let all = 0..chunk.len() as u32;
        if self != Protocol::Mdlm {
            return all.skip(given).collect();
        }
        let is_end = |at: u32| Some(chunk[at as usize]) == end;
        let first = all.clone().find(|&at| is_end(at));
        all.skip(given.max(1)).filter(|&at| !is_end(at) || Some(at) == first).collect()
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Protocol::Sedd => "sedd",
            Protocol::Mdlm => "mdlm",
            Protocol::MdlmFirst => "mdlm-first",
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

/// Tokens over which the distinct runs of a set are counted: the share falls with their number.
pub const DISTINCT_TOKENS: usize = 10_000;

/// How varied a set of texts is.
#[derive(Debug, Clone, Default)]
pub struct SetVariety {
    entropies: Vec<f64>,
    repetitions: Vec<f64>,
    group: Group,
    /// Shares of the groups of [`DISTINCT_TOKENS`] that are full.
    full: Vec<[Option<f64>; 3]>,
}

/// Neighbouring texts of up to [`DISTINCT_TOKENS`] tokens.
#[derive(Debug, Clone, Default)]
struct Group {
    tokens: usize,
    /// Runs of 1, 2 and 3 tokens, a shorter one filled up with `u32::MAX`.
    distinct: FxHashSet<[u32; 3]>,
    seen: [usize; 3],
    runs: [usize; 3],
}

impl Group {
    fn add(&mut self, text: &[u32]) {
        self.tokens += text.len();
        for n in 1..=3 {
            for run in text.windows(n) {
                let mut key = [u32::MAX; 3];
                key[..n].copy_from_slice(run);
                self.runs[n - 1] += 1;
                self.seen[n - 1] += usize::from(self.distinct.insert(key));
            }
        }
    }

    fn shares(&self) -> [Option<f64>; 3] {
        std::array::from_fn(|n| {
            (self.runs[n] > 0).then(|| self.seen[n] as f64 / self.runs[n] as f64)
        })
    }
}

impl SetVariety {
    /// Adds a text.
    pub fn add(&mut self, mut tokens: &[u32], variety: &Variety) {
        self.entropies.push(variety.unigram_entropy_nats);
        self.repetitions.extend(variety.repetition);
        while !tokens.is_empty() {
            let (now, later) =
                tokens.split_at(tokens.len().min(DISTINCT_TOKENS - self.group.tokens));
            self.group.add(now);
            if self.group.tokens == DISTINCT_TOKENS {
                self.full.push(std::mem::take(&mut self.group).shares());
            }
            tokens = later;
        }
    }

    /// The mean over texts of their unigram entropy, nats.
    pub fn unigram_entropy_nats(&self) -> Option<f64> {
        mean(&self.entropies)
    }

    /// The mean over texts of their repetition.
    pub fn repetition(&self) -> Option<f64> {
        mean(&self.repetitions)
    }

    /// Distinct runs over runs of 1, 2 and 3 tokens, never across two texts: the mean over groups of
    /// [`DISTINCT_TOKENS`] neighbouring tokens, an incomplete last group left out. Of fewer tokens
    /// in all, those of all of them.
    pub fn distinct(&self) -> [Option<f64>; 3] {
        if self.full.is_empty() {
            return self.group.shares();
        }
        std::array::from_fn(|n| mean(&self.full.iter().filter_map(|g| g[n]).collect::<Vec<_>>()))
    }

    /// The number of tokens that [`SetVariety::distinct`] is taken at.
    pub fn distinct_tokens(&self) -> usize {
        if self.full.is_empty() { self.group.tokens } else { DISTINCT_TOKENS }
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
    fn the_share_of_distinct_runs_does_not_fall_with_the_number_of_texts() {
        let mut stream = crate::rng::Stream::new(1, crate::rng::Domain::Sample, 0);
        let mut set = SetVariety::default();
        let mut shares = Vec::new();
        for count in 1..=400 {
            let text: Vec<u32> = (0..600).map(|_| stream.below(2000)).collect();
            set.add(&text, &Variety::of(&text));
            if [20, 100, 400].contains(&count) {
                shares.push(set.distinct());
            }
        }
        assert_eq!(set.distinct_tokens(), DISTINCT_TOKENS);
        // Of 10,000 draws from 2,000 ids all but a share of e^−5 are seen.
        let expected = 0.2 * (1.0 - (-5f64).exp());
        for share in shares {
            assert!((share[0].unwrap() / expected - 1.0).abs() < 0.005, "{share:?}");
        }
        // The same text over and over shows, as groups hold several texts.
        let text: Vec<u32> = (0..1000).collect();
        let mut collapsed = SetVariety::default();
        (0..30).for_each(|_| collapsed.add(&text, &Variety::of(&text)));
        assert!((collapsed.distinct()[0].unwrap() - 0.1).abs() < 1e-12);
    }

    #[test]
    fn of_the_ends_of_a_chunk_only_the_first_counts_and_the_chunks_first_token_never() {
        const E: Option<u32> = Some(0);
        let counted = |chunk: &[u32], given| Protocol::Mdlm.counted(chunk, given, E);
        // a b E c d E f
        for given in [0, 1] {
            assert_eq!(counted(&[1, 2, 0, 3, 4, 0, 6], given), [1, 2, 3, 4, 6]);
        }
        // The end in front is the first one.
        assert_eq!(counted(&[0, 1, 0, 2, 0], 1), [1, 3]);
        assert_eq!(counted(&[0, 0, 0], 1), [0u32; 0]);
        assert_eq!(Protocol::Mdlm.counted(&[1, 0, 0], 1, None), [1, 2]);
        for protocol in [Protocol::Sedd, Protocol::MdlmFirst] {
            assert_eq!(protocol.counted(&[1, 0, 2, 0], 1, E), [1, 2, 3]);
            assert_eq!(protocol.counted(&[1, 0], 0, E), [0, 1]);
        }
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
