//! `ao-score` through its binary: golden figures, laws of probability, and hostile input.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use ao_core::format::checkpoint::{CheckpointFile, Metadata};
use ao_torch::network::Weights;
use ao_torch::tch::Device;
use common::scoring::{numbers, records, score, tiny, write_model, write_orders, write_shards};
use common::{floats, golden, golden_config, integers, max_difference};
use serde_json::{Value, json};

fn rows(values: &[u32], width: usize) -> Vec<Vec<u32>> {
    values.chunks(width).map(<[u32]>::to_vec).collect()
}

#[test]
fn nll_is_that_of_the_published_code() {
    for folder in ["ao-gpt", "ao-gpt-short", "sigma-gpt"] {
        let dir = tempfile::tempdir().unwrap();
        let (config, _) = golden_config(folder);
        let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
        let (shape, tokens) = integers(&cases, "tokens");
        let (_, orders) = integers(&cases, "orders");
        write_shards(dir.path(), config.vocab_size(), &rows(&tokens, shape[1]));
        write_orders(dir.path(), &rows(&orders, shape[1]));
        std::fs::write(dir.path().join("config.json"), config.to_json().to_string()).unwrap();
        let model = golden(folder).join("model.safetensors");
        let arguments = [
            "--ckpt",
            model.to_str().unwrap(),
            "--model-config",
            "config.json",
            "--shards",
            "data",
            "--orders",
            "orders.jsonl",
            "--per-token",
        ];
        let found = records(&score(dir.path(), &arguments));
        let (_, expected) = floats(&cases, "nll");
        let sequences: Vec<&Value> = found.iter().filter(|r| r["type"] == "sequence").collect();
        assert_eq!(sequences.len(), shape[0]);
        assert!(sequences.iter().all(|r| r["estimate"] == "bound"));
        let nll: Vec<f64> = sequences.iter().flat_map(|r| numbers(&r["token_nll_nats"])).collect();
        let difference = max_difference(&nll, &expected);
        assert!(difference <= 2e-5, "{folder}: {difference}");
        let summary = found.last().unwrap();
        let mean = expected.iter().sum::<f64>() / expected.len() as f64;
        assert!((summary["nll_nats_per_token"].as_f64().unwrap() - mean).abs() <= 2e-5);
        assert_eq!(summary["token_count"], expected.len());
        assert_eq!(summary["estimate"], "bound");
    }
}

#[test]
fn a_model_of_zeros_scores_exactly_ln_v() {
    let dir = tempfile::tempdir().unwrap();
    let config = tiny(8, 50);
    write_model(&dir.path().join("m.st"), &config, false);
    // Documents of every length, two of them longer than a block.
    let documents: Vec<Vec<u32>> =
        (1..=17).map(|n| (0..n).map(|i| (i * 7 + n) % 50).collect()).collect();
    write_shards(dir.path(), 50, &documents);
    let tokens: usize = documents.iter().map(Vec::len).sum();
    for (batch, extra) in [
        ("16", &["--mc", "3"][..]),
        ("1", &["--orders", "l2r"]),
        ("3", &["--dtype", "bf16"]),
        ("7", &["--mc", "2", "--per-token"]),
    ] {
        let base = ["--ckpt", "m.st", "--shards", "data", "--batch-size", batch];
        let found = records(&score(dir.path(), &[&base[..], extra].concat()));
        let summary = found.last().unwrap();
        assert_eq!(summary["token_count"], tokens);
        let mean = summary["nll_nats_per_token"].as_f64().unwrap();
        assert!((mean - 50f64.ln()).abs() < 1e-14, "batch {batch} {extra:?}: {mean}");
        assert!(summary["std_error"].as_f64().unwrap() < 1e-14);
    }
    for extra in [
        &["--ensemble", "3"][..],
        &["--ensemble", "2", "--positions", "3"],
        &["--cloze", "spans:1x2"],
        &["--cloze", "spans:1x2", "--conditioning", "left"],
        &["--target-se", "0.1", "--mc", "4"],
    ] {
        let base = ["--ckpt", "m.st", "--shards", "data", "--batch-size", "5"];
        let found = records(&score(dir.path(), &[&base[..], extra].concat()));
        let mean = found.last().unwrap()["nll_nats_per_token"].as_f64().unwrap();
        assert!((mean - 50f64.ln()).abs() < 1e-14, "{extra:?}: {mean}");
    }
}

/// Documents of every length up to two blocks of 8, of tokens below 50.
fn uneven_documents() -> Vec<Vec<u32>> {
    (1..=17).map(|n| (0..n).map(|i| (i * 7 + n) % 50).collect()).collect()
}

#[test]
fn batch_size_threads_and_cutting_change_no_bit_of_a_tiny_model() {
    let dir = tempfile::tempdir().unwrap();
    write_model(&dir.path().join("m.st"), &tiny(8, 50), true);
    write_shards(dir.path(), 50, &uneven_documents());
    for dtype in ["f32", "bf16"] {
        let run = |extra: &[&str]| {
            let base = ["--ckpt", "m.st", "--shards", "data", "--mc", "3", "--per-token"];
            let found =
                records(&score(dir.path(), &[&base[..], &["--dtype", dtype], extra].concat()));
            found.into_iter().filter(|r| r["type"] == "sequence").collect::<Vec<_>>()
        };
        let whole = run(&[]);
        assert!(whole.len() > 17);
        for batch in ["1", "3", "16"] {
            for threads in ["1", "2"] {
                let found = run(&["--batch-size", batch, "--threads", threads]);
                assert!(whole == found, "{dtype}, batch {batch}, {threads} threads");
            }
        }
        let part = run(&["--skip", "4", "--max-sequences", "6"]);
        assert!(whole[4..10] == part, "{dtype}, a part");
    }
}

#[test]
fn the_order_of_the_sequences_changes_no_bit_of_a_tiny_model() {
    let documents: Vec<Vec<u32>> =
        uneven_documents().into_iter().filter(|d| d.len() <= 8).collect();
    let orders: Vec<Vec<u32>> = documents
        .iter()
        .enumerate()
        .map(|(i, d)| {
            let n = d.len() as u32;
            (0..n).map(|k| (k + i as u32) % n).rev().collect()
        })
        .collect();
    let run = |permutation: &[usize]| {
        let dir = tempfile::tempdir().unwrap();
        write_model(&dir.path().join("m.st"), &tiny(8, 50), true);
        let pick = |rows: &[Vec<u32>]| permutation.iter().map(|&i| rows[i].clone()).collect();
        let picked: Vec<Vec<u32>> = pick(&documents);
        write_shards(dir.path(), 50, &picked);
        let picked: Vec<Vec<u32>> = pick(&orders);
        write_orders(dir.path(), &picked);
        let base = ["--ckpt", "m.st", "--shards", "data", "--orders", "orders.jsonl"];
        let found = records(&score(dir.path(), &[&base[..], &["--per-token"]].concat()));
        let nll = |r: &Value| r["token_nll_nats"].clone();
        found.iter().filter(|r| r["type"] == "sequence").map(nll).collect::<Vec<_>>()
    };
    let forward = run(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let permutation = [5, 2, 7, 0, 3, 6, 1, 4];
    let other = run(&permutation);
    for (place, &i) in permutation.iter().enumerate() {
        assert_eq!(forward[i], other[place], "sequence {i}");
    }
    assert_eq!(forward.len(), 8);
}

#[test]
fn shards_of_a_foreign_tokenizer_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let text = "One two, one two. Three four, three four. Five!\n".repeat(20);
    std::fs::write(dir.path().join("text.txt"), text).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_ao-tokenize"))
        .current_dir(dir.path())
        .args(["--train-tokenizer", "280", "-o", "data", "text.txt", "--quiet"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let config = tiny(8, 300);
    let own = "0123456789abcdef";
    let metadata =
        Metadata { config: config.to_json(), tokenizer: Some(own.into()), ..Metadata::default() };
    let path = dir.path().join("m.st");
    Weights::init(&config, 1, Device::Cpu).write(&path, &metadata.to_map(), true).unwrap();
    let out = score(dir.path(), &["--ckpt", "m.st", "--shards", "data", "-o", "scores.jsonl"]);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("data") && stderr.contains(own), "{stderr}");
    assert!(out.stdout.is_empty());
    assert!(!dir.path().join("scores.jsonl").exists());
}

#[test]
fn the_probabilities_of_all_sequences_sum_to_one_in_every_order() {
    let dir = tempfile::tempdir().unwrap();
    write_model(&dir.path().join("m.st"), &tiny(4, 3), true);
    let all: Vec<Vec<u32>> =
        (0..81u32).map(|n| vec![n / 27, n / 9 % 3, n / 3 % 3, n % 3]).collect();
    write_shards(dir.path(), 3, &all);
    let orders: Vec<Vec<u32>> = (0..256u32)
        .map(|n| vec![n / 64, n / 16 % 4, n / 4 % 4, n % 4])
        .filter(|row| (0..4).all(|p| row.contains(&p)))
        .collect();
    assert_eq!(orders.len(), 24);
    let repeated: Vec<Vec<u32>> = all.iter().flat_map(|_| orders.clone()).collect();
    write_orders(dir.path(), &repeated);
    let arguments =
        ["--ckpt", "m.st", "--shards", "data", "--orders", "orders.jsonl", "--mc", "24"];
    let found = records(&score(dir.path(), &arguments));
    let mut sums = [0f64; 24];
    for record in found.iter().filter(|r| r["type"] == "sequence") {
        for (sum, nll) in sums.iter_mut().zip(numbers(&record["nll_nats_orders"])) {
            *sum += (-nll).exp();
        }
    }
    for (order, sum) in orders.iter().zip(sums) {
        assert!((sum - 1.0).abs() < 1e-5, "{order:?}: {sum}");
    }
    // The model tells orders apart, so the law is not met by a constant.
    let first = &found.iter().find(|r| r["type"] == "sequence").unwrap()["nll_nats_orders"];
    let nll = numbers(first);
    assert!(nll.iter().any(|x| (x - nll[0]).abs() > 1e-3));
}

#[test]
fn one_order_for_all_is_exact_and_l2r_is_the_file_of_ascending_rows() {
    let dir = tempfile::tempdir().unwrap();
    write_model(&dir.path().join("m.st"), &tiny(4, 9), true);
    write_shards(dir.path(), 9, &[vec![1, 2, 3, 4], vec![5, 6], vec![8]]);
    write_orders(dir.path(), &vec![vec![0, 1, 2, 3]; 3]);
    let run = |orders| {
        let out = score(dir.path(), &["--ckpt", "m.st", "--shards", "data", "--orders", orders]);
        records(&out).pop().unwrap()
    };
    let (spec, file) = (run("l2r"), run("orders.jsonl"));
    assert_eq!((&spec["estimate"], &file["estimate"]), (&json!("exact"), &json!("exact")));
    assert_eq!(spec["nll_nats_per_token"], file["nll_nats_per_token"]);
    assert_eq!(spec["std_error_orders"], 0.0);
    assert_eq!((&spec["rows_forwarded"], &spec["sequences"]), (&json!(7), &json!(3)));
    assert_eq!(spec["bits_per_byte"], Value::Null);
}

/// A folder with a good model and shards, for tests that spoil one thing.
fn good() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.st");
    write_model(&path, &tiny(4, 9), true);
    write_shards(dir.path(), 9, &[vec![1, 2, 3, 4], vec![5, 6]]);
    (dir, path)
}

/// One line, exit 2, no output file.
fn refused(folder: &Path, arguments: &[&str], words: &str) {
    let base = ["--ckpt", "m.st", "--shards", "data", "-o", "out.jsonl"];
    let out = score(folder, &[&base[..], arguments].concat());
    let error = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("ao-score: ") && error.contains(words), "{error}");
    let left: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("out.jsonl"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn orders_that_do_not_fit_are_refused() {
    let (dir, _) = good();
    for (rows, words) in [
        (vec![vec![0, 0, 1, 2], vec![0, 1, 2, 3]], "comes twice"),
        (vec![vec![0, 1, 2, 4], vec![0, 1, 2, 3]], "permutes 0 to 3"),
        (vec![vec![0, 1], vec![0, 1]], "2 entries for a sequence of 4"),
        (vec![vec![0, 1, 2, 3]], "holds 1 rows"),
    ] {
        write_orders(dir.path(), &rows);
        refused(dir.path(), &["--orders", "orders.jsonl"], words);
    }
    refused(dir.path(), &["--mc", "0"], "--mc");
    refused(dir.path(), &["--skip", "2"], "has 2 sequences");
}

#[test]
fn weights_that_do_not_fit_are_refused_by_name() {
    let (dir, path) = good();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    refused(dir.path(), &[], "m.st");
    let mut spoiled = bytes.clone();
    let end = spoiled.len();
    spoiled[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, &spoiled).unwrap();
    refused(dir.path(), &[], "NaN");
    // The same weights under another config: a tensor too many, one too few, a wrong shape.
    std::fs::write(&path, &bytes).unwrap();
    for (key, value, words) in [
        ("n_layer", 1, "is not one of this model's"),
        ("n_layer", 3, "is missing"),
        ("n_embd", 32, "has shape"),
    ] {
        let mut config = tiny(4, 9).to_json();
        config[key] = json!(value);
        std::fs::write(dir.path().join("c.json"), config.to_string()).unwrap();
        refused(dir.path(), &["--model-config", "c.json"], words);
    }
}

#[test]
fn shards_of_another_vocabulary_or_tokenizer_are_refused() {
    let (dir, path) = good();
    write_model(&path, &tiny(4, 8), true);
    refused(dir.path(), &[], "its vocabulary has 9 ids, the model 8");
}

#[test]
fn a_stop_at_the_first_bad_token_leaves_no_file() {
    let (dir, _) = good();
    let mut bytes = std::fs::read(dir.path().join("data/shard-000000.bin")).unwrap();
    let last = bytes.len() - 2;
    bytes[last] = 200;
    std::fs::write(dir.path().join("raw.bin"), &bytes).unwrap();
    refused(dir.path(), &["--shards", "raw.bin"], "token id 200");
}

/// Orders as NumPy writes them: `<u2`, C order, version 1.0.
fn write_npy(path: &Path, rows: &[Vec<u32>]) {
    let mut header = format!(
        "{{'descr': '<u2', 'fortran_order': False, 'shape': ({}, {}), }}",
        rows.len(),
        rows[0].len()
    );
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(rows.iter().flatten().flat_map(|&p| (p as u16).to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

/// Samples of `model.st` by `ao-sample`: tokens, orders and log-probabilities.
fn draw_samples(folder: &Path) -> (Vec<Vec<u32>>, Vec<Vec<u32>>, Vec<f64>) {
    let out = Command::new(env!("CARGO_BIN_EXE_ao-sample"))
        .current_dir(folder)
        .args(["--ckpt", "model.st", "--n", "24", "--order", "uniform", "--seed", "5"])
        .args(["--temperature", "0.8", "--top-p", "0.9", "--quiet", "--device", "cpu"])
        .output()
        .unwrap();
    let samples: Vec<Value> = records(&out).into_iter().filter(|r| r["type"] == "sample").collect();
    assert_eq!(samples.len(), 24);
    let list = |key: &str| -> Vec<Vec<u32>> {
        samples.iter().map(|s| serde_json::from_value(s[key].clone()).unwrap()).collect()
    };
    let logprobs = samples.iter().map(|s| s["logprob_nats"].as_f64().unwrap()).collect();
    (list("tokens"), list("order"), logprobs)
}

fn sequence_nll(folder: &Path, orders: &str) -> Vec<f64> {
    let arguments = ["--ckpt", "model.st", "--shards", "data", "--orders", orders];
    records(&score(folder, &arguments))
        .iter()
        .filter(|r| r["type"] == "sequence")
        .map(|r| r["nll_nats"].as_f64().unwrap())
        .collect()
}

#[test]
fn what_ao_sample_says_of_a_sample_is_what_ao_score_says_along_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let config = tiny(12, 9);
    write_model(&dir.path().join("model.st"), &config, true);
    let (tokens, orders, logprobs) = draw_samples(dir.path());
    write_shards(dir.path(), 9, &tokens);
    write_npy(&dir.path().join("orders.npy"), &orders);
    let nll = sequence_nll(dir.path(), "orders.npy");
    let said: Vec<f64> = logprobs.iter().map(|x| -x).collect();
    // The filters changed which tokens were drawn, not what the unfiltered model says of them.
    let difference = max_difference(&nll, &said);
    assert!(difference <= 12.0 * 2e-5, "differ by {difference} nats a sequence");
}

#[test]
fn the_order_of_the_inputs_moves_scores_with_their_sequences() {
    let dir = tempfile::tempdir().unwrap();
    let config = tiny(12, 9);
    write_model(&dir.path().join("model.st"), &config, true);
    let (mut tokens, mut orders, _) = draw_samples(dir.path());
    write_shards(dir.path(), 9, &tokens);
    write_npy(&dir.path().join("orders.npy"), &orders);
    let mut forwards = sequence_nll(dir.path(), "orders.npy");
    tokens.reverse();
    orders.reverse();
    std::fs::remove_dir_all(dir.path().join("data")).unwrap();
    write_shards(dir.path(), 9, &tokens);
    write_npy(&dir.path().join("orders.npy"), &orders);
    forwards.reverse();
    let difference = max_difference(&forwards, &sequence_nll(dir.path(), "orders.npy"));
    assert!(difference <= 1e-5, "differ by {difference}");
}
