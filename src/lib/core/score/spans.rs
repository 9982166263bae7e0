//! Held-out spans: which part of a sequence a model has to fill in.
//!
//! `spans:COUNTxLENGTH` holds out COUNT spans of LENGTH tokens each; they may touch but not overlap,
//! and every such placing is as likely. Position 0 is never held out, as a model that reads from
//! left to right without a start token cannot score it. Sequence s draws from stream (seed, Spans,
//! s), so that all models are asked for the same spans.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::rng::{Domain, Stream};

/// How much is held out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanSpec {
    /// Spans of each sequence.
    pub count: usize,
    /// Tokens of each span.
    pub length: usize,
}

impl SpanSpec {
    /// The spans of a sequence of `tokens` tokens, ascending, (first position, length) each; `None`
    /// where it is too short.
    pub fn place(self, seed: u64, sequence: u64, tokens: usize) -> Option<Vec<[u64; 2]>> {
        let held = self.count.checked_mul(self.length)?;
        let context = tokens.checked_sub(held).filter(|&context| context > 0)?;
        // Each span as one item among the tokens between position 0 and the end.
        let mut items: Vec<usize> = (0..context - 1 + self.count).collect();
        Stream::new(seed, Domain::Spans, sequence).shuffle(&mut items);
        items.truncate(self.count);
        items.sort_unstable();
        let start = |(k, item): (usize, usize)| 1 + item + k * (self.length - 1);
        let spans = items.into_iter().enumerate().map(start);
        Some(spans.map(|s| [s as u64, self.length as u64]).collect())
    }
}

/// The positions in spans, ascending.
pub fn held_out(spans: &[[u64; 2]]) -> Vec<u32> {
    spans.iter().flat_map(|[start, length]| *start as u32..(*start + *length) as u32).collect()
}

impl FromStr for SpanSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "allowed is spans:COUNTxLENGTH, such as spans:2x8".to_owned();
        let (count, length) =
            text.strip_prefix("spans:").and_then(|rest| rest.split_once('x')).ok_or_else(wrong)?;
        let number = |digits: &str| digits.parse::<u32>().ok().filter(|&n| n > 0);
        match (number(count), number(length)) {
            (Some(count), Some(length)) => {
                Ok(SpanSpec { count: count as usize, length: length as usize })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for SpanSpec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "spans:{}x{}", self.count, self.length)
    }
}

impl Serialize for SpanSpec {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_placing_is_as_likely_and_position_0_is_context() {
        // Two spans of 2 among positions 1 to 6: C(2 + 2, 2) = 6 placings.
        let spec: SpanSpec = "spans:2x2".parse().unwrap();
        let mut counts: HashMap<Vec<[u64; 2]>, u32> = HashMap::new();
        for sequence in 0..6000 {
            let spans = spec.place(1, sequence, 7).unwrap();
            let held = held_out(&spans);
            assert!(held.len() == 4 && held[0] > 0 && held[3] < 7);
            assert!(held.windows(2).all(|w| w[0] < w[1]));
            *counts.entry(spans).or_default() += 1;
        }
        assert_eq!(counts.len(), 6);
        let chi: f64 = counts.values().map(|&c| (f64::from(c) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 20.52, "{chi}"); // 5 degrees of freedom, 0.999
    }

    #[test]
    fn sequences_that_are_too_short_have_no_spans() {
        let spec: SpanSpec = "spans:2x3".parse().unwrap();
        assert!(spec.place(1, 0, 6).is_none());
        assert_eq!(spec.place(1, 0, 7), Some(vec![[1, 3], [4, 3]]));
        let huge: SpanSpec = "spans:4294967295x4294967295".parse().unwrap();
        assert!(huge.place(1, 0, 7).is_none());
    }

    #[test]
    fn a_malformed_spec_is_told_what_is_allowed() {
        for text in ["", "spans:", "spans:2", "spans:0x4", "spans:2x0", "spans:2x-1", "2x8"] {
            assert!(text.parse::<SpanSpec>().unwrap_err().contains("spans:COUNTxLENGTH"), "{text}");
        }
        assert_eq!("spans:2x8".parse::<SpanSpec>().unwrap().to_string(), "spans:2x8");
    }
}
