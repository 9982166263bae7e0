//! Every reader on mutated files: no panic, no hang, no more memory than it says here.
//!
//! `make test` runs a short round, `make fuzz MINUTES=N` a long one. A new reader is one line.

use std::path::Path;

use ao_core::tokens::detokenize::Detokenizer;
use ao_core::tokens::{
    Cursor, Dataset, DocumentUnit, InputFormat, OpenOptions, Pipeline, ReadOptions, Rule, Source,
    Tokenizer, Watch,
};

#[path = "common/fuzz.rs"]
mod fuzz;
use fuzz::{JSON, NUMBERS, Reader};

#[global_allocator]
static MEMORY: fuzz::Counting = fuzz::Counting;

macro_rules! readers {
    ($($name:ident: $file:literal, $mib:literal MiB, $words:expr, $read:expr;)*) => {
        mod reader {
            use super::*;
            const READERS: usize = [$(stringify!($name)),*].len();
            $(#[test]
            fn $name() {
                const READER: Reader = Reader {
                    name: stringify!($name),
                    file: $file,
                    bound_mib: $mib,
                    words: $words,
                    read: $read,
                };
                fuzz::run(&READER, READERS);
            })*
        }
    };
}

readers! {
    text: "input", 64 MiB, &[b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xff", b"\0", b"{\"", b"%PDF-"], |p| documents(p, false);
    jsonl: "input.jsonl", 64 MiB, JSON, |p| documents(p, false);
    archive: "input.tar", 64 MiB, NUMBERS, |p| documents(p, false);
    ids: "input.jsonl", 64 MiB, JSON, |p| documents(p, true);
    tokenizer: "tokenizer.json", 128 MiB, JSON, super::tokenizer;
    shard: "shard-000000.bin", 16 MiB, NUMBERS, super::shard;
    manifest: "manifest.json", 16 MiB, JSON, folder;
    lengths: "shard-000000.len", 16 MiB, NUMBERS, folder;
    npy: "orders.npy", 16 MiB, NUMBERS, orders;
    spec: "spec", 64 MiB, &[b"mix:", b"+", b"*", b"->", b"ramp:0..9:", b"blocks:", b":inner=", b"fixed:", b"fixed:@"], super::spec;
    safetensors: "model.safetensors", 64 MiB, NUMBERS, checkpoint;
    torch: "model.pt", 64 MiB, NUMBERS, checkpoint;
    scores: "scores.jsonl", 16 MiB, JSON, |p| drop(ao_core::score::ScoreFile::read(p));
    templates: "templates.jsonl", 128 MiB, JSON, super::templates;
    samples: "samples.jsonl", 16 MiB, JSON, super::samples;
    masks: "masks.jsonl", 16 MiB, JSON, super::masks;
    orderings: "orderings.jsonl", 16 MiB, JSON, super::orderings;
    config: "model.json", 16 MiB, JSON, super::config;
}

struct Nobody;
impl Watch for Nobody {
    fn progress(&mut self, _: u64, _: u64) {}
    fn complain(&mut self, _: &str) {}
    fn note(&mut self, _: &str) {}
    fn stop(&mut self) -> ao_core::Result<()> {
        Ok(())
    }
}

fn gpt2() -> std::sync::Arc<Tokenizer> {
    use std::sync::{Arc, OnceLock};
    static GPT2: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    Arc::clone(GPT2.get_or_init(|| Arc::new(Tokenizer::gpt2().unwrap())))
}

/// Everything from files to ids.
fn documents(path: &Path, ids: bool) {
    let tokenizer = gpt2();
    for (unit, lossy) in [(DocumentUnit::Line, true), (DocumentUnit::File, false)] {
        let pipeline = Pipeline {
            source: Source::new(vec![path.into()], &[], &["*.log".into()]).unwrap(),
            read: ReadOptions {
                format: InputFormat::Auto,
                unit,
                field: None,
                ids,
                eos: Some(50_256),
                raw_u16: false,
            },
            rule: Rule {
                field: "text".into(),
                keep_newline: !lossy,
                strip: lossy,
                keep_empty: !lossy,
                lossy,
                skip_bad: lossy,
                detokenizer: Detokenizer::None,
                bos: lossy.then_some(50_256),
                most_ids: lossy.then_some(40),
                eos: Some(50_256),
                vocab_size: 50_257,
                val_share: 0.5,
            },
            tokenizer: (!ids).then(|| tokenizer.clone()),
            threads: 0,
        };
        let mut documents = 0;
        let outcome = pipeline.run(Cursor::default(), &mut Nobody, &mut |batch| {
            documents += batch.documents.len();
            Ok(())
        });
        assert!(outcome.is_ok() || outcome.unwrap_err().exit_code() == 2);
    }
}

fn tokenizer(path: &Path) {
    let Ok(tokenizer) = Tokenizer::load(&path.to_string_lossy()) else { return };
    let text = "The cat — naïve  café\u{200d}<m>\n [SEP] 12 日本";
    if let Ok(ids) = tokenizer.encode(text) {
        tokenizer.decode(&ids);
    }
    let _ = tokenizer.encode_with_gaps(&[
        ao_core::tokens::GappedPart::Text("ab "),
        ao_core::tokens::GappedPart::Gap(2),
        ao_core::tokens::GappedPart::Text("cd"),
    ]);
    let _ = tokenizer.token_bytes();
}

fn shard(path: &Path) {
    for raw_u16 in [false, true] {
        let options = OpenOptions { verify: true, raw_u16, vocab_size: Some(300) };
        let Ok(data) = Dataset::open(path, &options) else { continue };
        let _ = data.read(0, data.token_count() as usize, &mut Vec::new());
        let _ = data.find(299);
    }
}

/// A shard folder of which one file is the input.
fn folder(path: &Path) {
    let folder = path.parent().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/fuzz");
    for (kind, name) in [
        ("manifest", "manifest.json"),
        ("shard", "shard-000000.bin"),
        ("lengths", "shard-000000.len"),
        ("tokenizer", "tokenizer.json"),
    ] {
        let to = folder.join(name);
        if !to.exists() {
            std::fs::copy(from.join(kind).join(name), to).unwrap();
        }
    }
    let Ok(data) = Dataset::open(folder, &OpenOptions::default()) else { return };
    let data = std::sync::Arc::new(data);
    let Ok(blocks) = data.blocks(4) else { return };
    let mut out = Vec::new();
    for index in 0..blocks.len().min(64) {
        let _ = blocks.read(index, &mut out);
    }
}

fn orders(path: &Path) {
    use ao_core::format::npy::{NpyFile, NpyReader};
    let mut row = Vec::new();
    if let Ok(file) = NpyFile::open(path) {
        for index in 0..file.rows().min(64) {
            let _ = file.row(index, &mut row);
        }
    }
    let bytes = std::fs::read(path).unwrap();
    if let Ok(mut reader) = NpyReader::new(bytes.as_slice(), path) {
        while let Ok(true) = reader.next_row(&mut row) {}
    }
}

fn spec(path: &Path) {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let _ = ao_core::orders::OrderSpec::parse(&text);
}

fn checkpoint(path: &Path) {
    let options = ao_core::import::OpenOptions::default();
    if let Ok(source) = ao_core::import::Source::open(path, &options) {
        let names: Vec<String> = source.names().map(String::from).collect();
        for name in names {
            let _ = source.read_f32(&name);
        }
    }
    if let Ok(file) = ao_core::format::checkpoint::CheckpointFile::open(path) {
        let names: Vec<String> = file.names().map(String::from).collect();
        for name in names {
            let _ = file.to_f32(&name);
        }
    }
}

fn templates(path: &Path) {
    use ao_torch::decode::template::{Limits, Template};
    let tokenizer = gpt2();
    let limits = Limits { block_size: 64, vocab_used: 50_257, tokenizer: Some(&tokenizer) };
    let _ = Template::read_all(path, limits);
}

fn samples(path: &Path) {
    use ao_core::score::{Judge, Protocol, Samples};
    let tokenizer = gpt2();
    for protocol in [Protocol::Sedd, Protocol::Mdlm] {
        let (tokenizer, vocab_used) = (Some(&*tokenizer), 50_257);
        let judge = Judge { protocol, tokenizer, vocab_used, context: 8, given: 1 };
        let Ok(mut samples) = Samples::open(path, judge) else { continue };
        while let Ok(Some(sample)) = samples.next_sample() {
            samples.judge.chunks(&sample.tokens.unwrap_or_default());
        }
    }
}

fn masks(path: &Path) {
    for levels in [false, true] {
        let Ok(masks) = ao_core::score::GivenMasks::open(path, levels) else { continue };
        for row in 0..4 {
            let _ = masks.of(row, 5);
        }
    }
}

fn orderings(path: &Path) {
    let Ok(mut given) = ao_core::score::GivenOrderings::open(path, 2) else { return };
    for index in 0..3 {
        let _ = given.read(index, &[1, 0, 2]);
    }
}

fn config(path: &Path) {
    use ao_core::family::ModelConfig;
    let Ok(config) = ModelConfig::load(path) else { return };
    config.parameter_count();
    config.flops_per_token();
    ModelConfig::from_json(&config.to_json()).expect("what was written is read");
}
