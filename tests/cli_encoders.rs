//! Encoders (RADD, MDLM, SEDD) through `ao-score` and `ao-sample`.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use ao_core::format::checkpoint::CheckpointFile;
use common::{floats, golden, golden_config, integers, max_difference};
use serde_json::{Value, json};

/// A folder with a golden encoder's config, its texts as shards, and its orders.
struct Case {
    folder: tempfile::TempDir,
    arch: &'static str,
    cases: CheckpointFile,
    vocab_size: usize,
    /// Texts of 16 tokens.
    texts: Vec<Vec<u32>>,
}

impl Case {
    fn new(arch: &'static str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let (config, _) = golden_config(arch);
        std::fs::write(folder.path().join("model.json"), config.to_json().to_string()).unwrap();
        let cases = CheckpointFile::open(&golden(arch).join("cases.safetensors")).unwrap();
        let texts: Vec<Vec<u32>> =
            integers(&cases, "tokens").1.chunks(16).map(<[u32]>::to_vec).collect();
        let vocab_size = config.vocab_size();
        let case = Case { folder, arch, cases, vocab_size, texts };
        case.shards("data", &case.texts);
        case
    }

    fn shards(&self, name: &str, texts: &[Vec<u32>]) {
        let lines: String = texts.iter().map(|d| format!("{}\n", json!(d))).collect();
        self.write("ids.jsonl", &lines);
        let out = Command::new(env!("CARGO_BIN_EXE_ao-tokenize"))
            .current_dir(self.folder.path())
            .args([
                "--ids",
                "--vocab-size",
                &self.vocab_size.to_string(),
                "--eos",
                "none",
                "--pack",
                "document",
            ])
            .args(["-o", name, "ids.jsonl", "--quiet"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn run(&self, binary: &str, arguments: &[&str]) -> Output {
        let ckpt = golden(self.arch).join("model.safetensors");
        Command::new(Path::new(binary))
            .current_dir(self.folder.path())
            .args(["--quiet", "--device", "cpu", "--model-config", "model.json", "--ckpt"])
            .arg(ckpt)
            .args(arguments)
            .output()
            .unwrap()
    }

    fn score(&self, arguments: &[&str]) -> Vec<Value> {
        let all = [&["--shards", "data"], arguments].concat();
        records(&self.run(env!("CARGO_BIN_EXE_ao-score"), &all))
    }

    fn sample(&self, arguments: &[&str]) -> Vec<Value> {
        records(&self.run(env!("CARGO_BIN_EXE_ao-sample"), arguments))
    }

    /// Calls that must be refused in one line.
    fn refuses(&self, binary: &str, arguments: &[&str], words: &str) {
        let out = self.run(binary, arguments);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

fn records(out: &Output) -> Vec<Value> {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = std::str::from_utf8(&out.stdout).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn of_type<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|r| r["type"] == kind).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn chain_nll_is_that_of_the_published_code() {
    for arch in ["radd", "mdlm"] {
        let case = Case::new(arch);
        let orders: Vec<Vec<u32>> =
            integers(&case.cases, "orders").1.chunks(16).map(<[u32]>::to_vec).collect();
        let lines: String = orders.iter().map(|o| format!("{}\n", json!(o))).collect();
        case.write("orders.jsonl", &lines);
        let found = case.score(&["--orders", "orders.jsonl", "--per-token"]);
        let nll: Vec<f64> = of_type(&found, "sequence")
            .iter()
            .flat_map(|r| numbers(&r["token_nll_nats"]))
            .collect();
        let difference = max_difference(&nll, &floats(&case.cases, "order_nll").1);
        assert!(difference <= 2e-5, "{arch}: {difference}");
        let summary = found.last().unwrap();
        assert_eq!((&summary["estimate"], &summary["token_count"]), (&"bound".into(), &64.into()));
        assert_eq!(summary["rows_forwarded"], 4 * 16 * 16);
        let one = case.score(&["--orders", "l2r", "--max-sequences", "2"]);
        assert_eq!(one.last().unwrap()["estimate"], "exact");
        assert!(one.last().unwrap().get("bound").is_none(), "no bound's name on a chain");
    }
}

#[test]
fn without_orders_the_score_is_the_familys_bound_by_name() {
    for (arch, form) in [("radd", "k-dce"), ("mdlm", "k-dce"), ("sedd", "score-entropy")] {
        let case = Case::new(arch);
        let base = case.score(&["--mc", "5"]);
        let summary = base.last().unwrap();
        assert_eq!(summary["estimate"], "bound");
        assert_eq!(summary["bound"], form);
        assert!(summary["std_error_orders"].as_f64().unwrap() > 0.0);
        let sequence = of_type(&base, "sequence")[1];
        let draws = numbers(&sequence["nll_nats_orders"]);
        assert_eq!(draws.len(), 5);
        let mean = draws.iter().sum::<f64>() / 5.0;
        assert!((sequence["nll_nats"].as_f64().unwrap() - mean).abs() < 1e-9);
        // Neither batches nor threads nor neighbours change a bit, nor do parts.
        let same = |arguments: &[&str]| {
            let all = [&["--mc", "5"], arguments].concat();
            of_type(&case.score(&all), "sequence").into_iter().cloned().collect::<Vec<_>>()
        };
        let sequences: Vec<Value> = of_type(&base, "sequence").into_iter().cloned().collect();
        assert_eq!(sequences, same(&["--batch-size", "1", "--threads", "1"]));
        assert_eq!(sequences, same(&["--batch-size", "7", "--threads", "2"]));
        assert_eq!(sequences[2..], same(&["--skip", "2", "--batch-size", "3"]));
        assert_ne!(sequences, same(&["--seed", "1"]));
        for form in ["t", "lambda", "k"] {
            let found = case.score(&["--elbo", form, "--mc", "2", "--max-sequences", "2"]);
            assert_eq!(found.last().unwrap()["bound"], format!("{form}-dce"));
        }
    }
}

#[test]
fn forms_over_the_time_are_bounds_and_the_published_ones_go_by_their_name() {
    let case = Case::new("mdlm");
    let (config, _) = golden_config("mdlm");
    let mut config = config.to_json();
    config["noise_eps"] = 1e-3.into();
    case.write("model.json", &config.to_string());
    let sedd = Case::new("sedd");
    for (case, form, named) in [
        (&case, "t", "t-dce"),
        (&case, "t:published", "t-dce:published"),
        (&case, "t-dce:published", "t-dce:published"),
        (&case, "lambda", "lambda-dce"),
        (&case, "auto", "k-dce"),
        (&sedd, "auto", "score-entropy"),
        (&sedd, "score-entropy:published", "score-entropy:published"),
    ] {
        let found = case.score(&["--elbo", form, "--mc", "2", "--max-sequences", "2"]);
        let summary = found.last().unwrap();
        assert_eq!(
            (&summary["bound"], &summary["orders"]["draws"]),
            (&named.into(), &named.into())
        );
        let published = named.ends_with(":published");
        assert_eq!(summary["estimate"], if published { "surrogate" } else { "bound" }, "{form}");
        let timed = published || ["t-dce", "score-entropy"].contains(&named);
        let ends = if timed { (1e-3, 1e-3) } else { (0.0, 0.0) };
        let told = ["time_floor", "noise_eps"].map(|key| summary[key].as_f64().unwrap());
        assert_eq!((told[0], told[1]), ends, "{form}: {summary}");
    }
    // Times of a file have no ends, and ε leaves something at time 1.
    case.write("masks.jsonl", "{\"masked\":[1],\"level\":0.5}\n");
    let score = env!("CARGO_BIN_EXE_ao-score");
    let call = ["--shards", "data", "--elbo", "t", "--masks", "masks.jsonl"];
    case.refuses(score, &call, "say --elbo t-dce:published");
    config["noise_eps"] = 1.into();
    case.write("model.json", &config.to_string());
    case.refuses(score, &["--shards", "data"], "noise_eps 1: must be at least 0 and below 1");
}

#[test]
fn bounds_by_given_masks_are_those_of_the_published_code() {
    for (arch, form, levels, published) in [
        ("radd", "lambda", Some("lambda_value"), "lambda_dce"),
        ("radd", "k", None, "k_dce"),
        ("mdlm", "t:published", Some("t"), "nelbo_weight_1_over_t"),
        ("sedd", "score-entropy:published", Some("t"), "dwdse_loss"),
    ] {
        let case = Case::new(arch);
        let (config, _) = golden_config(arch);
        let mask = config.to_json()["mask_id"].as_u64().unwrap() as u32;
        let masked = integers(&case.cases, "masked").1;
        let levels = levels.map(|name| floats(&case.cases, name).1);
        let lines: String = masked
            .chunks(16)
            .enumerate()
            .map(|(s, row)| {
                let hidden: Vec<usize> = (0..16).filter(|&i| row[i] == mask).collect();
                let mut line = json!({"masked": hidden});
                if let Some(levels) = &levels {
                    line["level"] = levels[s].into();
                }
                format!("{line}\n")
            })
            .collect();
        case.write("masks.jsonl", &lines);
        let found = case.score(&["--elbo", form, "--masks", "masks.jsonl"]);
        let ours: Vec<f64> =
            of_type(&found, "sequence").iter().map(|r| r["nll_nats"].as_f64().unwrap()).collect();
        let theirs = floats(&case.cases, published).1;
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(&theirs) {
            // Sums of up to 16 tokens; the score entropy relative, as the oracle says.
            let most = if arch == "sedd" { 2e-5 * b.abs() } else { 1e-4 };
            assert!((a - b).abs() <= most, "{arch} {form}: {a} against {b}");
        }
        assert_eq!(found.last().unwrap()["orders"]["masks"], "masks.jsonl");
        // Too few, twice the same, outside, and a level that is missing.
        let score = env!("CARGO_BIN_EXE_ao-score");
        let call = ["--shards", "data", "--elbo", form, "--masks", "bad.jsonl"];
        for (text, words) in [
            ("{\"masked\":[1],\"level\":0.5}\n", "number 1 is asked for"),
            ("{\"masked\":[1,1],\"level\":0.5}\n", "twice"),
            ("{\"masked\":[16],\"level\":0.5}\n", "position 16"),
            ("{\"level\":0.5}\n", "list of positions"),
        ] {
            case.write("bad.jsonl", text);
            case.refuses(score, &call, words);
        }
        case.write("bad.jsonl", "{\"masked\":[1]}\n");
        case.refuses(score, &call, if form == "k" { "number 1 is asked for" } else { "level" });
    }
}

#[test]
fn parts_of_a_bound_join_to_the_whole() {
    let case = Case::new("radd");
    let score = env!("CARGO_BIN_EXE_ao-score");
    let part = |name: &str, arguments: &[&str]| {
        let all = [&["--shards", "data", "--mc", "3"], arguments].concat();
        let out = case.run(score, &all);
        case.write(name, std::str::from_utf8(&out.stdout).unwrap());
        records(&out).last().unwrap()["nll_nats_per_token"].clone()
    };
    let whole = part("whole", &[]);
    part("a", &["--max-sequences", "3"]);
    part("b", &["--skip", "3", "--elbo", "k", "--batch-size", "2"]);
    let merge = |files: [&str; 2]| {
        Command::new(score)
            .current_dir(case.folder.path())
            .args(["--quiet", "--merge"])
            .args(files)
            .output()
            .unwrap()
    };
    let merged = records(&merge(["b", "a"]));
    let summary = merged.last().unwrap();
    assert_eq!((&summary["nll_nats_per_token"], &summary["bound"]), (&whole, &"k-dce".into()));
    part("c", &["--skip", "3", "--elbo", "lambda"]);
    assert_eq!(merge(["a", "c"]).status.code(), Some(2), "another bound");
}

#[test]
fn the_bound_is_the_chains_mean_over_orders() {
    let case = Case::new("radd");
    let summary = |arguments: &[&str]| {
        let summary = case.score(arguments).last().unwrap().clone();
        let [mean, error] =
            ["nll_nats_per_token", "std_error_orders"].map(|key| summary[key].as_f64().unwrap());
        (mean, error)
    };
    let (chain, chain_error) = summary(&["--orders", "uniform", "--mc", "60"]);
    for form in ["k", "lambda"] {
        let (bound, error) = summary(&["--elbo", form, "--mc", "400"]);
        let most = 4.0 * (chain_error.powi(2) + error.powi(2)).sqrt();
        assert!((bound - chain).abs() < most, "{form}: {bound} ± {error}, {chain} ± {chain_error}");
    }
}

#[test]
fn a_shorter_block_scores_as_it_does_alone() {
    let case = Case::new("mdlm");
    let short = case.texts[3][..5].to_vec();
    case.shards("mixed", &[case.texts[0].clone(), short.clone()]);
    case.shards("alone", &[case.texts[1].clone(), short]);
    for extra in [&["--orders", "r2l", "--per-token"][..], &["--elbo", "--mc", "3"]] {
        let of = |data: &str| {
            let all = [&["--shards", data], extra].concat();
            let found = records(&case.run(env!("CARGO_BIN_EXE_ao-score"), &all));
            let sequence = of_type(&found, "sequence")[1].clone();
            assert_eq!(sequence["token_count"], 5);
            sequence
        };
        assert_eq!(of("mixed"), of("alone"));
    }
}

#[test]
fn held_out_spans_are_the_end_of_the_chain_that_is_given_the_rest() {
    let case = Case::new("radd");
    let cloze = case.score(&["--cloze", "spans:2x2", "--per-token"]);
    assert_eq!(cloze.last().unwrap()["estimate"], "exact");
    let sequences = of_type(&cloze, "sequence");
    let orders = sequences.iter().map(|record| {
        let spans: Vec<[u32; 2]> = serde_json::from_value(record["spans"].clone()).unwrap();
        let held: Vec<u32> = spans.iter().flat_map(|[start, n]| *start..start + n).collect();
        let rest = (0..16).filter(|p| !held.contains(p));
        format!("{}\n", json!(rest.chain(held.iter().copied()).collect::<Vec<_>>()))
    });
    case.write("orders.jsonl", &orders.collect::<String>());
    let chain = case.score(&["--orders", "orders.jsonl", "--per-token"]);
    for (cloze, chain) in sequences.iter().zip(of_type(&chain, "sequence")) {
        let ours = numbers(&cloze["token_nll_nats"]);
        assert_eq!(ours, numbers(&chain["token_nll_nats"])[12..]);
    }
}

#[test]
fn a_chain_of_a_network_that_is_told_the_time_says_which() {
    let case = Case::new("sedd");
    let summary = case.score(&["--orders", "l2r"]).last().unwrap().clone();
    assert!(summary["time"].as_str().unwrap().contains("k/n"), "{summary}");
    let radd = Case::new("radd");
    assert!(radd.score(&["--orders", "l2r"]).last().unwrap().get("time").is_none());
}

#[test]
fn samples_repeat_whatever_the_batch_and_record_how_they_came_about() {
    for arch in ["radd", "mdlm", "sedd"] {
        let case = Case::new(arch);
        for (sampler, extra) in [
            ("tweedie", &["--steps", "6"][..]),
            ("first-hitting", &["--top-p", "0.9"]),
            ("ordered", &["--order", "r2l", "--steps", "4"]),
            ("ordered", &["--order", "adaptive:margin:window=5", "--steps", "4"]),
        ] {
            let drawn = |more: &[&str]| {
                let all = [&["--sampler", sampler], extra, more].concat();
                let found = case.sample(&all);
                let calls: u64 = of_type(&found, "sample")
                    .iter()
                    .map(|r| r["network_calls"].as_u64().unwrap())
                    .sum();
                assert_eq!(found.last().unwrap()["network_calls"], calls);
                of_type(&found, "sample").into_iter().cloned().collect::<Vec<_>>()
            };
            let base = drawn(&["--n", "5", "--threads", "1"]);
            assert_eq!(base, drawn(&["--n", "5", "--batch-size", "2", "--threads", "2"]));
            assert_eq!(base[..2], drawn(&["--n", "2"]));
            for record in &base {
                assert_eq!(record["sampler"], sampler);
                let calls = record["network_calls"].as_u64().unwrap();
                assert!(record["steps"].as_u64().unwrap() <= calls);
                match sampler {
                    "first-hitting" => {
                        assert_eq!((calls, numbers(&record["times"]).len()), (16, 16));
                    }
                    "ordered" => {
                        assert_eq!(calls, 4);
                        let r2l = json!((0..16).rev().collect::<Vec<_>>());
                        assert_eq!(record["order"] == r2l, extra[1] == "r2l");
                    }
                    _ => assert!(calls <= 7),
                }
                let tokens = record["tokens"].as_array().unwrap();
                assert!(tokens.iter().all(|t| t.as_u64().unwrap() < 61) && tokens.len() == 16);
            }
        }
    }
}

#[test]
fn what_a_sample_says_of_its_probability_is_what_scoring_says() {
    for arch in ["radd", "mdlm", "sedd"] {
        let case = Case::new(arch);
        // A SEDD that is told times of its own has another distribution than its chain.
        let sampler = if arch == "sedd" { "ordered" } else { "first-hitting" };
        let samples =
            case.sample(&["--sampler", sampler, "--n", "3", "--temperature", "0.8", "--ban", "59"]);
        let samples = of_type(&samples, "sample");
        let ids = |key: &str| -> Vec<Vec<u32>> {
            samples.iter().map(|r| serde_json::from_value(r[key].clone()).unwrap()).collect()
        };
        case.shards("drawn", &ids("tokens"));
        let orders: String = ids("order").iter().map(|o| format!("{}\n", json!(o))).collect();
        case.write("orders.jsonl", &orders);
        let call = ["--shards", "drawn", "--orders", "orders.jsonl"];
        let scored = records(&case.run(env!("CARGO_BIN_EXE_ao-score"), &call));
        for (sample, sequence) in samples.iter().zip(of_type(&scored, "sequence")) {
            let [a, b] =
                [&sample["logprob_nats"], &sequence["nll_nats"]].map(|x| x.as_f64().unwrap());
            assert!((a + b).abs() < 2e-4, "{arch}: {a} {b}");
        }
    }
}

#[test]
fn infilling_keeps_what_is_given() {
    for arch in ["radd", "sedd"] {
        let case = Case::new(arch);
        case.write("t.jsonl", "{\"tokens\":[5,null,null,7]}\n{\"tokens\":[1,2]}\n");
        let found = case.sample(&["--infill", "t.jsonl", "--n", "2", "--top-k-candidates", "3"]);
        let samples = of_type(&found, "sample");
        assert_eq!(samples.len(), 4);
        for record in &samples[..2] {
            assert_eq!((&record["tokens"][0], &record["tokens"][3]), (&5.into(), &7.into()));
            assert_eq!((&record["order"][0], &record["order"][1]), (&0.into(), &3.into()));
            assert_eq!(record["candidates"].as_array().unwrap().len(), 2);
        }
        assert_eq!(samples[2]["tokens"], json!([1, 2]));
        assert_eq!(
            (&samples[2]["network_calls"], &samples[2]["logprob_nats"]),
            (&0.into(), &0.0.into())
        );
    }
}

#[test]
fn what_the_family_cannot_do_is_refused_in_words() {
    let case = Case::new("radd");
    let sample = env!("CARGO_BIN_EXE_ao-sample");
    for (call, words) in [
        (&["--speculative", "4"][..], "the passes of radd test no draft"),
        (&["--rejection"], "the passes of radd test no draft"),
        (&["--order", "adaptive:surest"], "adaptive"),
        (&["--sampler", "tweedie", "--order", "adaptive:margin"], "draws the order itself"),
        (&["--sampler", "tweedie", "--order", "l2r"], "draws the order itself"),
        (&["--sampler", "first-hitting", "--steps", "4"], "one pass a token"),
        (&["--sampler", "first-hitting", "--schedule", "cosine"], "draws the time of each token"),
        (&["--sampler", "ordered", "--schedule", "cosine"], "--schedule: without --steps"),
    ] {
        case.refuses(sample, call, words);
    }
    let score = env!("CARGO_BIN_EXE_ao-score");
    for (call, words) in [
        (&["--elbo", "k", "--orders", "l2r"][..], "--elbo"),
        (&["--elbo", "k", "--per-token"], "--per-token"),
        (&["--elbo", "score-entropy"], "radd takes lambda-dce, t-dce, k-dce"),
        (&["--elbo", "--cloze", "spans:1x3"], "--cloze"),
    ] {
        case.refuses(score, &[&["--shards", "data"], call].concat(), words);
    }
    // A mask inside the vocabulary, as BERT's, stands for no token of a text.
    let inside = Case::new("radd");
    let (config, _) = golden_config("radd");
    let mut config = config.to_json();
    (config["vocab_size"], config["mask_id"]) = (61.into(), 3.into());
    inside.write("model.json", &config.to_string());
    inside.shards("masks", &[vec![1, 2, 3]]);
    inside.refuses(score, &["--shards", "masks"], "the text holds id 3");
    inside.write("t.jsonl", "{\"tokens\":[3,null]}\n");
    inside.refuses(sample, &["--infill", "t.jsonl"], "id 3 is given");
    let samples = inside.sample(&["--n", "20"]);
    for record in of_type(&samples, "sample") {
        assert!(record["tokens"].as_array().unwrap().iter().all(|t| *t != 3));
    }
    // And a decoder has no masks.
    let decoder = Case { arch: "ao-gpt", ..Case::new("radd") };
    let (config, _) = golden_config("ao-gpt");
    decoder.write("model.json", &config.to_json().to_string());
    decoder.refuses(score, &["--shards", "data", "--elbo"], "ao-gpt is scored along orders");
    decoder.refuses(sample, &["--sampler", "tweedie"], "ao-gpt draws along --order");
}
