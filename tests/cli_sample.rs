//! `ao-sample` through its binary.

mod common;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder with the golden model's config beside which the tool runs.
fn prepare() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (config, _) = common::golden_config("ao-gpt");
    fs::write(folder.path().join("model.json"), config.to_json().to_string()).unwrap();
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ao-sample"));
    let ckpt = common::golden("ao-gpt/model.safetensors");
    command.current_dir(folder).arg("--ckpt").arg(ckpt);
    command.args(["--model-config", "model.json", "--device", "cpu"]).args(arguments);
    command
}

fn sample(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

/// The `sample` records of a call that must succeed.
fn samples(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = sample(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let records: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(records[0]["type"], "run");
    assert_eq!(records.last().unwrap()["type"], "summary");
    records.into_iter().filter(|r| r["type"] == "sample").collect()
}

#[test]
fn a_record_has_the_keys_of_the_contract() {
    let folder = prepare();
    let records = samples(folder.path(), &["--n", "3", "--steps", "5", "--top-p", "0.9"]);
    assert_eq!(records.len(), 3);
    for (i, record) in records.iter().enumerate() {
        assert_eq!(record["id"], i);
        assert_eq!(record["steps"], 5);
        assert_eq!(record["top_p"], 0.9);
        assert_eq!(record["temperature"], 1.0);
        assert_eq!(record["seed"], 0);
        assert!(record["text"].is_null(), "no tokenizer is known");
        assert!(record["draw"].is_string() && record["ckpt"].is_string());
        assert!(record["logprob_nats"].as_f64().unwrap() < 0.0);
        let mut order: Vec<u64> =
            record["order"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap()).collect();
        order.sort_unstable();
        assert_eq!(order, (0..16).collect::<Vec<_>>());
        assert!(record["tokens"].as_array().unwrap().iter().all(|t| t.as_u64().unwrap() < 64));
    }
}

#[test]
fn samples_depend_on_seed_and_index_alone_to_the_last_bit() {
    let folder = prepare();
    let drawn = |arguments: &[&str]| -> Vec<Value> {
        let all = [&["--schedule", "binomial", "--steps", "6"], arguments].concat();
        samples(folder.path(), &all)
    };
    let base = drawn(&["--n", "7", "--batch-size", "7", "--threads", "2"]);
    assert_eq!(base, drawn(&["--n", "7", "--batch-size", "1", "--threads", "1"]));
    assert_eq!(base, drawn(&["--n", "7", "--batch-size", "3", "--threads", "2"]));
    assert_eq!(base[..4], drawn(&["--n", "4", "--batch-size", "3"]));
    let tokens =
        |records: &[Value]| records.iter().map(|r| r["tokens"].clone()).collect::<Vec<_>>();
    assert_ne!(tokens(&base), tokens(&drawn(&["--n", "7", "--seed", "1"])));
}

#[test]
fn given_tokens_come_back_and_come_first_in_the_order() {
    let folder = prepare();
    let lines = "{\"tokens\":[5,null,null,7]}\n{\"tokens\":[1,2]}\n{\"tokens\":[null]}\n\
                 {\"tokens\":[9,{\"gap\":3},8],\"given\":[4,0]}\n";
    fs::write(folder.path().join("t.jsonl"), lines).unwrap();
    let records = samples(folder.path(), &["--infill", "t.jsonl", "--n", "2", "--steps", "3"]);
    assert_eq!(records.len(), 8);
    for record in &records[..2] {
        assert_eq!((&record["tokens"][0], &record["tokens"][3]), (&5.into(), &7.into()));
        assert_eq!((&record["order"][0], &record["order"][1]), (&0.into(), &3.into()));
        assert_eq!(record["steps"], 2);
    }
    assert_eq!(records[2]["tokens"], serde_json::json!([1, 2]), "nothing to fill in");
    assert_eq!((&records[2]["steps"], &records[2]["logprob_nats"]), (&0.into(), &0.0.into()));
    assert_eq!(records[4]["order"], serde_json::json!([0]));
    assert_eq!((&records[6]["order"][0], &records[6]["order"][1]), (&4.into(), &0.into()));
}

#[test]
fn prompts_begin_the_text_and_more_steps_than_positions_are_one_token_each() {
    let folder = prepare();
    let tokenizer = ao_core::tokens::Tokenizer::gpt2().unwrap();
    fs::write(folder.path().join("tokenizer.json"), tokenizer.json()).unwrap();
    let arguments =
        ["--tokenizer", "tokenizer.json", "--prompt", "!A!A", "--steps", "300", "--length", "9"];
    let output = sample(folder.path(), &arguments);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("--steps 300") && note.contains("the 5 free"), "{note}");
    let record = &samples(folder.path(), &arguments)[0];
    assert!(record["text"].as_str().unwrap().starts_with("!A!A"));
    assert_eq!(record["order"].as_array().unwrap().len(), 9);
    let given = tokenizer.encode("!A!A").unwrap().len();
    assert_eq!(record["steps"], 9 - given);
}

#[test]
fn likeliest_tokens_alone_are_the_same_by_temperature_and_by_top_k() {
    let folder = prepare();
    let tokens = |extra: &[&str]| samples(folder.path(), extra)[0]["tokens"].clone();
    assert_eq!(tokens(&["--temperature", "0"]), tokens(&["--top-k", "1"]));
    assert_eq!(tokens(&["--temperature", "0"]), tokens(&["--top-p", "1e-9"]));
    let banned = tokens(&["--ban", "3,5", "--n", "1", "--length", "16"]);
    assert!(banned.as_array().unwrap().iter().all(|t| *t != 3 && *t != 5));
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let folder = prepare();
    let mut child = command(folder.path(), &["--n", "100000", "--batch-size", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn wrong_arguments_and_hostile_templates_are_one_line_and_exit_2() {
    let folder = prepare();
    let templates = HashMap::from([
        ("empty", ""),
        ("words", "The ___ sat\n"),
        ("list", "[1,2]\n"),
        ("text", "{\"text\":\"The ___ sat\"}\n"), // no tokenizer is known
        ("large", "{\"tokens\":[64,null]}\n"),
        ("long", "{\"tokens\":[{\"gap\":17}]}\n"),
        ("huge", "{\"tokens\":[{\"gap\":18446744073709551615}]}\n"),
    ]);
    for (name, text) in &templates {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut calls: Vec<Vec<&str>> = templates.keys().map(|name| vec!["--infill", *name]).collect();
    calls.extend([
        vec!["--infill", "missing"],
        vec!["--prompt", "no tokenizer"],
        vec!["--steps", "0"],
        vec!["--temperature", "-1"],
        vec!["--temperature", "nan"],
        vec!["--top-p", "0"],
        vec!["--length", "17"],
        vec!["--length", "0"],
        vec!["--order", "sideways"],
        vec!["--batch-size", "0"],
        vec!["--n", "2", "--order", "fixed:@missing.npy"],
    ]);
    for call in calls {
        let output = sample(folder.path(), &call);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{call:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{call:?}: {text}");
        assert!(text.starts_with("ao-sample: "), "{text}");
    }
}
