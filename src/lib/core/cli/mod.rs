//! The manners that every tool shares: flags, exit codes, progress, signals, provenance.
//!
//! A tool is `fn main() -> ! { cli::run_main(run) }` with `fn run(args: Args) -> Result<()>`. This
//! room is the only one that prints errors, picks exit codes and touches signals.

mod args;
mod config_file;
pub mod ema;
pub mod import;
mod output;
mod progress;
mod provenance;
mod run;
pub mod signals;

pub use args::{Compute, DType, DeviceChoice, Quiet, Seed, parse_count};
pub use output::{OutputArgs, Sink};
pub use progress::Progress;
pub use provenance::{Input, RunRecord};
pub use run::run_main;

/// The version that every tool prints and every output records.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
