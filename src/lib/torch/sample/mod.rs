//! `ao-sample`: from flags to records.

mod args;
mod record;
mod run;

pub use args::SampleArgs;
pub use run::run;
