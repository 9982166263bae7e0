//! The summary of given records.

use super::*;

fn setting(orders_per_sequence: u64, estimate: Estimate) -> Setting {
    Setting {
        orders_per_sequence,
        ensemble: 1,
        given_tokens: 0,
        curve: None,
        estimate,
        orders: Value::Null,
        manner: Manner::default(),
        conditioning: None,
        sequences_left_out: None,
        stopped: None,
    }
}

fn summary(rows: &[(u64, &[f64])], orders: u64, estimate: Estimate) -> Summary {
    let mut totals = Totals::new();
    for (i, (tokens, sums)) in rows.iter().enumerate() {
        totals.add(&SequenceRecord::new(i as u64, *tokens, estimate, sums.to_vec(), Some(10)));
    }
    totals.summary(setting(orders, estimate), Cost::default())
}

#[test]
fn order_noise_and_sequence_noise_add_up_to_the_whole() {
    let s = summary(&[(4, &[8.0, 10.0]), (4, &[13.0, 15.0])], 2, Estimate::Bound);
    assert_eq!(s.nll_nats_per_token, 46.0 / 2.0 / 8.0);
    // Variance of each mean of two: 2/2 = 1; √(1+1)/8 tokens.
    let orders = s.std_error_orders.unwrap();
    assert!((orders - 2f64.sqrt() / 8.0).abs() < 1e-15);
    let all = s.std_error.unwrap();
    assert!((all.powi(2) - orders.powi(2) - s.std_error_sequences.unwrap().powi(2)).abs() < 1e-15);
    assert!(s.note.is_none());
}

#[test]
fn one_random_order_leaves_order_noise_unknown_and_one_fixed_order_has_none() {
    let rows: [(u64, &[f64]); 2] = [(4, &[8.0]), (2, &[5.0])];
    assert_eq!(summary(&rows, 1, Estimate::Bound).std_error_orders, None);
    let exact = summary(&rows, 1, Estimate::Exact);
    assert_eq!(exact.std_error_orders, Some(0.0));
    assert_eq!(exact.std_error_sequences, exact.std_error);
}

#[test]
fn bits_per_byte_count_all_bytes_of_the_set() {
    let s = summary(&[(4, &[8.0]), (2, &[4.0])], 1, Estimate::Exact);
    assert!((s.bits_per_byte.unwrap() - 12.0 / std::f64::consts::LN_2 / 20.0).abs() < 1e-15);
}

#[test]
fn a_single_sequence_has_no_standard_error() {
    let s = summary(&[(4, &[8.0])], 1, Estimate::Exact);
    assert_eq!((s.std_error, s.perplexity_low), (None, None));
    assert!(s.note.unwrap().contains("two sequences"));
}
