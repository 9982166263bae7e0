//! Training: the step loop and all that it needs to be left alone.
//!
//! A step is a function of (weights, optimizer state, step number, data position): the data, the
//! orders and the dropout masks are all derived from the seed and from counters, so a run that is
//! resumed from any checkpoint goes on to the same bits as one that was never stopped.

mod data;
mod estimate;
mod evaluate;
mod flops;
mod metrics;
mod optimizer;
mod options;
mod plan;
mod run_folder;
mod schedule;
mod start;
#[cfg(test)]
pub(crate) mod test_support;
mod trainer;

pub use options::TrainArgs;
pub use trainer::run;
