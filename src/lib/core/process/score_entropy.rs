//! Concrete scores (SEDD, arXiv 2310.16834): the output at a masked position says of each id y the
//! ratio p(y)/p(mask). At noise σ̄ a token that is certain has the score a = 1/(e^σ̄ − 1).

/// How a network's logits stand to its log-scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scores {
    /// Whether log(e^σ̄ − 1) + log V is taken off the logits.
    pub scaled_by_sigma: bool,
    /// Real ids V.
    pub vocab_size: usize,
}

impl Scores {
    /// What is taken off the logits to make them log-scores at noise σ̄: log(e^σ̄ − 1) + log V, or
    /// nothing.
    pub fn offset(&self, sigma: f64) -> f64 {
        if self.scaled_by_sigma { log_expm1(sigma) + self.log_vocabulary() } else { 0.0 }
    }

    /// What is taken off the logits to make them log-scores in units of a: [`Scores::offset`] +
    /// log a, in which the powers of σ̄ cancel where it scales.
    pub fn shift(&self, sigma: f64) -> f64 {
        if self.scaled_by_sigma { self.log_vocabulary() } else { -log_expm1(sigma) }
    }

    fn log_vocabulary(&self) -> f64 {
        (self.vocab_size as f64).ln()
    }
}

/// log(e^σ − 1): expm1 keeps small σ exact, and large σ would overflow it.
fn log_expm1(sigma: f64) -> f64 {
    if sigma < 0.5 { sigma.exp_m1().ln() } else { sigma + (-(-sigma).exp()).ln_1p() }
}

/// The time of the analytic sampler's last step, as in the published code.
pub const LAST_TIME: f64 = 1e-5;

/// The probability that a masked token is revealed when the noise falls by `dsigma`, given ln of
/// the sum of its scores over real ids: (e^dσ − 1)·Σ s_y. Above 1 where scores are not exact: then
/// the token is always revealed (papers 4d).
pub fn reveal_probability(log_sum_scores: f64, dsigma: f64) -> f64 {
    dsigma.exp_m1() * log_sum_scores.exp()
}
