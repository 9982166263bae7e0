//! The decoding loop: a pass of the trunk for each group of positions, the head on their rows, and
//! a draw for each row.

use std::time::{Duration, Instant};

use ao_core::rng::Stream;
use ao_core::{Error, Result};
use tch::{Device, Kind, Tensor};

use super::filter::{Draw, Filter, Sampler};
use super::session::{Line, Session};
use crate::kernels::parts;
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

/// Draws samples from a model.
pub struct Generator<'a> {
    model: &'a dyn Decoder,
    conditioning: &'a Conditioning,
    filter: Filter,
    threads: usize,
    samplers: Vec<Sampler>,
    /// Rows forwarded by all samples so far.
    pub rows_forwarded: u64,
    /// Where the time went so far.
    pub shares: Shares,
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
        let samplers = (0..threads.max(1)).map(|_| Sampler::default()).collect();
        let (rows_forwarded, shares) = (0, Shares::default());
        Generator { model, conditioning, filter, threads, samplers, rows_forwarded, shares }
    }

    /// Draws a batch of samples, step by step together. Each is what it would be alone.
    ///
    /// # Errors
    /// [`Error::NonFinite`] when the model's logits are not finite.
    pub fn generate(&mut self, requests: Vec<Request>) -> Result<Vec<Sample>> {
        let steps = requests.iter().map(|r| r.groups.len()).max().unwrap_or(0);
        let mut streams: Vec<Stream> = requests.iter().map(|r| r.stream.clone()).collect();
        let groups: Vec<Vec<usize>> = requests.iter().map(|r| r.groups.clone()).collect();
        let mut nll = vec![Vec::new(); requests.len()];
        let lines = requests.into_iter().map(|r| Line::new(r.order, r.given)).collect();
        let mut session = Session::new(self.model, self.conditioning, lines);
        for step in 0..steps {
            let sizes: Vec<usize> =
                groups.iter().map(|g| g.get(step).copied().unwrap_or(0)).collect();
            let started = Instant::now();
            let hidden = session.advance(&sizes)?;
            self.shares.trunk += started.elapsed();
            let owners: Vec<usize> =
                sizes.iter().enumerate().flat_map(|(r, &n)| std::iter::repeat_n(r, n)).collect();
            let uniforms: Vec<f64> = owners.iter().map(|&r| streams[r].uniform()).collect();
            let draws = self.draw(&session.lines, &hidden, &owners, &uniforms)?;
            for (draw, &r) in draws.iter().zip(&owners) {
                session.lines[r].tokens.push(draw.token);
                nll[r].push(draw.nll);
            }
        }
        self.rows_forwarded += session.rows_forwarded;
        let finished = session.lines.into_iter().zip(nll).zip(groups);
        Ok(finished
            .map(|((line, nll), groups)| Sample {
                tokens: text_order(&line.order, &line.tokens),
                order: line.order,
                nll,
                steps: groups.len(),
            })
            .collect())
    }

    /// A draw for each hidden row (N, C); row i belongs to sequence `owners[i]`.
    fn draw(
        &mut self,
        lines: &[Line],
        hidden: &Tensor,
        owners: &[usize],
        uniforms: &[f64],
    ) -> Result<Vec<Draw>> {
        let vocab = self.model.head().vocab_size();
        let most = (LOGIT_BYTES / (4 * vocab)).max(1);
        let mut draws = Vec::with_capacity(owners.len());
        for (chunk, (owners, uniforms)) in
            owners.chunks(most).zip(uniforms.chunks(most)).enumerate()
        {
            let started = Instant::now();
            let rows = hidden.narrow(0, (chunk * most) as i64, owners.len() as i64);
            let logits = tch::no_grad(|| {
                self.model
                    .head()
                    .logits(&rows)
                    .to_kind(Kind::Float)
                    .to_device(Device::Cpu)
                    .contiguous()
            });
            let between = Instant::now();
            self.shares.head += between - started;
            // SAFETY: contiguous and f32 by the line above.
            let values = unsafe { slice::<f32>(&logits) };
            let threads = if values.len() < THREADED { 1 } else { self.threads };
            let filter = &self.filter;
            let work = |range: std::ops::Range<usize>, sampler: &mut Sampler| {
                range
                    .map(|i| {
                        let row = &values[i * vocab..(i + 1) * vocab];
                        let seen = &lines[owners[i]].tokens;
                        sampler.draw(filter, row, seen, uniforms[i])
                    })
                    .collect::<Result<Vec<Draw>>>()
            };
            let done = share(owners.len(), threads, &mut self.samplers, &work);
            for part in done {
                draws.extend(part?);
            }
            self.shares.sampling += between.elapsed();
        }
        Ok(draws)
    }
}

/// Runs `work` on parts of `0..rows`, one a thread; outcomes in order.
fn share<T: Send>(
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

/// Tokens of steps as tokens of positions.
pub fn text_order(order: &[u32], tokens: &[u32]) -> Vec<u32> {
    let mut text = vec![0; order.len()];
    for (&position, &token) in order.iter().zip(tokens) {
        text[position as usize] = token;
    }
    text
}
