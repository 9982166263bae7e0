//! `ao-score --ref`: samples judged by a model, in a pipe and from files, under both protocols.

mod common;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ao_core::format::checkpoint::CheckpointFile;
use ao_core::tokens::Tokenizer;
use common::scoring::{numbers, records, score, tiny, write_model, write_shards};
use common::{floats, golden, integers};
use serde_json::{Value, json};

/// Runs `ao-score --ref` on what is written to its stdin.
fn judge(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ao-score"))
        .current_dir(folder)
        .args(["--quiet", "--device", "cpu", "--ref", "m.st"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let out = child.wait_with_output().unwrap();
    let _ = writer.join();
    out
}

fn lines(objects: &[Value]) -> String {
    objects.iter().map(|o| format!("{o}\n")).collect()
}

fn of_type<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|r| r["type"] == kind).collect()
}

fn number(record: &Value, key: &str) -> f64 {
    record[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {record}"))
}

#[test]
fn samples_are_scored_as_shards_of_them_are_from_left_to_right() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    write_model(&folder.join("m.st"), &tiny(8, 50), true);
    // Of every length; two are longer than the block and go through it in parts.
    let texts: Vec<Vec<u32>> =
        (2..=17).map(|n| (0..n).map(|i| (i * 7 + n) % 50).collect()).collect();
    let samples: Vec<Value> = texts.iter().map(|t| json!({"tokens": t})).collect();
    let found = records(&judge(folder, &[], &lines(&samples)));
    write_shards(folder, 50, &texts);
    let shards = ["--ckpt", "m.st", "--shards", "data", "--orders", "l2r"];
    let blocks = records(&score(folder, &shards));
    let of_blocks: Vec<f64> =
        of_type(&blocks, "sequence").iter().map(|r| number(r, "nll_nats")).collect();
    let mut at = 0;
    let judged = of_type(&found, "sequence");
    assert_eq!(judged.len(), texts.len());
    for (record, text) in judged.iter().zip(&texts) {
        let parts = text.len().div_ceil(8);
        let sum: f64 = of_blocks[at..at + parts].iter().sum();
        at += parts;
        assert!((number(record, "nll_nats") - sum).abs() < 1e-9, "{record}");
        assert_eq!(record["token_count"], text.len());
        let perplexity = (sum / text.len() as f64).exp();
        assert!((number(record, "perplexity") / perplexity - 1.0).abs() < 1e-9);
    }
    let summary = found.last().unwrap();
    let perplexities: Vec<f64> = judged.iter().map(|r| number(r, "perplexity")).collect();
    let mean = perplexities.iter().sum::<f64>() / perplexities.len() as f64;
    assert!((number(summary, "perplexity_mean") - mean).abs() < 1e-9 * mean);
    assert_eq!(summary["perplexity"], summary["perplexity_mean"]);
    let pooled = number(blocks.last().unwrap(), "perplexity");
    assert!((number(summary, "perplexity_pooled") / pooled - 1.0).abs() < 1e-9);
    assert_eq!((&summary["protocol"], &summary["estimate"]), (&json!("sedd"), &json!("exact")));
    // The batch does not show, and the last, smaller one is not lost.
    let again = records(&judge(folder, &["--batch-size", "3"], &lines(&samples)));
    assert_eq!(of_type(&again, "sequence"), judged);
}

#[test]
fn what_a_reference_cannot_judge_is_counted_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    write_model(&folder.join("m.st"), &tiny(8, 50), true);
    let samples = [
        json!({"type": "run", "tool": "other"}),
        json!({"id": "a", "tokens": [1, 2, 1, 2, 1, 2]}),
        json!({"id": "b", "tokens": []}),
        json!({"id": "c", "tokens": [4]}),
        json!({"id": "d", "tokens": [4, 50, 3]}),
        json!({"type": "sample", "id": "e", "tokens": [7, 7, 7, 7]}),
        json!({"type": "summary", "samples": 5}),
    ];
    std::fs::write(folder.join("s.jsonl"), lines(&samples)).unwrap();
    let found = records(&score(folder, &["--ref", "m.st", "s.jsonl"]));
    let excluded: Vec<(&Value, &Value)> =
        of_type(&found, "excluded").iter().map(|r| (&r["id"], &r["reason"])).collect();
    let expected = [
        (json!("b"), json!("empty")),
        (json!("c"), json!("one_token")),
        (json!("d"), json!("id_beyond_vocabulary")),
    ];
    assert_eq!(excluded, expected.iter().map(|(a, b)| (a, b)).collect::<Vec<_>>());
    let summary = found.last().unwrap();
    assert_eq!((&summary["samples"], &summary["sequences"]), (&json!(5), &json!(2)));
    assert_eq!(summary["excluded"], json!({"empty": 1, "id_beyond_vocabulary": 1, "one_token": 1}));
    // Figures that tell cheap perplexity: entropies ln 2 and 0, three distinct of ten tokens.
    let entropy = 2f64.ln() / 2.0;
    assert!((number(summary, "unigram_entropy_nats") - entropy).abs() < 1e-12);
    assert!((number(summary, "distinct_1") - 0.3).abs() < 1e-12);
    assert!((number(summary, "distinct_2") - 3.0 / 8.0).abs() < 1e-12);
    assert!((number(summary, "distinct_3") - 3.0 / 6.0).abs() < 1e-12);
    // Runs of four: 1212, 2121, 1212 and 7777.
    assert!((number(summary, "repetition") - (1.0 / 3.0 + 0.0) / 2.0).abs() < 1e-12);

    for (input, words) in [
        ("", "no sample that can be scored (0 read)"),
        ("{\"tokens\":[]}\n", "no sample that can be scored (1 read)"),
        ("{\"tokens\":[1,2]}\n{\"x\":1}\n", "stdin, line 2: has neither 'text' nor 'tokens'"),
        ("{\"tokens\":[1,-2]}\n", "stdin, line 1: 'tokens' is no list of ids"),
        ("{\"text\":\"a b\"}\n", "give --tokenizer"),
        ("[1,2]\n", "stdin, line 1: not a JSON object"),
    ] {
        let out = judge(folder, &[], input);
        let error = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{error}");
        assert!(error.lines().count() == 1 && error.contains(words), "{error}");
    }
    let out = judge(folder, &["--protocol", "mdlm"], "{\"tokens\":[1,2]}\n");
    assert!(String::from_utf8_lossy(&out.stderr).contains("no tokenizer.json lies beside it"));
}

/// A byte-level vocabulary and a model of its size.
fn with_tokenizer(folder: &Path) -> Tokenizer {
    let texts = ["the cat sat on the mat", "the dog sat on the cat"].map(String::from);
    let tokenizer = Tokenizer::train(texts.into_iter().cycle().take(50), 280).unwrap();
    tokenizer.save(&folder.join("tokenizer.json")).unwrap();
    write_model(&folder.join("m.st"), &tiny(16, tokenizer.vocab_size()), true);
    tokenizer
}

#[test]
fn mdlm_scores_every_document_and_counts_only_the_first_end_of_a_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = with_tokenizer(dir.path());
    let eos = tokenizer.eos_id().unwrap();
    let id = |text: &str| {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(ids.len(), 1);
        ids[0]
    };
    let [a, b, c, d, f] = ["a", "b", "c", "d", "f"].map(id);
    let mdlm = |object: Value| {
        let out = judge(dir.path(), &["--protocol", "mdlm"], &lines(&[object]));
        records(&out).pop().unwrap()
    };
    let whole = vec![a, b, eos, c, d, eos, f];
    let text = tokenizer.decode_lossy(&whole);
    // Each token's own NLL, by the scorer of shards.
    write_shards(dir.path(), tokenizer.vocab_size(), std::slice::from_ref(&whole));
    let shards = ["--ckpt", "m.st", "--shards", "data", "--orders", "l2r", "--per-token"];
    let nll =
        numbers(&of_type(&records(&score(dir.path(), &shards)), "sequence")[0]["token_nll_nats"]);
    let expected: f64 = [1, 2, 3, 4, 6].iter().map(|&i: &usize| nll[i]).sum::<f64>() / 5.0;
    for object in [
        json!({"tokens": whole}),
        json!({"text": text}),
        json!({"tokens": [0, 1, 2, 3, 4, 5, 6], "text": text}),
    ] {
        let found = mdlm(object);
        assert_eq!((&found["token_count"], &found["protocol"]), (&json!(5), &json!("mdlm")));
        assert!((number(&found, "nll_nats_per_token") - expected).abs() < 1e-9, "{found}");
        assert_eq!(found["perplexity"], found["perplexity_pooled"]);
    }
    // The sampler's length cuts what is longer than it when tokenized again.
    assert_eq!(mdlm(json!({"tokens": [0, 1, 2, 3], "text": text}))["token_count"], 3);
    // Behind the reference's context of 16 a chunk begins anew, whose first token is given; it has
    // a first end of its own.
    let long = [vec![a; 14], vec![eos, b], vec![c, eos, eos, d]].concat();
    assert_eq!(mdlm(json!({"tokens": long}))["token_count"], 15 + 2);
    // Ends alone are nothing to score.
    let out = judge(
        dir.path(),
        &["--protocol", "mdlm"],
        &lines(&[json!({"tokens": [eos, eos, eos]}), json!({"tokens": whole})]),
    );
    assert_eq!(records(&out).pop().unwrap()["excluded"], json!({"nothing_counts": 1}));
}

#[test]
fn mdlm_first_stops_behind_the_first_end() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = with_tokenizer(dir.path());
    let eos = tokenizer.eos_id().unwrap();
    let ids = |text: &str| tokenizer.encode(text).unwrap();
    let whole = [ids("the cat"), vec![eos], ids("noise xyz"), vec![eos]].concat();
    let cut = [ids("the cat"), vec![eos]].concat();
    let text = tokenizer.decode_lossy(&whole);
    let first = |object: Value| {
        let out = judge(dir.path(), &["--protocol", "mdlm-first"], &lines(&[object]));
        records(&out).pop().unwrap()
    };
    // From tokens, from text, from both; and the cut text alone under the other protocol.
    let expected =
        records(&judge(dir.path(), &[], &lines(&[json!({"tokens": cut})]))).pop().unwrap();
    for object in [
        json!({"tokens": whole}),
        json!({"text": text}),
        json!({"tokens": [0, 1], "text": text}),
        json!({"text": tokenizer.decode_lossy(&cut)}),
    ] {
        let found = first(object);
        assert_eq!(found["token_count"], cut.len());
        assert_eq!(found["nll_nats_per_token"], expected["nll_nats_per_token"]);
        assert_eq!(found["perplexity"], found["perplexity_pooled"]);
    }
    // The sampler's own tokens count under sedd, and must be of this vocabulary.
    let sedd = json!({"tokens": whole, "text": text});
    let found = records(&judge(dir.path(), &[], &lines(&[sedd]))).pop().unwrap();
    assert_eq!(found["token_count"], whole.len());
    let out = judge(dir.path(), &[], &lines(&[json!({"tokens": [1, 2, 3], "text": "the cat"})]));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.code() == Some(2) && error.contains("line 1: its tokens are not"),
        "{error}"
    );
}

#[test]
fn ao_sample_pipes_into_ao_score() {
    let dir = tempfile::tempdir().unwrap();
    with_tokenizer(dir.path());
    let drawn = Command::new(env!("CARGO_BIN_EXE_ao-sample"))
        .current_dir(dir.path())
        .args(["--ckpt", "m.st", "--n", "11", "--order", "l2r", "--seed", "4"])
        .args(["--quiet", "--device", "cpu"])
        .output()
        .unwrap();
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let samples = String::from_utf8(drawn.stdout).unwrap();
    let found = records(&judge(dir.path(), &["-"], &samples));
    let judged = of_type(&found, "sequence");
    assert_eq!(judged.len(), 11);
    // The reference is the sampler itself along its own order: both say the same of each sample.
    let said: Vec<f64> = samples
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap())
        .filter(|r| r["type"] == "sample")
        .map(|r| -number(&r, "logprob_nats"))
        .collect();
    for (record, said) in judged.iter().zip(said) {
        assert!((number(record, "nll_nats") - said).abs() < 16.0 * 2e-5, "{record} {said}");
    }
    assert_eq!(found[0]["orders"], json!({"spec": "l2r"}));
    let pooled = records(&judge(dir.path(), &["--protocol", "mdlm"], &samples));
    assert_eq!(pooled.last().unwrap()["samples"], 11);
    assert!(numbers(&json!([pooled.last().unwrap()["perplexity"]]))[0] > 1.0);
}

#[test]
fn gpt2_from_a_hugging_face_folder_judges_as_transformers_does() {
    let dir = tempfile::tempdir().unwrap();
    let folder = golden("gpt2-hf");
    let cases = CheckpointFile::open(&folder.join("cases.safetensors")).unwrap();
    let (shape, tokens) = integers(&cases, "tokens");
    let samples: Vec<Value> = tokens.chunks(shape[1]).map(|t| json!({"tokens": t})).collect();
    let found = records(&judge(dir.path(), &["--ref", folder.to_str().unwrap()], &lines(&samples)));
    let (_, expected) = floats(&cases, "perplexity");
    let judged = of_type(&found, "sequence");
    assert_eq!(judged.len(), expected.len());
    for (record, expected) in judged.iter().zip(&expected) {
        assert_eq!(record["token_count"], shape[1] - 1);
        assert!(
            (number(record, "perplexity") / expected - 1.0).abs() < 2e-5,
            "{record} {expected}"
        );
    }
    let text = std::fs::read(folder.join("expected.json")).unwrap();
    let figures: Value = serde_json::from_slice(&text).unwrap();
    let summary = found.last().unwrap();
    let close = |ours: &str, published: f64| {
        assert!((number(summary, ours) / published - 1.0).abs() < 2e-5, "{ours}: {summary}");
    };
    close("perplexity_mean", number(&figures, "mean_of_ppl"));
    close("perplexity_pooled", number(&figures, "ppl_of_mean"));
    assert_eq!(summary["given_tokens"], 1);
}

#[test]
fn samples_of_a_stopped_program_are_judged_and_said_to_be_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    write_model(&dir.path().join("m.st"), &tiny(8, 50), true);
    let samples = [json!({"tokens": [1, 2, 3]}), json!({"tokens": [4, 5, 6, 7]})];
    let last = |complete: bool| json!({"type": "summary", "samples": 2, "complete": complete});
    let judged = |complete: bool| {
        let text = lines(&samples) + &lines(&[last(complete)]);
        std::fs::write(dir.path().join("s.jsonl"), text).unwrap();
        let out = Command::new(env!("CARGO_BIN_EXE_ao-score"))
            .current_dir(dir.path())
            .args(["--device", "cpu", "--ref", "m.st", "s.jsonl"])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        (records(&out).pop().unwrap(), error)
    };
    let (summary, error) = judged(false);
    assert_eq!((&summary["complete"], &summary["samples"]), (&false.into(), &2.into()));
    assert!(error.contains("warning: s.jsonl is not complete"), "{error}");
    let (whole, error) = judged(true);
    assert!(whole.get("complete").is_none() && !error.contains("warning"), "{error}");
    assert_eq!(whole["perplexity"], summary["perplexity"]);
}
