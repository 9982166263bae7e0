//! What the tests share: golden files and tensors in them.
#![allow(dead_code)] // each test binary uses a part

pub mod scoring;
pub mod train;

use std::path::{Path, PathBuf};

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::{CheckpointFile, DType};
use ao_core::rng::{Domain, Stream};
use ao_torch::network::{Decoder, Encoder, Weights, decoder};
use ao_torch::tch::{Device, Kind, Tensor};
use serde_json::Value;

/// A file of `testdata/golden`.
pub fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden").join(path)
}

/// A golden `config.json`: the model config, and everything beside it.
pub fn golden_config(folder: &str) -> (ModelConfig, Value) {
    let text = std::fs::read(golden(folder).join("config.json")).unwrap();
    let all: Value = serde_json::from_slice(&text).unwrap();
    let keys = [
        "arch",
        "block_size",
        "vocab_size",
        "n_layer",
        "n_head",
        "n_embd",
        "dropout",
        "bias",
        "mask_id",
        "cond_dim",
        "time_conditioning",
        "scale_by_sigma",
        "noise",
        "noise_eps",
    ];
    let model: serde_json::Map<String, Value> =
        keys.iter().filter_map(|&k| all.get(k).map(|v| (k.to_owned(), v.clone()))).collect();
    (ModelConfig::from_json(&Value::Object(model)).unwrap(), all)
}

/// A tensor as f64, with its shape.
pub fn floats(file: &CheckpointFile, name: &str) -> (Vec<usize>, Vec<f64>) {
    let view = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let values = match view.dtype {
        DType::F64 => {
            view.bytes.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
        }
        _ => file.to_f32(name).unwrap().into_iter().map(f64::from).collect(),
    };
    (view.shape, values)
}

/// An integer tensor, with its shape.
pub fn integers(file: &CheckpointFile, name: &str) -> (Vec<usize>, Vec<u32>) {
    let view = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let values = match view.dtype {
        DType::I32 => {
            view.bytes.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()) as u32).collect()
        }
        _ => {
            view.bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect()
        }
    };
    (view.shape, values)
}

/// The largest absolute difference of two equally long lists.
pub fn max_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    assert!(!a.is_empty());
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

/// A decoder with random weights large enough for its laws to be far from uniform.
pub fn tiny_decoder(config: &Value, kind: Kind) -> Box<dyn Decoder> {
    let config = ModelConfig::from_json(config).unwrap();
    let weights = noisy_weights(&config, kind);
    decoder(&config, &weights, kind, 1).unwrap()
}

/// An encoder with random weights large enough for its laws to be far from uniform.
pub fn tiny_encoder(config: &Value, kind: Kind) -> Encoder {
    ao_torch::tch::set_num_threads(1); // the tests themselves run in parallel
    let config = ModelConfig::from_json(config).unwrap();
    Encoder::new(&config, &noisy_weights(&config, kind), kind, 1).unwrap()
}

/// A narrow encoder of `arch`, or of `mdlm told the time`.
pub fn narrow_encoder(arch: &str, block_size: usize, vocab_size: usize, kind: Kind) -> Encoder {
    let (arch, told) = arch.split_once(' ').map_or((arch, false), |(arch, _)| (arch, true));
    let mut config = serde_json::json!({
        "arch": arch, "block_size": block_size, "vocab_size": vocab_size,
        "n_layer": 2, "n_head": 2, "n_embd": 16
    });
    if arch != "radd" {
        config["cond_dim"] = 8.into();
    }
    if told {
        config["time_conditioning"] = true.into();
    }
    tiny_encoder(&config, kind)
}

/// The decoder of a golden folder, in f32.
pub fn golden_decoder(folder: &str) -> Box<dyn Decoder> {
    let (config, _) = golden_config(folder);
    let path = golden(folder).join("model.safetensors");
    let weights = Weights::read(&config, &CheckpointFile::open(&path).unwrap(), &path).unwrap();
    decoder(&config, &weights, Kind::Float, 1).unwrap()
}

/// Initial weights with noise of standard deviation 0.2 on all of them.
pub fn noisy_weights(config: &ModelConfig, kind: Kind) -> Weights {
    let weights = Weights::init(config, 3, Device::Cpu).to_kind(kind);
    let mut flat = weights.flat().shallow_clone();
    let mut stream = Stream::new(9, Domain::Init, 1000);
    let noise: Vec<f64> = (0..flat.numel()).map(|_| 0.2 * stream.normal()).collect();
    let _ = flat.g_add_(&Tensor::from_slice(&noise).to_kind(kind));
    weights
}

/// An AO-GPT of two narrow blocks.
pub fn tiny(block_size: usize, vocab_size: usize, kind: Kind) -> Box<dyn Decoder> {
    ao_torch::tch::set_num_threads(1); // the tests themselves run in parallel
    let config = serde_json::json!({
        "arch": "ao-gpt", "block_size": block_size, "vocab_size": vocab_size,
        "n_layer": 2, "n_head": 2, "n_embd": 16, "cond_dim": 8
    });
    tiny_decoder(&config, kind)
}

/// Chi-square against the law at p = 0.001; texts expected less than 5 times count as one.
pub fn assert_law(counts: &[f64], law: &[f64]) {
    let n: f64 = counts.iter().sum();
    assert!((law.iter().sum::<f64>() - 1.0).abs() < 1e-4);
    let (mut chi, mut cells, mut rare) = (0.0, 0.0, (0.0, 0.0));
    let mut add = |count: f64, expected: f64| {
        chi += (count - expected).powi(2) / expected;
        cells += 1.0;
    };
    for (&count, p) in counts.iter().zip(law) {
        if n * p < 5.0 {
            rare = (rare.0 + count, rare.1 + n * p);
        } else {
            add(count, n * p);
        }
    }
    if rare.1 > 0.0 {
        add(rare.0, rare.1);
    }
    let freedom: f64 = cells - 1.0;
    assert!(freedom >= 20.0, "too few texts are likely enough");
    // Wilson and Hilferty's quantile; 3.09 is the normal one of p = 0.001.
    let spread = 2.0 / (9.0 * freedom);
    let most = freedom * (1.0 - spread + 3.09 * spread.sqrt()).powi(3);
    assert!(chi < most, "chi-square {chi} with {freedom} degrees of freedom, at most {most}");
}
