//! Scores without tensors: their records, and what is made of records alone.
//!
//! [`SequenceRecord`] and [`Summary`] are what `ao-score` writes. [`compare`] pairs two files by
//! sequence, [`merge`] joins the parts of one evaluation, [`resume`] finds out how far an
//! interrupted one came; none of them loads a model. Sums are f64, in nats, and are added up in the
//! order of the sequences, so a merged or resumed summary has the bits of an unbroken one.

mod compare;
mod errors;
mod file;
mod given;
mod levels;
mod masks;
mod merge;
pub mod orderings;
mod record;
mod resume;
mod samples;
mod spans;
mod texts;

pub use compare::{Comparison, compare};
pub use errors::{Cluster, Design, Errors, FEWEST_DOCUMENTS};
pub use file::{Fingerprint, ScoreFile};
pub use given::{Contexts, GivenOrderings};
pub use levels::{Levels, STRATA};
pub use masks::{GivenMask, GivenMasks};
pub use merge::{ONE_ORDER, merge};
pub(crate) use record::number_or_null;
pub use record::{
    Cost, CurvePoint, Estimate, FEWEST_DEGREES, FEWEST_ORDERS, Manner, STEP_OF_SEQUENCES,
    SequenceRecord, Setting, Stopped, Summary, Totals,
};
pub use resume::{Resumed, resume};
pub use samples::{Judge, SampleTokens, Samples};
pub use spans::{SpanSpec, held_out};
pub use texts::{DISTINCT_TOKENS, Protocol, SetVariety, Variety, cut_behind_end, unigram_entropy};
