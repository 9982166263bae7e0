//! GPT-2 ids of the same batch of lines by this crate's encoder and by Hugging Face's tokenizers,
//! with one thread and with all cores, with GPT-2's vocabulary and with added tokens in it.
//!
//! `cargo bench --bench tokenize -- FILE` measures on a text of one's own; without a file the toy
//! stories are taken, whose few words flatter every cache. One JSON line per measurement.

use std::time::Instant;

use ao_core::tokens::{Encoder, Tokenizer};
use serde_json::json;

/// Runs of each measurement; the fastest counts, as noise only ever adds.
const RUNS: usize = 5;
/// The text is repeated up to this many bytes.
const BYTES: usize = 8 << 20;

fn main() {
    let path = std::env::args().skip(1).find(|a| !a.starts_with("--"));
    let path = path.unwrap_or_else(|| "testdata/toy/stories.txt".into());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    let mut batch = Vec::new();
    let mut bytes = 0;
    for line in lines.iter().cycle() {
        batch.push(*line);
        bytes += line.len();
        if bytes >= BYTES {
            break;
        }
    }
    let gpt2 = Tokenizer::gpt2().expect("gpt2 is built in");
    let mut json: serde_json::Value = serde_json::from_slice(gpt2.json()).expect("our own JSON");
    for (id, content) in [(1169, "the"), (50_257, "zq!"), (50_258, ", ")] {
        let token = json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": true, "special": false});
        json["added_tokens"].as_array_mut().expect("a list").push(token);
    }
    let bytes_of_json = serde_json::to_vec(&json).expect("JSON");
    let added = Tokenizer::from_json("added", bytes_of_json).expect("a tokenizer");
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    for (name, ours) in [("tokenize", &gpt2), ("tokenize-added", &added)] {
        let mut theirs =
            tokenizers::Tokenizer::from_bytes(ours.json()).expect("our file is theirs");
        theirs.set_encode_special_tokens(true); // special text as plain text, as ours has it
        for threads in [1, cores] {
            tokenizers::utils::parallelism::set_parallelism(threads > 1);
            let (own_seconds, own) = fastest(|| encode(ours, &batch, threads));
            let (hf_seconds, hf) = fastest(|| {
                let encodings = theirs.encode_batch_fast(batch.clone(), false).expect("plain text");
                encodings.iter().map(|e| e.get_ids().len()).sum()
            });
            assert_eq!(own, hf, "both must make the same tokens");
            let rate = |seconds: f64| (bytes as f64 / 1e6 / seconds * 10.0).round() / 10.0;
            let record = json!({
                "type": "bench", "name": name, "text": path, "bytes": bytes, "tokens": own,
                "threads": threads, "megabytes_per_second": rate(own_seconds),
                "hf_tokenizers_megabytes_per_second": rate(hf_seconds),
                "ratio": (hf_seconds / own_seconds * 100.0).round() / 100.0,
            });
            println!("{record}");
        }
    }
    long_line(&gpt2);
}

/// Time by length of one line without a break: it must grow as the length does.
fn long_line(tokenizer: &Tokenizer) {
    for megabytes in [1, 2, 4, 8] {
        let mut line = String::new();
        let mut state = 1u32;
        while line.len() < megabytes << 20 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            line.push(char::from(b'a' + (state >> 24) as u8 % 26));
        }
        let (seconds, tokens) = fastest(|| encode(tokenizer, &[&line], 1));
        println!(
            "{}",
            json!({"type": "bench", "name": "tokenize-one-line", "bytes": line.len(),
                "tokens": tokens, "seconds": seconds,
                "nanoseconds_per_byte": (seconds * 1e9 / line.len() as f64).round()})
        );
    }
}

fn fastest(mut run: impl FnMut() -> usize) -> (f64, usize) {
    let mut best = (f64::INFINITY, 0);
    for _ in 0..RUNS {
        let start = Instant::now();
        let tokens = run();
        best = (start.elapsed().as_secs_f64().min(best.0), tokens);
    }
    best
}

fn encode(tokenizer: &Tokenizer, batch: &[&str], threads: usize) -> usize {
    std::thread::scope(|scope| {
        let parts: Vec<_> = batch
            .chunks(batch.len().div_ceil(threads))
            .map(|part| {
                scope.spawn(move || {
                    let mut encoder = Encoder::new(tokenizer);
                    let mut ids = Vec::new();
                    for line in part {
                        encoder.encode_into(line, &mut ids).expect("plain text");
                    }
                    ids.len()
                })
            })
            .collect();
        parts.into_iter().map(|p| p.join().expect("no panic")).sum()
    })
}
