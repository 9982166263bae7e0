//! Exact decoding of several tokens a pass: drafts that one causal pass puts to the test.
//!
//! Source: any-subset speculative decoding (arXiv 2504.20456, Theorem 2), on the cache of a decoder.
//! Each round is one pass. Its causal rows hold the drafts, so they give the model's law q of every
//! drafted step; a draft x of law p stays with probability min(1, q(x)/p(x)), and the first that
//! does not is drawn anew from max(q − p, 0), which together has the law q. Where all stay, the last
//! causal row gives one more token. Both laws go through the same filter.
//!
//! The paper drafts in a pass of its own, of which the first token is sure. Here the drafts of the
//! next round come out of the pass that tests this one: copies of its last causal row predict the
//! steps behind it, and after a rejection the causal rows behind the rejected token serve too.
//! They saw a token that did not stay, which makes them worse drafts but leaves the outcome's law
//! alone: any law will do for p as long as x was drawn from it. So each pass gives at least one
//! token, where the paper's two give at least two.

use std::collections::VecDeque;

use ao_core::Result;

use super::generate::{Generator, Request, Sample};
use super::law::{Draw, Proposal};
use super::session::{Ask, places};

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
struct Turn {
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

impl Generator<'_> {
    /// Draws a batch of samples from the law of one token a step, along the orders of the requests
    /// (whose groups do not count), testing up to `depth` drafts a pass. Sequences advance each at
    /// its own pace. Keeps up to 2·depth rows of logits for each sequence.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub fn generate_speculative(
        &mut self,
        requests: Vec<Request>,
        depth: usize,
    ) -> Result<Vec<Sample>> {
        let mut making = self.start(requests);
        // Logits to draft the next steps from, for each sequence.
        let mut proposals: Vec<VecDeque<Vec<f32>>> = vec![VecDeque::new(); making.drawn.len()];
        while making.session.lines.iter().any(|line| line.left() > 0) {
            let mut turns = Vec::with_capacity(proposals.len());
            for (r, laws) in proposals.iter().enumerate() {
                let (line, stream) = (&mut making.session.lines[r], &mut making.streams[r]);
                if line.left() == 0 {
                    turns.push(Turn::default());
                    continue;
                }
                let known = line.tokens.len();
                let count = laws.len().min(depth).min(line.left());
                let uniforms: Vec<f64> = (0..count).map(|_| stream.uniform()).collect();
                let drafts = self.draft(laws, &line.tokens, &uniforms)?;
                line.tokens.extend(drafts.iter().map(|d| d.0));
                let causal = (count + 1).min(line.order.len() - known);
                let end = line.order.len().min(known + causal + depth);
                let copies = line.order[known + causal..end].to_vec();
                let coins = (0..causal).map(|_| (stream.uniform(), stream.uniform())).collect();
                turns.push(Turn { known, drafts, causal, copies, coins });
            }
            let asks: Vec<Ask> = turns
                .iter()
                .map(|turn| Ask {
                    until: turn.known + turn.causal,
                    copies: &turn.copies,
                    wanted: turn.causal + turn.copies.len(),
                })
                .map(|ask| if ask.wanted == 0 { Ask::default() } else { ask })
                .collect();
            let hidden = self.trunk(|| making.session.pass(&asks))?;
            let places = places(&asks);
            let (filter, count) = (self.filter.clone(), self.candidates());
            let lines = &making.session.lines;
            let rows = self.each_row(&hidden, &|i, logits, sampler| {
                let (r, j) = places[i];
                let turn = &turns[r];
                let seen = &lines[r].tokens;
                let outcome = match (turn.coins.get(j), turn.drafts.get(j)) {
                    (Some(&coins), Some(&(token, probability))) => {
                        let proposal = Proposal {
                            logits: &proposals[r][j],
                            seen: &seen[..turn.known],
                            token,
                            probability,
                        };
                        let seen = &seen[..turn.known + j];
                        Some(sampler.verify(&filter, logits, seen, proposal, coins)?)
                    }
                    (Some(coins), None) => {
                        Some((false, sampler.draw(&filter, logits, seen, coins.1)?))
                    }
                    (None, _) => {
                        sampler.check(logits)?;
                        None
                    }
                };
                let outcome = outcome.map(|(stays, draw)| {
                    (stays, sampler.with_candidates(draw, &filter, logits, count))
                });
                // Those of a tested row are done with.
                let logits = if j < turn.causal { Vec::new() } else { logits.to_vec() };
                Ok(Row { logits, outcome })
            })?;
            let mut rows = rows.into_iter();
            for (r, turn) in turns.iter().enumerate().filter(|(_, t)| t.causal > 0) {
                let mut own = rows.by_ref().take(turn.causal + turn.copies.len());
                let mut stayed = 0;
                for Row { outcome, .. } in own.by_ref().take(turn.causal) {
                    let Some((stays, draw)) = outcome else { break };
                    if !stays {
                        making.session.lines[r].truncate(turn.known + stayed);
                        making.push(r, draw);
                        break;
                    }
                    stayed += 1;
                    making.drawn[r].push(draw);
                }
                proposals[r] = own.map(|row| row.logits).collect();
                making.steps[r] += 1;
                self.tally.drafted += turn.drafts.len() as u64;
                self.tally.tested += turn.drafts.len().min(stayed + 1) as u64;
                self.tally.accepted += stayed as u64;
            }
        }
        Ok(self.finish(making))
    }

    /// One token from each of the first laws, at `uniforms`, with its probability.
    fn draft(
        &mut self,
        laws: &VecDeque<Vec<f32>>,
        seen: &[u32],
        uniforms: &[f64],
    ) -> Result<Vec<(u32, f64)>> {
        let filter = self.filter.clone();
        self.each_of(uniforms.len(), laws.front().map_or(0, Vec::len), &|i, sampler| {
            sampler.propose(&filter, &laws[i], seen, uniforms[i])
        })
    }
}
