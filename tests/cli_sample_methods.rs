//! The ways of `ao-sample` to decode, through its binary.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A folder with the golden model's config beside which the tool runs.
fn prepare() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (config, _) = common::golden_config("ao-gpt");
    fs::write(folder.path().join("model.json"), config.to_json().to_string()).unwrap();
    folder
}

fn sample(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ao-sample"));
    let ckpt = common::golden("ao-gpt/model.safetensors");
    command.current_dir(folder).arg("--ckpt").arg(ckpt);
    command.args(["--model-config", "model.json", "--device", "cpu"]).args(arguments);
    command.output().unwrap()
}

/// All records of a call that must succeed: run, samples, summary.
fn records(folder: &Path, arguments: &[&str]) -> (Value, Vec<Value>, Value) {
    let output = sample(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut records: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let summary = records.pop().unwrap();
    let run = records.remove(0);
    assert_eq!((&run["type"], &summary["type"]), (&"run".into(), &"summary".into()));
    (run, records, summary)
}

const WAYS: [&[&str]; 5] = [
    &["--order", "adaptive:margin"],
    &["--order", "adaptive:entropy:window=3", "--steps", "5"],
    &["--speculative", "3"],
    &["--rejection"],
    &["--rejection", "2", "--temperature", "0.8"],
];

#[test]
fn samples_depend_on_seed_and_index_alone_whichever_the_way() {
    let folder = prepare();
    for way in WAYS {
        let draw = |more: &[&str]| -> Vec<(Value, Value)> {
            let (_, samples, _) = records(folder.path(), &[way, more].concat());
            samples.into_iter().map(|r| (r["tokens"].clone(), r["order"].clone())).collect()
        };
        let base = draw(&["--n", "5", "--batch-size", "5"]);
        assert_eq!(base, draw(&["--n", "5", "--batch-size", "2", "--threads", "1"]), "{way:?}");
        assert_ne!(base, draw(&["--n", "5", "--seed", "1"]), "{way:?}");
        for (tokens, order) in &base {
            let mut order: Vec<u64> =
                order.as_array().unwrap().iter().map(|p| p.as_u64().unwrap()).collect();
            order.sort_unstable();
            assert_eq!(order, (0..16).collect::<Vec<_>>());
            assert_eq!(tokens.as_array().unwrap().len(), 16);
        }
    }
}

#[test]
fn records_name_the_order_and_the_distribution() {
    let folder = prepare();
    let (run, samples, summary) =
        records(folder.path(), &["--order", "adaptive:top-prob:window=4", "--n", "2"]);
    assert_eq!(run["orders"]["spec"], "adaptive:top-prob:window=4");
    assert_eq!((&samples[0]["distribution"], &samples[0]["steps"]), (&"exact".into(), &16.into()));
    assert_eq!(summary["rows_forwarded"], 2 * (13 * 4 + 3 + 2 + 1));

    let (_, samples, _) = records(folder.path(), &["--steps", "4"]);
    assert_eq!(samples[0]["distribution"], "factorised");

    let (run, samples, summary) = records(folder.path(), &["--speculative", "3", "--n", "8"]);
    assert_eq!(run["orders"]["spec"], "uniform");
    assert!(
        samples.iter().all(|s| s["distribution"] == "exact" && s["steps"].as_u64().unwrap() < 16)
    );
    let number = |key: &str| summary[key].as_f64().unwrap();
    assert!(number("accepted_tokens") <= number("tested_tokens"));
    // Drafts behind one that failed are not tested, and every round has one that fails at most.
    assert!(number("tested_tokens") < number("drafted_tokens"));
    assert!(number("tested_tokens") - number("accepted_tokens") <= number("token_count"));
    assert_eq!(number("acceptance_rate"), number("accepted_tokens") / number("tested_tokens"));
    let steps: f64 = samples.iter().map(|s| s["steps"].as_f64().unwrap()).sum();
    assert_eq!(number("tokens_per_step"), 8.0 * 16.0 / steps);
    // Every pass gives what it accepts and one more, except where drafts end the text.
    let passes = number("token_count") - number("accepted_tokens");
    assert!(passes <= steps && steps <= passes + 8.0, "{passes} {steps}");

    let (run, samples, summary) = records(folder.path(), &["--rejection", "3"]);
    let number = |key: &str| summary[key].as_f64().unwrap();
    assert_eq!(number("acceptance_rate"), number("accepted_tokens") / number("tested_tokens"));
    assert_eq!(run["orders"]["best_of_random"], 3);
    assert_eq!(samples[0]["distribution"], "approximate");
}

#[test]
fn candidates_of_every_gap_are_recorded_on_request() {
    let folder = prepare();
    fs::write(folder.path().join("t.jsonl"), "{\"tokens\":[5,null,null,7]}\n").unwrap();
    let arguments = ["--infill", "t.jsonl", "--n", "3", "--top-k-candidates", "2"];
    let (_, samples, _) = records(folder.path(), &arguments);
    assert_eq!(samples.len(), 3);
    for record in &samples {
        let gaps = record["candidates"].as_array().unwrap();
        let positions: Vec<&Value> = gaps.iter().map(|g| &g["position"]).collect();
        let order = record["order"].as_array().unwrap();
        assert_eq!(positions, [&order[2], &order[3]]);
        for gap in gaps {
            let logprobs = gap["logprob_nats"].as_array().unwrap();
            assert!(logprobs[0].as_f64().unwrap() >= logprobs[1].as_f64().unwrap());
            assert_eq!(gap["tokens"].as_array().unwrap().len(), 2);
        }
        // A drawn token that is a candidate has the log-probability of its record.
        let drawn = |g: &Value| record["tokens"][g["position"].as_u64().unwrap() as usize].clone();
        let own: Vec<f64> = gaps
            .iter()
            .filter_map(|g| {
                let at = g["tokens"].as_array().unwrap().iter().position(|t| *t == drawn(g))?;
                g["logprob_nats"][at].as_f64()
            })
            .collect();
        if own.len() == 2 {
            let sum = record["logprob_nats"].as_f64().unwrap();
            assert!((own.iter().sum::<f64>() - sum).abs() < 1e-9);
        }
    }
    let (_, samples, _) = records(folder.path(), &["--infill", "t.jsonl"]);
    assert!(samples[0].get("candidates").is_none());
}

#[test]
fn ways_that_exclude_each_other_are_refused_in_one_line() {
    let folder = prepare();
    for call in [
        &["--order", "adaptive"][..],
        &["--order", "adaptive:sure"],
        &["--order", "adaptive:margin:window=0"],
        &["--order", "adaptive:margin", "--speculative", "2"],
        &["--order", "l2r", "--rejection", "2"],
        &["--speculative", "0"],
        &["--speculative", "2", "--steps", "3"],
        &["--speculative", "2", "--rejection", "2"],
        &["--rejection", "0"],
    ] {
        let output = sample(folder.path(), call);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{call:?}: {text}");
        assert!(text.starts_with("ao-sample: "), "{text}");
    }
}

#[test]
fn flags_that_change_nothing_beside_the_others_are_refused_by_name() {
    let folder = prepare();
    let all: Vec<String> = (0..64).map(|id| id.to_string()).collect();
    for (call, words) in [
        (&["--schedule", "cosine"][..], "--schedule: without --steps"),
        (&["--schedule", "linear"], "--schedule: without --steps"),
        (&["--ban", &all.join(",")], "--ban: every id is banned"),
        (&["--ban", "3,64"], "--ban 64: the ids are 0 to 63"),
        (&["--temperature", "0", "--top-k", "5"], "--temperature 0 takes the most likely token"),
        (&["--top-p-rule", "published"], "--top-p-rule: without --top-p"),
        (&["--prompt-order", "random"], "--prompt-order: no tokens are given"),
        (&["--stop-at-eos"], "--stop-at-eos: no end-of-document token is known"),
    ] {
        let output = sample(folder.path(), call);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{call:?}: {text}");
        assert!(text.lines().count() == 1 && text.contains(words), "{call:?}: {text}");
        assert!(output.stdout.is_empty());
    }
    records(folder.path(), &["--schedule", "cosine", "--steps", "4"]);
    records(folder.path(), &["--ban", &all[1..].join(",")]);
}
