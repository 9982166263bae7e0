//! `ao-score --cloze`: held-out spans given both sides, or the left one.

mod common;

use std::path::Path;

use common::max_difference;
use common::scoring::{numbers, records, score, tiny, write_model, write_orders, write_shards};
use serde_json::{Value, json};

fn run(folder: &Path, extra: &[&str]) -> Vec<Value> {
    records(&score(folder, &[&["--ckpt", "m.st", "--shards", "data"][..], extra].concat()))
}

fn sequences(records: &[Value]) -> Vec<Value> {
    records.iter().filter(|r| r["type"] == "sequence").cloned().collect()
}

fn prepared() -> (tempfile::TempDir, Vec<Vec<u32>>) {
    let dir = tempfile::tempdir().unwrap();
    write_model(&dir.path().join("m.st"), &tiny(12, 50), true);
    let documents: Vec<Vec<u32>> =
        (3..=12).map(|n| (0..n).map(|i| (i * i * 7 + n) % 50).collect()).collect();
    write_shards(dir.path(), 50, &documents);
    (dir, documents)
}

fn held(record: &Value) -> Vec<u32> {
    let spans: Vec<[u32; 2]> = serde_json::from_value(record["spans"].clone()).unwrap();
    spans.iter().flat_map(|[start, length]| *start..start + length).collect()
}

#[test]
fn spans_are_scored_last_given_both_sides_or_as_they_come() {
    let (dir, documents) = prepared();
    let folder = dir.path();
    let both = run(folder, &["--cloze", "spans:2x2", "--per-token", "--seed", "3"]);
    let left = run(
        folder,
        &["--cloze", "spans:2x2", "--conditioning", "left", "--per-token", "--seed", "3"],
    );
    // Documents of 3 and 4 tokens are too short for two spans of two and a token of context.
    let long: Vec<&Vec<u32>> = documents.iter().filter(|d| d.len() > 4).collect();
    for (found, conditioning) in [(&both, "both"), (&left, "left")] {
        let summary = found.last().unwrap();
        assert_eq!(summary["conditioning"], conditioning);
        assert_eq!(summary["sequences_left_out"], 2);
        assert_eq!((&summary["sequences"], &summary["token_count"]), (&json!(8), &json!(32)));
        assert_eq!(summary["estimate"], "exact");
    }
    let (both, left) = (sequences(&both), sequences(&left));
    // The same by whole sequences along orders written out here.
    let orders: Vec<Vec<u32>> = documents
        .iter()
        .map(|d| {
            let record =
                both.iter().find(|r| documents[r["index"].as_u64().unwrap() as usize] == *d);
            let held = record.map(held).unwrap_or_default();
            let context = (0..d.len() as u32).filter(|p| !held.contains(p));
            let order: Vec<u32> = context.chain(held.iter().copied()).collect();
            order.into_iter().chain(d.len() as u32..12).collect()
        })
        .collect();
    write_orders(folder, &orders);
    let along = sequences(&run(folder, &["--orders", "orders.jsonl", "--per-token"]));
    let l2r = sequences(&run(folder, &["--orders", "l2r", "--per-token"]));
    assert_eq!(both.len(), long.len());
    for (both, left) in both.iter().zip(&left) {
        let index = both["index"].as_u64().unwrap() as usize;
        assert_eq!(both["spans"], left["spans"]);
        let held = held(both);
        assert!(held.len() == 4 && held[0] > 0);
        let whole = numbers(&along[index]["token_nll_nats"]);
        let found = numbers(&both["token_nll_nats"]);
        assert!(max_difference(&found, &whole[whole.len() - 4..]) < 1e-5);
        let whole = numbers(&l2r[index]["token_nll_nats"]);
        let expected: Vec<f64> = held.iter().map(|&p| whole[p as usize]).collect();
        let found = numbers(&left["token_nll_nats"]);
        assert!(max_difference(&found, &expected) < 1e-5);
        let sum: f64 = found.iter().sum();
        assert!((left["nll_nats"].as_f64().unwrap() - sum).abs() < 1e-12);
    }
}

#[test]
fn every_model_is_asked_for_the_same_spans_by_seed_and_they_compare() {
    let (dir, _) = prepared();
    let folder = dir.path();
    let spans = |records: &[Value]| -> Vec<Value> {
        sequences(records).iter().map(|r| r["spans"].clone()).collect()
    };
    let options = ["--cloze", "spans:1x3"];
    let first = run(folder, &options);
    std::fs::write(folder.join("a.jsonl"), text(&first)).unwrap();
    // A model that reads from left to right is asked for the same, and labelled.
    let config = ao_core::family::ModelConfig::from_json(&json!({
        "arch": "gpt2", "activation": "gelu", "block_size": 12, "vocab_size": 50,
        "n_layer": 1, "n_head": 2, "n_embd": 16
    }))
    .unwrap();
    write_model(&folder.join("m.st"), &config, true);
    let other = run(folder, &options);
    assert_eq!(spans(&first), spans(&other));
    assert_eq!(other.last().unwrap()["conditioning"], "left");
    std::fs::write(folder.join("b.jsonl"), text(&other)).unwrap();
    let comparison = records(&score(folder, &["--compare", "a.jsonl", "b.jsonl"])).remove(0);
    assert!(comparison["warnings"].to_string().contains("conditionings differ"), "{comparison}");
    let seeded = run(folder, &["--cloze", "spans:1x3", "--seed", "1"]);
    assert_ne!(spans(&seeded), spans(&other));
    std::fs::write(folder.join("c.jsonl"), text(&seeded)).unwrap();
    let out = score(folder, &["--compare", "a.jsonl", "c.jsonl"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("holds out other spans"));

    for (arguments, words) in [
        (&["--cloze", "spans:2"][..], "spans:COUNTxLENGTH"),
        (&["--cloze", "spans:1x3", "--conditioning", "both"], "say left"),
        (&["--cloze", "spans:1x3", "--orders", "l2r"], "cannot be used with"),
        (&["--cloze", "spans:4x3"], "no sequence"),
    ] {
        let out = score(folder, &[&["--ckpt", "m.st", "--shards", "data"], arguments].concat());
        let error = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(2) && error.contains(words), "{error}");
    }
}

fn text(records: &[Value]) -> String {
    records.iter().map(|r| format!("{r}\n")).collect()
}
