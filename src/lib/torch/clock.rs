//! Where the time of a run goes: one clock, read at each border between two kinds of work.
//!
//! On a GPU work is queued, and the clock sees when it was handed over, not when it was done: time
//! shows up where a result is first waited for, which is the head.

use std::time::Instant;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the next batch.
    Data,
    /// Rows through the blocks.
    Forward,
    /// Logits, loss and their gradients.
    Head,
    /// Gradients through the blocks.
    Backward,
    /// Gradient norm, clipping, AdamW, averages.
    Optimizer,
    /// Validation.
    Evaluate,
    /// Checkpoints.
    Save,
}

/// Names in records, in the order of the phases.
const NAMES: [&str; 7] = ["data", "forward", "head", "backward", "optimizer", "evaluate", "save"];

/// Seconds of each kind of work since the start.
#[derive(Debug)]
pub struct Clock {
    seconds: [f64; 7],
    last: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock { seconds: [0.0; 7], last: Instant::now() }
    }

    /// Counts the time since the last call as `phase`; returns it, in seconds.
    pub fn lap(&mut self, phase: Phase) -> f64 {
        let now = Instant::now();
        let seconds = (now - self.last).as_secs_f64();
        self.seconds[phase as usize] += seconds;
        self.last = now;
        seconds
    }

    /// Lets the time since the last call go by uncounted.
    pub fn skip(&mut self) {
        self.last = Instant::now();
    }

    /// Seconds of a kind of work.
    pub fn of(&self, phase: Phase) -> f64 {
        self.seconds[phase as usize]
    }

    /// Each kind of work by name, with its seconds.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, f64)> {
        NAMES.into_iter().zip(self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_once_and_under_its_name() {
        let started = Instant::now();
        let mut clock = Clock::start();
        std::thread::sleep(std::time::Duration::from_millis(3));
        clock.lap(Phase::Data);
        std::thread::sleep(std::time::Duration::from_millis(2));
        clock.skip();
        clock.lap(Phase::Save);
        let all: Vec<_> = clock.all().collect();
        assert!(clock.of(Phase::Data) >= 0.003);
        assert_eq!((all[0].0, all[6].0), ("data", "save"));
        let sum: f64 = all.iter().map(|(_, s)| s).sum();
        assert!(sum <= started.elapsed().as_secs_f64() - 0.002, "time skipped was counted");
    }
}
