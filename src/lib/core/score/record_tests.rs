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
    let mut totals = Totals::new(Design::default());
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

#[test]
fn blocks_of_one_document_are_taken_together_where_there_are_twenty_documents() {
    // Each document's two blocks say the same: the error is that of 20 documents, not of 40 blocks.
    let totals = |documents: u64, cluster| {
        let mut totals = Totals::new(Design { levels: None, cluster });
        for i in 0..2 * documents {
            let sum = ((i / 2 * 7) % 11) as f64;
            let mut record = SequenceRecord::new(i, 4, Estimate::Exact, vec![sum], None);
            record.document = Some(i / 2 * 8);
            totals.add(&record);
        }
        totals.summary(setting(1, Estimate::Exact), Cost::default())
    };
    let s = totals(20, None);
    assert_eq!((s.cluster, s.clusters, s.degrees_of_freedom), (Cluster::Document, 20, 19.0));
    let sums: Vec<f64> = (0..20).map(|d| 2.0 * ((d * 7) % 11) as f64).collect();
    let expected = stats::mean_per_token(&sums, &[8; 20]).std_error;
    assert!((s.std_error.unwrap() - expected).abs() < 1e-12);
    assert_eq!(s.std_error, s.std_error_documents);
    let (low, _) = stats::interval(s.nll_nats_per_token, s.std_error, 19.0).unwrap();
    assert_eq!(s.perplexity_low, Some(low.exp()));
    // With fewer, or when told so, blocks count, and the other error stands beside.
    for s in [totals(20, Some(Cluster::Block)), totals(19, None)] {
        assert_eq!(s.cluster, Cluster::Block);
        assert_eq!(s.std_error, s.std_error_blocks);
        assert!(s.std_error_documents.unwrap() > 1.3 * s.std_error.unwrap());
    }
    assert_eq!(totals(19, Some(Cluster::Document)).clusters, 19);
}

#[test]
fn one_position_has_no_error_and_says_so() {
    let mut totals = Totals::new(Design::default());
    for (i, error) in [Some(0.5), None].into_iter().enumerate() {
        let mut record = SequenceRecord::new(i as u64, 4, Estimate::Exact, vec![3.0], None);
        record.std_error_positions_nats = Some(error);
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<SequenceRecord>(&line).unwrap(), record);
        totals.add(&record);
    }
    let s = totals.summary(setting(1, Estimate::Exact), Cost::default());
    assert_eq!(s.std_error_positions, Some(None));
    assert_eq!(serde_json::to_value(&s).unwrap()["std_error_positions"], Value::Null);
    assert!(s.note.unwrap().contains("--positions"));
}
