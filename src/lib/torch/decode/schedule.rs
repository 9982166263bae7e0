//! Unmasking schedules: into which groups the free positions are cut, one forward pass each.

use ao_core::rng::Stream;
use serde::Serialize;

/// How many tokens each step reveals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Equal groups: ⌊n·i/S⌋ tokens after step i.
    #[default]
    Linear,
    /// Small groups first: ⌊n·(1 − cos(πi/2S))⌋ tokens after step i, and at least one a step.
    Cosine,
    /// Binomial group sizes: the distribution of masked diffusion with a linear schedule.
    Binomial,
    /// The same with a cosine schedule.
    BinomialCosine,
}

impl Schedule {
    /// The fraction of the tokens that is masked after step i of S: from 1 to 0.
    pub fn left(self, i: usize, steps: usize) -> f64 {
        match self {
            Schedule::Linear | Schedule::Binomial => (steps - i) as f64 / steps as f64,
            Schedule::Cosine | Schedule::BinomialCosine if i == steps => 0.0,
            Schedule::Cosine | Schedule::BinomialCosine => {
                (std::f64::consts::FRAC_PI_2 * i as f64 / steps as f64).cos()
            }
        }
    }

    /// Sizes of the groups that `free` positions are revealed in, none of them 0, `free` in sum.
    ///
    /// At most `steps` groups (`steps` above `free` counts as `free` where sizes are not drawn).
    /// The binomial schedules draw the step of each position on its own, in proportion to how much the
    /// schedule reveals in it, so that group i has size Binomial(remaining, 1 − s/t) (papers,
    /// Lemma 1); steps that reveal nothing need no pass and are left out.
    pub fn groups(self, free: usize, steps: usize, stream: &mut Stream) -> Vec<usize> {
        let steps = steps.max(1);
        match self {
            Schedule::Linear | Schedule::Cosine => {
                let steps = steps.min(free);
                let after = |i: usize| match self {
                    _ if i == steps => free,
                    Schedule::Cosine => {
                        let angle = std::f64::consts::FRAC_PI_2 * i as f64 / steps as f64;
                        (free as f64 * (1.0 - angle.cos())) as usize
                    }
                    _ => (free as u128 * i as u128 / steps as u128) as usize,
                };
                let mut done = 0;
                (1..=steps)
                    .map(|i| {
                        // As many steps as are left need one token each.
                        let next = after(i).max(done + 1).min(free - (steps - i));
                        std::mem::replace(&mut done, next).abs_diff(next)
                    })
                    .collect()
            }
            Schedule::Binomial | Schedule::BinomialCosine => {
                let mut cells = std::collections::BTreeMap::new();
                let bound = u32::try_from(steps).unwrap_or(u32::MAX);
                for _ in 0..free {
                    let cell = match self {
                        Schedule::Binomial => stream.below(bound),
                        _ => {
                            // cos(πi/2S) of the positions are still masked after step i.
                            let angle = (1.0 - stream.uniform()).acos();
                            let at = angle / std::f64::consts::FRAC_PI_2 * f64::from(bound);
                            (at as u32).min(bound - 1)
                        }
                    };
                    *cells.entry(cell).or_insert(0) += 1;
                }
                cells.into_values().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ao_core::rng::Domain;

    fn groups(schedule: Schedule, free: usize, steps: usize) -> Vec<usize> {
        schedule.groups(free, steps, &mut Stream::new(1, Domain::Sample, 0))
    }

    #[test]
    fn every_schedule_reveals_every_position_and_no_group_is_empty() {
        use Schedule::*;
        for schedule in [Linear, Cosine, Binomial, BinomialCosine] {
            for free in [0, 1, 2, 7, 64] {
                for steps in [1, 2, 3, 7, 63, 64, 65, 1000] {
                    let groups = groups(schedule, free, steps);
                    assert_eq!(groups.iter().sum::<usize>(), free, "{schedule:?} {free} {steps}");
                    assert!(groups.iter().all(|&g| g > 0));
                    assert!(groups.len() <= steps);
                    if matches!(schedule, Linear | Cosine) {
                        assert_eq!(groups.len(), steps.min(free));
                    }
                }
            }
        }
    }

    #[test]
    fn linear_counts_are_exact_where_floats_would_be_off_by_one() {
        for steps in 1..=1024 {
            let mut done = 0;
            for (i, size) in groups(Schedule::Linear, 1024, steps).iter().enumerate() {
                done += size;
                assert_eq!(done, 1024 * (i + 1) / steps);
            }
        }
    }

    #[test]
    fn cosine_counts_are_those_of_the_paper() {
        // n = 16, S = 4: 16·(1 − cos(π/8)) = 1.2, 16·(1 − cos(π/4)) = 4.7, 9.9, 16
        assert_eq!(groups(Schedule::Cosine, 16, 4), [1, 3, 5, 7]);
    }

    #[test]
    fn the_first_binomial_group_has_its_mean_and_variance() {
        // Linear: Binomial(20, 1/4) has mean 5 and variance 3.75; empty groups are left out, which
        // 0.75^20 = 0.3 % of the draws are.
        let mut stream = Stream::new(5, Domain::Sample, 0);
        let draws: Vec<f64> =
            (0..20_000).map(|_| Schedule::Binomial.groups(20, 4, &mut stream)[0] as f64).collect();
        let mean = draws.iter().sum::<f64>() / 2e4;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 2e4;
        assert!((mean - 5.0).abs() < 0.07 && (variance - 3.75).abs() < 0.2, "{mean} {variance}");
        // Cosine: 1 − cos(π/8) = 0.0761 of 100 in the first of four steps.
        let mean = (0..2000)
            .map(|_| Schedule::BinomialCosine.groups(100, 4, &mut stream)[0] as f64)
            .sum::<f64>()
            / 2e3;
        assert!((mean - 7.61).abs() < 0.25, "{mean}");
    }
}
