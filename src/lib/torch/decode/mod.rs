//! Decoding: unmasking schedules, filters and draws, and the loop over the KV cache.
//!
//! | file | owns |
//! |---|---|
//! | [`run`] | `ao-sample`: arguments, batches, records |
//! | [`template`] | prompts and infilling templates |
//! | [`generate`] | the loop: a pass, the head and draws for each group |
//! | [`session`] | sequences in the making, one pass over the cache |
//! | [`cache`] | keys and values, allocated once a batch |
//! | [`schedule`] | group sizes |
//! | [`filter`] | temperature, top-k, top-p, min-p, bans, the draw |

pub mod cache;
pub mod filter;
pub mod generate;
pub mod run;
pub mod schedule;
pub mod session;
pub mod template;

pub use run::{SampleArgs, run};
