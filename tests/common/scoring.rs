//! What the tests of `ao-score` share: shards, orders and models in a folder, and its records.

use std::path::Path;
use std::process::{Command, Output};

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::Metadata;
use ao_torch::network::Weights;
use ao_torch::tch::{Device, Kind};
use serde_json::{Value, json};

/// Runs `ao-score` in a folder.
pub fn score(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ao-score"))
        .current_dir(folder)
        .args(["--quiet", "--device", "cpu"])
        .args(arguments)
        .output()
        .expect("ao-score runs")
}

/// The records on stdout of a run that succeeded.
pub fn records(out: &Output) -> Vec<Value> {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = std::str::from_utf8(&out.stdout).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// A JSON array of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// A shard folder of documents, made by `ao-tokenize`.
pub fn write_shards(folder: &Path, vocab: usize, documents: &[Vec<u32>]) {
    let lines: String = documents.iter().map(|d| format!("{}\n", json!(d))).collect();
    std::fs::write(folder.join("ids.jsonl"), lines).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_ao-tokenize"))
        .current_dir(folder)
        .args(["--ids", "--vocab-size", &vocab.to_string(), "--eos", "none", "--pack", "document"])
        .args(["-o", "data", "ids.jsonl", "--quiet"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Orders as JSON lines.
pub fn write_orders(folder: &Path, rows: &[Vec<u32>]) {
    let lines: String = rows.iter().map(|r| format!("{}\n", json!(r))).collect();
    std::fs::write(folder.join("orders.jsonl"), lines).unwrap();
}

/// A model of two layers.
pub fn tiny(block_size: usize, vocab_size: usize) -> ModelConfig {
    ModelConfig::from_json(&json!({
        "arch": "ao-gpt", "block_size": block_size, "vocab_size": vocab_size,
        "n_layer": 2, "n_head": 2, "n_embd": 16
    }))
    .unwrap()
}

/// Writes a model with its metadata: random weights, or all zero.
pub fn write_model(path: &Path, config: &ModelConfig, random: bool) {
    let weights = if random {
        let weights = Weights::init(config, 7, Device::Cpu);
        // Initial biases and gates are zero; everything must matter here.
        ao_torch::tch::no_grad(|| {
            let mut flat = weights.flat().shallow_clone();
            let noise = ao_torch::tch::Tensor::from_slice(
                &(0..flat.size()[0])
                    .map(|i| ((i * 7919) % 1000) as f32 / 1000.0 - 0.5)
                    .collect::<Vec<_>>(),
            );
            let _ = flat.g_add_(&noise);
        });
        weights
    } else {
        Weights::zeros(config, Kind::Float, Device::Cpu)
    };
    let metadata = Metadata { config: config.to_json(), ..Metadata::default() };
    weights.write(path, &metadata.to_map(), true).unwrap();
}
