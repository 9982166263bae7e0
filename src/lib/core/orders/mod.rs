//! Generation orders: which position is revealed at which step.
//!
//! A row is a permutation of 0..block_size; `row[k]` is the 0-based position revealed at step k.
//!
//! - [`OrderSpec`]: what the user writes, as in `mix:0.1*l2r+0.9*uniform`.
//! - [`OrderStream`]: a SPEC bound to a width and a seed; row i is a function of i.
//! - [`OrderSource`]: what `--orders` takes in every tool: a SPEC, a file or a pipe.
//! - [`RowWriter`]: rows as `.npy` or JSON lines, made by several threads, written in order.

mod grammar;
mod source;
mod spec;
mod stream;
mod write;

pub use source::OrderSource;
pub use spec::{Inner, OrderSpec, Outer};
pub use stream::{MAX_BLOCK_SIZE, OrderStream};
pub use write::{RowFormat, RowWriter};

use crate::{Error, Result};

/// Refuses a row that is no permutation of 0..row.len(); `place` names its file and row.
///
/// # Errors
/// When an entry is out of range or comes twice.
pub fn check_permutation(row: &[u32], place: impl Fn() -> String) -> Result<()> {
    let width = row.len();
    let mut seen = vec![0u64; width.div_ceil(64)];
    for (step, &position) in row.iter().enumerate() {
        let at = position as usize;
        if at >= width {
            return Err(Error::input(
                place(),
                format!("entry {step} is {position}; a row of {width} permutes 0 to {}", width - 1),
            ));
        }
        let bit = 1u64 << (at % 64);
        if seen[at / 64] & bit != 0 {
            return Err(Error::input(
                place(),
                format!("position {position} comes twice (entry {step}); each must come once"),
            ));
        }
        seen[at / 64] |= bit;
    }
    Ok(())
}
