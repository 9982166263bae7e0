//! The noise schedule of masked diffusion.

/// The log-linear schedule of SEDD, RADD and MDLM: by time t a token is masked with probability
/// (1 − ε)t. Their published code has ε = 1e-3; the text of MDLM, α = 1 − t, is ε = 0
/// (arXiv 2310.16834, 2406.03736, 2406.07524).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogLinear {
    /// How much of the text is left at t = 1.
    pub eps: f64,
}

impl LogLinear {
    /// Probability of being masked by time t, 1 − e^−σ̄(t).
    pub fn masked(&self, t: f64) -> f64 {
        (1.0 - self.eps) * t
    }

    /// Total noise σ̄(t) = −log(1 − (1 − ε)t).
    pub fn sigma(&self, t: f64) -> f64 {
        -(-self.masked(t)).ln_1p()
    }

    /// Rate of noise σ̄'(t) = (1 − ε) / (1 − (1 − ε)t).
    pub fn rate(&self, t: f64) -> f64 {
        (1.0 - self.eps) / (1.0 - self.masked(t))
    }

    /// The weight of Σ over masked positions of −log p in the published forms over the time:
    /// σ̄'(t)/(e^σ̄(t) − 1) = 1/t, whatever ε.
    pub fn weight(&self, t: f64) -> f64 {
        1.0 / t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_the_slope_of_sigma_and_the_weight_is_what_the_bound_has() {
        let noise = LogLinear { eps: 1e-3 };
        for t in [0.01, 0.3, 0.7, 0.999] {
            let slope = (noise.sigma(t + 1e-7) - noise.sigma(t - 1e-7)) / 2e-7;
            assert!((slope / noise.rate(t) - 1.0).abs() < 1e-4);
            assert!((noise.masked(t) - (1.0 - (-noise.sigma(t)).exp())).abs() < 1e-12);
            let weight = noise.rate(t) / noise.sigma(t).exp_m1();
            assert!((weight / noise.weight(t) - 1.0).abs() < 1e-9, "{t}");
        }
    }
}
