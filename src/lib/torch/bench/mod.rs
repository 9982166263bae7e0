//! `ao-bench`: how long it takes to generate whole samples, and where the time goes.
//!
//! | file | owns |
//! |---|---|
//! | [`run()`] | points, rounds over them, records |
//! | [`args`] | flags |
//! | `subject` | a model and one generation of it |
//! | `machine` | the machine that is measured |

pub mod args;
mod machine;
pub mod run;
mod subject;

pub use args::BenchArgs;
pub use run::run;
