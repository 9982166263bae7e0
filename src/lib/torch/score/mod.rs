//! NLL along orders, its averages and their errors, and the records that `ao-score` writes.
//!
//! Sequence s is scored along rows s·K … s·K+K−1 of the orders. Each sequence has its own f64 sums, and
//! the summary adds them in the order of the sequences. So the result does not depend on batch size
//! or threads. Means are over all tokens of the set; standard errors are over
//! sequences. What needs no tensors (records, comparing, merging, resuming) is in
//! [`ao_core::score`].

mod args;
mod corpus;
mod judgement;
mod orders;
mod output;
mod pending;
mod reference;
mod run;
mod set;

pub use args::{ScoreArgs, TargetBy};
pub use corpus::{Corpus, Sequence};
pub(crate) use judgement::{Judged, Reference};
pub use orders::Orders;
pub use run::run;
