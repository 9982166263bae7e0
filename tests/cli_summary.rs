//! `ao-summary`: what the stages wrote, gathered into one object and shown as text.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

fn summary(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ao-summary"))
        .current_dir(folder)
        .args(arguments)
        .output()
        .expect("ao-summary runs")
}

const GATHER: [&str; 11] = [
    "--corpus",
    "a test",
    "--shards",
    "train.bin",
    "--val-shards",
    "val.bin",
    "--run",
    "run",
    "--samples",
    "samples.jsonl",
    "raw.jsonl",
];

/// A llm.c shard of u16 tokens, which needs no manifest.
fn write_shard(path: &Path, tokens: &[u16]) {
    let mut header = [0i32; 256];
    header[..3].copy_from_slice(&[20240520, 1, tokens.len() as i32]);
    let mut bytes: Vec<u8> = header.iter().flat_map(|n| n.to_le_bytes()).collect();
    bytes.extend(tokens.iter().flat_map(|n| n.to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

/// What `ao-score` writes of the first `count` blocks of two tokens, at `nll` nats a token.
fn scores(count: u64, nll: f64) -> String {
    let run = json!({
        "type": "run", "tool": "ao-score", "version": "1",
        "config": {"ckpt": "run", "weights": "raw", "orders": "l2r", "shards": "val.bin"},
    });
    let sequence = |i| {
        json!({
            "type": "sequence", "index": i, "token_count": 2, "estimate": "exact",
            "nll_nats": 2.0 * nll, "perplexity": nll.exp(), "bytes": 3,
        })
    };
    let summary = json!({
        "type": "summary", "sequences": count, "token_count": 2 * count, "orders_per_sequence": 1,
        "ensemble": 1, "given_tokens": 0, "estimate": "exact", "nll_nats_per_token": nll,
        "std_error": 0.25, "std_error_orders": 0.0, "std_error_sequences": 0.25,
        "perplexity": nll.exp(), "perplexity_low": null, "perplexity_high": null,
        "bits_per_byte": 0.4, "seconds": 1.0, "rows_forwarded": 2, "rows_through_head": 2,
        "peak_memory_bytes": null, "orders": {"spec": "l2r"},
    });
    let records = std::iter::once(run).chain((0..count).map(sequence)).chain([summary]);
    records.map(|record| format!("{record}\n")).collect()
}

/// The files of a finished pipeline, as the stages write them.
fn write_run(folder: &Path) {
    write_shard(&folder.join("train.bin"), &[0, 0, 1]);
    write_shard(&folder.join("val.bin"), &[0, 1, 1, 1]);
    let step = folder.join("run/checkpoints/step-00000002");
    fs::create_dir_all(&step).unwrap();
    fs::write(folder.join("run/latest"), "step-00000002\n").unwrap();
    fs::write(
        folder.join("run/metrics.jsonl"),
        "{\"type\":\"run\",\"device\":\"cpu\",\"config\":{\"dtype\":\"bf16\"}}\n\
         {\"type\":\"step\",\"step\":1,\"tokens\":64,\"seconds\":1.0}\n\
         {\"type\":\"step\",\"step\":2,\"tokens\":128,\"seconds\":4.0}\n\
         {\"type\":\"eval\",\"step\":2}\n",
    )
    .unwrap();
    let data = [0u8; 24];
    let tensor = TensorView::new(Dtype::F32, vec![2, 3], &data).unwrap();
    let config = r#"{"arch":"ao-gpt","block_size":2,"n_layer":1,"n_head":2,"n_embd":4}"#;
    let metadata = HashMap::from([("config".to_owned(), config.to_owned())]);
    serialize_to_file([("w", tensor)], Some(metadata), &step.join("model.st")).unwrap();
    fs::write(folder.join("raw.jsonl"), scores(1, 0.5)).unwrap();
    fs::write(
        folder.join("samples.jsonl"),
        "{\"type\":\"run\",\"config\":{}}\n\
         {\"type\":\"sample\",\"id\":0,\"tokens\":[1,2],\"text\":\"a gull\"}\n\
         {\"type\":\"sample\",\"id\":1,\"tokens\":[3,4],\"text\":\"a bell\"}\n\
         {\"type\":\"summary\",\"seconds\":2.0}\n",
    )
    .unwrap();
}

#[test]
fn it_gathers_the_figures_of_every_stage() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let out = summary(dir.path(), &GATHER);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["corpus"], "a test");
    assert_eq!(report["train"]["tokens"], 3);
    assert_eq!(report["model"]["parameters"], 6);
    assert_eq!(report["training"]["tokens_per_second"], 32.0);
    assert_eq!(report["training"]["dtype"], "bf16");
    assert_eq!(report["sampling"]["tokens_per_second"], 2.0);
    assert_eq!(report["samples"], serde_json::json!(["a gull", "a bell"]));
    assert_eq!(report["scores"][0]["weights"], "raw");
    assert_eq!(report["scores"][0]["std_error"], 0.25);
    // Counts 2 and 1 of 3 tokens over GPT-2's 50,257 ids, each counted once more; of the held-out
    // tokens the two that the model scores.
    let total = 3.0 + 50_257.0;
    let nll = ((total / 3.0f64).ln() + (total / 2.0f64).ln()) / 2.0;
    let found = report["unigram"]["nll_nats_per_token"].as_f64().unwrap();
    assert!((found - nll).abs() < 1e-12, "{found} {nll}");
    assert_eq!(report["unigram"]["token_count"], 2);
    let bits = report["unigram"]["bits_per_byte"].as_f64().unwrap();
    assert!((bits - 2.0 * nll / 2f64.ln() / 3.0).abs() < 1e-12);
}

#[test]
fn a_report_is_shown_as_text() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let out = summary(dir.path(), &[&GATHER[..], &["-o", "summary.json"]].concat());
    assert!(out.status.success() && out.stdout.is_empty());
    let out = summary(dir.path(), &["--show", "summary.json"]);
    let text = String::from_utf8(out.stdout).unwrap();
    for line in [
        "training  2 steps, 128 tokens in 4.00 s: 32 tokens a second (cpu, bf16)",
        "raw          l2r          exact                                2     0.5000    0.2500        1.6     0.400",
        "sample 2: a bell",
    ] {
        assert!(text.lines().any(|l| l == line), "no line {line:?} in\n{text}");
    }
}

#[test]
fn a_bound_of_an_encoder_goes_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let bound = scores(1, 0.5)
        .replace("\"estimate\":\"exact\"", "\"estimate\":\"bound\"")
        .replace("\"ensemble\":1", "\"ensemble\":1,\"bound\":\"k-dce\"")
        .replace("\"orders_per_sequence\":1", "\"orders_per_sequence\":4")
        .replace("\"orders\":{\"spec\":\"l2r\"}", "\"orders\":{\"draws\":\"k-dce\",\"seed\":0}");
    fs::write(dir.path().join("raw.jsonl"), bound).unwrap();
    let out = summary(dir.path(), &GATHER);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["scores"][0]["orders"], "random masks");
    assert_eq!(report["scores"][0]["estimate"], "k-dce bound of 4 draws");
}

#[test]
fn every_row_is_of_the_same_tokens_and_none_says_inf() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let gather = |more: &[&str]| summary(dir.path(), &[&GATHER[..], more].concat());
    fs::write(dir.path().join("b.jsonl"), scores(2, 0.7)).unwrap();
    let out = gather(&["b.jsonl"]);
    let error = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{error}");
    assert!(error.contains("b.jsonl: reads 4 tokens in 2 sequences"), "{error}");
    // Two rows of the same tokens, one beyond all floats.
    fs::write(dir.path().join("b.jsonl"), scores(1, 812.0)).unwrap();
    assert!(gather(&["b.jsonl", "-o", "summary.json"]).status.success());
    for arguments in [["--show", "summary.json"], ["--table", "b.jsonl"]] {
        let out = summary(dir.path(), &arguments);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.contains("e^812.0") && !text.contains("inf"), "{text}");
    }
}

#[test]
fn a_file_that_lacks_a_figure_is_named_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let run = "{\"type\":\"run\",\"tool\":\"ao-score\"}\n{\"type\":\"summary\",\"sequences\":1}\n";
    fs::write(dir.path().join("raw.jsonl"), run).unwrap();
    let out = summary(dir.path(), &[&GATHER[..], &["-o", "summary.json"]].concat());
    assert_eq!(out.status.code(), Some(2));
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(error.starts_with("ao-summary: raw.jsonl, line 2: "), "{error}");
    assert_eq!(error.lines().count(), 1);
    assert!(!dir.path().join("summary.json").exists());
}

#[test]
fn samples_of_a_stopped_program_make_no_report() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let path = dir.path().join("samples.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let stopped = text.replace("\"seconds\":2.0", "\"seconds\":2.0,\"complete\":false");
    fs::write(&path, stopped).unwrap();
    let out = summary(dir.path(), &GATHER);
    let error = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(error.contains("samples.jsonl: is not complete"), "{error}");
    assert!(error.contains("stopped after 2 samples"), "{error}");
}

#[test]
fn scores_in_which_a_sequence_comes_twice_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let path = dir.path().join("raw.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let twice =
        |line: &str| format!("{line}\n").repeat(1 + usize::from(line.contains("\"index\":0")));
    fs::write(&path, text.lines().map(twice).collect::<String>()).unwrap();
    let out = summary(dir.path(), &GATHER);
    let error = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(error.contains("raw.jsonl: sequence 0 stands there twice"), "{error}");
}
