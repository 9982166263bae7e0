//! A SPEC bound to a width and a seed: an endless table of rows, each made on its own.
//!
//! Row i draws from `Stream::new(seed, Domain::Orders, i)` alone, in this order: the coin of a
//! ramp, the choice of a mix, then the row. Blocks draw the order of blocks first, then the inside
//! of each block as it is visited. Fixed permutations are row 0 of `uniform` under their own seed.

use std::path::Path;

use super::source::OrderSource;
use super::spec::{Inner, OrderSpec, Outer};
use crate::rng::{Domain, Stream};
use crate::{Error, Result};

/// The widest row that is made or read.
pub const MAX_BLOCK_SIZE: usize = 1 << 26;

/// Rows of one SPEC at one width under one seed. Shared freely between threads.
#[derive(Debug, Clone)]
pub struct OrderStream {
    spec: OrderSpec,
    block_size: usize,
    seed: u64,
    plan: Plan,
}

/// A SPEC with all that is constant worked out.
#[derive(Debug, Clone)]
enum Plan {
    Constant(Vec<u32>),
    Uniform,
    Blocks {
        size: usize,
        inner: Arrangement,
        outer: Arrangement,
    },
    /// Cumulative weights; the last part takes what rounding leaves.
    Mix(Vec<(f64, Plan)>),
    Ramp {
        from: u64,
        to: u64,
        start: Box<Plan>,
        end: Box<Plan>,
    },
}

/// The order of some things: drawn afresh, or the same each time.
#[derive(Debug, Clone)]
enum Arrangement {
    Drawn,
    Constant(Vec<u32>),
}

impl OrderStream {
    /// Binds `spec` to rows of `block_size` entries; reads the file of `fixed:@FILE`.
    ///
    /// # Errors
    /// When the width is out of range or does not suit the SPEC, or its file is unusable.
    pub fn new(spec: OrderSpec, block_size: usize, seed: u64) -> Result<OrderStream> {
        if block_size == 0 || block_size > MAX_BLOCK_SIZE {
            return Err(Error::usage(format!(
                "--block-size {block_size}: must be 1 to {MAX_BLOCK_SIZE}"
            )));
        }
        let plan = Plan::new(&spec, block_size)?;
        Ok(OrderStream { spec, block_size, seed, plan })
    }

    /// The SPEC.
    pub fn spec(&self) -> &OrderSpec {
        &self.spec
    }

    /// Entries of a row.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The seed that random rows depend on.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Puts row `index` into `out`: a permutation of 0..block_size.
    pub fn row(&self, index: u64, out: &mut Vec<u32>) {
        let mut draws = Stream::new(self.seed, Domain::Orders, index);
        self.plan.fill(index, &mut draws, self.block_size, out);
    }
}

impl Plan {
    fn new(spec: &OrderSpec, n: usize) -> Result<Plan> {
        Ok(match spec {
            OrderSpec::L2r => Plan::Constant((0..n as u32).collect()),
            OrderSpec::R2l => Plan::Constant((0..n as u32).rev().collect()),
            OrderSpec::Uniform => Plan::Uniform,
            OrderSpec::Fixed(seed) => Plan::Constant(fixed(*seed, n)),
            OrderSpec::FixedFile(path) => {
                let mut row = Vec::new();
                OrderSource::open_file(Path::new(path))?.row(0, n, &mut row)?;
                Plan::Constant(row)
            }
            OrderSpec::Fractal => Plan::Constant(fractal(n)),
            OrderSpec::Blocks { size, inner, outer } => {
                let size = (*size).min(MAX_BLOCK_SIZE);
                let inner = match inner {
                    Inner::L2r => Arrangement::Constant((0..size.min(n) as u32).collect()),
                    Inner::Uniform => Arrangement::Drawn,
                    Inner::Fixed(seed) => Arrangement::Constant(fixed(*seed, size)),
                    Inner::List(list) if n.is_multiple_of(size) => {
                        Arrangement::Constant(list.clone())
                    }
                    Inner::List(_) => {
                        return Err(Error::usage(format!(
                            "--block-size {n}: is no multiple of {size}, the length of the list in \
                             '{spec}'; choose one that is"
                        )));
                    }
                };
                let count = n.div_ceil(size);
                let outer = match outer {
                    Outer::L2r => Arrangement::Constant((0..count as u32).collect()),
                    Outer::Uniform => Arrangement::Drawn,
                    Outer::Fixed(seed) => Arrangement::Constant(fixed(*seed, count)),
                };
                Plan::Blocks { size, inner, outer }
            }
            OrderSpec::Mix(parts) => {
                let mut sum = 0.0;
                let mut plans = Vec::with_capacity(parts.len());
                for (weight, part) in parts {
                    sum += weight;
                    plans.push((sum, Plan::new(part, n)?));
                }
                Plan::Mix(plans)
            }
            OrderSpec::Ramp { from, to, start, end } => Plan::Ramp {
                from: *from,
                to: *to,
                start: Box::new(Plan::new(start, n)?),
                end: Box::new(Plan::new(end, n)?),
            },
        })
    }

    fn fill(&self, index: u64, draws: &mut Stream, n: usize, out: &mut Vec<u32>) {
        out.clear();
        match self {
            Plan::Constant(row) => out.extend_from_slice(row),
            Plan::Uniform => {
                out.extend(0..n as u32);
                draws.shuffle(out);
            }
            Plan::Blocks { size, inner, outer } => {
                let visit = match outer {
                    Arrangement::Constant(order) => order.clone(),
                    Arrangement::Drawn => {
                        let mut order: Vec<u32> = (0..n.div_ceil(*size) as u32).collect();
                        draws.shuffle(&mut order);
                        order
                    }
                };
                for block in visit {
                    let first = block as usize * size;
                    let length = (*size).min(n - first);
                    let begin = out.len();
                    match inner {
                        Arrangement::Constant(order) => {
                            let inside = order.iter().filter(|&&p| (p as usize) < length);
                            out.extend(inside.map(|&p| p + first as u32));
                        }
                        Arrangement::Drawn => {
                            out.extend(first as u32..(first + length) as u32);
                            draws.shuffle(&mut out[begin..]);
                        }
                    }
                }
            }
            Plan::Mix(parts) => {
                let u = draws.uniform();
                let chosen = parts.iter().find(|(sum, _)| u < *sum).or(parts.last());
                if let Some((_, plan)) = chosen {
                    plan.fill(index, draws, n, out);
                }
            }
            Plan::Ramp { from, to, start, end } => {
                let done = index.saturating_sub(*from) as f64 / (to - from) as f64;
                let plan = if draws.uniform() < done { end } else { start };
                plan.fill(index, draws, n, out);
            }
        }
    }
}

/// The one random permutation of 0..n that belongs to `seed`.
fn fixed(seed: u64, n: usize) -> Vec<u32> {
    let mut row: Vec<u32> = (0..n as u32).collect();
    Stream::new(seed, Domain::Orders, 0).shuffle(&mut row);
    row
}

/// Midpoints ⌊(lo+hi)/2⌋ of [lo, hi), breadth first, the left half first.
fn fractal(n: usize) -> Vec<u32> {
    let mut queue = std::collections::VecDeque::from([(0, n)]);
    let mut row = Vec::with_capacity(n);
    while let Some((lo, hi)) = queue.pop_front() {
        if lo < hi {
            let middle = (lo + hi) / 2;
            row.push(middle as u32);
            queue.push_back((lo, middle));
            queue.push_back((middle + 1, hi));
        }
    }
    row
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
