//! Passes on the toolkit's own kernels give what libtorch's passes give, in every causal family and
//! at every level of vector instructions that this machine has.

mod common;

use std::process::Command;

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::CheckpointFile;
use ao_torch::decode::causal::CausalPredictor;
use ao_torch::decode::few_row::FewRow;
use ao_torch::decode::predictor::{Predictor, Reader, Reading};
use ao_torch::decode::sequence::Sequence;
use ao_torch::kernels::pool;
use ao_torch::kernels::simd::Level;
use ao_torch::network::Network;
use ao_torch::tch::{Kind, Tensor};
use common::{
    floats, golden, golden_config, golden_network, integers, max_difference, next, noisy_weights,
    scoring, sequence, values,
};
use serde_json::{Value, json};

/// The levels of this machine; the others are named.
fn levels() -> Vec<Level> {
    for level in Level::ALL.into_iter().filter(|&level| level > Level::of_machine()) {
        eprintln!("not on this machine: {}", level.name());
    }
    Level::available().collect()
}

fn network(config: &ModelConfig, compute: Kind) -> Box<dyn Network> {
    common::network(config, &noisy_weights(config, Kind::Float), compute)
}

/// A network asked at a level, by libtorch where there is none.
fn predictor(network: Box<dyn Network>, level: Option<Level>) -> CausalPredictor {
    let few_row =
        level.map(|level| FewRow::at(level, network.as_ref()).expect("it serves every family"));
    CausalPredictor::with_passes(network, few_row)
}

/// One of each causal family, and of its ways to tell targets, with or without biases.
fn families(width: usize, bias: bool) -> Vec<ModelConfig> {
    let own = [
        json!({"arch": "ao-gpt", "cond_dim": 8, "position_encoding": "adaln"}),
        json!({"arch": "ao-gpt", "position_encoding": "input"}),
        json!({"arch": "ao-gpt", "position_encoding": "every-block"}),
        json!({"arch": "ao-gpt", "position_encoding": "per-block"}),
        json!({"arch": "sigma-gpt"}),
        json!({"arch": "sigma-official"}),
        json!({"arch": "gpt2", "activation": "gelu"}),
        json!({"arch": "gpt2", "activation": "gelu_tanh"}),
    ];
    let with_sizes = |mut config: Value| {
        if config["arch"] != "sigma-official" {
            config["bias"] = bias.into();
        }
        let sizes = [("block_size", 7), ("vocab_size", 9), ("n_layer", 2), ("n_head", 2)];
        for (key, value) in sizes.into_iter().chain([("n_embd", width)]) {
            config[key] = value.into();
        }
        ModelConfig::from_json(&config).unwrap()
    };
    own.into_iter().map(with_sizes).collect()
}

/// Sequences of different lengths, gaps and numbers of given tokens over several passes, by
/// libtorch where there is no level: hidden rows of all passes, then the keys and values.
fn passes(config: &ModelConfig, compute: Kind, level: Option<Level>) -> [Vec<f64>; 2] {
    let full = [5u32, 1, 0, 2, 2, 4, 3];
    let ordered = config.arch() == "gpt2";
    let one = |(order, given): &(&[u32], usize)| {
        let mut order = order.to_vec();
        if ordered {
            order.sort_unstable();
        }
        sequence(&order, &full[..*given])
    };
    let sequences: [(&[u32], usize); 3] =
        [(&[3, 0, 4, 1, 2, 6, 5], 1), (&[1, 0, 2], 2), (&[4, 3, 2, 1, 0], 3)];
    let mut sequences: Vec<Sequence> = sequences.iter().map(one).collect();
    let mut model = predictor(network(config, compute), level);
    model.start(&sequences);
    // The positions that copies predict, and then the tokens that become known.
    let passes: [[(&[u32], usize); 3]; 4] = [
        [(&[2, 4], 3), (&[], 1), (&[0], 1)],
        [(&[], 1), (&[], 0), (&[], 1)],
        [(&[6], 1), (&[], 0), (&[], 0)],
        [(&[], 1), (&[], 0), (&[], 0)],
    ];
    let mut hidden = Vec::new();
    for pass in &passes {
        let readings: Vec<Reading> = sequences
            .iter()
            .zip(pass)
            .map(|(sequence, (copies, _))| match sequence.free().len() {
                0 => Reading::default(),
                _ => {
                    let until = sequence.tokens.len() + 1;
                    Reading { until, copies, wanted: copies.len() + 1 }
                }
            })
            .collect();
        hidden.extend(values(&model.read(&sequences, &readings).unwrap()));
        for (sequence, (_, known)) in sequences.iter_mut().zip(pass) {
            let (start, left) = (sequence.tokens.len(), sequence.free().len());
            sequence.tokens.extend(&full[start..start + known.min(&left)]);
        }
    }
    let cache = model.cache().unwrap();
    let cached = (0..2).flat_map(|layer| {
        let (k, v) = cache.layer(layer);
        [values(&k), values(&v)].concat()
    });
    [hidden, cached.collect()]
}

#[test]
fn every_family_has_the_rows_of_libtorch_at_every_level() {
    for (width, bias) in [(16, true), (24, false), (64, true)] {
        for config in families(width, bias) {
            let plain = passes(&config, Kind::Float, None);
            let mut fused: Option<[Vec<f64>; 2]> = None;
            for level in levels() {
                let own = passes(&config, Kind::Float, Some(level));
                let case = format!("{} at {}", config.to_json(), level.name());
                for (own, plain) in own.iter().zip(&plain) {
                    let difference = max_difference(own, plain);
                    assert!(difference < 2e-5, "{case}: {difference}");
                }
                if level > Level::Portable {
                    let same = *fused.get_or_insert(own.clone()) == own;
                    assert!(same, "{case}: levels with fused sums differ");
                }
            }
        }
    }
}

#[test]
fn weights_in_bf16_give_rows_no_further_from_f32_than_those_of_libtorch() {
    for config in families(32, true) {
        let truth = passes(&config, Kind::Float, None);
        let libtorch = passes(&config, Kind::BFloat16, None);
        for level in levels() {
            let own = passes(&config, Kind::BFloat16, Some(level));
            for ((own, libtorch), truth) in own.iter().zip(&libtorch).zip(&truth) {
                let (own, most) = (max_difference(own, truth), max_difference(libtorch, truth));
                let case = format!("{} at {}", config.to_json(), level.name());
                assert!(own > 0.0 && own < 1.5 * most, "{case}: {own} against {most}");
            }
        }
    }
}

#[test]
fn a_row_is_the_same_to_the_last_bit_in_any_company_and_with_any_threads() {
    let config = ModelConfig::from_json(&json!({
        "arch": "ao-gpt", "block_size": 12, "vocab_size": 50, "n_layer": 2, "n_head": 2,
        "n_embd": 48, "cond_dim": 8
    }))
    .unwrap();
    let one = |i: usize| {
        let order: Vec<u32> = (0..12).map(|k| (k * 5 + i as u32) % 12).collect();
        sequence(&order, &(0..i as u32 % 7).collect::<Vec<_>>())
    };
    let sequences = || (0..40).map(one).collect::<Vec<Sequence>>();
    let readings: Vec<Reading> = sequences()
        .iter()
        .map(|s| Reading { until: s.tokens.len() + 1, copies: &[11, 10], wanted: 3 })
        .collect();
    for compute in [Kind::Float, Kind::BFloat16] {
        for level in levels() {
            let mut model = predictor(network(&config, compute), Some(level));
            let mut pass = |sequences: &[Sequence], readings: &[Reading]| {
                model.start(sequences);
                let hidden = model.read(sequences, readings).unwrap();
                (values(&model.network().base().head.logits(&hidden)), values(&hidden))
            };
            let (logits, hidden) = pass(&sequences(), &readings);
            for i in 0..40 {
                let alone = pass(&[one(i)], &readings[i..=i]);
                assert_eq!(alone.1, hidden[i * 3 * 48..(i + 1) * 3 * 48], "{}", level.name());
                assert_eq!(alone.0, logits[i * 3 * 50..(i + 1) * 3 * 50], "{}", level.name());
            }
        }
    }
}

#[test]
fn passes_of_several_threads_are_those_of_one() {
    let sizes = json!({
        "arch": "gpt2", "activation": "gelu", "block_size": 40, "vocab_size": 50, "n_layer": 2,
        "n_head": 2, "n_embd": 48
    });
    let config = ModelConfig::from_json(&sizes).unwrap();
    for level in levels() {
        let pass = |threads: usize| {
            let config = config.clone();
            pool::with_threads(threads, move || {
                let mut model = predictor(network(&config, Kind::Float), Some(level));
                let (order, known): (Vec<u32>, Vec<u32>) = ((0..40).collect(), (0..39).collect());
                let sequences: Vec<Sequence> = (0..3).map(|_| sequence(&order, &known)).collect();
                model.start(&sequences);
                let readings = [Reading { until: 40, copies: &[], wanted: 39 }; 3];
                let hidden = model.read(&sequences, &readings).unwrap();
                (values(&hidden), values(&model.network().base().head.logits(&hidden)))
            })
        };
        assert_eq!(pass(1), pass(3), "{}", level.name());
    }
}

#[test]
fn many_rows_at_once_are_those_of_libtorch() {
    // Long prompts go through the same kernels as one token.
    for arch in ["ao-gpt", "sigma-gpt", "gpt2"] {
        let mut config = json!({
            "arch": arch, "block_size": 160, "vocab_size": 30, "n_layer": 2, "n_head": 2,
            "n_embd": 64
        });
        if arch == "gpt2" {
            config["activation"] = "gelu_tanh".into();
        }
        let config = ModelConfig::from_json(&config).unwrap();
        let order: Vec<u32> = (0..160).collect();
        let known: Vec<u32> = (0..159).map(|i| i * 7 % 30).collect();
        let readings = [Reading { until: 160, copies: &[], wanted: 100 }; 4];
        let rows = |level| {
            let sequences: Vec<Sequence> = (0..4).map(|_| sequence(&order, &known)).collect();
            let mut model = predictor(network(&config, Kind::Float), level);
            model.start(&sequences);
            values(&model.read(&sequences, &readings).unwrap())
        };
        let plain = rows(None);
        for level in levels() {
            let difference = max_difference(&rows(Some(level)), &plain);
            assert!(difference < 1e-4, "{arch} at {}: {difference}", level.name());
        }
    }
}

#[test]
fn cached_steps_have_the_logits_of_the_published_code_at_every_level() {
    for folder in ["ao-gpt", "ao-gpt-short"] {
        let (config, figures) = golden_config(folder);
        let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
        let (shape, tokens) = integers(&cases, "tokens");
        let (_, orders) = integers(&cases, "orders");
        let t = shape[1];
        for level in levels() {
            let mut model = predictor(golden_network(folder).0, Some(level));
            let mut sequences: Vec<Sequence> =
                orders.chunks(t).map(|order| sequence(order, &[])).collect();
            model.start(&sequences);
            for (step, group) in figures["decode_groups"].as_array().unwrap().iter().enumerate() {
                let edge = |i: usize| group[i].as_u64().unwrap() as usize;
                let asks = next(&sequences, &vec![edge(1) - edge(0); shape[0]]);
                let hidden = model.predict(&sequences, &asks).unwrap();
                let mut logits = vec![0f32; hidden.size()[0] as usize * config.vocab_size()];
                model.network().base().head.logits_into(&hidden, &mut logits);
                let logits: Vec<f64> = logits.into_iter().map(f64::from).collect();
                let expected = floats(&cases, &format!("step{step}.logits"));
                let difference = max_difference(&logits, &expected.1);
                let case = format!("{folder} step {step} at {}", level.name());
                assert!(difference <= 2e-5, "{case}: {difference}");
                for (r, sequence) in sequences.iter_mut().enumerate() {
                    let known = edge(0)..edge(1);
                    let own = known.map(|k| tokens[r * t + sequence.order[k] as usize]);
                    sequence.tokens.extend(own.collect::<Vec<_>>());
                }
            }
        }
    }
}

#[test]
fn logits_for_draws_are_not_rounded_to_bf16() {
    let config = families(32, true).remove(0);
    for compute in [Kind::Float, Kind::BFloat16] {
        let network = network(&config, compute);
        let hidden = Tensor::randn([5, 32], (Kind::Float, ao_torch::tch::Device::Cpu));
        let weights = noisy_weights(&config, Kind::Float);
        let table = weights.get("lm_head.weight").to_kind(compute).to_kind(Kind::Double);
        let mut exact = hidden.to_kind(Kind::Double).mm(&table.tr());
        if let Some(bias) = weights.find("lm_head.bias") {
            exact += bias.to_kind(compute).to_kind(Kind::Double);
        }
        let exact = values(&exact);
        let logits = network.base().head.logits(&hidden);
        assert_eq!(logits.kind(), Kind::Float);
        let difference = max_difference(&values(&logits), &exact);
        assert!(difference < 1e-5, "{compute:?}: {difference}");
    }
}

/// The records of `ao-sample` at a cap of the level.
fn sampled(folder: &std::path::Path, cap: &str, more: &[&str]) -> Vec<Value> {
    let out = Command::new(env!("CARGO_BIN_EXE_ao-sample"))
        .current_dir(folder)
        .env("AO_SIMD", cap)
        .args(["--ckpt", "model.safetensors", "--model-config", "model.json", "--device", "cpu"])
        .args(["--n", "6", "--seed", "3"])
        .args(more)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    scoring::records(&out).into_iter().filter(|r| r["type"] == "sample").collect()
}

#[test]
fn samples_are_the_same_at_every_level_and_their_nll_is_near() {
    let folder = tempfile::tempdir().unwrap();
    let config = scoring::tiny(12, 40);
    scoring::write_model(&folder.path().join("model.safetensors"), &config, true);
    std::fs::write(folder.path().join("model.json"), config.to_json().to_string()).unwrap();
    for more in [&["--steps", "4"][..], &["--dtype", "bf16", "--batch-size", "5"]] {
        let at = |cap| sampled(folder.path(), cap, more);
        let (portable, avx2, avx512) = (at("portable"), at("avx2"), at("avx512"));
        assert_eq!(avx2, avx512, "AVX2 and AVX-512 have the same sums");
        assert_eq!(portable.len(), 6);
        for (a, b) in portable.iter().zip(&avx2) {
            assert_eq!((&a["tokens"], &a["order"]), (&b["tokens"], &b["order"]));
            let nll = |r: &Value| r["logprob_nats"].as_f64().unwrap();
            assert!((nll(a) - nll(b)).abs() < 1e-3, "{a} {b}");
        }
    }
}

#[test]
fn a_level_that_does_not_exist_is_an_error_in_one_line() {
    let out = Command::new(env!("CARGO_BIN_EXE_ao-bench"))
        .env("AO_SIMD", "sse9")
        .args(["generate", "--model", "none.json"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("AO_SIMD=sse9") && text.contains("portable, avx2 or avx512"), "{text}");
}
