//! Profiles: how an average weighs the steps of training, and how to build one from others.
//!
//! After Karras et al. 2024 (EDM2, section 3 and appendix C). An average after T updates is
//! Σ_t p(t)·θ(t) over the steps t = 0..=T. Every profile here comes from a decay per update:
//! p(t) = (1 − d(t))·Π_{k>t} d(k), and p(0) = Π d(k), as averages start as a copy of θ(0). The
//! coefficients that come nearest to a wanted profile solve the normal equations of the snapshots'
//! inner products, and are then scaled to sum to 1.
//!
//! The inner products are sums over the steps themselves, not integrals, so warm-up and small T
//! are exact.

use super::EmaDecay;

/// The decay of an average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Profile {
    /// The weights of one step.
    Raw,
    /// Exponential decay.
    Exponential(EmaDecay),
    /// p(t) proportional to about t^γ (EDM2's power function): d(t) = (1 − 1/t)^(γ+1).
    Power(f64),
}

impl Profile {
    /// d(t) of update t ≥ 1.
    pub fn decay(self, update: u64) -> f64 {
        match self {
            Profile::Raw => 0.0,
            Profile::Exponential(decay) => decay.effective(update),
            Profile::Power(gamma) => (1.0 - 1.0 / update as f64).powf(gamma + 1.0),
        }
    }
}

/// The exponent γ of the power function whose relative standard deviation is `sigma` (EDM2 states
/// its averages so): σ² = (γ+1) / ((γ+2)²(γ+3)). `None` outside 0 < σ < 0.288, where γ > 0 ends.
pub fn gamma_of_sigma(sigma: f64) -> Option<f64> {
    let square = |gamma: f64| (gamma + 1.0) / ((gamma + 2.0).powi(2) * (gamma + 3.0));
    let (mut low, mut high) = (0.0, 1e9);
    let wanted = sigma * sigma;
    if !(wanted < square(low) && wanted > square(high)) {
        return None;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if square(middle) > wanted { low = middle } else { high = middle }
    }
    Some(0.5 * (low + high))
}

/// A profile after a number of updates: what a stored average is, or what is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    /// The decay.
    pub profile: Profile,
    /// Updates done: the optimizer step.
    pub step: u64,
}

/// How to build a profile from snapshots.
#[derive(Debug, Clone, PartialEq)]
pub struct Reconstruction {
    /// One factor per snapshot; they sum to 1.
    pub coefficients: Vec<f64>,
    /// ‖built − wanted‖ / ‖wanted‖ of the profiles; 0 is exact.
    pub relative_error: f64,
}

/// The combination of `snapshots` that comes nearest to `wanted`. A snapshot that adds nothing to
/// those before it gets the factor 0, such as a second decay while both are still warming up.
/// `None` where no snapshot has any of the wanted weight.
pub fn reconstruct(snapshots: &[Snapshot], wanted: Snapshot) -> Option<Reconstruction> {
    let n = snapshots.len();
    let all: Vec<Snapshot> = snapshots.iter().copied().chain([wanted]).collect();
    let products = inner_products(&all);
    let at = |i: usize, j: usize| products[i * (n + 1) + j];
    // Profiles scaled to length 1 make the pivots comparable.
    let length: Vec<f64> = (0..=n).map(|i| at(i, i).sqrt()).collect();
    let matrix: Vec<f64> =
        (0..n * n).map(|k| at(k / n, k % n) / (length[k / n] * length[k % n])).collect();
    let right: Vec<f64> = (0..n).map(|i| at(i, n) / (length[i] * length[n])).collect();
    let scaled = solve_semidefinite(matrix, right, n);
    let raw: Vec<f64> = (0..n).map(|i| scaled[i] * length[n] / length[i]).collect();
    let sum: f64 = raw.iter().sum();
    let coefficients: Vec<f64> = raw.iter().map(|x| x / sum).collect();
    if !coefficients.iter().all(|x| x.is_finite()) {
        return None;
    }
    let mut error = at(n, n);
    for i in 0..n {
        error -= 2.0 * coefficients[i] * at(i, n);
        for j in 0..n {
            error += coefficients[i] * coefficients[j] * at(i, j);
        }
    }
    let relative_error = (error.max(0.0) / at(n, n)).sqrt();
    Some(Reconstruction { coefficients, relative_error })
}

/// All Σ_t p_i(t)·p_j(t), row-major, in one walk from the last step to the first.
fn inner_products(all: &[Snapshot]) -> Vec<f64> {
    let n = all.len();
    let last = all.iter().map(|s| s.step).max().unwrap_or(0);
    let mut survives = vec![1.0; n]; // Π of d(k) over the updates already walked
    let mut weights = vec![0.0; n];
    let mut products = vec![0.0; n * n];
    for t in (0..=last).rev() {
        let mut live = false;
        for (i, snapshot) in all.iter().enumerate() {
            weights[i] = 0.0;
            if t > snapshot.step {
                live = true;
                continue;
            }
            if survives[i] == 0.0 {
                continue;
            }
            live = true;
            let decay = if t == 0 { 0.0 } else { snapshot.profile.decay(t) };
            weights[i] = (1.0 - decay) * survives[i];
            survives[i] *= decay;
        }
        if !live {
            break;
        }
        for i in (0..n).filter(|&i| weights[i] != 0.0) {
            for j in 0..=i {
                products[i * n + j] += weights[i] * weights[j];
            }
        }
    }
    for i in 0..n {
        for j in 0..i {
            products[j * n + i] = products[i * n + j];
        }
    }
    products
}

/// Cholesky's method; an unknown whose row depends on those before it is set to 0.
fn solve_semidefinite(mut a: Vec<f64>, mut x: Vec<f64>, n: usize) -> Vec<f64> {
    const SMALLEST_PIVOT: f64 = 1e-13; // of a matrix with ones on the diagonal
    let mut dependent = vec![false; n];
    for j in 0..n {
        for k in 0..j {
            let factor = a[j * n + k];
            for i in j..n {
                a[i * n + j] -= a[i * n + k] * factor;
            }
        }
        let pivot = a[j * n + j];
        dependent[j] = pivot.is_nan() || pivot < SMALLEST_PIVOT;
        for i in j..n {
            a[i * n + j] = if dependent[j] { 0.0 } else { a[i * n + j] / pivot.sqrt() };
        }
    }
    for i in 0..n {
        for k in 0..i {
            x[i] -= a[i * n + k] * x[k];
        }
        x[i] = if dependent[i] { 0.0 } else { x[i] / a[i * n + i] };
    }
    for i in (0..n).rev() {
        for k in i + 1..n {
            x[i] -= a[k * n + i] * x[k];
        }
        x[i] = if dependent[i] { 0.0 } else { x[i] / a[i * n + i] };
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Domain, Stream};

    const STEPS: u64 = 400;

    fn exponential(decay: f64, warmup: bool) -> Profile {
        Profile::Exponential(EmaDecay { decay, warmup })
    }

    /// A random walk of one weight, θ(0) … θ(STEPS).
    fn walk() -> Vec<f64> {
        let mut draws = Stream::new(4, Domain::Init, 0);
        let mut weight = 1.0;
        (0..=STEPS)
            .map(|_| {
                weight += 0.1 * draws.normal();
                weight
            })
            .collect()
    }

    /// The average itself, accumulated update by update as a trainer does.
    fn accumulate(walk: &[f64], Snapshot { profile, step }: Snapshot) -> f64 {
        let mut average = walk[0];
        for t in 1..=step {
            let decay = profile.decay(t);
            average = decay * average + (1.0 - decay) * walk[t as usize];
        }
        average
    }

    /// Builds `wanted` from snapshots every 20 steps, checks it against direct accumulation, and
    /// returns the error beside the spread of the walk.
    fn rebuild(kept: &[Profile], wanted: Profile) -> (f64, f64) {
        let snapshots: Vec<Snapshot> = (1..=STEPS / 20)
            .flat_map(|k| kept.iter().map(move |&profile| Snapshot { profile, step: 20 * k }))
            .collect();
        let wanted = Snapshot { profile: wanted, step: STEPS };
        let result = reconstruct(&snapshots, wanted).unwrap();
        let sum: f64 = result.coefficients.iter().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        let walk = walk();
        let parts = snapshots.iter().zip(&result.coefficients);
        let built: f64 = parts.map(|(&s, c)| c * accumulate(&walk, s)).sum();
        ((built - accumulate(&walk, wanted)).abs(), result.relative_error)
    }

    #[test]
    fn a_power_profile_is_rebuilt_from_two_others() {
        let sigma = |sigma| Profile::Power(gamma_of_sigma(sigma).unwrap());
        for wanted in [0.06, 0.075, 0.09] {
            let (error, relative) = rebuild(&[sigma(0.05), sigma(0.1)], sigma(wanted));
            assert!(error < 1e-3 && relative < 0.02, "{wanted}: {error} {relative}");
        }
    }

    #[test]
    fn an_exponential_profile_is_rebuilt_from_two_others() {
        for (warmup, decay) in [(true, 0.97), (false, 0.98), (true, 0.95)] {
            let kept = [exponential(0.9, true), exponential(0.99, true)];
            let (error, relative) = rebuild(&kept, exponential(decay, warmup));
            assert!(error < 0.02 && relative < 0.1, "{decay}: {error} {relative}");
        }
    }

    #[test]
    fn a_profile_that_is_there_is_taken_as_it_is() {
        let (error, relative) =
            rebuild(&[exponential(0.9, true), exponential(0.99, true)], exponential(0.99, true));
        assert!(error < 1e-9 && relative < 1e-6, "{error} {relative}");
    }

    #[test]
    fn raw_snapshots_are_weighed_by_the_profile() {
        let snapshots: Vec<Snapshot> =
            [5, 10].map(|step| Snapshot { profile: Profile::Raw, step }).to_vec();
        let wanted = Snapshot { profile: exponential(0.9, false), step: 10 };
        let result = reconstruct(&snapshots, wanted).unwrap();
        let ratio = result.coefficients[0] / result.coefficients[1];
        assert!((ratio - 0.9f64.powi(5)).abs() < 1e-12, "{ratio}");
        assert!(result.relative_error > 0.5);
    }

    #[test]
    fn a_snapshot_that_comes_twice_gets_no_weight() {
        let one = Snapshot { profile: exponential(0.9, true), step: 50 };
        let two = Snapshot { step: 60, ..one };
        let result = reconstruct(&[one, two, one, two], two).unwrap();
        let want = [0.0, 1.0, 0.0, 0.0];
        let near = result.coefficients.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(near, "{:?}", result.coefficients);
    }

    #[test]
    fn gammas_are_those_of_the_paper() {
        // EDM2: σ_rel = 0.05 and 0.10 are γ = 16.97 and 6.94.
        assert!((gamma_of_sigma(0.05).unwrap() - 16.97).abs() < 0.01);
        assert!((gamma_of_sigma(0.10).unwrap() - 6.94).abs() < 0.01);
        assert_eq!(gamma_of_sigma(0.3), None);
        assert_eq!(gamma_of_sigma(f64::NAN), None);
    }
}
