//! The zero-shot sets out of copies laid out as people have them.

use std::path::Path;
use std::process::{Command, Output};

fn put(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn prepare(root: &Path, from: &str) -> Output {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/zero-shot-data.sh"))
        .args([env!("CARGO_BIN_EXE_ao-tokenize"), from, "out", "compat"])
        .current_dir(root)
        .output()
        .unwrap()
}

fn text(root: &Path, set: &str) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_ao-tokenize"))
        .args(["--decode", "--tokenizer", "gpt2", &format!("out/{set}")])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn each_set_gets_its_rows_detokenizer_and_split_and_the_rest_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(root, "d/wikitext-2-raw/wiki.train.raw", " \n = Title = \n \n A @-@ b , c \n");
    put(root, "d/wikitext-2-raw/wiki.test.raw", " not this \n");
    put(root, "d/simple-examples/data/ptb.test.txt", " it does n't cost $ N \n no \n");
    put(root, "d/lambada_test.jsonl", "{\"text\": \"“ hi ” he said\"}\n");
    let held = "d/lm1b/heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050";
    put(root, held, "He said : yes .\n");
    let out = prepare(root, "d");
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{stderr}");
    let missing: Vec<&str> = stderr.lines().filter(|l| l.contains("is missing")).collect();
    assert_eq!(missing.len(), 1, "{stderr}");
    assert!(missing[0].contains("wikitext103") && missing[0].contains("wiki.test.raw"));
    // --decode ends each row with a line feed of its own.
    assert_eq!(text(root, "wikitext2"), "\n = Title =\n\n\n A-b, c\n\n");
    assert_eq!(text(root, "ptb"), "it doesn't cost $ N\nno\n");
    assert_eq!(text(root, "lambada"), "\n\" hi \" he said\n");
    assert_eq!(text(root, "lm1b"), "He said: yes.\n");
    // A second time there is nothing to do.
    let manifest = root.join("out/ptb/manifest.json");
    let before = std::fs::metadata(&manifest).unwrap().modified().unwrap();
    assert!(prepare(root, "d").status.success());
    assert_eq!(std::fs::metadata(&manifest).unwrap().modified().unwrap(), before);
}

#[test]
fn a_folder_with_nothing_in_it_fails_and_says_where_to_look() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let out = prepare(dir.path(), "d");
    assert_eq!(out.status.code(), Some(2));
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(stderr.lines().filter(|l| l.contains("is missing")).count(), 5, "{stderr}");
    assert_eq!(prepare(dir.path(), "").status.code(), Some(2));
}
