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

fn tokens(record: &Value) -> Vec<u64> {
    record["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect()
}

fn all_tokens(folder: &Path, arguments: &[&str]) -> Vec<Vec<u64>> {
    samples(folder, arguments).iter().map(tokens).collect()
}

#[test]
fn every_filter_is_heard_through_the_binary() {
    let folder = prepare();
    let with = |more: &[&str]| all_tokens(folder.path(), &[&["--n", "6"], more].concat());
    let plain = with(&[]);
    // What is as likely as the likeliest is the likeliest.
    let likeliest = with(&["--temperature", "0"]);
    assert_eq!(with(&["--min-p", "1"]), likeliest);
    assert_ne!(plain, likeliest);
    // The published rule drops the token that crosses p, so 0.5 keeps less than the exact rule.
    let half = ["--top-p", "0.5", "--top-p-rule"];
    assert_ne!(
        with(&[&half[..], &["published"]].concat()),
        with(&[&half[..], &["smallest"]].concat())
    );
    // A heavy penalty leaves logits of repeats at 0 or far below: few come, of 64 ids in 16 places.
    let repeats = |texts: &[Vec<u64>]| {
        let distinct = |t: &Vec<u64>| t.iter().collect::<std::collections::HashSet<_>>().len();
        texts.iter().map(|t| t.len() - distinct(t)).sum::<usize>()
    };
    let penalized = with(&["--repetition-penalty", "1e9"]);
    assert!(4 * repeats(&penalized) < repeats(&plain), "{penalized:?}, {plain:?}");
    // Ids that were drawn do not come once they are banned.
    let mut drawn: Vec<u64> = plain.concat();
    drawn.sort_unstable();
    drawn.dedup();
    drawn.truncate(12);
    let banned: Vec<String> = drawn.iter().map(u64::to_string).collect();
    let left = with(&["--ban", &banned.join(",")]).concat();
    assert!(left.iter().all(|t| !drawn.contains(t)));
}

#[test]
fn every_schedule_ends_and_given_tokens_are_read_as_the_policy_says() {
    let folder = prepare();
    for schedule in ["linear", "cosine", "binomial", "binomial-cosine"] {
        let found = samples(folder.path(), &["--n", "2", "--steps", "5", "--schedule", schedule]);
        for record in &found {
            assert_eq!(tokens(record).len(), 16, "{schedule}");
            assert!((1..=5).contains(&record["steps"].as_u64().unwrap()), "{schedule}");
        }
    }
    let template = "{\"tokens\":[null,7,null,5,null,3,1,9],\"given\":[5,1,7,3,6]}\n";
    fs::write(folder.path().join("t.jsonl"), template).unwrap();
    let orders = |policy: &str| -> Vec<Vec<u64>> {
        let call = ["--infill", "t.jsonl", "--n", "8", "--prompt-order", policy];
        let first = |r: &Value| r["order"].as_array().unwrap()[..5].to_vec();
        let found = samples(folder.path(), &call);
        found.iter().map(|r| first(r).iter().map(|p| p.as_u64().unwrap()).collect()).collect()
    };
    assert!(orders("given").iter().all(|o| o == &[5, 1, 7, 3, 6]));
    assert!(orders("ascending").iter().all(|o| o == &[1, 3, 5, 6, 7]));
    let random = orders("random");
    assert!(random.iter().any(|o| o != &random[0]));
    for mut order in random {
        order.sort_unstable();
        assert_eq!(order, [1, 3, 5, 6, 7]);
    }
}

#[test]
fn a_text_template_is_filled_in_and_read_back_as_text() {
    let folder = prepare();
    let at = folder.path();
    let text = "the cat sat on the mat\nthe dog sat on the log\n".repeat(20);
    fs::write(at.join("text.txt"), text).unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_ao-tokenize"))
        .current_dir(at)
        .args(["--train-tokenizer", "280", "-o", "shards", "text.txt", "--quiet"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let config = ao_core::family::ModelConfig::from_json(&serde_json::json!({
        "arch": "ao-gpt", "block_size": 16, "vocab_size": 280, "n_layer": 1, "n_head": 2,
        "n_embd": 16
    }))
    .unwrap();
    common::scoring::write_model(&at.join("m.st"), &config, true);
    fs::write(at.join("t.jsonl"), "{\"text\":\"the ___ sat{\\\"gap\\\":2} log\"}\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ao-sample"))
        .current_dir(at)
        .args(["--ckpt", "m.st", "--tokenizer", "shards/tokenizer.json", "--infill", "t.jsonl"])
        .args(["--n", "3", "--quiet"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let records: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let filled: Vec<&Value> = records.iter().filter(|r| r["type"] == "sample").collect();
    assert_eq!(filled.len(), 3);
    for record in filled {
        let text = record["text"].as_str().unwrap();
        // The blank before a gap is the gap's own.
        assert!(text.starts_with("the") && text.ends_with(" log"), "{text}");
        assert!(text.contains(" sat"), "{text}");
    }
}

#[test]
fn a_model_that_is_computed_in_batches_draws_the_same_whatever_the_batch() {
    let folder = prepare();
    let at = folder.path();
    // Too large to be computed sample by sample.
    let config = ao_core::family::ModelConfig::from_json(&serde_json::json!({
        "arch": "ao-gpt", "block_size": 64, "vocab_size": 512, "n_layer": 3, "n_head": 4,
        "n_embd": 96
    }))
    .unwrap();
    assert!(config.parameter_count() * 2 * 64 > 1 << 25);
    common::scoring::write_model(&at.join("m.st"), &config, true);
    let templates =
        "{\"tokens\":[1,null,2,{\"gap\":9}]}\n{\"tokens\":[{\"gap\":40},3]}\n{\"tokens\":[null]}\n";
    fs::write(at.join("t.jsonl"), templates).unwrap();
    let drawn = |batch: &str, threads: &str| -> Vec<Vec<u64>> {
        let output = Command::new(env!("CARGO_BIN_EXE_ao-sample"))
            .current_dir(at)
            .args(["--ckpt", "m.st", "--infill", "t.jsonl", "--n", "3", "--quiet"])
            .args(["--batch-size", batch, "--threads", threads])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let records = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
        records.filter(|r| r["type"] == "sample").map(|r| tokens(&r)).collect()
    };
    let base = drawn("1", "1");
    assert_eq!(base.iter().map(Vec::len).collect::<Vec<_>>(), [12, 12, 12, 41, 41, 41, 1, 1, 1]);
    assert_eq!(base, drawn("4", "1"));
    assert_eq!(base, drawn("9", "2"));
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

#[test]
fn a_signal_keeps_the_samples_that_are_drawn_and_the_file_says_that_it_is_incomplete() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let folder = prepare();
        let at = folder.path();
        let to_file = ["--n", "1000000", "--batch-size", "4", "-o", "s.jsonl"];
        let mut command = command(at, &to_file);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        // The file has another name until it is finished.
        let begun = || {
            let entries = fs::read_dir(at).unwrap().map(|e| e.unwrap());
            let own = |e: &fs::DirEntry| e.file_name().to_string_lossy().contains("s.jsonl");
            let text = entries.filter(own).find_map(|e| fs::read_to_string(e.path()).ok());
            text.is_some_and(|text| text.lines().count() > 20)
        };
        let started = std::time::Instant::now();
        while !begun() {
            assert!(started.elapsed().as_secs() < 60, "no sample was drawn");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let out = child.wait_with_output().unwrap();
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{error}");

        let text = fs::read_to_string(at.join("s.jsonl")).unwrap();
        assert!(text.ends_with('\n'));
        let mut kept: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let summary = kept.pop().unwrap();
        assert_eq!(kept.remove(0)["type"], "run");
        let count = kept.len();
        assert_eq!((&summary["type"], &summary["complete"]), (&"summary".into(), &false.into()));
        assert_eq!((&summary["samples"], count % 4), (&count.into(), 0), "whole batches are kept");
        assert!(error.contains(&format!("{count} of 1000000 samples are kept")), "{error}");

        // They are those that a whole run draws, which may take the same name.
        let some = ["--n", "20", "-o", "s.jsonl"];
        let refused = sample(at, &some);
        assert_eq!(refused.status.code(), Some(2), "samples are not overwritten unasked");
        let again = sample(at, &[&some[..], &["--force"]].concat());
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
        let text = fs::read_to_string(at.join("s.jsonl")).unwrap();
        let whole: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(whole.last().unwrap()["complete"], true);
        assert_eq!(whole[1..21], kept[..20]);
        let left = fs::read_dir(at).unwrap().count();
        assert_eq!(left, 2, "model.json and s.jsonl");
    }
}
