//! `ao-score` in parts: joined, resumed, compared, and stopped at a standard error.

mod common;

use std::path::Path;
use std::process::Output;

use common::scoring::{numbers, records, score, tiny, write_model, write_shards};
use serde_json::{Value, json};

/// Documents of every length up to two blocks of 8, so that there are partial blocks.
fn uneven() -> Vec<Vec<u32>> {
    (1..=17).map(|n| (0..n).map(|i| (i * 7 + n) % 50).collect()).collect()
}

fn prepared() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_model(&dir.path().join("m.st"), &tiny(8, 50), true);
    write_shards(dir.path(), 50, &uneven());
    dir
}

const BASE: [&str; 4] = ["--ckpt", "m.st", "--shards", "data"];

fn run(folder: &Path, extra: &[&str]) -> Vec<Value> {
    records(&score(folder, &[&BASE[..], extra].concat()))
}

fn write(folder: &Path, name: &str, extra: &[&str]) {
    let out = score(folder, &[&BASE[..], extra, &["-o", name]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn sequences(records: &[Value]) -> Vec<Value> {
    records.iter().filter(|r| r["type"] == "sequence").cloned().collect()
}

/// A summary without what depends on the machine's speed.
fn timeless(records: &[Value]) -> Value {
    let mut summary = records.last().unwrap().clone();
    assert_eq!(summary["type"], "summary");
    for key in ["seconds", "peak_memory_bytes"] {
        assert!(summary[key].as_f64().unwrap() > 0.0, "{key}");
        summary[key] = Value::Null;
    }
    summary
}

fn refused(out: &Output, words: &str) {
    let error = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("ao-score: ") && error.contains(words), "{error}");
}

#[test]
fn partial_blocks_and_padding_are_counted_exactly_once() {
    let dir = prepared();
    let documents = uneven();
    let tokens: u64 = documents.iter().map(|d| d.len() as u64).sum();
    let blocks: u64 = documents.iter().map(|d| d.len().div_ceil(8) as u64).sum();
    for batch in ["1", "4", "64"] {
        let found = run(dir.path(), &["--batch-size", batch, "--mc", "3", "--per-token"]);
        let parts = sequences(&found);
        let summary = found.last().unwrap();
        assert_eq!(summary["token_count"], tokens);
        assert_eq!(summary["sequences"], blocks);
        // Padding goes through neither the count of rows nor a sum.
        assert_eq!(summary["rows_forwarded"], 3 * tokens);
        let mut sum = 0.0;
        for record in &parts {
            let count = record["token_count"].as_u64().unwrap();
            let nll = numbers(&record["token_nll_nats"]);
            assert_eq!(nll.len() as u64, 3 * count);
            assert!(nll.iter().all(|&x| x > 0.0));
            let mean = nll.iter().sum::<f64>() / 3.0;
            assert!((record["nll_nats"].as_f64().unwrap() - mean).abs() < 1e-12 * mean);
            sum += mean;
        }
        let mean = summary["nll_nats_per_token"].as_f64().unwrap();
        assert!((mean - sum / tokens as f64).abs() < 1e-13);
    }
}

#[test]
fn merged_parts_are_the_unbroken_run_to_the_last_bit() {
    let dir = prepared();
    let folder = dir.path();
    write(folder, "whole.jsonl", &["--mc", "2"]);
    write(folder, "a.jsonl", &["--mc", "2", "--max-sequences", "7"]);
    write(folder, "b.jsonl", &["--mc", "2", "--skip", "7", "--max-sequences", "3"]);
    write(folder, "c.jsonl", &["--mc", "2", "--skip", "10", "--batch-size", "3"]);
    // In any order of the parts.
    let merged = records(&score(folder, &["--merge", "c.jsonl", "a.jsonl", "b.jsonl"]));
    let whole = lines(&folder.join("whole.jsonl"));
    assert_eq!(sequences(&merged), sequences(&whole));
    assert_eq!(timeless(&merged), timeless(&whole));
    assert_eq!(merged[0]["merged"].as_array().unwrap().len(), 3);

    refused(&score(folder, &["--merge", "a.jsonl", "b.jsonl", "a.jsonl"]), "sequence 0 lies in");
    write(folder, "other.jsonl", &["--mc", "2", "--skip", "7", "--seed", "1"]);
    refused(&score(folder, &["--merge", "a.jsonl", "other.jsonl"]), "seed is 1");
    write(folder, "k3.jsonl", &["--mc", "3", "--skip", "7"]);
    refused(&score(folder, &["--merge", "a.jsonl", "k3.jsonl"]), "--mc is 3");
    std::fs::write(folder.join("x.jsonl"), "{\"type\":\"run\",\"tool\":\"ao-sample\"}\n").unwrap();
    refused(&score(folder, &["--merge", "a.jsonl", "x.jsonl"]), "no run record of ao-score");
}

#[test]
fn an_evaluation_interrupted_at_any_byte_goes_on_to_the_same_records() {
    let dir = prepared();
    let folder = dir.path();
    let options = ["--mc", "3", "--batch-size", "4"];
    let go_on = || score(folder, &[&BASE[..], &options[..], &["--resume", "s.jsonl"]].concat());
    let file = folder.join("s.jsonl");
    let out = go_on();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(out.stdout.is_empty());
    let whole = std::fs::read(&file).unwrap();
    let expected = lines(&file);
    assert_eq!(sequences(&expected), sequences(&run(folder, &options)));
    let numbers_of = |summary: &Value| {
        let mut summary = summary.clone();
        for key in ["seconds", "peak_memory_bytes", "rows_forwarded", "rows_through_head"] {
            summary[key] = Value::Null;
        }
        summary
    };
    for cut in [0, 1, 10, whole.len() / 3, whole.len() / 2, whole.len() - 2] {
        std::fs::write(&file, &whole[..cut]).unwrap();
        let out = go_on();
        assert!(out.status.success(), "{cut}: {}", String::from_utf8_lossy(&out.stderr));
        let found = lines(&file);
        assert_eq!(sequences(&found), sequences(&expected), "cut at {cut}");
        assert_eq!(numbers_of(found.last().unwrap()), numbers_of(expected.last().unwrap()));
        assert_eq!(found.iter().filter(|r| r["type"] == "run").count(), 1);
    }
    // Once more: nothing is left to do, and nothing changes.
    let before = std::fs::read(&file).unwrap();
    assert!(go_on().status.success());
    assert_eq!(std::fs::read(&file).unwrap(), before);

    // While another program appends to the file, nothing is read, cut or written.
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let other = std::fs::File::open(&file).unwrap();
    other.lock().unwrap();
    refused(&go_on(), "another program is appending to it");
    assert_eq!(std::fs::read(&file).unwrap(), whole[..whole.len() / 2]);
    drop(other);
    std::fs::write(&file, &whole).unwrap();

    let stream = ["--resume", "-"];
    refused(&score(folder, &[&BASE[..], &stream[..]].concat()), "name a file");
    let other = ["--mc", "2", "--resume", "s.jsonl"];
    refused(
        &score(folder, &[&BASE[..], &other[..]].concat()),
        "was begun with --mc 3, now it is 2",
    );
    let other = ["--mc", "3", "--seed", "9", "--resume", "s.jsonl"];
    refused(&score(folder, &[&BASE[..], &other[..]].concat()), "was begun with seed 0");
    write_model(&folder.join("m.st"), &tiny(8, 50), false);
    refused(&go_on(), "was begun with input 1");
}

#[test]
fn two_models_are_compared_by_sequence_and_the_better_one_is_named() {
    let dir = prepared();
    let folder = dir.path();
    write(folder, "a.jsonl", &[]);
    write_model(&folder.join("m.st"), &tiny(8, 50), false);
    write(folder, "b.jsonl", &[]);
    let found = records(&score(folder, &["--compare", "a.jsonl", "b.jsonl"])).remove(0);
    let (a, b) = (lines(&folder.join("a.jsonl")), lines(&folder.join("b.jsonl")));
    // The same by hand.
    let (a, b) = (sequences(&a), sequences(&b));
    let number = |r: &Value, key: &str| r[key].as_f64().unwrap();
    let pairs: Vec<(f64, f64)> = a
        .iter()
        .zip(&b)
        .map(|(a, b)| (number(a, "nll_nats") - number(b, "nll_nats"), number(a, "token_count")))
        .collect();
    let tokens: f64 = pairs.iter().map(|p| p.1).sum();
    let mean = pairs.iter().map(|p| p.0).sum::<f64>() / tokens;
    let n = pairs.len() as f64;
    let squares: f64 = pairs.iter().map(|p| (p.0 - mean * p.1).powi(2)).sum();
    let error = (squares * n / (n - 1.0)).sqrt() / tokens;
    assert!((number(&found, "difference_nats_per_token") - mean).abs() < 1e-12);
    assert!((number(&found, "std_error") - error).abs() < 1e-12);
    // Student's t of 26 degrees of freedom.
    assert_eq!((&found["cluster"], &found["clusters"]), (&json!("block"), &json!(27)));
    let (low, high) = (number(&found, "difference_low"), number(&found, "difference_high"));
    assert!((low - (mean - 2.055_529 * error)).abs() < 1e-6 * error);
    assert!((high - (mean + 2.055_529 * error)).abs() < 1e-6 * error);
    // The model of zeros knows nothing, the random one knows wrong things.
    assert!(mean > 0.0);
    assert_eq!((&found["better"], &found["warnings"]), (&json!("b"), &json!([])));

    // A run against itself is neither better nor worse.
    let same = records(&score(folder, &["--compare", "b.jsonl", "b.jsonl"])).remove(0);
    assert_eq!(
        (&same["better"], &same["difference_nats_per_token"]),
        (&json!("neither"), &json!(0.0))
    );
}

#[test]
fn a_comparison_warns_of_other_orders_and_refuses_other_sets() {
    let dir = prepared();
    let folder = dir.path();
    write(folder, "a.jsonl", &[]);
    write(folder, "seed.jsonl", &["--seed", "5"]);
    write(folder, "l2r.jsonl", &["--orders", "l2r"]);
    write(folder, "part.jsonl", &["--max-sequences", "9"]);
    write(folder, "later.jsonl", &["--skip", "8"]);
    write(folder, "before.jsonl", &["--max-sequences", "19"]);
    let warnings = |b: &str| {
        let found = records(&score(folder, &["--compare", "a.jsonl", b])).remove(0);
        found["warnings"].to_string()
    };
    assert!(warnings("seed.jsonl").contains("seeds differ: 0 and 5"));
    let l2r = warnings("l2r.jsonl");
    assert!(l2r.contains("not one quantity") && l2r.contains("orders differ"), "{l2r}");
    refused(&score(folder, &["--compare", "a.jsonl", "part.jsonl"]), "holds 9 sequences");
    refused(&score(folder, &["--compare", "before.jsonl", "later.jsonl"]), "stands where");
    let mut longer = uneven();
    longer[3].push(1);
    std::fs::remove_dir_all(folder.join("data")).unwrap();
    write_shards(folder, 50, &longer);
    write(folder, "longer.jsonl", &[]);
    refused(&score(folder, &["--compare", "a.jsonl", "longer.jsonl"]), "score the same set");
    // A run that was cut off has no summary.
    let text = std::fs::read_to_string(folder.join("a.jsonl")).unwrap();
    let cut: String = text.lines().take(5).map(|l| format!("{l}\n")).collect();
    std::fs::write(folder.join("cut.jsonl"), cut).unwrap();
    refused(&score(folder, &["--compare", "a.jsonl", "cut.jsonl"]), "has no summary");
}

#[test]
fn orders_are_added_until_their_noise_is_below_the_target() {
    let dir = prepared();
    let folder = dir.path();
    let noise = |records: &[Value]| records.last().unwrap()["std_error_orders"].as_f64().unwrap();
    let four = noise(&run(folder, &["--mc", "4"]));
    let target = format!("{}", four / 1.5);
    let found = run(folder, &["--target-se", &target, "--mc", "50"]);
    let summary = found.last().unwrap();
    let orders = summary["orders_per_sequence"].as_u64().unwrap();
    assert!(orders > 2 && orders < 50, "{orders}");
    assert_eq!(summary["stopped"]["reached"], true);
    assert_eq!(summary["stopped"]["adding"], "orders");
    assert!(noise(&found) <= four / 1.5);
    // It stopped as soon as it could, and its orders are the first ones of the full run.
    let full = run(folder, &["--mc", "50"]);
    for (a, b) in sequences(&found).iter().zip(sequences(&full)) {
        let (a, b) = (numbers(&a["nll_nats_orders"]), numbers(&b["nll_nats_orders"]));
        assert_eq!(a.len() as u64, orders);
        assert_eq!(a, b[..a.len()]);
    }
    // However coarse the target is, four orders are scored: fewer do not tell.
    assert_eq!(run(folder, &["--target-se", "1e9"]).last().unwrap()["orders_per_sequence"], 4);
    // A target out of reach ends at --mc, and says so.
    let found = run(folder, &["--target-se", "1e-9", "--mc", "3"]);
    assert_eq!(found.last().unwrap()["orders_per_sequence"], 3);
    assert_eq!(found.last().unwrap()["stopped"]["reached"], false);
}

#[test]
fn sequences_are_added_until_the_whole_error_is_below_the_target() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    write_model(&folder.join("m.st"), &tiny(8, 50), true);
    let documents: Vec<Vec<u32>> = (0..200u32)
        .map(|n| (0..8).map(|i| (i * i * 7 + n * 13 + n * n * i) % 50).collect())
        .collect();
    write_shards(folder, 50, &documents);
    let whole = run(folder, &[]);
    let error = whole.last().unwrap()["std_error"].as_f64().unwrap() * 1.5;
    let options = ["--target-se", &format!("{error}"), "--target-by", "sequences"];
    let found = run(folder, &options);
    let summary = found.last().unwrap();
    let count = sequences(&found).len();
    // It is looked at after every 32.
    assert!((32..200).contains(&count) && count.is_multiple_of(32), "{count}");
    assert_eq!(summary["sequences"], count);
    assert_eq!(
        summary["stopped"],
        json!({"target_se": error, "adding": "sequences", "reached": true})
    );
    assert!(summary["std_error"].as_f64().unwrap() <= error);
    assert_eq!(sequences(&found)[..], sequences(&whole)[..count]);
    // Where it stops does not depend on the batch.
    for batch in ["1", "7"] {
        let again = run(folder, &[&options[..], &["--batch-size", batch]].concat());
        assert_eq!(sequences(&again), sequences(&found));
    }
}

/// What `ao-summary --table` says of files in `folder`.
fn table(folder: &Path, files: &[&str]) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_ao-summary"))
        .current_dir(folder)
        .arg("--table")
        .args(files)
        .output()
        .unwrap()
}

#[test]
fn scores_are_set_as_a_table_with_their_errors() {
    let dir = prepared();
    let folder = dir.path();
    write(folder, "a.jsonl", &["--orders", "l2r"]);
    write(folder, "b.jsonl", &["--mc", "3"]);
    write(folder, "c.jsonl", &["--cloze", "spans:1x2"]);
    write(folder, "d.jsonl", &["--ensemble", "2", "--dtype", "bf16"]);
    let table = |files: &[&str]| table(folder, files);
    let out = table(&["a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let rows: Vec<Vec<&str>> =
        text.lines().map(|l| l.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let summary = lines(&folder.join("b.jsonl")).pop().unwrap();
    let number = |key: &str| summary[key].as_f64().unwrap();
    assert_eq!(rows[2][..6], ["data [1]", "l2r", "exact", "27", "153", "0"]);
    assert_eq!(rows[3][..3], ["data [1]", "uniform", "bound of 3 orders"]);
    assert_eq!(rows[4][1], "spans:1x2 given both");
    // Another precision is another model in the legend.
    assert_eq!(rows[5][..3], ["data [2]", "uniform", "ensemble of 2"]);
    assert!(
        text.contains("[1] m.st") && text.contains("f32 on cpu") && text.contains("bf16 on cpu")
    );
    let nll = format!("{:.4} ± {:.4}", number("nll_nats_per_token"), number("std_error"));
    let perplexity = format!(
        "{:.2} ({:.2} to {:.2})",
        number("perplexity"),
        number("perplexity_low"),
        number("perplexity_high")
    );
    assert_eq!((rows[3][6], rows[3][7]), (&nll[..], &perplexity[..]));
    let out = table(&["ids.jsonl"]);
    assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn errors_are_those_of_documents_where_there_are_twenty() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    write_model(&folder.join("m.st"), &tiny(8, 50), true);
    // 24 documents of three blocks each, which say nearly the same.
    let documents: Vec<Vec<u32>> =
        (0..24u32).map(|d| (0..24).map(|i| (d * 13 + d * d + i % 8) % 50).collect()).collect();
    write_shards(folder, 50, &documents);
    let whole = run(folder, &["--orders", "l2r"]);
    let summary = whole.last().unwrap();
    let number = |r: &Value, key: &str| r[key].as_f64().unwrap_or_else(|| panic!("{key}: {r}"));
    assert_eq!((&summary["cluster"], &summary["clusters"]), (&json!("document"), &json!(24)));
    assert_eq!(summary["std_error"], summary["std_error_documents"]);
    assert!(number(summary, "std_error") > 1.5 * number(summary, "std_error_blocks"));
    // A document goes by the place of its first token.
    let of: Vec<u64> = sequences(&whole).iter().map(|r| r["document"].as_u64().unwrap()).collect();
    assert_eq!(of[..7], [0, 0, 0, 24, 24, 24, 48]);
    let blocks = run(folder, &["--orders", "l2r", "--cluster", "block"]);
    let blocks = blocks.last().unwrap();
    assert_eq!(blocks["std_error"], summary["std_error_blocks"]);
    assert_eq!(blocks["std_error_documents"], summary["std_error_documents"]);

    // Parts and differences take them together too, across the cut of a part.
    write(folder, "a.jsonl", &["--orders", "l2r", "--max-sequences", "31"]);
    write(folder, "b.jsonl", &["--orders", "l2r", "--skip", "31"]);
    let merged = records(&score(folder, &["--merge", "b.jsonl", "a.jsonl"]));
    assert_eq!(timeless(&merged), timeless(&whole));
    let merged = records(&score(folder, &["--merge", "b.jsonl", "a.jsonl", "--cluster", "block"]));
    assert_eq!(merged.last().unwrap()["std_error"], summary["std_error_blocks"]);
    write(folder, "l.jsonl", &["--orders", "l2r"]);
    write(folder, "r.jsonl", &["--orders", "r2l"]);
    let compare = |more: &[&str]| {
        let all = [&["--compare", "l.jsonl", "r.jsonl"], more].concat();
        records(&score(folder, &all)).remove(0)
    };
    let (documents, blocks) = (compare(&[]), compare(&["--cluster", "block"]));
    assert_eq!((&documents["clusters"], &blocks["clusters"]), (&json!(24), &json!(72)));
    assert_eq!(blocks["std_error"], documents["std_error_blocks"]);
    assert_eq!(documents["std_error"], blocks["std_error_documents"]);
}

#[test]
fn one_sequence_has_no_error_no_interval_and_no_better_one() {
    let dir = prepared();
    let folder = dir.path();
    write(folder, "a.jsonl", &["--max-sequences", "1", "--orders", "l2r"]);
    write(folder, "b.jsonl", &["--max-sequences", "1", "--orders", "r2l"]);
    let summary = lines(&folder.join("a.jsonl")).pop().unwrap();
    for key in ["std_error", "perplexity_low", "perplexity_high"] {
        assert_eq!(summary[key], Value::Null, "{key}");
    }
    let found = records(&score(folder, &["--compare", "a.jsonl", "b.jsonl"])).remove(0);
    assert_eq!((&found["better"], &found["std_error"]), (&json!("neither"), &Value::Null));
}

#[test]
fn rows_of_one_set_score_the_same_tokens_and_sets_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    write_model(&folder.join("m.st"), &tiny(8, 50), true);
    for (set, cut) in [("wt2", 17), ("ptb", 12)] {
        write_shards(folder, 50, &uneven()[..cut]);
        std::fs::create_dir(folder.join(set)).unwrap();
        std::fs::rename(folder.join("data"), folder.join(set).join("val")).unwrap();
        let shards = format!("{set}/val");
        for (name, more) in [("all", vec![]), ("five", vec!["--max-sequences", "5"])] {
            let file = format!("{set}-{name}.jsonl");
            let all = [&["--ckpt", "m.st", "--shards", &shards, "-o", &file], &more[..]].concat();
            assert!(score(folder, &all).status.success());
        }
    }
    let table = |files: &[&str]| table(folder, files);
    let out = table(&["wt2-all.jsonl", "ptb-all.jsonl", "wt2-all.jsonl"]);
    let text = String::from_utf8(out.stdout).unwrap();
    for set in ["| wt2/val [1] |", "| ptb/val [1] |"] {
        assert!(text.contains(set), "{text}");
    }
    let out = table(&["wt2-all.jsonl", "wt2-five.jsonl"]);
    let error = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{error}");
    assert!(error.contains("wt2-five.jsonl: reads") && error.contains("5 sequences"), "{error}");
}

#[test]
fn flags_that_change_nothing_beside_the_others_are_refused_by_name() {
    let dir = prepared();
    let folder = dir.path();
    write(folder, "a.jsonl", &[]);
    std::fs::write(folder.join("s.jsonl"), "{\"tokens\":[1,2,3]}\n").unwrap();
    for flag in [
        &["--mc", "3"][..],
        &["--orders", "l2r"],
        &["--elbo"],
        &["--ensemble", "2"],
        &["--masks", "m.jsonl"],
        &["--cloze", "spans:1x2"],
        &["--target-se", "0.1"],
        &["--per-token"],
        &["--skip", "2"],
        &["--max-sequences", "2"],
        &["--raw-u16"],
    ] {
        for task in [
            &["--compare", "a.jsonl", "a.jsonl"][..],
            &["--merge", "a.jsonl"],
            &["s.jsonl", "--ref", "m.st"],
        ] {
            refused(&score(folder, &[task, flag].concat()), flag[0]);
        }
    }
    refused(&score(folder, &["--compare", "a.jsonl", "a.jsonl", "--weights", "raw"]), "--weights");
    let one = ["--orders", "l2r", "--mc", "3"];
    refused(&score(folder, &[&BASE[..], &one].concat()), "--mc 3: l2r has one order");
}
