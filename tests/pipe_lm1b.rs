//! The LM1B pipeline in MDLM's setting: what it lacks is said in one line, and what it prepares are
//! one sentence a row, cut at 128 tokens, by BERT's ids, and is scored without padding.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// `make`, with the programs that are built already in place of a build.
fn make(folder: &Path, arguments: &[&str]) -> Output {
    let programs = Path::new(env!("CARGO_BIN_EXE_ao-score")).parent().unwrap();
    Command::new("make")
        .args(["-o", "build", "DEVICE=cpu"])
        .arg(format!("BIN={}", programs.display()))
        .arg(format!("RUN={}", folder.join("run").display()))
        .args(arguments)
        .env_remove("MAKEFLAGS")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

/// A WordPiece vocabulary laid out as bert-base-uncased's, of `size` ids.
fn word_pieces(size: usize) -> Value {
    let mut vocab = serde_json::Map::new();
    for id in 0..size {
        vocab.insert(format!("[unused{id}]"), id.into());
    }
    let special = [(0, "[PAD]"), (100, "[UNK]"), (101, "[CLS]"), (102, "[SEP]"), (103, "[MASK]")];
    let mut added = Vec::new();
    let ordinary = ["the", "tide", "rose", "over", "har", "##bour", ".", ",", "it"];
    let ordinary = ordinary.iter().enumerate().map(|(i, word)| (200 + i, *word));
    for (id, text) in special.into_iter().chain(ordinary) {
        vocab.remove(&format!("[unused{id}]"));
        vocab.insert(text.into(), id.into());
        if id < 104 {
            added.push(json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}));
        }
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab}
    })
}

#[test]
fn the_setting_of_mdlms_table_is_prepared_and_no_other_run_claims_it() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let long = "the tide rose over the harbour , ".repeat(30);
    let train = "text/training-monolingual/news.en-00001-of-00100";
    write(train, format!("The tide rose .\nIt rose over the harbour .\n{long}\n").repeat(12));
    write("text/heldout-monolingual/news.en.heldout-00000-of-00050", "It rose .\n".into());
    write(
        "text/heldout-monolingual/news.en.heldout-00049-of-00050",
        format!("{long}\nThe harbour .\n"),
    );
    let lm1b = format!("LM1B={}", folder.join("text").display());
    let bert = format!("BERT={}", write("bert.json", word_pieces(30_522).to_string()));
    let small = format!("BERT={}", write("small.json", word_pieces(300).to_string()));
    let absent = format!("BERT={}/no.json", folder.display());
    let shards = format!("{}/run/shards/val/manifest.json", folder.display());

    // What is missing, by the variable and what to fetch.
    for (given, said) in [
        (vec!["PROTOCOL=sedd"], "PROTOCOL=sedd: allowed is mdlm"),
        (vec!["PROTOCOL=mdlm"], "LM1B is not set; give LM1B=FILE"),
        (vec!["PROTOCOL=mdlm", &lm1b], "bert-base-uncased"),
        (vec!["PROTOCOL=mdlm", &lm1b, &absent], "no.json: no such file; give BERT=FILE"),
        (vec!["PROTOCOL=mdlm", &lm1b, &small], "not 30,522 ids"),
    ] {
        let out = make(folder, &[&given[..], &["SIZE=cpu", &shards]].concat());
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && text.contains(said), "{given:?}: {text}");
        let of_make = |line: &&str| !line.starts_with("make: ***") && !line.contains("] Error ");
        let own = text.lines().filter(of_make).count();
        assert!(own <= 1 && !folder.join("run/shards/val").exists(), "{given:?}: {text}");
        let _ = std::fs::remove_dir_all(folder.join("run"));
    }

    // The shards, as make makes them.
    let settings = ["PROTOCOL=mdlm", &lm1b, &bert, "SIZE=cpu", "STEPS=2"];
    let out = make(folder, &[&settings[..], &[&shards]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let manifest: Value = serde_json::from_slice(&std::fs::read(&shards).unwrap()).unwrap();
    assert_eq!(manifest["packing"], json!({"rule": "pad", "length": 128, "bos_id": 101}));
    assert_eq!((&manifest["vocab_size"], &manifest["eos_id"]), (&30_522.into(), &102.into()));
    assert_eq!(manifest["detokenizer"], "lm1b");
    let totals = &manifest["totals"];
    // [CLS] it rose . [SEP]; 128 of the long one; [CLS] the har ##bour . [SEP]
    assert_eq!((&totals["documents"], &totals["documents_cut"]), (&3.into(), &1.into()));
    assert_eq!(totals["tokens"], 5 + 128 + 6);
    let val = folder.join("run/shards/val");
    let ids = std::fs::read(val.join("shard-000000.bin")).unwrap();
    let ids: Vec<u16> = ids[1024..].chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    assert_eq!(ids[..5], [101, 208, 202, 206, 102]);
    assert_eq!((ids[5], ids[6], ids[5 + 127]), (101, 200, 102));

    // A model reads them as they are: no padding among the scored tokens.
    let model = json!({"arch": "mdlm", "block_size": 128, "vocab_size": 30_522, "mask_id": 103,
        "n_layer": 1, "n_head": 2, "n_embd": 8, "cond_dim": 8, "noise_eps": 1e-3});
    write("model.json", model.to_string());
    let programs = Path::new(env!("CARGO_BIN_EXE_ao-score")).parent().unwrap();
    let run = |program: &str, arguments: &str| {
        let out = Command::new(programs.join(program))
            .args(arguments.split(' '))
            .args(["--quiet", "--threads", "1", "--device", "cpu"])
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    run(
        "ao-train",
        "--model model.json --shards run/shards/train --out m --steps 1 --batch-size 2 --ema none",
    );
    let scores = run("ao-score", "--ckpt m --shards run/shards/val --elbo t:published --mc 2");
    let records: Vec<Value> = scores.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let counts: Vec<u64> = records.iter().filter_map(|r| r["token_count"].as_u64()).collect();
    assert_eq!(counts, [5, 128, 6, 139]);
    let mut short = model.clone();
    short["block_size"] = 64.into();
    write("short.json", short.to_string());
    let out = Command::new(env!("CARGO_BIN_EXE_ao-train"))
        .args([
            "--model",
            "short.json",
            "--shards",
            "run/shards/train",
            "--out",
            "s",
            "--steps",
            "1",
        ])
        .current_dir(folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("has rows of up to 128 tokens, asked for blocks of 64"), "{text}");

    // What each run says of itself.
    let summary = format!("{}/run/summary.json", folder.display());
    let claim = "the setting of MDLM's LM1B table";
    let none = "not comparable with published tables";
    for (given, says) in [
        (vec!["PROTOCOL=mdlm", &lm1b, &bert, "SIZE=gpu"], claim),
        (vec!["PROTOCOL=mdlm", &lm1b, &bert, "SIZE=cpu"], none),
        (vec![&*lm1b, "SIZE=gpu"], none),
        (vec![&*lm1b, "SIZE=cpu"], none),
        (vec!["SIZE=cpu"], none),
    ] {
        let out = make(folder, &[&["-n"], &given[..], &[&summary]].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let recipe = String::from_utf8(out.stdout).unwrap();
        assert!(recipe.contains(says), "{given:?}: {recipe}");
        assert_eq!(recipe.contains(claim), says == claim, "{given:?}");
        let published = recipe.contains("--elbo t:published");
        assert_eq!(published, given.contains(&"PROTOCOL=mdlm"), "{given:?}");
    }
}
