//! Decoding: request → plan of steps → logits → draw, for every network.
//!
//! | file | owns |
//! |---|---|
//! | [`settings`] | how samples are drawn |
//! | [`template`] | prompts and infilling templates |
//! | [`sequence`] | a sample before, while and after it is drawn |
//! | [`engine`] | passes, logits, draws |
//! | [`predictor`]; [`causal`], [`masked`] | how a network is asked; a causal, a bidirectional one |
//! | [`few_row`] | passes of a causal network on kernels of our own |
//! | [`plan`] | groups of positions along an order, Tweedie's and first-hitting's |
//! | [`adaptive`] | the positions that the model is most confident of |
//! | [`analytic`] | SEDD's analytic step |
//! | [`speculative`] | several tokens a pass, by the exact distribution |
//! | [`rejection`] | several tokens a pass, by an approximate one |
//! | [`schedule`] | group sizes |
//! | [`filter`] | temperature, top-k, top-p, min-p, bans |
//! | [`distribution`] | what a filter leaves, the draw, the test of a draft |

pub mod adaptive;
pub mod analytic;
pub mod causal;
pub mod distribution;
pub mod engine;
pub mod few_row;
pub mod filter;
pub mod masked;
pub mod plan;
pub mod predictor;
pub mod rejection;
pub mod schedule;
pub mod sequence;
pub mod settings;
pub mod speculative;
pub mod template;

pub use engine::Tally;
pub use sequence::{Request, Sample};
pub use settings::SampleSettings;
pub use template::Template;
