//! What the tests share: golden files and tensors in them.
#![allow(dead_code)] // each test binary uses a part

pub mod scoring;
pub mod train;

use std::path::{Path, PathBuf};

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::{CheckpointFile, DType};
use ao_core::rng::{Domain, Stream};
use ao_torch::decode::SampleSettings;
use ao_torch::decode::predictor::Ask;
use ao_torch::decode::sequence::Sequence;
use ao_torch::device::Runtime;
use ao_torch::family::{self, Model, Sampler, by_order};
use ao_torch::network::attention::Causal;
use ao_torch::network::{Network, OrderedTexts, Weights, ao_gpt, ddit, gpt2, sigma_gpt};
use ao_torch::tch::{Device, Kind, Tensor, no_grad, set_num_threads};
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

/// One thread of the CPU: the tests themselves run in parallel.
fn runtime(compute: Kind) -> Runtime {
    set_num_threads(1);
    Runtime { device: Device::Cpu, compute, threads: 1 }
}

/// The network of `config` over `weights`, without gradients.
pub fn network(config: &ModelConfig, weights: &Weights, compute: Kind) -> Box<dyn Network> {
    let build = match config.arch() {
        "ao-gpt" => ao_gpt,
        "gpt2" => gpt2,
        "sigma-gpt" | "sigma-official" => sigma_gpt,
        _ => ddit,
    };
    let mut network = build(config, weights, &runtime(compute));
    network.freeze();
    network
}

/// A network with random weights large enough for its distributions to be far from uniform.
pub fn noisy_network(config: &Value, kind: Kind) -> Box<dyn Network> {
    let config = ModelConfig::from_json(config).unwrap();
    network(&config, &noisy_weights(&config, kind), kind)
}

/// A network as it is before training: the heads of encoders are 0, so that they are uniform.
pub fn untrained_network(config: &Value, kind: Kind) -> Box<dyn Network> {
    let config = ModelConfig::from_json(config).unwrap();
    network(&config, &Weights::init(&config, 3, Device::Cpu).to_kind(kind), kind)
}

/// What draws from the same network.
pub fn noisy_sampler(config: &Value, kind: Kind, settings: &SampleSettings) -> Box<dyn Sampler> {
    let config = ModelConfig::from_json(config).unwrap();
    let (weights, runtime) = (noisy_weights(&config, kind), runtime(kind));
    let model = Model { config: &config, weights: &weights, runtime: &runtime };
    family::of(&config).unwrap().sampler(model, settings).unwrap()
}

/// The config of an AO-GPT of two narrow blocks.
pub fn tiny_config(block_size: usize, vocab_size: usize) -> Value {
    serde_json::json!({
        "arch": "ao-gpt", "block_size": block_size, "vocab_size": vocab_size,
        "n_layer": 2, "n_head": 2, "n_embd": 16, "cond_dim": 8
    })
}

/// The config of a narrow encoder of `arch`, or of `mdlm told the time`.
pub fn encoder_config(arch: &str, block_size: usize, vocab_size: usize) -> Value {
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
    config
}

/// An AO-GPT of two narrow blocks.
pub fn tiny(block_size: usize, vocab_size: usize, kind: Kind) -> Box<dyn Network> {
    noisy_network(&tiny_config(block_size, vocab_size), kind)
}

/// A narrow encoder of `arch`, or of `mdlm told the time`.
pub fn narrow_encoder(
    arch: &str,
    block_size: usize,
    vocab_size: usize,
    kind: Kind,
) -> Box<dyn Network> {
    noisy_network(&encoder_config(arch, block_size, vocab_size), kind)
}

/// The network of a golden folder, in f32, and its weights.
pub fn golden_network(folder: &str) -> (Box<dyn Network>, Weights) {
    let (config, _) = golden_config(folder);
    let path = golden(folder).join("model.safetensors");
    let weights = Weights::read(&config, &CheckpointFile::open(&path).unwrap(), &path).unwrap();
    (network(&config, &weights, Kind::Float), weights)
}

/// NLL of texts along orders from whole forwards, nats, (B, T − given).
pub fn nll(network: &dyn Network, texts: &[&[u32]], orders: &[&[u32]]) -> Vec<f64> {
    by_order::nll(network, &OrderedTexts::new(texts, orders).unwrap()).0
}

/// Logits of texts along orders from whole forwards, (B, T − given, V).
pub fn logits(network: &dyn Network, texts: &[&[u32]], orders: &[&[u32]]) -> Tensor {
    let (texts, base) = (OrderedTexts::new(texts, orders).unwrap(), network.base());
    let rows = texts.rows(base.given(), base.device());
    base.head.logits(&no_grad(|| network.forward(&rows, &mut Causal::default(), 0.0)))
}

/// A sequence whose first tokens along `order` are known.
pub fn sequence(order: &[u32], tokens: &[u32]) -> Sequence {
    Sequence {
        order: order.to_vec(),
        tokens: tokens.to_vec(),
        stream: Stream::new(0, Domain::Sample, 0),
        drawn: Vec::new(),
        times: Vec::new(),
        steps: 0,
        network_calls: 0,
    }
}

/// Asks each sequence for the next positions of its order, as many as `sizes` says.
pub fn next(sequences: &[Sequence], sizes: &[usize]) -> Vec<Ask> {
    let ask = |(sequence, &size): (&Sequence, &usize)| Ask {
        positions: sequence.free()[..size].to_vec(),
        sigma: 0.0,
    };
    sequences.iter().zip(sizes).map(ask).collect()
}

/// A tensor's elements.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).contiguous().view([-1])).unwrap()
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

/// Chi-square against a distribution at p = 0.001; texts expected less than 5 times count as one.
pub fn assert_distribution(counts: &[f64], expected: &[f64]) {
    let n: f64 = counts.iter().sum();
    assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-4);
    let (mut chi, mut cells, mut rare) = (0.0, 0.0, (0.0, 0.0));
    let mut add = |count: f64, expected: f64| {
        chi += (count - expected).powi(2) / expected;
        cells += 1.0;
    };
    for (&count, p) in counts.iter().zip(expected) {
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
