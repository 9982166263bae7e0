//! `ao-bench`: how long whole generations take, and what they do in that time.
//!
//! | file | owns |
//! |---|---|
//! | [`run()`] | points, rounds over them, records |
//! | [`args`] | flags |
//! | `subject` | a model and one generation of it |
//! | `machine` | what the figures are of |

pub mod args;
mod machine;
pub mod run;
mod subject;

pub use args::BenchArgs;
pub use run::run;
