//! The report as a page of text.

use std::fmt::Write;

use super::Report;
use crate::cli::units::{grouped, seconds};

impl Report {
    /// The report for people, 100 columns at most but for the samples.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let Report { train, val, model, training, sampling, .. } = self;
        writeln!(out, "corpus    {}", self.corpus)?;
        writeln!(
            out,
            "text      {} training tokens in {} documents, {} held-out tokens in {}; {} ids ({})",
            grouped(train.tokens),
            grouped(train.documents),
            grouped(val.tokens),
            grouped(val.documents),
            grouped(train.vocab_size),
            train.tokenizer,
        )?;
        let size = |key: &str| model.config.get(key).and_then(|v| v.as_u64()).unwrap_or(0);
        writeln!(
            out,
            "model     {} parameters: {} layers x {}, {} heads, block {}",
            grouped(model.parameters),
            size("n_layer"),
            size("n_embd"),
            size("n_head"),
            size("block_size"),
        )?;
        writeln!(
            out,
            "training  {} steps, {} tokens in {}: {} tokens a second ({}, {})",
            grouped(training.steps),
            grouped(training.tokens),
            seconds(training.seconds),
            grouped(training.tokens_per_second as u64),
            training.device.as_deref().unwrap_or("device not recorded"),
            training.dtype.as_deref().unwrap_or("dtype not recorded"),
        )?;
        writeln!(
            out,
            "sampling  {} samples, {} tokens in {}: {} tokens a second",
            grouped(sampling.samples),
            grouped(sampling.tokens),
            seconds(sampling.seconds),
            grouped(sampling.tokens_per_second as u64),
        )?;
        self.write_scores(out)?;
        for (i, sample) in self.samples.iter().enumerate() {
            writeln!(out, "\nsample {}: {}", i + 1, sample.replace(['\n', '\r'], " "))?;
        }
        Ok(())
    }

    fn write_scores(&self, out: &mut String) -> std::fmt::Result {
        let row = |out: &mut String, cells: [&str; 8]| {
            let [weights, orders, estimate, tokens, nll, error, perplexity, bits] = cells;
            writeln!(
                out,
                "{weights:<12} {orders:<12} {estimate:<26} {tokens:>11}{nll:>11}{error:>10}\
                 {perplexity:>11}{bits:>10}"
            )
        };
        writeln!(out)?;
        row(
            out,
            [
                "held out",
                "order",
                "estimate",
                "tokens",
                "nats/token",
                "std error",
                "perplexity",
                "bits/byte",
            ],
        )?;
        let bits = |bits: Option<f64>| bits.map_or("-".into(), |b| format!("{b:.3}"));
        let unigram = &self.unigram;
        let (nll, tokens) = (unigram.nll_nats_per_token, grouped(unigram.token_count));
        let (of_unigram, nats) = (perplexity(nll, 1), format!("{nll:.4}"));
        let of_bytes = bits(unigram.bits_per_byte);
        row(out, ["unigram", "none", "exact", &tokens, &nats, "-", &of_unigram, &of_bytes])?;
        for score in &self.scores {
            let nll = score.nll_nats_per_token;
            let (nats, perplexity) = (format!("{nll:.4}"), perplexity(nll, 1));
            let error = score.std_error.map_or("-".into(), |e| format!("{e:.4}"));
            let (tokens, bits) = (grouped(score.token_count), bits(score.bits_per_byte));
            let (weights, orders) = (&score.weights, &score.orders);
            row(
                out,
                [weights, orders, &score.estimate, &tokens, &nats, &error, &perplexity, &bits],
            )?;
        }
        let given = self.scores.iter().map(|score| score.given_token_count).max().unwrap_or(0);
        if given > 0 {
            writeln!(
                out,
                "Up to {} tokens of these blocks are given and not scored.",
                grouped(given)
            )?;
        }
        Ok(())
    }
}

/// exp(nll) with so many decimals; a power of ten where it is large, one of e where no float holds it.
pub(super) fn perplexity(nll: f64, decimals: usize) -> String {
    match nll.exp() {
        large if large.is_infinite() => format!("e^{nll:.1}"),
        large if large >= 1e7 => format!("{large:.2e}"),
        small => format!("{small:.decimals$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perplexity_beyond_all_floats_is_a_power_and_never_inf() {
        assert_eq!(perplexity(2f64.ln(), 2), "2.00");
        assert_eq!(perplexity(30.0, 2), "1.07e13");
        assert_eq!(perplexity(812.34, 2), "e^812.3");
    }
}
