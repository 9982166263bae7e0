//! Means over tokens with standard errors over sequences, and intervals by Student's t.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean per token and its standard error, the sequences being the independent units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// Σ value / Σ tokens.
    pub mean: f64,
    /// Standard error of `mean` over sequences; NaN for fewer than two.
    pub std_error: f64,
    /// Number of sequences.
    pub sequences: u64,
    /// Number of tokens.
    pub tokens: u64,
}

/// Mean per token of per-sequence sums: `sums[i]` over `tokens[i]` tokens.
///
/// The mean is taken over all tokens, never as a mean of means; its error is that of a ratio
/// estimator, √(n/(n−1) · Σ (Sᵢ − m·Nᵢ)²) / Σ Nᵢ, which for equal lengths is the ordinary one.
pub fn mean_per_token(sums: &[f64], tokens: &[u64]) -> Mean {
    let count: u64 = tokens.iter().sum();
    let mean = sums.iter().sum::<f64>() / count as f64;
    let n = sums.len() as f64;
    let squares: f64 = sums.iter().zip(tokens).map(|(s, &t)| (s - mean * t as f64).powi(2)).sum();
    let std_error =
        if sums.len() > 1 { (n / (n - 1.0) * squares).sqrt() / count as f64 } else { f64::NAN };
    Mean { mean, std_error, sequences: sums.len() as u64, tokens: count }
}

impl Mean {
    /// The 95 % interval of the mean, the sequences being independent; `None` for fewer than two.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let error = Some(self.std_error).filter(|e| e.is_finite());
        interval(self.mean, error, self.sequences as f64 - 1.0)
    }
}

/// The 95 % interval around `mean` by Student's t with these degrees of freedom; `None` where the
/// error is unknown or nothing is free.
pub fn interval(mean: f64, std_error: Option<f64>, degrees_of_freedom: f64) -> Option<(f64, f64)> {
    let reach = student_95(degrees_of_freedom)? * std_error?;
    Some((mean - reach, mean + reach))
}

/// The 97.5 % quantile of Student's t: 12.7 for one degree of freedom, 1.96 for many.
fn student_95(degrees_of_freedom: f64) -> Option<f64> {
    const NORMAL: f64 = 1.959_963_984_540_054;
    if degrees_of_freedom > 1e3 {
        // Fisher's expansion, as the inverse of the incomplete beta function loses digits.
        return Some(NORMAL + (NORMAL.powi(3) + NORMAL) / (4.0 * degrees_of_freedom));
    }
    Some(StudentsT::new(0.0, 1.0, degrees_of_freedom).ok()?.inverse_cdf(0.975))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lengths_give_the_ordinary_standard_error() {
        let sums = [10.0, 14.0, 12.0, 8.0];
        let m = mean_per_token(&sums, &[2; 4]);
        assert_eq!(m.mean, 5.5);
        let means: Vec<f64> = sums.iter().map(|s| s / 2.0).collect();
        let variance = means.iter().map(|x| (x - 5.5f64).powi(2)).sum::<f64>() / 3.0;
        assert!((m.std_error - (variance / 4.0).sqrt()).abs() < 1e-15);
    }

    #[test]
    fn the_mean_is_over_tokens_and_not_over_sequences() {
        assert_eq!(mean_per_token(&[1.0, 9.0], &[1, 4]).mean, 2.0);
        assert!(mean_per_token(&[1.0], &[1]).std_error.is_nan());
    }

    #[test]
    fn intervals_are_those_of_students_tables() {
        for (freedom, t) in
            [(1.0, 12.7062), (4.0, 2.7764), (19.0, 2.0930), (999.0, 1.9623), (1e7, 1.9600)]
        {
            let (low, high) = interval(1.0, Some(0.5), freedom).unwrap();
            assert!((high - 1.0 - 0.5 * t).abs() < 1e-4, "{freedom}: {high}");
            assert!((low + high - 2.0).abs() < 1e-9);
        }
        assert_eq!(interval(1.0, Some(0.5), 0.0), None);
        assert_eq!(interval(1.0, None, 9.0), None);
        assert_eq!(mean_per_token(&[3.0], &[1]).interval(), None);
    }
}
