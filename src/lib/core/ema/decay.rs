//! How much of an average survives one update: the rule behind every profile of weights.

/// An exponential moving average, with or without the reference's warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmaDecay {
    /// β, the share that survives an update once warm-up is over.
    pub decay: f64,
    /// Whether update k has the decay min(β, (1+k)/(10+k)).
    pub warmup: bool,
}

impl EmaDecay {
    /// The decay of update `update`, counted from 1 at the first: the average becomes
    /// decay·average + (1 − decay)·weights. AO-GPT's code (papers 1c): 2/11 at the first.
    pub fn effective(&self, update: u64) -> f64 {
        if !self.warmup {
            return self.decay;
        }
        self.decay.min((1.0 + update as f64) / (10.0 + update as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_starts_at_two_elevenths_and_ends_at_the_decay() {
        let decay = EmaDecay { decay: 0.9, warmup: true };
        assert_eq!(decay.effective(1), 2.0 / 11.0);
        assert_eq!(decay.effective(79), 80.0 / 89.0);
        assert_eq!(decay.effective(80), 0.9);
        assert_eq!(decay.effective(u64::MAX), 0.9);
        assert_eq!(EmaDecay { decay: 0.9, warmup: false }.effective(1), 0.9);
    }
}
