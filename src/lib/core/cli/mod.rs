//! The manners that every tool shares: flags, exit codes, progress, signals, provenance.
//!
//! A tool is `fn main() -> ! { cli::run_main(run) }` with `fn run(args: Args) -> Result<()>`. This
//! room is the only one that prints errors, picks exit codes and touches signals. It knows of no
//! tool's work: the flags that one tool alone has, and what they mean, live with that work.

mod args;
mod config_file;
mod exit;
mod generate;
mod machine;
mod output;
mod progress;
mod provenance;
mod run;
pub mod signals;
pub mod units;

pub use args::{Compute, DType, DeviceChoice, Quiet, Seed, parse_count, refuse, refuse_idle};
pub use machine::{instruction_sets, peak_memory_bytes};
pub use output::{OutputArgs, Sink, TargetArgs};
pub use progress::Progress;
pub use provenance::{Input, RunRecord};
pub use run::{run_main, run_main_with};

/// The version that every tool prints and every output records.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
