//! Training: the step loop, and everything that lets it run unattended.
//!
//! A step is a function of (weights, optimizer state, step number, data position). Data, orders and
//! dropout masks follow from the seed and from counters. So a run that is resumed from a checkpoint is
//! bit-identical to one that was never stopped.

mod data;

mod evaluate;
mod flops;
mod metrics;
mod optimizer;
mod options;
mod plan;
mod requirements;
mod run_folder;
mod schedule;
mod settings;
mod start;
#[cfg(test)]
pub(crate) mod test_support;
mod trainer;

pub use options::TrainArgs;
pub use trainer::run;
