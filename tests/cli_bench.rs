//! `ao-bench` through its binary.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ao_core::family::ModelConfig;
use common::scoring::write_model;
use serde_json::{Value, json};

fn bench(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ao-bench"));
    command.current_dir(folder).arg("generate").args(["--device", "cpu", "--threads", "1"]);
    command.args(arguments).output().unwrap()
}

fn records(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = bench(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn prepare() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let sizes =
        json!({"block_size": 16, "vocab_size": 40, "n_layer": 1, "n_head": 2, "n_embd": 16});
    let extra = [
        ("ao-gpt", json!({"cond_dim": 8})),
        ("gpt2", json!({"activation": "gelu_tanh"})),
        ("radd", json!({})),
        ("mdlm", json!({"cond_dim": 8})),
        ("sedd", json!({"cond_dim": 8})),
    ];
    for (arch, extra) in extra {
        let mut config = sizes.clone();
        config["arch"] = arch.into();
        for (key, value) in extra.as_object().unwrap() {
            config[key] = value.clone();
        }
        fs::write(folder.path().join(format!("{arch}.json")), config.to_string()).unwrap();
    }
    folder
}

#[test]
fn every_point_has_its_record_and_the_run_says_what_machine_it_was() {
    let folder = prepare();
    let records = records(
        folder.path(),
        &["--model", "ao-gpt.json", "--batch-size", "3,1", "--steps", "4,16", "--repeats", "3"],
    );
    let (run, points) = records.split_first().unwrap();
    assert_eq!((&run["type"], &run["tool"]), (&"run".into(), &"ao-bench".into()));
    assert!(
        run["machine"]["cores"].as_u64().unwrap() > 0 && run["machine"]["libtorch"].is_string()
    );
    assert_eq!(run["model"]["arch"], "ao-gpt");
    let seen: Vec<(u64, u64)> = points
        .iter()
        .map(|p| (p["batch_size"].as_u64().unwrap(), p["steps"].as_u64().unwrap()))
        .collect();
    assert_eq!(seen, [(3, 4), (3, 16), (1, 4), (1, 16)]);
    for point in points {
        let number = |key: &str| point[key].as_f64().unwrap();
        assert_eq!(point["type"], "bench");
        assert_eq!(point["seconds_each"].as_array().unwrap().len(), 3);
        assert!(number("seconds_min") <= number("seconds"));
        assert!(number("seconds") <= number("seconds_max"));
        assert_eq!(number("tokens"), 16.0 * number("batch_size"));
        assert_eq!(number("passes"), number("steps"));
        // 2n − S + 1 − (last group) rows a sample.
        let steps = number("steps");
        let rows = 2.0 * 16.0 - steps + 1.0 - 16.0 / steps;
        assert_eq!(number("rows_forwarded"), rows * number("batch_size"));
        let shares = ["trunk_share", "head_share", "sampling_share"].map(number);
        assert!(shares.iter().sum::<f64>() <= 1.0 && shares.iter().all(|s| *s > 0.0));
    }
}

#[test]
fn drafts_encoders_and_readers_from_left_to_right_are_timed_too() {
    let folder = prepare();
    let short = ["--batch-size", "2", "--repeats", "1", "--warmup", "0"];
    let all = |more: &[&str]| records(folder.path(), &[&short[..], more].concat());
    let drafts = all(&["--model", "ao-gpt.json", "--speculative", "3"]);
    assert_eq!(drafts.len(), 3);
    assert_eq!(drafts[2]["speculative"], 3);
    assert!(drafts[2]["passes"].as_f64().unwrap() < 16.0);
    for encoder in ["radd.json", "mdlm.json", "sedd.json"] {
        let timed = all(&["--model", encoder, "--steps", "4"]);
        assert_eq!(
            (&timed[1]["tokens"], &timed[1]["arch"]),
            (&json!(32), &timed[0]["model"]["arch"])
        );
    }
    // Without sizes: batches of 32 and 1, and a step for each token of so short a block.
    let standard = records(folder.path(), &["--model", "ao-gpt.json", "--repeats", "1"]);
    let sizes: Vec<(u64, u64)> = standard[1..]
        .iter()
        .map(|r| (r["batch_size"].as_u64().unwrap(), r["steps"].as_u64().unwrap()))
        .collect();
    assert_eq!(sizes, [(32, 16), (1, 16)]);
    assert_eq!(all(&["--model", "gpt2.json"])[1]["tokens"], 30, "its first token is given");
}

#[test]
fn a_reference_says_how_good_what_was_drawn_is() {
    let folder = prepare();
    let config = fs::read(folder.path().join("gpt2.json")).unwrap();
    let config = ModelConfig::from_json(&serde_json::from_slice(&config).unwrap()).unwrap();
    write_model(&folder.path().join("zeros.st"), &config, false);
    write_model(&folder.path().join("random.st"), &config, true);
    for model in ["ao-gpt.json", "radd.json"] {
        let with = |reference: &str| {
            let sizes =
                ["--batch-size", "2", "--steps", "16", "--repeats", "2", "--ref", reference];
            let found = records(folder.path(), &[&["--model", model][..], &sizes[..]].concat());
            found[1]["quality"].clone()
        };
        // A model of zeros gives each of its 40 ids the same probability.
        let zeros = with("zeros.st");
        assert!((zeros["perplexity_mean"].as_f64().unwrap() - 40.0).abs() < 1e-9, "{zeros}");
        assert_eq!(zeros["samples"], 4);
        let random = with("random.st");
        assert!((random["perplexity_pooled"].as_f64().unwrap() - 40.0).abs() > 1.0);
        // The texts are the same, whoever judges them.
        for key in ["unigram_entropy_nats", "distinct_1", "distinct_2", "repetition"] {
            assert_eq!(zeros[key], random[key], "{key}");
            assert!(zeros[key].is_number(), "{key}");
        }
    }
    let call = ["--model", "ao-gpt.json", "--ref", "missing.st"];
    assert_eq!(bench(folder.path(), &call).status.code(), Some(2));
}

#[test]
fn a_wrong_call_is_one_line_and_exit_2() {
    let folder = prepare();
    for call in [
        &[][..],
        &["--model", "missing.json"],
        &["--model", "ao-gpt.json", "--length", "17"],
        &["--model", "ao-gpt.json", "--batch-size", "0"],
        &["--model", "ao-gpt.json", "--top-p", "0"],
        &["--model", "radd.json", "--speculative", "2"],
        &["--model", "gpt2.json", "--steps", "4"],
    ] {
        let output = bench(folder.path(), call);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{call:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{call:?}: {text}");
        assert!(text.starts_with("ao-bench: "), "{text}");
    }
}
