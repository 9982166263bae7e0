//! Token-based rejection sampling of σ-GPT (arXiv 2404.09562): several tokens a round, by a distribution that
//! is only near that of one token a step.
//!
//! A round drafts a token for every free position at once, each from the distribution given the tokens so
//! far. Several random orders of these positions are then read in one causal pass each; a draft x of
//! distribution p is kept along an order while u < q(x)/p(x), with one u a position that all orders share and
//! the first of an order always kept. The order that keeps most goes on (of equal ones the first),
//! up to its first rejection. Choosing the best of several orders and drafting rejected tokens anew,
//! instead of drawing them from what q has more than p, is what makes the distribution approximate. Unlike
//! the published code, every sequence of a batch advances at its own pace.

use ao_core::Result;

use super::distribution::Draw;
use super::engine::{Engine, owners};
use super::predictor::{Ask, Reading};
use super::sequence::Sequence;

/// One sequence in one round.
#[derive(Default)]
struct Round {
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

/// Draws a batch, testing each round's drafts along `count` random orders.
///
/// # Errors
/// As [`Drawer::draw`](super::distribution::Drawer::draw).
pub fn run(engine: &mut Engine, sequences: &mut [Sequence], count: usize) -> Result<()> {
    while sequences.iter().any(|sequence| !sequence.free().is_empty()) {
        let mut rounds: Vec<Round> = sequences
            .iter()
            .map(|sequence| {
                let (known, free) = (sequence.tokens.len(), sequence.free().to_vec());
                Round { known, free, ..Round::default() }
            })
            .collect();
        burst(engine, sequences, &mut rounds, count)?;
        for reading in 0..count {
            read(engine, sequences, &mut rounds, reading)?;
        }
        for (r, round) in rounds.into_iter().enumerate().filter(|(_, t)| t.free.len() > 1) {
            let (best, draws) = round.best;
            let sequence = &mut sequences[r];
            if best + 1 == count {
                // It was read last: its rows are there.
                engine.reader()?.keep_rows(r, round.known + draws.len());
            } else {
                let order: Vec<u32> = round.orders[best].iter().map(|&i| round.free[i]).collect();
                sequence.put_next(&order);
                engine.reader()?.keep_rows(r, round.known);
            }
            engine.tally.drafted += round.free.len() as u64;
            // Along the order that goes on; its first draft is kept untested.
            engine.tally.tested += (round.free.len().min(draws.len() + 1) - 1) as u64;
            engine.tally.accepted += draws.len() as u64 - 1;
            for draw in draws {
                sequence.push(draw, None);
            }
        }
    }
    Ok(())
}

/// Drafts every free position; the last one of a sequence is final at once.
fn burst(
    engine: &mut Engine,
    sequences: &mut [Sequence],
    rounds: &mut [Round],
    count: usize,
) -> Result<()> {
    let asks: Vec<Ask> =
        rounds.iter().map(|t| Ask { positions: t.free.clone(), sigma: 0.0 }).collect();
    let hidden = engine.predict(sequences, &asks)?;
    let owners: Vec<usize> =
        owners(rounds.iter().map(|t| t.free.len())).into_iter().map(|(r, _)| r).collect();
    let uniforms: Vec<f64> = owners.iter().map(|&r| sequences[r].stream.uniform()).collect();
    let (filter, listed) = (engine.filter.clone(), engine.candidates);
    let shown = &*sequences;
    let last = |r: usize| rounds[r].free.len() == 1;
    let drafts = engine.each_row(&hidden, &|i, logits, drawer| {
        let (r, seen) = (owners[i], &shown[owners[i]].tokens);
        let draft = drawer.propose(&filter, logits, seen, uniforms[i])?;
        if !last(r) {
            return Ok((draft, None));
        }
        let draw = drawer.draw(&filter, logits, seen, uniforms[i])?;
        Ok((draft, Some(drawer.with_candidates(draw, &filter, logits, listed))))
    })?;
    for ((draft, draw), r) in drafts.into_iter().zip(owners) {
        rounds[r].drafts.push(draft);
        if let Some(draw) = draw {
            sequences[r].push(draw, None);
        }
    }
    for (r, round) in rounds.iter_mut().enumerate().filter(|(_, t)| !t.free.is_empty()) {
        sequences[r].steps += 1;
        if round.free.len() > 1 {
            let stream = &mut sequences[r].stream;
            for _ in 0..count {
                let mut order: Vec<usize> = (0..round.free.len()).collect();
                stream.shuffle(&mut order);
                round.orders.push(order);
            }
            round.coins = round.free.iter().map(|_| stream.uniform()).collect();
        }
    }
    Ok(())
}

/// Reads the drafts along one of the orders.
fn read(
    engine: &mut Engine,
    sequences: &mut [Sequence],
    rounds: &mut [Round],
    reading: usize,
) -> Result<()> {
    let mut readings = Vec::with_capacity(rounds.len());
    for (r, (round, sequence)) in rounds.iter().zip(sequences.iter_mut()).enumerate() {
        let Some(order) = round.orders.get(reading) else {
            readings.push(Reading::default());
            continue;
        };
        let positions: Vec<u32> = order.iter().map(|&i| round.free[i]).collect();
        sequence.put_next(&positions);
        // The newest row was told another position.
        engine.reader()?.keep_rows(r, round.known);
        sequence.tokens.extend(order.iter().map(|&i| round.drafts[i].0));
        readings.push(Reading { until: sequence.order.len(), copies: &[], wanted: order.len() });
    }
    let places = owners(readings.iter().map(|reading| reading.wanted));
    let shown = &*sequences;
    let hidden = engine.timed(|engine| engine.reader()?.read(shown, &readings))?;
    let (filter, listed) = (engine.filter.clone(), engine.candidates);
    let tested = &*rounds;
    let judged = engine.each_row(&hidden, &|i, logits, drawer| {
        let (r, j) = places[i];
        let round = &tested[r];
        let seen = &shown[r].tokens[..round.known + j];
        let at = round.orders[reading][j];
        let (chance, draw) = drawer.judge(&filter, logits, seen, round.drafts[at])?;
        let kept = j == 0 || round.coins[at] < chance;
        Ok((kept, drawer.with_candidates(draw, &filter, logits, listed)))
    })?;
    let mut judged = judged.into_iter();
    for (r, round) in rounds.iter_mut().enumerate().filter(|(_, t)| t.free.len() > 1) {
        let own: Vec<(bool, Draw)> = judged.by_ref().take(round.free.len()).collect();
        let kept: Vec<Draw> = own.into_iter().take_while(|o| o.0).map(|(_, draw)| draw).collect();
        if kept.len() > round.best.1.len() {
            round.best = (reading, kept);
        }
        sequences[r].tokens.truncate(round.known);
        sequences[r].steps += 1;
        sequences[r].network_calls += 1;
    }
    Ok(())
}
