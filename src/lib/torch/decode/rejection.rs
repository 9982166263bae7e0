//! Token-based rejection sampling of σ-GPT (arXiv 2404.09562): several tokens a round, by a law that
//! is only near that of one token a step.
//!
//! A round drafts a token for every free position at once, each from the law given the tokens so
//! far. Several random orders of these positions are then read in one causal pass each; a draft x of
//! law p is kept along an order while u < q(x)/p(x), with one u a position that all orders share and
//! the first of an order always kept. The order that keeps most goes on (of equal ones the first),
//! up to its first rejection. Choosing the best of several orders and drafting rejected tokens anew,
//! instead of drawing them from what q has more than p, is what makes the law approximate. Unlike
//! the published code, every sequence of a batch advances at its own pace.

use ao_core::Result;

use super::generate::{Generator, Making, Request, Sample};
use super::law::Draw;
use super::session::{Ask, places};

/// One sequence in one round.
#[derive(Default)]
struct Turn {
    /// Tokens known before the round.
    known: usize,
    /// Free positions, as the burst asked for them.
    free: Vec<u32>,
    /// For each of them the drafted token and its probability.
    drafts: Vec<(u32, f64)>,
    /// For each of them the uniform that decides.
    coins: Vec<f64>,
    /// For each reading a permutation of the free positions' indices.
    orders: Vec<Vec<usize>>,
    /// The reading that keeps most so far, and what it keeps.
    best: (usize, Vec<Draw>),
}

impl Generator<'_> {
    /// Draws a batch of samples, testing each round's drafts along `count` random orders. Of a
    /// request's order only the given positions count.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub fn generate_rejection(
        &mut self,
        requests: Vec<Request>,
        count: usize,
    ) -> Result<Vec<Sample>> {
        let mut making = self.start(requests);
        while making.session.lines.iter().any(|line| line.left() > 0) {
            let mut turns: Vec<Turn> = making
                .session
                .lines
                .iter()
                .map(|line| {
                    let known = line.tokens.len();
                    Turn { known, free: line.order[known..].to_vec(), ..Turn::default() }
                })
                .collect();
            self.burst(&mut making, &mut turns, count)?;
            for reading in 0..count {
                self.read(&mut making, &mut turns, reading)?;
            }
            for (r, turn) in turns.into_iter().enumerate().filter(|(_, t)| t.free.len() > 1) {
                let (best, draws) = turn.best;
                let line = &mut making.session.lines[r];
                if best + 1 == count {
                    line.keep_rows(turn.known + draws.len()); // it was read last: its rows are there
                } else {
                    let order: Vec<u32> = turn.orders[best].iter().map(|&i| turn.free[i]).collect();
                    line.reorder(turn.known, &order);
                }
                self.tally.drafted += turn.free.len() as u64;
                // Along the order that goes on; its first draft is kept untested.
                self.tally.tested += (turn.free.len().min(draws.len() + 1) - 1) as u64;
                self.tally.accepted += draws.len() as u64 - 1;
                for draw in draws {
                    making.push(r, draw);
                }
            }
        }
        Ok(self.finish(making))
    }

    /// Drafts every free position; the last one of a sequence is final at once.
    fn burst(&mut self, making: &mut Making, turns: &mut [Turn], count: usize) -> Result<()> {
        let asks: Vec<Ask> = turns
            .iter()
            .map(|turn| match turn.free.as_slice() {
                [] => Ask::default(),
                [_, copies @ ..] => Ask { until: turn.known + 1, copies, wanted: turn.free.len() },
            })
            .collect();
        let hidden = self.trunk(|| making.session.pass(&asks))?;
        let owners: Vec<usize> = turns
            .iter()
            .enumerate()
            .flat_map(|(r, turn)| std::iter::repeat_n(r, turn.free.len()))
            .collect();
        let uniforms: Vec<f64> = owners.iter().map(|&r| making.streams[r].uniform()).collect();
        let (filter, listed) = (self.filter.clone(), self.candidates());
        let lines = &making.session.lines;
        let last = |r: usize| turns[r].free.len() == 1;
        let drafts = self.each_row(&hidden, &|i, logits, sampler| {
            let (r, seen) = (owners[i], &lines[owners[i]].tokens);
            let draft = sampler.propose(&filter, logits, seen, uniforms[i])?;
            if !last(r) {
                return Ok((draft, None));
            }
            let draw = sampler.draw(&filter, logits, seen, uniforms[i])?;
            Ok((draft, Some(sampler.with_candidates(draw, &filter, logits, listed))))
        })?;
        for ((draft, draw), r) in drafts.into_iter().zip(owners) {
            turns[r].drafts.push(draft);
            if let Some(draw) = draw {
                making.push(r, draw);
            }
        }
        for (r, turn) in turns.iter_mut().enumerate().filter(|(_, t)| !t.free.is_empty()) {
            making.steps[r] += 1;
            if turn.free.len() > 1 {
                let stream = &mut making.streams[r];
                for _ in 0..count {
                    let mut order: Vec<usize> = (0..turn.free.len()).collect();
                    stream.shuffle(&mut order);
                    turn.orders.push(order);
                }
                turn.coins = turn.free.iter().map(|_| stream.uniform()).collect();
            }
        }
        Ok(())
    }

    /// Reads the drafts along one of the orders.
    fn read(&mut self, making: &mut Making, turns: &mut [Turn], reading: usize) -> Result<()> {
        let mut asks = Vec::with_capacity(turns.len());
        for (turn, line) in turns.iter().zip(&mut making.session.lines) {
            let Some(order) = turn.orders.get(reading) else {
                asks.push(Ask::default());
                continue;
            };
            let positions: Vec<u32> = order.iter().map(|&i| turn.free[i]).collect();
            line.reorder(turn.known, &positions);
            line.tokens.extend(order.iter().map(|&i| turn.drafts[i].0));
            asks.push(Ask { until: line.order.len(), copies: &[], wanted: order.len() });
        }
        let hidden = self.trunk(|| making.session.pass(&asks))?;
        let places = places(&asks);
        let (filter, listed) = (self.filter.clone(), self.candidates());
        let (lines, seen_turns) = (&making.session.lines, &*turns);
        let judged = self.each_row(&hidden, &|i, logits, sampler| {
            let (r, j) = places[i];
            let turn = &seen_turns[r];
            let seen = &lines[r].tokens[..turn.known + j];
            let at = turn.orders[reading][j];
            let (chance, draw) = sampler.judge(&filter, logits, seen, turn.drafts[at])?;
            let kept = j == 0 || turn.coins[at] < chance;
            Ok((kept, sampler.with_candidates(draw, &filter, logits, listed)))
        })?;
        let mut judged = judged.into_iter();
        for (r, turn) in turns.iter_mut().enumerate().filter(|(_, t)| t.free.len() > 1) {
            let own: Vec<(bool, Draw)> = judged.by_ref().take(turn.free.len()).collect();
            let kept: Vec<Draw> =
                own.into_iter().take_while(|o| o.0).map(|(_, draw)| draw).collect();
            if kept.len() > turn.best.1.len() {
                turn.best = (reading, kept);
            }
            making.session.lines[r].tokens.truncate(turn.known);
            making.steps[r] += 1;
        }
        Ok(())
    }
}
