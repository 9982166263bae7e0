//! The learning rate as a function of the step.

/// Linear warm-up, then a cosine down to a floor (AO-GPT's and nanoGPT's schedule).
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Peak learning rate.
    pub lr: f64,
    /// Floor after `decay_steps`.
    pub min_lr: f64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Step at which the floor is reached.
    pub decay_steps: u64,
}

impl Schedule {
    /// The learning rate of the step that has `done` steps before it.
    ///
    /// In warm-up lr·done/warmup, so the first step has 0; then
    /// min + ½(1 + cos π(done − warmup)/(decay − warmup))·(lr − min); then min.
    pub fn at(&self, done: u64) -> f64 {
        if done < self.warmup {
            return self.lr * done as f64 / self.warmup as f64;
        }
        if done > self.decay_steps {
            return self.min_lr;
        }
        let span = self.decay_steps.saturating_sub(self.warmup);
        if span == 0 {
            return self.min_lr;
        }
        let share = (done - self.warmup) as f64 / span as f64;
        let coefficient = 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
        self.min_lr + coefficient * (self.lr - self.min_lr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_starts_at_zero_and_the_cosine_ends_at_the_floor() {
        let s = Schedule { lr: 6e-4, min_lr: 6e-5, warmup: 4, decay_steps: 20 };
        assert_eq!(s.at(0), 0.0);
        assert_eq!(s.at(2), 3e-4);
        assert_eq!(s.at(4), 6e-4);
        assert!((s.at(12) - 3.3e-4).abs() < 1e-18);
        assert_eq!(s.at(20), 6e-5);
        assert_eq!(s.at(1_000), 6e-5);
    }

    #[test]
    fn no_warm_up_and_no_decay_are_allowed() {
        let s = Schedule { lr: 1.0, min_lr: 0.5, warmup: 0, decay_steps: 0 };
        assert_eq!(s.at(0), 0.5);
        assert_eq!(s.at(7), 0.5);
    }
}
