//! What holds for every causal family: its probabilities sum to 1 along every order, cached
//! decoding is the whole forward, and configs and presets say how many parameters they have.

mod common;

use std::path::Path;

use ao_core::family::ModelConfig;
use ao_torch::decode::causal::CausalPredictor;
use ao_torch::decode::predictor::Predictor;
use ao_torch::network::Network;
use ao_torch::tch::Kind;
use common::{logits, max_difference, next, nll, noisy_network, sequence, values};
use serde_json::{Value, json};

/// One of each causal family and way of encoding positions, T tokens of V ids.
fn families(t: usize, v: usize) -> Vec<Value> {
    let sizes = |mut more: Value| {
        for (key, value) in [("block_size", t), ("vocab_size", v), ("n_layer", 2), ("n_head", 2)] {
            more[key] = value.into();
        }
        more["n_embd"] = 16.into();
        more
    };
    vec![
        sizes(json!({"arch": "ao-gpt", "cond_dim": 8})),
        sizes(json!({"arch": "ao-gpt", "position_encoding": "input"})),
        sizes(json!({"arch": "ao-gpt", "position_encoding": "every-block"})),
        sizes(json!({"arch": "ao-gpt", "position_encoding": "per-block", "bias": false})),
        sizes(json!({"arch": "sigma-gpt"})),
        sizes(json!({"arch": "sigma-gpt", "bias": false})),
        sizes(json!({"arch": "sigma-official"})),
        sizes(json!({"arch": "gpt2", "activation": "gelu"})),
        sizes(json!({"arch": "gpt2", "activation": "gelu_tanh", "bias": false})),
    ]
}

/// The orders that a family can be read in.
fn orders(config: &Value) -> Vec<Vec<u32>> {
    let l2r = vec![0, 1, 2];
    if config["arch"] == "gpt2" {
        return vec![l2r];
    }
    let others = [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    others.iter().map(|o| o.to_vec()).chain([l2r]).collect()
}

#[test]
fn the_probabilities_of_all_texts_sum_to_one_along_every_order() {
    let (t, v) = (3usize, 4usize);
    for config in families(t, v) {
        let model = noisy_network(&config, Kind::Double);
        let given = model.base().given();
        let texts: Vec<Vec<u32>> = (0..v.pow(t as u32))
            .map(|code| (0..t).map(|i| (code / v.pow(i as u32) % v) as u32).collect())
            .collect();
        for order in orders(&config) {
            let rows: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
            let same = vec![order.as_slice(); rows.len()];
            let nll = nll(model.as_ref(), &rows, &same);
            let sum: f64 = nll.chunks(t - given).map(|n| (-n.iter().sum::<f64>()).exp()).sum();
            // A family that is given its first token has a distribution for each of the V.
            let count = if given == 1 { v as f64 } else { 1.0 };
            assert!((sum / count - 1.0).abs() < 1e-12, "{config}, {order:?}: {sum}");
        }
    }
}

#[test]
fn a_family_that_is_told_targets_uses_them_and_the_order_of_its_context() {
    for config in families(3, 4) {
        let model = noisy_network(&config, Kind::Double);
        if config["arch"] == "gpt2" {
            continue;
        }
        let along = |order: &[u32], step: usize| {
            nll(model.as_ref(), &[&[3, 1, 2]], &[order])[step - model.base().given()]
        };
        // After the same first token, other targets have other probabilities.
        let difference = (along(&[0, 1, 2], 1) - along(&[0, 2, 1], 1)).abs();
        assert!(difference > 1e-3, "{config}: the target does not matter");
        // The last token's context is the same set in another order.
        let difference = (along(&[0, 1, 2], 2) - along(&[1, 0, 2], 2)).abs();
        assert!(difference > 1e-6, "{config}: a decoder that does not see the order");
    }
}

/// Logits of the token after `known`, from a whole forward.
fn plainly(model: &dyn Network, order: &[u32], tokens: &[u32], known: usize, k: usize) -> Vec<f64> {
    let mut moved = order.to_vec();
    moved[known..=k].rotate_right(1);
    let logits = logits(model, &[&sequence(order, tokens).text(0)], &[&moved]);
    let row = (known - model.base().given()) as i64;
    values(&logits.select(0, 0).select(0, row))
}

#[test]
fn cached_decoding_is_the_whole_forward_in_every_family() {
    for config in families(5, 6) {
        let mut model = CausalPredictor::new(noisy_network(&config, Kind::Double));
        let left_to_right = config["arch"] == "gpt2";
        let order = if left_to_right { vec![0, 1, 2, 3, 4] } else { vec![3, 0, 4, 1, 2] };
        let tokens = [5, 1, 0, 2, 2];
        for sizes in [vec![1, 1, 1, 1], vec![2, 2], vec![1, 3], vec![4]] {
            if left_to_right && sizes.iter().any(|&n| n > 1) {
                continue; // it is not told which of several to predict
            }
            let mut sequences = [sequence(&order, &tokens[..1])];
            model.start(&sequences);
            let mut known = 1;
            for size in sizes {
                let hidden = model.predict(&sequences, &next(&sequences, &[size])).unwrap();
                let logits = values(&model.network().base().head.logits(&hidden));
                let expected: Vec<f64> = (known..known + size)
                    .flat_map(|k| plainly(model.network(), &order, &tokens, known, k))
                    .collect();
                let difference = max_difference(&logits, &expected);
                assert!(difference < 1e-9, "{config}, {size} after {known}: {difference}");
                sequences[0].tokens.extend(&tokens[known..known + size]);
                known += size;
            }
        }
    }
}

#[test]
fn presets_have_the_parameters_that_they_claim() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let counts = [
        ("ao-gpt-124m", 170_605_952),
        ("ao-gpt-350m", 425_804_928),
        ("sigma-gpt-124m", 125_263_872),
        ("sigma-gpt-350m", 355_921_920),
        ("sigma-official-124m", 123_980_544),
        ("sigma-official-350m", 354_075_648),
        ("gpt2-124m", 124_373_760),
        ("gpt2-350m", 354_599_936),
        ("radd-small", 162_265_682),
        ("radd-medium", 405_191_762),
        ("mdlm-small", 169_627_218),
        ("mdlm-medium", 424_477_010),
        ("sedd-small", 169_627_218),
        ("sedd-medium", 424_477_010),
    ];
    for (name, count) in counts {
        let config = ModelConfig::load(&folder.join(format!("{name}.json"))).unwrap();
        assert_eq!(config.parameter_count(), count, "{name}");
    }
}
