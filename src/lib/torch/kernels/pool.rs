//! Threads that share the work of one step after another.
//!
//! Work is cut into ranges that do not depend on how it is scheduled. An idle thread takes what is
//! left, so one that the machine has no time for delays little; spawning a thread a step, or waiting
//! for all at a barrier, would cost more than the step.

use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// Memory that tasks work in, kept from one to the next.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// A fixed number of threads; one is the caller's own.
pub struct Pool {
    threads: usize,
    pool: Option<rayon::ThreadPool>,
}

impl Pool {
    /// A pool of `threads` threads. Where the system refuses them, the caller's thread does it all.
    pub fn new(threads: usize) -> Pool {
        let build = || rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok();
        let pool = if threads > 1 { build() } else { None };
        Pool { threads: if pool.is_some() { threads } else { 1 }, pool }
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` inside the pool, so that the splits in it start at once.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Cuts `0..count` into ranges of at most `most`, at multiples of `unit`, and runs `work` on
    /// each with memory of its thread.
    pub fn split(
        &self,
        count: usize,
        unit: usize,
        most: usize,
        work: &(impl Fn(Range<usize>, &mut Vec<f32>) + Sync),
    ) {
        // Four ranges a thread leave something to take over.
        let even = count.div_ceil(if self.threads > 1 { 4 * self.threads } else { 1 });
        let unit = unit.max(1);
        let size = even.div_ceil(unit).saturating_mul(unit).min(most).max(1);
        let ranges = count.div_ceil(size);
        let run = |i: usize| {
            let range = i * size..((i + 1) * size).min(count);
            SCRATCH.with_borrow_mut(|scratch| work(range, scratch));
        };
        match &self.pool {
            Some(pool) if ranges > 1 => pool.install(|| halve(0..ranges, &run)),
            _ => (0..ranges).for_each(run),
        }
    }
}

fn halve(ranges: Range<usize>, run: &(impl Fn(usize) + Sync)) {
    if ranges.len() == 1 {
        return run(ranges.start);
    }
    let middle = ranges.start + ranges.len() / 2;
    rayon::join(|| halve(ranges.start..middle, run), || halve(middle..ranges.end, run));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_index_is_worked_on_once_in_ranges_of_the_unit() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for count in [0, 1, 16, 100, 1000] {
                let seen = Mutex::new(vec![0; count]);
                pool.enter(|| {
                    pool.split(count, 16, 64, &|range, _| {
                        assert!(range.start % 16 == 0 && range.len() <= 64);
                        seen.lock().unwrap()[range].iter_mut().for_each(|n| *n += 1);
                    });
                });
                assert!(seen.into_inner().unwrap().iter().all(|&n| n == 1));
            }
        }
    }
}
