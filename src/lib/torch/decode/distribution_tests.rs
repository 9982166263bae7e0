//! The distributions that filters leave, and draws from them.

use super::*;

fn ids(filter: &Filter, logits: &[f32]) -> Vec<u32> {
    Drawer::default().probabilities(filter, logits, &[]).iter().map(|k| k.0).collect()
}

/// Probabilities .4 .3 .2 .1 as logits, twice: in falling order and another.
fn row() -> Vec<f32> {
    [0.2f32, 0.4, 0.1, 0.3].iter().map(|p| p.ln()).collect()
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_p_and_the_published_rule_drops_the_crossing_one() {
    let mut filter = Filter { top_p: 0.65, ..Filter::plain(4) };
    assert_eq!(ids(&filter, &row()), [1, 3]);
    filter.top_p_rule = TopPRule::Published;
    assert_eq!(ids(&filter, &row()), [1]);
    filter.top_p = 0.05;
    assert_eq!(ids(&filter, &row()), [1], "the likeliest always stays");
    filter.top_p_rule = TopPRule::Smallest;
    filter.top_p = 0.95;
    assert_eq!(ids(&filter, &row()), [0, 1, 2, 3]);
}

#[test]
fn top_k_and_min_p_keep_the_likeliest_with_low_ids_first_among_equals() {
    assert_eq!(ids(&Filter { top_k: 1, ..Filter::plain(4) }, &row()), [1]);
    assert_eq!(ids(&Filter { top_k: 3, ..Filter::plain(4) }, &row()), [0, 1, 3]);
    assert_eq!(ids(&Filter { top_k: 2, ..Filter::plain(4) }, &[0.0; 4]), [0, 1]);
    assert_eq!(ids(&Filter { min_p: 0.6, ..Filter::plain(4) }, &row()), [1, 3]);
}

#[test]
fn bans_padding_and_the_penalty_act_before_the_softmax() {
    assert_eq!(ids(&Filter { banned: vec![1], ..Filter::plain(3) }, &row()), [0, 2]);
    let filter = Filter { repetition_penalty: 2.0, ..Filter::plain(2) };
    let distribution = Drawer::default().probabilities(&filter, &[2.0, 1.0], &[0, 0]);
    assert!((distribution[0].1 - 0.5).abs() < 1e-12, "{distribution:?}");
}

#[test]
fn temperature_zero_is_the_lowest_of_the_likeliest() {
    let filter = Filter { temperature: 0.0, ..Filter::plain(4) };
    let draw = Drawer::default().draw(&filter, &[1.0, 3.0, 3.0, 0.0, 9.0], &[], 0.99).unwrap();
    assert_eq!(draw.token, 1);
}

#[test]
fn the_draw_inverts_the_cumulative_law_with_and_without_filters() {
    let wide: Vec<f32> = (0..1000).map(|i| ((i * 7) % 13) as f32 / 3.0).collect();
    let distribution = Drawer::default().probabilities(&Filter::plain(1000), &wide, &[]);
    let mut sampler = Drawer::default();
    for filter in [Filter::plain(1000), Filter { top_k: 999, ..Filter::plain(1000) }] {
        let distribution = if filter.top_k == 0 {
            distribution.clone()
        } else {
            Drawer::default().probabilities(&filter, &wide, &[])
        };
        for i in 0..500 {
            let u = (f64::from(i) + 0.37) / 500.0;
            let mut sum = 0.0;
            let expected = distribution.iter().find(|k| {
                sum += k.1;
                u < sum
            });
            let draw = sampler.draw(&filter, &wide, &[], u).unwrap();
            assert_eq!(Some(draw.token), expected.map(|k| k.0));
            let p = Drawer::default().probabilities(&Filter::plain(1000), &wide, &[])
                [draw.token as usize]
                .1;
            assert!((draw.nll + p.ln()).abs() < 1e-9);
        }
    }
}

#[test]
fn the_ends_of_the_unit_interval_give_tokens_that_have_weight() {
    let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    let mut sampler = Drawer::default();
    for u in [0.0, 1.0 - f64::EPSILON / 2.0] {
        assert_eq!(sampler.draw(&Filter::plain(3), &logits, &[], u).unwrap().token, 1);
    }
}

#[test]
fn a_row_that_is_not_finite_is_an_error() {
    let row = [0.0, f32::NAN];
    assert!(Drawer::default().draw(&Filter::plain(2), &row, &[], 0.5).is_err());
}
