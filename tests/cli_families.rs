//! Every causal family through the real binaries: trained, scored and sampled by the same verbs.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::{CheckpointFile, Metadata};
use ao_torch::tch::Kind;
use common::scoring::{numbers, records, score, write_orders, write_shards};
use common::{floats, golden, golden_config, integers, max_difference, noisy_weights};
use serde_json::{Value, json};

fn sample(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ao-sample"))
        .current_dir(folder)
        .arg("--quiet")
        .args(arguments)
        .output()
        .expect("ao-sample runs")
}

/// The one line of a program that must have refused.
fn refusal(out: &Output) -> String {
    assert_eq!(out.status.code(), Some(2));
    assert!(out.stdout.is_empty());
    let text = String::from_utf8_lossy(&out.stderr).trim_end().to_owned();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn of_type<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    records.iter().filter(|r| r["type"] == name).collect()
}

/// A model of random weights, as `m.st`.
fn write_model(folder: &Path, config: &Value) -> ModelConfig {
    let config = ModelConfig::from_json(config).unwrap();
    let metadata = Metadata { config: config.to_json(), ..Metadata::default() };
    let weights = noisy_weights(&config, Kind::Float);
    weights.write(&folder.join("m.st"), &metadata.to_map(), true).unwrap();
    config
}

fn tiny(arch: &str) -> Value {
    let mut config = json!({
        "arch": arch, "block_size": 8, "vocab_size": 9, "n_layer": 2, "n_head": 2, "n_embd": 16
    });
    if arch == "gpt2" {
        config["activation"] = "gelu_tanh".into();
    }
    config
}

#[test]
fn a_hugging_face_folder_of_gpt2_is_scored_as_its_own_class_does() {
    let dir = tempfile::tempdir().unwrap();
    let folder = golden("gpt2-hf");
    let cases = CheckpointFile::open(&folder.join("cases.safetensors")).unwrap();
    let (shape, tokens) = integers(&cases, "tokens");
    let rows: Vec<Vec<u32>> = tokens.chunks(shape[1]).map(<[u32]>::to_vec).collect();
    write_shards(dir.path(), 80, &rows);
    let arguments = ["--ckpt", folder.to_str().unwrap(), "--shards", "data", "--per-token"];
    let found = records(&score(dir.path(), &arguments));
    let sequences = of_type(&found, "sequence");
    let nll: Vec<f64> = sequences.iter().flat_map(|r| numbers(&r["token_nll_nats"])).collect();
    assert!(max_difference(&nll, &floats(&cases, "nll").1) <= 2e-5);
    for (record, theirs) in sequences.iter().zip(floats(&cases, "perplexity").1) {
        assert!((record["perplexity"].as_f64().unwrap() / theirs - 1.0).abs() <= 2e-5);
    }
    let expected: Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let pooled = of_type(&found, "summary")[0]["perplexity"].as_f64().unwrap();
    assert!((pooled / expected["ppl_of_mean"].as_f64().unwrap() - 1.0).abs() <= 2e-5);
}

#[test]
fn a_published_pt_file_is_scored_without_an_import_first() {
    let dir = tempfile::tempdir().unwrap();
    let cases = CheckpointFile::open(&golden("ao-gpt").join("cases.safetensors")).unwrap();
    let (shape, tokens) = integers(&cases, "tokens");
    let orders = integers(&cases, "orders").1;
    let rows = |v: &[u32]| v.chunks(shape[1]).map(<[u32]>::to_vec).collect::<Vec<_>>();
    write_shards(dir.path(), golden_config("ao-gpt").0.vocab_size(), &rows(&tokens));
    write_orders(dir.path(), &rows(&orders));
    let file = golden("ao-gpt").join("ckpt.pt");
    let with = |weights: &str| {
        let arguments =
            ["--ckpt", file.to_str().unwrap(), "--weights", weights, "--shards", "data"];
        let more = ["--orders", "orders.jsonl", "--per-token"];
        let found = records(&score(dir.path(), &[&arguments[..], &more[..]].concat()));
        of_type(&found, "sequence")
            .iter()
            .flat_map(|r| numbers(&r["token_nll_nats"]))
            .collect::<Vec<f64>>()
    };
    let nll = floats(&cases, "nll").1;
    assert!(max_difference(&with("ema"), &nll) <= 2e-5);
    assert!(max_difference(&with("raw"), &nll) > 1e-3, "raw weights are others");
}

#[test]
fn a_model_that_is_nowhere_is_refused_with_where_it_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    write_shards(dir.path(), 9, &[vec![1, 2, 3, 4]]);
    let said = refusal(&score(dir.path(), &["--ckpt", "hf:nobody/nothing", "--shards", "data"]));
    assert!(said.contains("nobody/nothing") && said.contains("models--nobody--nothing"), "{said}");
    let said = refusal(&score(dir.path(), &["--ckpt", "missing.st", "--shards", "data"]));
    assert!(said.contains("missing.st"), "{said}");
}

#[test]
fn a_model_that_is_given_its_first_token_scores_the_others_and_says_so() {
    for (arch, orders) in [("gpt2", None), ("sigma-official", Some("uniform"))] {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), &tiny(arch));
        // The last sequence has nothing but the token that is given.
        write_shards(dir.path(), 9, &[vec![1, 2, 3, 4, 5, 6, 7, 8], vec![3, 1, 2], vec![5]]);
        let mut arguments = vec!["--ckpt", "m.st", "--shards", "data", "--per-token"];
        arguments.extend(orders.iter().flat_map(|o| ["--orders", o]));
        let found = records(&score(dir.path(), &arguments));
        let counts: Vec<u64> = of_type(&found, "sequence")
            .iter()
            .map(|r| r["token_count"].as_u64().unwrap())
            .collect();
        assert_eq!(counts, [7, 2], "{arch}");
        for record in of_type(&found, "sequence") {
            let sum: f64 = numbers(&record["token_nll_nats"]).iter().sum();
            assert!((sum - record["nll_nats"].as_f64().unwrap()).abs() < 1e-12);
        }
        let summary = of_type(&found, "summary")[0];
        assert_eq!(
            (&summary["given_tokens"], &summary["sequences_left_out"]),
            (&json!(1), &json!(1))
        );
        assert_eq!(summary["token_count"], 9);
        let estimate = if arch == "gpt2" { "exact" } else { "bound" };
        assert_eq!(summary["estimate"], estimate);
        assert!(summary["nll_nats_per_token"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn what_is_sampled_is_scored_alike_in_every_family() {
    for arch in ["ao-gpt", "sigma-gpt", "sigma-official", "gpt2"] {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), &tiny(arch));
        std::fs::write(dir.path().join("t.jsonl"), "{\"tokens\":[4,{\"gap\":7}]}\n").unwrap();
        let found = records(&sample(
            dir.path(),
            &["--ckpt", "m.st", "--infill", "t.jsonl", "--n", "12", "--seed", "3"],
        ));
        let samples = of_type(&found, "sample");
        let list = |key: &str| -> Vec<Vec<u32>> {
            samples.iter().map(|s| serde_json::from_value(s[key].clone()).unwrap()).collect()
        };
        let (tokens, orders) = (list("tokens"), list("order"));
        assert!(tokens.iter().all(|t| t[0] == 4) && orders.iter().all(|o| o[0] == 0));
        write_shards(dir.path(), 9, &tokens);
        write_orders(dir.path(), &orders);
        let mut arguments = vec!["--ckpt", "m.st", "--shards", "data", "--per-token"];
        if arch != "gpt2" {
            arguments.extend(["--orders", "orders.jsonl"]);
        }
        let scored = records(&score(dir.path(), &arguments));
        for (sample, record) in samples.iter().zip(of_type(&scored, "sequence")) {
            let nll = numbers(&record["token_nll_nats"]);
            // The first token was given, whether or not the family would have predicted it.
            let given = nll.len() - 7;
            let sum: f64 = nll[given..].iter().sum();
            let said = -sample["logprob_nats"].as_f64().unwrap();
            assert!((sum - said).abs() < 1e-4, "{arch}: {sum} and {said}");
        }
    }
}

#[test]
fn a_model_of_zeros_scores_exactly_ln_v_in_every_family() {
    for arch in ["sigma-gpt", "sigma-official", "gpt2", "radd", "mdlm", "sedd"] {
        let dir = tempfile::tempdir().unwrap();
        let config = ModelConfig::from_json(&tiny(arch)).unwrap();
        common::scoring::write_model(&dir.path().join("m.st"), &config, false);
        write_shards(dir.path(), 9, &[vec![1, 2, 3, 4, 5, 6, 7, 8], vec![3, 1, 2]]);
        let calls: &[&[&str]] = match arch {
            "gpt2" => &[&[], &["--cloze", "spans:1x2"]],
            "radd" | "mdlm" => &[&["--mc", "2"], &["--elbo", "k"], &["--orders", "uniform"]],
            // The score entropy is no NLL: zeros are no scores that normalise.
            "sedd" => &[&["--orders", "uniform"]],
            _ => &[&["--mc", "2"], &["--orders", "l2r"], &["--ensemble", "2"]],
        };
        for call in calls {
            let all = [&["--ckpt", "m.st", "--shards", "data"], *call].concat();
            let found = records(&score(dir.path(), &all));
            let mean = found.last().unwrap()["nll_nats_per_token"].as_f64().unwrap();
            assert!((mean - 9f64.ln()).abs() < 1e-13, "{arch} {call:?}: {mean}");
        }
    }
}

#[test]
fn a_name_in_the_hubs_cache_is_scored_sampled_and_judges() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("hub/models--openai-community--gpt2-tiny");
    let snapshot = model.join("snapshots/0123456789abcdef0123456789abcdef01234567");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(model.join("refs")).unwrap();
    std::fs::write(model.join("refs/main"), "0123456789abcdef0123456789abcdef01234567").unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("gpt2-hf").join(file), snapshot.join(file)).unwrap();
    }
    write_shards(dir.path(), 80, &[vec![1, 2, 3, 4]]);
    let run = |program: &str, arguments: &[&str]| {
        let out = Command::new(program)
            .current_dir(dir.path())
            .arg("--quiet")
            .args(arguments)
            .env_remove("HF_HUB_CACHE")
            .env_remove("HUGGINGFACE_HUB_CACHE")
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", dir.path())
            .output()
            .unwrap();
        records(&out)
    };
    let (score, sample) = (env!("CARGO_BIN_EXE_ao-score"), env!("CARGO_BIN_EXE_ao-sample"));
    let by_name = run(score, &["--ckpt", "hf:openai-community/gpt2-tiny", "--shards", "data"]);
    let folder = golden("gpt2-hf");
    let by_path = run(score, &["--ckpt", folder.to_str().unwrap(), "--shards", "data"]);
    let nll = |found: &[Value]| found.last().unwrap()["nll_nats_per_token"].clone();
    assert_eq!(nll(&by_name), nll(&by_path));
    std::fs::write(dir.path().join("t.jsonl"), "{\"tokens\":[4,{\"gap\":5}]}\n").unwrap();
    let drawn = run(sample, &["--ckpt", "gpt2-tiny", "--infill", "t.jsonl", "--n", "3"]);
    let lines: String = drawn.iter().map(|r| format!("{r}\n")).collect();
    std::fs::write(dir.path().join("samples.jsonl"), lines).unwrap();
    let judged = run(score, &["--ref", "gpt2-tiny", "samples.jsonl"]);
    let summary = judged.last().unwrap();
    assert_eq!(summary["sequences"], 3);
    // What the sampler says of its own samples is what the same model says as their judge.
    let said: f64 =
        of_type(&drawn, "sample").iter().map(|s| -s["logprob_nats"].as_f64().unwrap()).sum();
    let pooled = summary["nll_nats_per_token"].as_f64().unwrap() * 15.0;
    assert!((pooled - said).abs() < 1e-3, "{pooled} and {said}");
}

#[test]
fn what_a_left_to_right_model_cannot_do_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), &tiny("gpt2"));
    write_shards(dir.path(), 9, &[vec![1, 2, 3, 4]]);
    let orders = score(dir.path(), &["--ckpt", "m.st", "--shards", "data", "--orders", "uniform"]);
    assert!(refusal(&orders).contains("left to right"));
    std::fs::write(dir.path().join("t.jsonl"), "{\"tokens\":[4,null,2]}\n").unwrap();
    let infill = sample(dir.path(), &["--ckpt", "m.st", "--infill", "t.jsonl"]);
    assert!(refusal(&infill).contains("left to right"));
    // No tokenizer, so no end token to begin with.
    assert!(refusal(&sample(dir.path(), &["--ckpt", "m.st"])).contains("--prompt"));
}
