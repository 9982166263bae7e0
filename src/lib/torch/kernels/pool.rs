//! The threads of this process, which share the work of one step after another.
//!
//! One pool serves all kernels; [`start`] makes it, once. Work is cut into pieces that do not depend
//! on how it is scheduled. An idle thread takes what is left, so one that the machine has no time for
//! delays little; spawning a thread a step, or waiting for all at a barrier, would cost more than the
//! step.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;

/// Pieces a thread, so that an idle one finds something to take over.
const PIECES: usize = 4;

/// Threads of the process's pool.
static THREADS: OnceLock<usize> = OnceLock::new();

/// Memory that a thread keeps from one piece of work to the next.
pub type Scratch = [Vec<f32>; 2];

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Makes the pool of `threads` threads. Only the first call counts. Where the system refuses threads,
/// each caller's own does its work.
pub fn start(threads: usize) {
    THREADS.get_or_init(|| {
        let builder = || rayon::ThreadPoolBuilder::new().num_threads(threads);
        if threads > 1 && builder().build_global().is_ok() { threads } else { 1 }
    });
}

/// How many threads share work that starts here; 1 where nothing has made a pool.
pub fn threads() -> usize {
    match rayon::current_thread_index() {
        Some(_) => rayon::current_num_threads(),
        None => THREADS.get().copied().unwrap_or(1),
    }
}

/// Runs `work` in the pool, so that what it shares among threads starts at once.
pub fn enter<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if threads() == 1 || rayon::current_thread_index().is_some() {
        return work();
    }
    rayon::scope(|_| work())
}

/// Runs `work` with `threads` threads of its own, whatever the process's pool: to compare.
///
/// # Panics
/// When the system refuses them.
pub fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.max(1)).build();
    pool.expect("the system gives threads").install(work)
}

/// The length of the pieces that `count` things are cut into, `each` pieces a thread.
pub fn piece(count: usize, each: usize) -> usize {
    let pieces = if threads() == 1 { 1 } else { each * threads() };
    count.div_ceil(pieces).max(1)
}

/// Calls `work` with every piece, on all threads.
pub fn each<T: Send>(pieces: Vec<T>, work: &(impl Fn(T) + Sync)) {
    if threads() == 1 {
        return pieces.into_iter().for_each(work);
    }
    enter(|| halve(pieces, work));
}

fn halve<T: Send>(mut pieces: Vec<T>, work: &(impl Fn(T) + Sync)) {
    if pieces.len() <= 1 {
        return pieces.into_iter().for_each(work);
    }
    let others = pieces.split_off(pieces.len() / 2);
    rayon::join(|| halve(pieces, work), || halve(others, work));
}

/// Cuts `0..count` into ranges of at most `most`, at multiples of `unit`, and runs `work` on each
/// with memory of its thread. `work` may not split again: the memory is in use.
pub fn split(
    count: usize,
    unit: usize,
    most: usize,
    work: &(impl Fn(Range<usize>, &mut Scratch) + Sync),
) {
    split_grid(1, count, unit, most, &|_, range, scratch| work(range, scratch));
}

/// As [`split`], for each of `rows` rows of a grid: `work` gets the row and the range.
pub fn split_grid(
    rows: usize,
    count: usize,
    unit: usize,
    most: usize,
    work: &(impl Fn(usize, Range<usize>, &mut Scratch) + Sync),
) {
    let pieces = if threads() == 1 { 1 } else { (PIECES * threads()).div_ceil(rows.max(1)) };
    let unit = unit.max(1);
    let size = count.div_ceil(pieces).div_ceil(unit).saturating_mul(unit).min(most).max(1);
    let ranges = count.div_ceil(size);
    let one = |i: usize| {
        let start = i % ranges * size;
        let range = start..(start + size).min(count);
        SCRATCH.with_borrow_mut(|scratch| work(i / ranges, range, scratch));
    };
    let all = rows * ranges;
    if all <= 1 || threads() == 1 {
        return (0..all).for_each(one);
    }
    enter(|| halve_range(0..all, &one));
}

fn halve_range(range: Range<usize>, work: &(impl Fn(usize) + Sync)) {
    if range.len() == 1 {
        return work(range.start);
    }
    let middle = range.start + range.len() / 2;
    rayon::join(|| halve_range(range.start..middle, work), || halve_range(middle..range.end, work));
}

/// Rows of f32 that several threads write, each its own part.
pub struct SharedRows<'a> {
    data: *mut f32,
    length: usize,
    width: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: `part` hands out parts that do not overlap, by its callers' word.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    /// Rows of `width` each.
    pub fn new(values: &'a mut [f32], width: usize) -> SharedRows<'a> {
        let (data, length) = (values.as_mut_ptr(), values.len());
        SharedRows { data, length, width, _borrow: PhantomData }
    }

    /// `length` elements of a row from a column on.
    ///
    /// # Safety
    /// No other part in use may overlap it.
    ///
    /// # Panics
    /// When they are beyond the values.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, row: usize, column: usize, length: usize) -> &mut [f32] {
        let start = row * self.width + column;
        assert!(start + length <= self.length);
        // SAFETY: in bounds by the line above, of values that this borrows; the rest is the
        // caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_index_of_every_row_is_worked_on_once_in_ranges_of_the_unit() {
        for threads in [1, 3] {
            for (rows, count) in [(1, 0), (0, 5), (1, 1), (2, 16), (3, 100), (1, 1000)] {
                let seen = Mutex::new(vec![0; rows * count]);
                with_threads(threads, || {
                    split_grid(rows, count, 16, 64, &|row, range, _| {
                        assert!(range.start % 16 == 0 && range.len() <= 64);
                        let range = row * count + range.start..row * count + range.end;
                        seen.lock().unwrap()[range].iter_mut().for_each(|n| *n += 1);
                    });
                });
                assert!(seen.into_inner().unwrap().iter().all(|&n| n == 1));
            }
        }
    }

    #[test]
    fn every_piece_is_worked_on_once() {
        for threads in [1, 3] {
            let mut values = vec![1; 100];
            with_threads(threads, || {
                let pieces = values.chunks_mut(piece(100, 4)).collect();
                each(pieces, &|values: &mut [i32]| values.iter_mut().for_each(|x| *x += 1));
            });
            assert_eq!(values, [2; 100]);
        }
    }
}
