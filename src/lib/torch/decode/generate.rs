//! The decoding loop over groups of positions: a pass of the trunk for each group, the head on its
//! rows, and a draw for each row; and what the other ways to decode share with it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ao_core::rng::Stream;
use ao_core::{Error, Result};
use tch::{Device, Kind, Tensor};

use super::filter::Filter;
use super::law::{Draw, Sampler};
use super::rows::RowTrunk;
use super::session::{Line, Session};
use crate::kernels::parts;
use crate::kernels::pool::Pool;
use crate::model::{Conditioning, Decoder, slice};

/// Most bytes of logits that exist at a time.
const LOGIT_BYTES: usize = 64 << 20;
/// Logits from which on the draws of a step are shared among threads.
const THREADED: usize = 1 << 17;

/// What one sample starts from.
#[derive(Debug, Clone)]
pub struct Request {
    /// The whole permutation, given positions first.
    pub order: Vec<u32>,
    /// Tokens of the first positions of `order`, which are given.
    pub given: Vec<u32>,
    /// Sizes of the groups of the steps, in sum `order.len() − given.len()`.
    pub groups: Vec<usize>,
    /// The sample's own draws.
    pub stream: Stream,
}

/// A finished sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Positions in the order of their steps; given ones first.
    pub order: Vec<u32>,
    /// Tokens in text order.
    pub tokens: Vec<u32>,
    /// −ln of the unfiltered model's probability of each drawn token, nats, in generation order.
    pub nll: Vec<f64>,
    /// The likeliest tokens of each drawn position in generation order, with ln of their
    /// probability under the unfiltered model; empty unless asked for.
    pub candidates: Vec<Vec<(u32, f64)>>,
    /// Passes that its tokens took.
    pub steps: usize,
}

/// Where the time went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    /// Passes through the blocks.
    pub trunk: Duration,
    /// The output layer.
    pub head: Duration,
    /// Filters and draws.
    pub sampling: Duration,
}

/// What was done so far, for all samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Rows that went through the blocks, padding not counted.
    pub rows_forwarded: u64,
    /// Passes through the blocks, each over a batch.
    pub passes: u64,
    /// Tokens that were drafted.
    pub drafted: u64,
    /// Of these, tokens that were put to the test: none behind the first that failed.
    pub tested: u64,
    /// Of these, tokens that stayed.
    pub accepted: u64,
}

/// Draws samples from a model.
pub struct Generator<'a> {
    model: &'a dyn Decoder,
    conditioning: &'a Conditioning,
    pub(super) filter: Filter,
    trunk: Option<&'a RowTrunk>,
    pool: Arc<Pool>,
    candidates: usize,
    /// Samplers that no thread uses at the moment.
    samplers: Mutex<Vec<Sampler>>,
    /// Logits of the rows at hand.
    logits: Vec<f32>,
    /// What was done so far.
    pub tally: Tally,
    /// Where the time went so far.
    pub shares: Shares,
}

/// A batch of samples in the making.
pub(super) struct Making<'a> {
    pub session: Session<'a>,
    /// Each sample's own draws.
    pub streams: Vec<Stream>,
    /// What was drawn, in generation order.
    pub drawn: Vec<Vec<Draw>>,
    /// Passes that each sample took part in.
    pub steps: Vec<usize>,
}

impl<'a> Generator<'a> {
    /// A generator with the laws of `filter`, drawing on `threads` threads; `conditioning` is the
    /// model's own table.
    pub fn new(
        model: &'a dyn Decoder,
        conditioning: &'a Conditioning,
        filter: Filter,
        threads: usize,
    ) -> Generator<'a> {
        Generator {
            model,
            conditioning,
            filter,
            trunk: None,
            pool: Arc::new(Pool::new(threads)),
            candidates: 0,
            samplers: Mutex::default(),
            logits: Vec::new(),
            tally: Tally::default(),
            shares: Shares::default(),
        }
    }

    /// The threads that share its work.
    pub fn pool(&self) -> Arc<Pool> {
        self.pool.clone()
    }

    /// Lets `trunk`, made from the same model, make the passes of few rows and the logits.
    pub fn with_rows(mut self, trunk: Option<&'a RowTrunk>) -> Generator<'a> {
        self.trunk = trunk;
        self
    }

    /// Lists the `count` likeliest tokens of every drawn position.
    pub fn with_candidates(mut self, count: usize) -> Generator<'a> {
        self.candidates = count;
        self
    }

    /// Draws a batch of samples, step by step together. Each is what it would be alone.
    ///
    /// # Errors
    /// [`Error::NonFinite`] when the model's logits are not finite.
    pub fn generate(&mut self, mut requests: Vec<Request>) -> Result<Vec<Sample>> {
        let groups: Vec<Vec<usize>> =
            requests.iter_mut().map(|r| std::mem::take(&mut r.groups)).collect();
        let steps = groups.iter().map(Vec::len).max().unwrap_or(0);
        let mut making = self.start(requests);
        for step in 0..steps {
            let sizes: Vec<usize> =
                groups.iter().map(|g| g.get(step).copied().unwrap_or(0)).collect();
            let hidden = self.trunk(|| making.session.advance(&sizes))?;
            self.draw_rows(&mut making, &hidden, &sizes)?;
            for (steps, size) in making.steps.iter_mut().zip(sizes) {
                *steps += usize::from(size > 0);
            }
        }
        Ok(self.finish(making))
    }

    /// A batch of which nothing is drawn yet.
    pub(super) fn start(&self, requests: Vec<Request>) -> Making<'a> {
        let streams = requests.iter().map(|r| r.stream.clone()).collect();
        let (drawn, steps) = (vec![Vec::new(); requests.len()], vec![0; requests.len()]);
        let lines = requests.into_iter().map(|r| Line::new(r.order, r.given)).collect();
        let session = Session::new(self.model, self.conditioning, lines).with_rows(self.trunk);
        Making { session, streams, drawn, steps }
    }

    /// The samples of a batch whose every position has its token.
    pub(super) fn finish(&mut self, making: Making) -> Vec<Sample> {
        self.tally.rows_forwarded += making.session.rows_forwarded;
        let finished = making.session.lines.into_iter().zip(making.drawn).zip(making.steps);
        finished
            .map(|((line, drawn), steps)| Sample {
                tokens: text_order(&line.order, &line.tokens),
                order: line.order,
                nll: drawn.iter().map(|d| d.nll).collect(),
                candidates: match self.candidates {
                    0 => Vec::new(),
                    _ => drawn.into_iter().map(|d| d.candidates).collect(),
                },
                steps,
            })
            .collect()
    }

    /// A pass through the blocks, timed.
    pub(super) fn trunk<T>(&mut self, pass: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = pass();
        self.shares.trunk += started.elapsed();
        self.tally.passes += 1;
        result
    }

    /// Draws the next `sizes[r]` tokens of each sequence from hidden rows (Σ sizes, C), one uniform
    /// each, none of them told of the others.
    pub(super) fn draw_rows(
        &mut self,
        making: &mut Making,
        hidden: &Tensor,
        sizes: &[usize],
    ) -> Result<()> {
        let owners: Vec<usize> =
            sizes.iter().enumerate().flat_map(|(r, &n)| std::iter::repeat_n(r, n)).collect();
        let uniforms: Vec<f64> = owners.iter().map(|&r| making.streams[r].uniform()).collect();
        let (filter, count) = (self.filter.clone(), self.candidates);
        let lines = &making.session.lines;
        let draws = self.each_row(hidden, &|i, logits, sampler| {
            let draw = sampler.draw(&filter, logits, &lines[owners[i]].tokens, uniforms[i])?;
            Ok(sampler.with_candidates(draw, &filter, logits, count))
        })?;
        for (draw, r) in draws.into_iter().zip(owners) {
            making.push(r, draw);
        }
        Ok(())
    }

    /// How many likeliest tokens a record lists.
    pub(super) fn candidates(&self) -> usize {
        self.candidates
    }

    /// Calls `work` with the number and the logits of each hidden row (N, C), on several threads;
    /// outcomes in order.
    pub(super) fn each_row<T: Send>(
        &mut self,
        hidden: &Tensor,
        work: &(impl Fn(usize, &[f32], &mut Sampler) -> Result<T> + Sync),
    ) -> Result<Vec<T>> {
        let count = hidden.size()[0] as usize;
        let vocab = self.model.head().vocab_size();
        let most = (LOGIT_BYTES / (4 * vocab)).max(1);
        let mut outcomes = Vec::with_capacity(count);
        for start in (0..count).step_by(most) {
            let rows = most.min(count - start);
            let started = Instant::now();
            let values = self.logits(&hidden.narrow(0, start as i64, rows as i64), rows * vocab);
            self.shares.head += started.elapsed();
            let part = self.each_of(rows, vocab, &|i, sampler| {
                work(start + i, &values[i * vocab..(i + 1) * vocab], sampler)
            });
            self.logits = values;
            outcomes.extend(part?);
        }
        Ok(outcomes)
    }

    /// Calls `work` for `count` rows of `width` logits each, on several threads where it pays;
    /// outcomes in order.
    pub(super) fn each_of<T: Send>(
        &mut self,
        count: usize,
        width: usize,
        work: &(impl Fn(usize, &mut Sampler) -> Result<T> + Sync),
    ) -> Result<Vec<T>> {
        let started = Instant::now();
        let unit = if count * width < THREADED { count.max(1) } else { 1 };
        let done = Mutex::new(Vec::new());
        self.pool.split(count, unit, usize::MAX, &|range: Range<usize>, _| {
            let mut sampler = lock(&self.samplers).pop().unwrap_or_default();
            let part: Vec<Result<T>> = range.clone().map(|i| work(i, &mut sampler)).collect();
            lock(&self.samplers).push(sampler);
            lock(&done).push((range.start, part));
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|part| part.0);
        self.shares.sampling += started.elapsed();
        done.into_iter().flat_map(|part| part.1).collect()
    }

    /// The `count` logits of hidden rows (N, C), f32 (N, V), in memory that is used again.
    fn logits(&mut self, hidden: &Tensor, count: usize) -> Vec<f32> {
        let mut values = std::mem::take(&mut self.logits);
        if values.len() < count {
            values.resize(count, 0.0);
        }
        let rows = hidden.size()[0] as usize;
        if let Some(trunk) = self.trunk.filter(|trunk| trunk.takes(rows)) {
            trunk.logits(hidden, &mut values);
            return values;
        }
        tch::no_grad(|| {
            let logits = self.model.head().logits(hidden);
            let logits = logits.to_kind(Kind::Float).to_device(Device::Cpu).contiguous();
            // SAFETY: contiguous and f32 by the line above.
            values[..count].copy_from_slice(unsafe { slice::<f32>(&logits) });
        });
        values
    }
}

impl Making<'_> {
    /// Adds the next token of sequence `r`.
    pub fn push(&mut self, r: usize, draw: Draw) {
        self.session.lines[r].tokens.push(draw.token);
        self.drawn[r].push(draw);
    }
}

/// Runs `work` on parts of `0..rows`, one a thread; outcomes in order.
pub(super) fn share<T: Send>(
    rows: usize,
    threads: usize,
    samplers: &mut [Sampler],
    work: &(impl Fn(std::ops::Range<usize>, &mut Sampler) -> Result<Vec<T>> + Sync),
) -> Vec<Result<Vec<T>>> {
    let mut parts = parts(rows, threads.min(samplers.len()));
    let last = parts.pop().unwrap_or(0..0);
    std::thread::scope(|scope| {
        let (own, others) =
            samplers.split_last_mut().map_or((None, [].as_mut_slice()), |(a, b)| (Some(a), b));
        let handles: Vec<_> = parts
            .into_iter()
            .zip(others)
            .map(|(part, sampler)| scope.spawn(move || work(part, sampler)))
            .collect();
        let mine = own.map(|sampler| work(last, sampler));
        let failed = || Err(Error::Device("a thread that draws tokens ended early".into()));
        let mut done: Vec<_> =
            handles.into_iter().map(|h| h.join().unwrap_or_else(|_| failed())).collect();
        done.extend(mine);
        done
    })
}

/// What a mutex holds; a thread that panicked has left nothing half done in it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tokens of steps as tokens of positions.
pub fn text_order(order: &[u32], tokens: &[u32]) -> Vec<u32> {
    let mut text = vec![0; order.len()];
    for (&position, &token) in order.iter().zip(tokens) {
        text[position as usize] = token;
    }
    text
}
