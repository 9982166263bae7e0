//! Independence: a sample and a score are the same to the last bit, however many others go through
//! the network with it and on however many threads. Through the real binaries, for causal and masked
//! networks in f32 and bf16.

mod common;

use std::path::Path;
use std::process::Command;

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::Metadata;
use ao_torch::kernels::simd::Level;
use ao_torch::tch::Kind;
use common::{noisy_weights, scoring};
use serde_json::{Value, json};

/// Layers, heads, width, ids and tokens of a text.
type Size = [usize; 5];

/// Products of many rows and of few, by the crate gemm's kernels and by the toolkit's own.
const WIDE: Size = [4, 4, 256, 500, 70];
/// Sizes that fill no vector and no tile.
const ODD: Size = [2, 3, 48, 65, 21];

/// One of each family.
const FAMILIES: [&str; 6] = ["ao-gpt", "sigma-gpt", "gpt2", "mdlm", "sedd", "radd"];

/// A batch size and a number of threads.
type Way = [&'static str; 2];

/// The way that others are compared with.
const ALONE: Way = ["1", "1"];

fn config(arch: &str, [n_layer, n_head, n_embd, vocab_size, block_size]: Size) -> ModelConfig {
    let mut config = json!({
        "arch": arch, "block_size": block_size, "vocab_size": vocab_size, "n_layer": n_layer,
        "n_head": n_head, "n_embd": n_embd
    });
    match arch {
        "gpt2" => config["activation"] = "gelu_tanh".into(),
        "sigma-gpt" | "radd" => {}
        _ => config["cond_dim"] = 32.into(),
    }
    if arch == "mdlm" {
        config["time_conditioning"] = true.into();
    }
    ModelConfig::from_json(&config).unwrap()
}

/// A folder with a model whose distributions are far from uniform, texts of several lengths, and
/// templates.
fn prepare(arch: &str, size: Size) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = config(arch, size);
    let metadata = Metadata { config: config.to_json(), ..Metadata::default() };
    let path = folder.path().join("model.safetensors");
    noisy_weights(&config, Kind::Float).write(&path, &metadata.to_map(), true).unwrap();
    let [.., vocab, length] = size;
    let text = |i: usize, n: usize| (0..n).map(move |k| ((i * 131 + k * 37) % (vocab - 1)) as u32);
    // Of two lengths in turn, a short one, and one of two tokens.
    let lengths = [length, length, length, length - 1, length - 1, 9, length, length, 2, length];
    let texts: Vec<Vec<u32>> =
        lengths.iter().enumerate().map(|(i, &n)| text(i, n).collect()).collect();
    scoring::write_shards(folder.path(), vocab, &texts);
    let template = |i: usize| -> Value {
        let gap = |(k, id): (usize, u32)| (!(k + i).is_multiple_of(3)).then_some(id);
        json!({ "tokens": text(i, length - 2 * i).enumerate().map(gap).collect::<Vec<_>>() })
    };
    let lines: String = (0..4).map(|i| format!("{}\n", template(i))).collect();
    std::fs::write(folder.path().join("gaps.jsonl"), lines).unwrap();
    let start = |n: usize| {
        let known = (0..length).map(|k| (k < n).then_some(k));
        json!({ "tokens": known.collect::<Vec<_>>() })
    };
    let lines = format!("{}\n{}\n", start(1), start(length / 2));
    std::fs::write(folder.path().join("starts.jsonl"), lines).unwrap();
    folder
}

/// The records of one type that a call of a tool gives.
fn records(folder: &Path, call: &[&str], [batch, threads]: Way, level: &str) -> Vec<Value> {
    let (tool, kind) = match call[0] {
        "ao-sample" => (env!("CARGO_BIN_EXE_ao-sample"), "sample"),
        _ => (env!("CARGO_BIN_EXE_ao-score"), "sequence"),
    };
    let out = Command::new(tool)
        .current_dir(folder)
        .env("AO_SIMD", level)
        .args(["--quiet", "--device", "cpu", "--ckpt", "model.safetensors"])
        .args(["--batch-size", batch, "--threads", threads])
        .args(&call[1..])
        .output()
        .unwrap();
    let mut records = scoring::records(&out);
    records.retain(|r| r["type"] == kind);
    assert!(records.len() >= 8, "{call:?}: {records:?}");
    records
}

/// What differs of a call's records when they are made in other ways: nothing, or one line.
fn differs(folder: &Path, call: &[&str], ways: &[Way], level: &str) -> Option<String> {
    let alone = records(folder, call, ALONE, level);
    let found = ways.iter().filter_map(|&way| {
        let others = records(folder, call, way, level);
        assert_eq!(alone.len(), others.len());
        let pairs: Vec<_> = alone.iter().zip(&others).filter(|(a, b)| a != b).collect();
        let (a, b) = pairs.first()?;
        let keys: Vec<&String> =
            a.as_object()?.iter().filter(|(k, v)| b[k.as_str()] != **v).map(|(k, _)| k).collect();
        Some(format!("{way:?}: {} of {} records, {keys:?}", pairs.len(), alone.len()))
    });
    let found: Vec<String> = found.collect();
    (!found.is_empty()).then(|| format!("{call:?} at {level}: {}", found.join("; ")))
}

/// The ways to sample and to score of a family.
fn calls(arch: &str) -> Vec<Vec<&'static str>> {
    let causal = ["ao-gpt", "sigma-gpt", "gpt2"].contains(&arch);
    let mut calls: Vec<&str> = vec!["ao-sample --n 4 --infill starts.jsonl"];
    if arch != "gpt2" {
        calls.extend([
            "ao-sample --n 8",
            "ao-sample --n 2 --infill gaps.jsonl",
            "ao-sample --n 8 --order adaptive:top-prob",
            "ao-sample --n 8 --order adaptive:margin:window=5 --steps 12",
            "ao-sample --n 8 --steps 9 --schedule cosine --top-p 0.9",
            "ao-sample --n 2 --infill gaps.jsonl --order adaptive:entropy",
        ]);
    }
    calls.extend(match arch {
        "ao-gpt" | "sigma-gpt" => &[
            "ao-sample --n 8 --speculative 4",
            "ao-sample --n 8 --rejection 3",
            "ao-score --orders uniform --mc 2 --per-token",
            "ao-score --ensemble 3 --per-token",
            "ao-score --cloze spans:2x3 --per-token",
        ][..],
        "gpt2" => &["ao-score --per-token", "ao-score --cloze spans:2x3"],
        _ => &[
            "ao-sample --n 8 --sampler first-hitting",
            "ao-sample --n 8 --sampler tweedie --steps 11",
            "ao-score --elbo --mc 3",
            "ao-score --orders uniform --per-token",
            "ao-score --cloze spans:2x3 --per-token",
        ],
    });
    if !causal && arch != "sedd" {
        calls.extend(["ao-score --elbo lambda", "ao-score --elbo t"]);
    }
    let split = |call: &str| -> Vec<&'static str> {
        let mut words: Vec<&'static str> =
            call.split(' ').map(|w| -> &'static str { String::leak(w.to_owned()) }).collect();
        if words[0] == "ao-score" {
            words.extend(["--shards", "data"]);
        }
        words
    };
    calls.into_iter().map(split).collect()
}

/// Every call of a family in turn, by its words: those that hold one of `some`, or all.
fn compare(arch: &str, size: Size, some: &[&str], dtypes: &[&[&str]], ways: &[Way]) {
    let folder = prepare(arch, size);
    let calls = calls(arch);
    let chosen = calls.iter().filter(|call| {
        let call = call.join(" ");
        some.is_empty() || some.iter().any(|some| call.contains(some))
    });
    let mut found = Vec::new();
    let mut compared = 0;
    for (call, dtypes) in chosen.zip(dtypes.iter().cycle()) {
        for dtype in *dtypes {
            let call = [&call[..], &["--dtype", dtype]].concat();
            found.extend(differs(folder.path(), &call, ways, "avx512"));
            compared += 1;
        }
    }
    assert!(compared >= some.len(), "{arch}: {some:?}");
    assert!(found.is_empty(), "{arch} {size:?}\n{}", found.join("\n"));
}

const BOTH: [&[&str]; 1] = [&["f32", "bf16"]];
const IN_TURN: [&[&str]; 2] = [&["f32"], &["bf16"]];

#[test]
fn every_way_of_a_causal_network_is_that_of_one_sequence_on_one_thread() {
    for (arch, some) in [
        ("ao-gpt", &[][..]),
        ("sigma-gpt", &["adaptive:top-prob", "--rejection", "--ensemble"]),
        ("gpt2", &[]),
    ] {
        compare(arch, ODD, some, &IN_TURN, &[["3", "2"]]);
    }
}

#[test]
fn every_way_of_a_masked_network_is_that_of_one_sequence_on_one_thread() {
    for (arch, some) in [
        ("sedd", &[][..]),
        ("mdlm", &["first-hitting", "--elbo --mc", "--cloze"]),
        ("radd", &["adaptive:top-prob", "tweedie", "--elbo lambda"]),
    ] {
        compare(arch, ODD, some, &IN_TURN, &[["3", "2"]]);
    }
}

#[test]
fn products_of_many_rows_and_of_few_round_alike_in_any_company() {
    let ways = [["8", "1"], ["3", "2"]];
    compare("ao-gpt", WIDE, &["--n 8 --order adaptive:top-prob", "--mc 2"], &BOTH, &ways[1..]);
    compare("gpt2", WIDE, &["--per-token"], &BOTH, &ways[..1]);
    compare("mdlm", WIDE, &["--elbo --mc"], &BOTH, &ways[1..]);
    compare("sedd", WIDE, &["--elbo --mc"], &BOTH, &ways[..1]);
}

#[test]
fn instructions_of_every_level_keep_sequences_apart() {
    for (arch, call) in [
        ("ao-gpt", "ao-sample --n 8 --order adaptive:margin --dtype f32"),
        ("sigma-gpt", "ao-score --shards data --ensemble 2 --dtype bf16"),
        ("radd", "ao-sample --n 8 --order adaptive:entropy --steps 9 --dtype bf16"),
        ("mdlm", "ao-score --shards data --elbo lambda --dtype f32"),
    ] {
        let folder = prepare(arch, ODD);
        let call: Vec<&str> = call.split(' ').collect();
        for level in Level::available() {
            let found = differs(folder.path(), &call, &[["8", "2"]], level.name());
            assert_eq!(found, None, "{arch}");
        }
    }
}

#[test]
#[ignore = "many minutes: every way of every family in both kinds, sizes and four companies"]
fn every_way_of_every_family_in_every_company() {
    for size in [ODD, WIDE] {
        for arch in FAMILIES {
            compare(arch, size, &[], &BOTH, &[["8", "1"], ["3", "2"], ["1", "2"], ["8", "3"]]);
        }
    }
}
