//! Decoding: unmasking schedules, filters and draws, and the loop over the KV cache.
//!
//! | file | owns |
//! |---|---|
//! | [`run()`], [`mod@args`], `record` | `ao-sample`: batches, flags, records |
//! | [`template`] | prompts and infilling templates |
//! | [`generate`] | the loop over groups, and what all loops share: passes, logits, draws |
//! | [`adaptive`] | the loop that reveals what the model is surest of |
//! | [`speculative`] | several tokens a pass, by the exact law |
//! | [`rejection`] | several tokens a pass, by an approximate law |
//! | [`session`] | sequences in the making, one pass over the cache |
//! | [`few_row`] | passes on kernels of our own |
//! | [`cache`] | keys and values, allocated once a batch |
//! | [`schedule`] | group sizes |
//! | [`filter`] | temperature, top-k, top-p, min-p, bans |
//! | [`law`] | the law that a filter leaves, the draw, the test of a draft |

pub mod adaptive;
pub mod args;
pub mod cache;
pub mod diffusion;
pub mod few_row;
pub mod filter;
pub mod generate;
pub mod law;
mod record;
pub mod rejection;
pub mod run;
pub mod schedule;
pub mod session;
pub mod speculative;
pub mod template;

pub use args::SampleArgs;
pub use run::run;
