//! How many bytes of text the tokens of a corpus stand for, which bits per byte divide by.

use super::{Dataset, Tokenizer};

/// Counts bytes of text.
pub struct TextBytes {
    way: Way,
    /// Ids at the ends of documents, which stand for no bytes.
    ends: [Option<u32>; 2],
}

enum Way {
    /// Each id has bytes of its own.
    PerToken(Vec<u32>),
    /// The tokenizer may rewrite the text: the text's bytes, shared out over its tokens.
    Shared(f64),
    /// Nobody has counted the text's bytes: those of the decoded text.
    Decoded(Box<Tokenizer>),
}

impl TextBytes {
    /// The way for the tokens of `data`, which `tokenizer` made.
    pub fn new(data: &Dataset, tokenizer: Tokenizer) -> TextBytes {
        let ends = [data.manifest().packing.bos_id(), data.eos_id().or(tokenizer.eos_id())];
        let lossy = tokenizer.lossy();
        let way = match (data.bytes_per_token(), tokenizer.token_bytes()) {
            (_, Ok(lengths)) if !lossy => Way::PerToken(lengths),
            (Some(share), _) => Way::Shared(share),
            (None, Ok(lengths)) => Way::PerToken(lengths),
            (None, Err(_)) => Way::Decoded(Box::new(tokenizer)),
        };
        TextBytes { way, ends }
    }

    /// Bytes of text of `tokens`, the tokens of sequence `index`; the ends of text stand for none.
    ///
    /// Where bytes are shared out, sequences of equal length in a row add up to the bytes of them
    /// all: what is rounded off one goes to the next.
    pub fn count(&self, tokens: &[u32], index: u64) -> Option<u64> {
        let of_text = || tokens.iter().copied().filter(|&id| !self.ends.contains(&Some(id)));
        match &self.way {
            Way::PerToken(lengths) => {
                of_text().map(|id| lengths.get(id as usize).map(|&n| u64::from(n))).sum()
            }
            Way::Shared(share) => {
                let each = share * of_text().count() as f64;
                let before = (each * index as f64).floor();
                Some(((each * (index as f64 + 1.0)).floor() - before) as u64)
            }
            Way::Decoded(tokenizer) => {
                Some(tokenizer.decode(&of_text().collect::<Vec<_>>()).len() as u64)
            }
        }
    }

    /// Where the bytes come from, for records: `tokens`, `manifest` or `decoded`.
    pub fn source(&self) -> &'static str {
        match self.way {
            Way::PerToken(_) => "tokens",
            Way::Shared(_) => "manifest",
            Way::Decoded(_) => "decoded",
        }
    }

    /// What a reader of bits per byte has to know, if anything.
    pub fn note(&self) -> Option<&'static str> {
        match self.way {
            Way::PerToken(_) => None,
            Way::Shared(_) => Some(
                "the tokenizer may rewrite the text, so bits per byte take the bytes of the text from \
                 the manifest, the mean over the set for each token",
            ),
            Way::Decoded(_) => Some(
                "the tokenizer may rewrite the text and no manifest has the bytes of the text, so bits \
                 per byte take those of the decoded text",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_shared_out_add_up_over_sequences_in_a_row() {
        let bytes = TextBytes { way: Way::Shared(4.37), ends: [Some(8), Some(9)] };
        let tokens = [8, 1, 2, 3, 9];
        let sum: u64 = (0..1000).map(|i| bytes.count(&tokens, i).unwrap()).sum();
        assert!((sum as f64 - 4.37 * 3000.0).abs() <= 1.0, "{sum}");
        assert_eq!(bytes.source(), "manifest");
    }
}
