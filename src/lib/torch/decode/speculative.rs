//! Exact decoding of several tokens a pass: drafts that one causal pass puts to the test.
//!
//! Source: any-subset speculative decoding (arXiv 2504.20456, Theorem 2), on the cache of a decoder.
//! Each round is one pass. Its causal rows hold the drafts, so they give the model's distribution q of every
//! drafted step; a draft x of distribution p stays with probability min(1, q(x)/p(x)), and the first that
//! does not is drawn anew from max(q − p, 0), which together has the distribution q. Where all stay, the last
//! causal row gives one more token. Both distributions go through the same filter.
//!
//! The paper drafts in a pass of its own, of which the first token is sure. Here the drafts of the
//! next round come out of the pass that tests this one: copies of its last causal row predict the
//! steps behind it, and after a rejection the causal rows behind the rejected token serve too.
//! They saw a token that did not stay, which makes them worse drafts but leaves the outcome's distribution
//! alone: any distribution will do for p as long as x was drawn from it. So each pass gives at least one
//! token, where the paper's two give at least two.

use std::collections::VecDeque;

use ao_core::Result;

use super::distribution::{Draw, Proposal};
use super::engine::{Engine, owners};
use super::predictor::Reading;
use super::sequence::Sequence;

/// What one row of a pass brings.
struct Row {
    /// Its logits, over all rows of the head: the next round may draft from them.
    logits: Vec<f32>,
    /// For causal rows: whether its draft stayed (one without a draft has none to reject), and the
    /// token that comes out.
    outcome: Option<(bool, Draw)>,
}

/// One sequence in one round.
#[derive(Default)]
struct Round {
    /// Tokens known before the round.
    known: usize,
    /// Drafted tokens and their probability.
    drafts: Vec<(u32, f64)>,
    /// Causal rows: one for each draft, and one more where steps are left.
    causal: usize,
    /// Positions that copies of the last causal row predict.
    copies: Vec<u32>,
    /// For each causal row, whether to keep its draft and what to draw instead.
    coins: Vec<(f64, f64)>,
}

/// Draws a batch from the distribution of one token a step, along the sequences' orders, testing up
/// to `depth` drafts a pass. Sequences advance each at its own pace. Keeps up to 2·depth rows of
/// logits for each sequence.
///
/// # Errors
/// As [`Drawer::draw`](super::distribution::Drawer::draw).
pub fn run(engine: &mut Engine, sequences: &mut [Sequence], depth: usize) -> Result<()> {
    // Logits to draft the next steps from, for each sequence.
    let mut proposals: Vec<VecDeque<Vec<f32>>> = vec![VecDeque::new(); sequences.len()];
    while sequences.iter().any(|sequence| !sequence.free().is_empty()) {
        let mut rounds = Vec::with_capacity(proposals.len());
        for (sequence, proposals) in sequences.iter_mut().zip(&proposals) {
            rounds.push(Round::start(engine, sequence, proposals, depth)?);
        }
        let readings: Vec<Reading> = rounds.iter().map(Round::reading).collect();
        let places = owners(readings.iter().map(|reading| reading.wanted));
        let shown = &*sequences;
        let hidden = engine.timed(|engine| engine.reader()?.read(shown, &readings))?;
        let (filter, count) = (engine.filter.clone(), engine.candidates);
        let rows = engine.each_row(&hidden, &|i, logits, drawer| {
            let (r, j) = places[i];
            let round = &rounds[r];
            let seen = &shown[r].tokens;
            let outcome = match (round.coins.get(j), round.drafts.get(j)) {
                (Some(&coins), Some(&(token, probability))) => {
                    let proposal = Proposal {
                        logits: &proposals[r][j],
                        seen: &seen[..round.known],
                        token,
                        probability,
                    };
                    let seen = &seen[..round.known + j];
                    Some(drawer.verify(&filter, logits, seen, proposal, coins)?)
                }
                (Some(coins), None) => Some((false, drawer.draw(&filter, logits, seen, coins.1)?)),
                (None, _) => {
                    drawer.check(logits)?;
                    None
                }
            };
            let outcome = outcome
                .map(|(stays, draw)| (stays, drawer.with_candidates(draw, &filter, logits, count)));
            // The next round drafts from the causal rows too that follow a rejected token.
            Ok(Row { logits: logits.to_vec(), outcome })
        })?;
        let mut rows = rows.into_iter();
        for (r, round) in rounds.iter().enumerate().filter(|(_, round)| round.causal > 0) {
            let sequence = &mut sequences[r];
            let mut own = rows.by_ref().take(round.causal + round.copies.len());
            let (mut stayed, mut tested) = (0, 0);
            for (j, Row { outcome, .. }) in own.by_ref().take(round.causal).enumerate() {
                let Some((stays, draw)) = outcome else { break };
                tested += usize::from(j < round.drafts.len());
                if !stays {
                    sequence.tokens.truncate(round.known + stayed);
                    engine.reader()?.keep_rows(r, round.known + stayed + 1);
                    sequence.push(draw, None);
                    break;
                }
                stayed += 1;
                sequence.drawn.push(draw);
            }
            proposals[r] = own.map(|row| row.logits).collect();
            sequence.steps += 1;
            sequence.network_calls += 1;
            engine.tally.drafted += round.drafts.len() as u64;
            engine.tally.tested += tested as u64;
            engine.tally.accepted += stayed as u64;
        }
    }
    Ok(())
}

impl Round {
    /// Drafts tokens from the proposals and adds them to the sequence.
    fn start(
        engine: &mut Engine,
        sequence: &mut Sequence,
        proposals: &VecDeque<Vec<f32>>,
        depth: usize,
    ) -> Result<Round> {
        let left = sequence.free().len();
        if left == 0 {
            return Ok(Round::default());
        }
        let known = sequence.tokens.len();
        let count = proposals.len().min(depth).min(left);
        let uniforms: Vec<f64> = (0..count).map(|_| sequence.stream.uniform()).collect();
        let (filter, seen) = (engine.filter.clone(), &sequence.tokens);
        let width = proposals.front().map_or(0, Vec::len);
        let drafts = engine.each_of(count, width, &|i, drawer| {
            drawer.propose(&filter, &proposals[i], seen, uniforms[i])
        })?;
        sequence.tokens.extend(drafts.iter().map(|d| d.0));
        let all = sequence.order.len();
        let causal = (count + 1).min(all - known);
        let end = all.min(known + causal + depth);
        let copies = sequence.order[known + causal..end].to_vec();
        let stream = &mut sequence.stream;
        let coins = (0..causal).map(|_| (stream.uniform(), stream.uniform())).collect();
        Ok(Round { known, drafts, causal, copies, coins })
    }

    fn reading(&self) -> Reading<'_> {
        match self.causal + self.copies.len() {
            0 => Reading::default(),
            wanted => Reading { until: self.known + self.causal, copies: &self.copies, wanted },
        }
    }
}
