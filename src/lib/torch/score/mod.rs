//! NLL along orders, its averages and their errors, and the records that `ao-score` writes.
//!
//! Sequence s is scored along rows s·K … s·K+K−1 of the orders. Sums are f64, every sequence's are
//! its own, and a summary is made of them in the order of the sequences, so neither batch size nor
//! thread count shows in a result. Means are over all tokens of the set; standard errors are over
//! sequences.

mod args;
mod corpus;
mod orders;
mod record;
mod run;

pub use args::ScoreArgs;
pub use corpus::{Corpus, Sequence};
pub use record::{Estimate, SequenceRecord, Summary};
pub use run::run;
