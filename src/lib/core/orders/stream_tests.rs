use std::collections::HashMap;

use proptest::prelude::*;

use super::super::check_permutation;
use super::*;

fn stream(spec: &str, block_size: usize, seed: u64) -> OrderStream {
    OrderStream::new(OrderSpec::parse(spec).unwrap(), block_size, seed).unwrap()
}

fn row(stream: &OrderStream, index: u64) -> Vec<u32> {
    let mut out = Vec::new();
    stream.row(index, &mut out);
    out
}

/// Chi-square statistic of counts against equal shares.
fn chi_square(counts: impl IntoIterator<Item = u32>, cells: usize, draws: u32) -> f64 {
    let expected = f64::from(draws) / cells as f64;
    counts.into_iter().map(|c| (f64::from(c) - expected).powi(2) / expected).sum()
}

#[test]
fn fixed_shapes_are_as_the_contract_says() {
    for (spec, n, want) in [
        ("l2r", 4, vec![0, 1, 2, 3]),
        ("r2l", 4, vec![3, 2, 1, 0]),
        ("fractal", 8, vec![4, 2, 6, 1, 3, 5, 7, 0]),
        ("fractal", 5, vec![2, 1, 4, 0, 3]),
        ("blocks:4:inner=0,2,3,1:outer=l2r", 8, vec![0, 2, 3, 1, 4, 6, 7, 5]),
        ("blocks:3:inner=l2r:outer=l2r", 7, vec![0, 1, 2, 3, 4, 5, 6]),
        ("blocks:9:inner=l2r:outer=uniform", 2, vec![0, 1]),
    ] {
        assert_eq!(row(&stream(spec, n, 5), 17), want, "{spec}");
    }
}

#[test]
fn a_list_refuses_a_short_last_block() {
    let spec = OrderSpec::parse("blocks:4:inner=0,2,3,1").unwrap();
    let error = OrderStream::new(spec, 10, 0).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("no multiple of 4"), "{error}");
}

#[test]
fn fixed_is_row_zero_of_uniform_whatever_the_row_and_seed() {
    let first = row(&stream("uniform", 50, 7), 0);
    assert_eq!(row(&stream("fixed:7", 50, 1), 0), first);
    assert_eq!(row(&stream("fixed:7", 50, 2), 999), first);
}

#[test]
fn uniform_rows_of_four_show_each_permutation_equally_often() {
    let stream = stream("uniform", 4, 11);
    let mut counts = HashMap::new();
    for index in 0..48_000 {
        *counts.entry(row(&stream, index)).or_insert(0u32) += 1;
    }
    assert_eq!(counts.len(), 24);
    let chi = chi_square(counts.into_values(), 24, 48_000);
    assert!(chi < 49.7, "chi-square with 23 degrees of freedom: {chi}"); // p = 0.001
}

#[test]
fn blocks_draw_inside_and_outside_independently() {
    let stream = stream("blocks:2", 4, 3);
    let mut counts = HashMap::new();
    for index in 0..16_000 {
        *counts.entry(row(&stream, index)).or_insert(0u32) += 1;
    }
    assert_eq!(counts.len(), 8); // 2 orders of blocks, 2 orders in each of them
    let chi = chi_square(counts.into_values(), 8, 16_000);
    assert!(chi < 24.3, "chi-square with 7 degrees of freedom: {chi}"); // p = 0.001
}

#[test]
fn a_mix_takes_its_shares() {
    let stream = stream("mix:0.1*l2r+0.7*r2l+0.2*uniform", 16, 1);
    let (l2r, r2l): (Vec<u32>, Vec<u32>) = ((0..16).collect(), (0..16).rev().collect());
    let rows: Vec<_> = (0..20_000).map(|i| row(&stream, i)).collect();
    let share = |want: &Vec<u32>| rows.iter().filter(|r| *r == want).count() as f64 / 20_000.0;
    assert!((share(&l2r) - 0.1).abs() < 0.01, "{}", share(&l2r));
    assert!((share(&r2l) - 0.7).abs() < 0.015, "{}", share(&r2l));
}

#[test]
fn a_ramp_rises_from_none_to_all() {
    let stream = stream("ramp:1000..5000:l2r->r2l", 8, 4);
    let share = |rows: std::ops::Range<u64>| {
        let n = (rows.end - rows.start) as f64;
        rows.filter(|&i| row(&stream, i)[0] == 7).count() as f64 / n
    };
    assert_eq!(share(0..1001), 0.0);
    assert_eq!(share(5000..6000), 1.0);
    assert!((share(1000..5000) - 0.5).abs() < 0.04);
    assert!((share(1000..2000) - 0.125).abs() < 0.05);
    assert!((share(4000..5000) - 0.875).abs() < 0.05);
}

#[test]
fn a_far_row_index_and_seed_work() {
    let stream = stream("ramp:0..18446744073709551615:l2r->uniform", 8, u64::MAX);
    check_permutation(&row(&stream, u64::MAX), String::new).unwrap();
}

proptest! {
    #[test]
    fn every_row_is_a_permutation(
        which in 0usize..8, n in 1usize..200, b in 1usize..300, seed: u64, index: u64,
    ) {
        let spec = match which {
            0 => "uniform".to_owned(),
            1 => format!("fixed:{seed}"),
            2 => format!("blocks:{b}"),
            3 => format!("blocks:{b}:inner=fixed:{seed}"),
            4 => format!("blocks:{b}:outer=fixed:3:inner=l2r"),
            5 => "fractal".into(),
            6 => format!("mix:0.5*blocks:{b}:outer=l2r+0.5*uniform"),
            _ => format!("ramp:0..100:blocks:{b}->mix:0.5*l2r+0.5*fractal"),
        };
        let stream = stream(&spec, n, seed);
        let drawn = row(&stream, index);
        prop_assert_eq!(drawn.len(), n);
        prop_assert!(check_permutation(&drawn, String::new).is_ok());
        prop_assert_eq!(row(&stream, index), drawn);
    }
}
