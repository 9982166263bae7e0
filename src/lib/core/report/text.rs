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
        let row = |out: &mut String, cells: [&str; 6]| {
            let [weights, orders, nll, error, perplexity, bits] = cells;
            writeln!(out, "{weights:<12}{orders:<12}{nll:>12}{error:>12}{perplexity:>12}{bits:>11}")
        };
        writeln!(out)?;
        row(out, ["held out", "order", "nats/token", "std error", "perplexity", "bits/byte"])?;
        let bits = |bits: Option<f64>| bits.map_or("-".into(), |b| format!("{b:.3}"));
        let unigram = &self.unigram;
        let nll = format!("{:.4}", unigram.nll_nats_per_token);
        let perplexity = format!("{:.1}", unigram.perplexity);
        row(out, ["unigram", "none", &nll, "-", &perplexity, &bits(unigram.bits_per_byte)])?;
        for score in &self.scores {
            let nll = format!("{:.4}", score.nll_nats_per_token);
            let error = score.std_error.map_or("-".into(), |e| format!("{e:.4}"));
            let perplexity = format!("{:.1}", score.perplexity);
            let bits = bits(score.bits_per_byte);
            row(out, [&score.weights, &score.orders, &nll, &error, &perplexity, &bits])?;
        }
        Ok(())
    }
}
