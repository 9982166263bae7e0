use super::*;

fn masking(objective: Objective) -> Masking {
    let schedule = LogLinear { eps: 1e-3 };
    let masks = Masks { id: 9, schedule, time_conditioned: false, scores: None };
    Masking::of(objective, &masks).unwrap()
}

fn place(index: u64) -> Place {
    Place { seed: 5, index, first: 24, count: 12 }
}

fn draws(objective: Objective, length: usize) -> Vec<MaskDraw> {
    (24..36).map(|n| masking(objective).training_draw(place(n), length)).collect()
}

#[test]
fn the_times_of_a_step_cover_every_part_once() {
    for objective in [Objective::TDce, Objective::LambdaDce] {
        let mut parts: Vec<usize> = draws(objective, 7)
            .iter()
            .map(|d| {
                let floor = if objective == Objective::TDce { TIME_FLOOR } else { 0.0 };
                ((d.time - floor) / (1.0 - floor) * 12.0).ceil() as usize
            })
            .collect();
        parts.sort_unstable();
        // A shifted grid may have one point on either side of a boundary, never two in a part.
        assert_eq!(parts, (1..=12).collect::<Vec<_>>(), "{objective:?}");
    }
}

#[test]
fn as_many_are_masked_as_the_count_says_and_weights_are_inverse_levels() {
    for draw in draws(Objective::KDce, 9) {
        let k = draw.masked.len() as f64;
        assert!(draw.masked.windows(2).all(|w| w[0] < w[1]) && (1.0..=9.0).contains(&k));
        assert_eq!((draw.weight, draw.time), (9.0 / k, k / 9.0));
    }
    for draw in draws(Objective::ScoreEntropy, 9) {
        assert!(draw.time >= TIME_FLOOR && (draw.weight * draw.time - 1.0).abs() < 1e-12);
    }
}

#[test]
fn a_mask_is_a_function_of_the_sequences_number_alone() {
    for objective in [Objective::LambdaDce, Objective::KDce, Objective::ScoreEntropy] {
        let once = draws(objective, 40);
        let again = masking(objective).training_draw(place(30), 40);
        assert_eq!(once[6], again);
        assert_ne!(once[5].masked, again.masked);
    }
}

/// A conditional distribution by table: −log p of position i given the positions in `seen`.
fn nll(table: &[f64], i: usize, seen: usize, n: usize) -> f64 {
    assert_eq!(seen >> i & 1, 0);
    table[seen * n + i]
}

fn table(n: usize) -> Vec<f64> {
    let mut stream = Stream::new(3, Domain::Init, n as u64);
    (0..n << n).map(|_| -stream.uniform().ln()).collect()
}

/// Σ over the positions outside `seen` of their NLL.
fn hidden_sum(table: &[f64], seen: usize, n: usize) -> f64 {
    (0..n).filter(|i| seen >> i & 1 == 0).map(|i| nll(table, i, seen, n)).sum()
}

fn over_counts(table: &[f64], n: usize) -> f64 {
    let binomial = |k: usize| (0..k).fold(1.0, |b, j| b * (n - j) as f64 / (j + 1) as f64);
    (0..(1usize << n) - 1)
        .map(|seen| {
            let k = n - seen.count_ones() as usize;
            hidden_sum(table, seen, n) / (binomial(k) * k as f64)
        })
        .sum()
}

/// ∫ over λ by Gauss and Legendre's rule of three points: exact for polynomials of degree 5.
fn over_probabilities(table: &[f64], n: usize) -> f64 {
    let root = 0.15f64.sqrt();
    [(0.5 - root, 5.0 / 18.0), (0.5, 4.0 / 9.0), (0.5 + root, 5.0 / 18.0)]
        .iter()
        .map(|&(lambda, share)| {
            let sum: f64 = (0..1usize << n)
                .map(|seen| {
                    let k = n as i32 - seen.count_ones() as i32;
                    let chance = lambda.powi(k) * (1.0 - lambda).powi(n as i32 - k);
                    chance / lambda * hidden_sum(table, seen, n)
                })
                .sum();
            share * sum
        })
        .sum()
}

fn over_orders(table: &[f64], n: usize) -> f64 {
    fn rest(table: &[f64], seen: usize, n: usize) -> f64 {
        let left: Vec<usize> = (0..n).filter(|i| seen >> i & 1 == 0).collect();
        let each = left.iter().map(|&i| nll(table, i, seen, n) + rest(table, seen | 1 << i, n));
        if left.is_empty() { 0.0 } else { each.sum::<f64>() / left.len() as f64 }
    }
    rest(table, 0, n)
}

#[test]
fn the_bound_over_probabilities_over_counts_and_over_orders_is_one_number() {
    for n in 1..=5 {
        let table = table(n);
        let orders = over_orders(&table, n);
        for other in [over_counts(&table, n), over_probabilities(&table, n)] {
            assert!((other / orders - 1.0).abs() < 1e-12, "n {n}: {other} and {orders}");
        }
    }
}

#[test]
fn what_training_draws_has_that_number_as_its_mean() {
    let n = 4;
    let table = table(n);
    let exact = over_orders(&table, n);
    let steps = 20_000;
    for objective in [Objective::TDce, Objective::LambdaDce, Objective::KDce] {
        let values: Vec<f64> = (0..steps)
            .map(|step| {
                let first = step * 4;
                (first..first + 4)
                    .map(|index| {
                        let place = Place { seed: 1, index, first, count: 4 };
                        let draw = masking(objective).training_draw(place, n);
                        let hidden: usize = draw.masked.iter().map(|i| 1 << i).sum();
                        draw.weight * hidden_sum(&table, (1 << n) - 1 - hidden, n) / 4.0
                    })
                    .sum()
            })
            .collect();
        let mean = values.iter().sum::<f64>() / steps as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / steps as f64;
        let error = (variance / steps as f64).sqrt();
        // The time's floor and the schedule's ε leave out a thousandth each.
        let slack = if objective == Objective::TDce { 2e-3 * exact } else { 0.0 };
        let off = (mean - exact).abs();
        assert!(off < 4.0 * error + slack, "{objective:?}: {mean} ± {error}, exactly {exact}");
        assert!(error < 0.02 * exact, "{objective:?}: the mean is too coarse to tell, {error}");
    }
}

/// The expectation over levels and masks, exact for up to 5 tokens: between the ends of the time, as
/// shares of the levels, the integrand is a polynomial.
fn over_times(masking: Masking, table: &[f64], n: usize) -> f64 {
    let root = 0.15f64.sqrt();
    let eps = masking.schedule.eps;
    let ends = [0.0, eps, 1.0 - (1.0 - eps) * TIME_FLOOR, 1.0];
    let mut stream = Stream::new(0, Domain::Masking, 0);
    let mut sum = 0.0;
    for piece in ends.windows(2) {
        let nodes = [(0.5 - root, 5.0 / 18.0), (0.5, 4.0 / 9.0), (0.5 + root, 5.0 / 18.0)];
        for (node, share) in nodes {
            let width = piece[1] - piece[0];
            // As many positions as show how often one is masked.
            let draw = masking.draw_at(piece[0] + width * node, 100_000, &mut stream);
            let lambda = match masking.level {
                Level::Time => masking.schedule.masked(draw.time),
                _ => 1.0 / draw.weight,
            };
            assert!((draw.masked.len() as f64 / 1e5 - lambda).abs() < 8e-3, "{lambda}");
            assert!((TIME_FLOOR - 1e-12..=1.0).contains(&draw.time), "{}", draw.time);
            for seen in 0..1usize << n {
                let k = n as i32 - seen.count_ones() as i32;
                let chance = lambda.powi(k) * (1.0 - lambda).powi(n as i32 - k);
                sum += width * share * chance * draw.weight * hidden_sum(table, seen, n);
            }
        }
    }
    sum
}

#[test]
fn a_constant_nll_is_its_own_bound_and_the_published_form_lies_below() {
    let n = 5;
    let constant = vec![3.0; n << n];
    for objective in [Objective::TDce, Objective::ScoreEntropy] {
        let published = over_times(masking(objective), &constant, n) / n as f64;
        assert!((published - 3.0 * 0.999).abs() < 1e-9, "{objective:?}: {published}");
        let bound = over_times(masking(objective).whole(), &constant, n) / n as f64;
        assert!((bound - 3.0).abs() < 1e-9, "{objective:?}: {bound}");
    }
    let mut plain = masking(Objective::TDce);
    plain.schedule.eps = 0.0;
    for masking in [plain, plain.whole()] {
        assert!((over_times(masking, &constant, n) / n as f64 - 3.0).abs() < 1e-9);
    }
}

#[test]
fn what_the_published_form_leaves_out_are_the_ends() {
    // A masked token's NLL grows from 1.5 to 7.6 with the number of masks.
    let n = 5;
    let of_count = |k: usize| 1.5 + 6.1 * ((k - 1) as f64 / 4.0).powi(2);
    let table: Vec<f64> = (0..n << n)
        .map(|at: usize| of_count((n - (at / n).count_ones() as usize).max(1)))
        .collect();
    let bound = over_orders(&table, n) / n as f64;
    let published = over_times(masking(Objective::TDce), &table, n) / n as f64;
    let expected = (bound - 0.000_999 * of_count(1) - 0.001 * of_count(n)) / 0.999;
    assert!((published - expected).abs() < 2e-5, "{published} and {expected}");
    assert!(published < bound - 5e-3, "{published} is no bound, {bound} is");
    let whole = over_times(masking(Objective::TDce).whole(), &table, n) / n as f64;
    assert!(whole >= bound && whole - bound < 2e-5, "{whole} and {bound}");
}
