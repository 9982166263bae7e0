//! ao-tokenize on files as people have them: JSON of all kinds, archives as GNU tar makes them,
//! tokenizers of others.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[path = "common/tokenize.rs"]
mod tokenize;
use tokenize::Room;

/// Runs GNU tar in the room; false where there is none.
fn tar(room: &Room, args: &[&str]) -> bool {
    let version = Command::new("tar").arg("--version").output();
    if !version.is_ok_and(|out| out.stdout.starts_with(b"tar (GNU tar)")) {
        return false;
    }
    let status = Command::new("tar").args(args).current_dir(room.path("")).status();
    assert!(status.unwrap().success(), "tar {args:?}");
    true
}

/// An archive that GNU tar made, from testdata.
fn archive(room: &Room, name: &str) {
    let from = format!("{}/testdata/tar/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(from, room.path(name)).unwrap();
}

#[test]
fn what_looks_like_json_and_is_no_json_line_is_an_error_unless_it_is_said_to_be_text() {
    let room = Room::new();
    for (name, line, words) in [
        ("array.txt", "[{\"text\":\"one\"}]\n", ["array", "--as text"]),
        ("comma.txt", "{\"text\":\"a\"},\n", ["line 1", "--as text"]),
        ("pretty.json", "{\n  \"text\": \"a\"\n}\n", ["several lines", "--as text"]),
        ("half.txt", "{\"text\":\"a \\ud83d\"}\n", ["surrogate", "--lossy"]),
        ("ids.txt", "[15496, 995]\n", ["--ids", "--as text"]),
        ("named.jsonl", "rubbish\n", ["not JSON", "--as text"]),
        ("other.txt", "{\"body\":\"a\"}\n", ["no field 'text'", "--field"]),
    ] {
        room.file(name, line);
        room.fails(&["-o", "out", name], 2, &words);
        room.ok(&["--as", "text", "--force", "-o", &format!("text-{name}"), name]);
        assert_eq!(room.decoded(&format!("text-{name}")), line.as_bytes());
    }
    room.file("plain.txt", "{ not json }\n[1] a note\n");
    room.ok(&["-o", "plain", "plain.txt"]);
    room.fails(&["--field", "text", "-o", "out", "plain.txt"], 2, &["not JSON"]);
    room.fails(&["--field", "x", "--as", "text", "-o", "out", "plain.txt"], 2, &["--field"]);
    assert!(!room.path("out").exists());
}

#[test]
fn python_s_numbers_nested_fields_and_lone_surrogates_are_read() {
    let room = Room::new();
    room.file("nan.txt", "{\"text\":\"a\",\"score\":NaN}\n{\"x\":-Infinity,\"text\":\"b\"}\n");
    room.ok(&["-o", "nan", "nan.txt"]);
    assert_eq!(room.decoded("nan"), b"a\nb\n");
    room.file("deep.jsonl", "{\"data\":{\"body\":\"in\"}}\n");
    room.ok(&["--field", "data.body", "-o", "deep", "deep.jsonl"]);
    assert_eq!(room.decoded("deep"), b"in\n");
    room.file("half.jsonl", "{\"text\":\"a \\ud83d\"}\n");
    room.ok(&["--lossy", "-o", "half", "half.jsonl"]);
    assert_eq!(room.decoded("half"), "a \u{fffd}\n".as_bytes());
    assert_eq!(room.manifest("half")["totals"]["invalid_utf8_replaced"], 1);
}

#[test]
fn files_that_are_no_text_are_named() {
    let room = Room::new();
    for (bytes, kind) in [
        (&b"\x04\x22\x4d\x18\x64\x40\xa7"[..], "lz4"),
        (b"\x78\x9c\x2b\x49\xad\x28\x01\x00", "zlib"),
        (b"ARROW1\0\0\xff\xff\xff\xff", "Arrow"),
        (b"%PDF-1.4\n%\xc4\xe5\xf2\n", "PDF"),
    ] {
        room.file("x", bytes);
        room.fails(&["-o", "out", "x"], 2, &[kind, "not read here"]);
    }
}

#[test]
fn a_sparse_member_keeps_its_holes_or_is_refused() {
    let room = Room::new();
    let mut text = b"before\n".to_vec();
    text.resize(200_000, 0);
    text.extend(b"\nbehind\n");
    for name in ["sparse-gnu.tar", "sparse-pax-0.0.tar", "sparse-pax-0.1.tar", "sparse-pax-1.0.tar"]
    {
        archive(&room, name);
    }
    room.ok(&["-o", "gnu", "sparse-gnu.tar"]);
    let whole = room.decoded("gnu");
    assert_eq!(whole.len(), text.len());
    assert!(whole == text);
    for version in ["0.0", "0.1", "1.0"] {
        let name = format!("sparse-pax-{version}.tar");
        room.fails(&["-o", "out", &name], 2, &["holes.txt", "sparse"]);
    }
    // The same as this machine's tar makes them.
    let file = std::fs::File::create(room.path("holes.txt")).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"before\n", 0).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"\nbehind\n", 200_000).unwrap();
    if tar(&room, &["--format=gnu", "-cSf", "here.tar", "holes.txt"]) {
        room.ok(&["-o", "here", "here.tar"]);
        assert!(room.decoded("here") == text);
        tar(&room, &["--format=posix", "-cSf", "posix.tar", "holes.txt"]);
        room.fails(&["-o", "out", "posix.tar"], 2, &["holes.txt", "sparse"]);
    }
}

#[test]
fn archives_behind_each_other_are_read_to_the_end_and_empty_ones_are_no_text() {
    let room = Room::new();
    archive(&room, "two.tar");
    room.ok(&["-o", "two", "two.tar"]);
    assert_eq!(room.decoded("two"), b"first\nsecond\n");
    archive(&room, "empty.tar");
    room.fails(&["-o", "out", "empty.tar"], 2, &["empty.tar", "no file in it"]);
    room.file("a", "first\n");
    room.file("b", "second\n");
    if tar(&room, &["-cf", "a.tar", "a"]) {
        tar(&room, &["-cf", "b.tar", "b"]);
        tar(&room, &["-cf", "none.tar", "-T", "/dev/null"]);
        let bytes = |name: &str| std::fs::read(room.path(name)).unwrap();
        room.file("ab.tar", [bytes("a.tar"), bytes("none.tar"), bytes("b.tar")].concat());
        room.ok(&["-o", "ab", "ab.tar"]);
        assert_eq!(room.decoded("ab"), b"first\nsecond\n");
        room.fails(&["-o", "out", "none.tar"], 2, &["none.tar"]);
    }
}

#[test]
fn what_is_passed_over_in_archives_and_folders_is_counted() {
    let room = Room::new();
    archive(&room, "kinds.tar");
    room.ok(&["--exclude", "*.log", "-o", "out", "kinds.tar"]);
    assert_eq!(room.decoded("out"), b"text\n");
    let totals = &room.manifest("out")["totals"];
    // A dot name, a hard link, a symbolic link and a pipe; folders and labels hold nothing.
    assert_eq!((&totals["files_skipped"], &totals["files_excluded"]), (&4.into(), &1.into()));
    room.file("f/a", "text\n");
    room.file("f/.b", "text\n");
    room.file("f/c.log", "text\n");
    let out = room.ok(&["--exclude", "*.log", "-o", "folder", "f"]);
    let totals = &room.manifest("folder")["totals"];
    assert_eq!((&totals["files_skipped"], &totals["files_excluded"]), (&1.into(), &1.into()));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("passed over 2 files"), "{said}");
}

/// GPT-2's tokenizer.json with changes.
fn tokenizer(room: &Room, name: &str, change: impl Fn(&mut Value)) {
    room.file("one.txt", "x\n");
    if !room.path("gpt2/tokenizer.json").exists() {
        room.ok(&["-o", "gpt2", "one.txt"]);
    }
    let bytes = std::fs::read(room.path("gpt2/tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&bytes).unwrap();
    change(&mut json);
    room.file(name, json.to_string());
}

#[test]
fn a_folder_is_decoded_with_its_own_tokenizer_and_no_other() {
    let room = Room::new();
    let text = "the cat sat on the mat\nand the dog sat on the log\n".repeat(9);
    room.file("a.txt", &text);
    room.ok(&["--train-tokenizer", "270", "-o", "own", "a.txt"]);
    assert_eq!(room.decoded("own"), text.as_bytes());
    assert_eq!(room.ok(&["--decode", "own/shard-000000.bin"]).stdout, text.as_bytes());
    room.fails(&["--decode", "--tokenizer", "gpt2", "own"], 2, &["gpt2", "is not the tokenizer"]);
    room.fails(&["--inspect", "--tokenizer", "gpt2", "own"], 2, &["is not the tokenizer"]);
    room.ok(&["-o", "gpt2", "a.txt"]);
    std::fs::copy(room.path("gpt2/tokenizer.json"), room.path("own/tokenizer.json")).unwrap();
    room.fails(&["--decode", "own"], 2, &["own/tokenizer.json", "is not the tokenizer"]);
    room.file("ids.jsonl", "[1,2]\n");
    room.ok(&["--ids", "--vocab-size", "9", "--eos", "none", "-o", "bare", "ids.jsonl"]);
    room.fails(&["--decode", "bare"], 2, &["without a tokenizer", "--tokenizer"]);
    room.ok(&["--decode", "--tokenizer", "gpt2", "bare"]);
}

#[test]
fn decoding_keeps_documents_apart_by_their_lengths() {
    let room = Room::new();
    room.file("a.txt", "one\ntwo\nthree\n");
    room.ok(&[
        "--eos",
        "none",
        "--pack",
        "document",
        "--shard-tokens",
        "2",
        "-o",
        "apart",
        "a.txt",
    ]);
    assert_eq!(room.decoded("apart"), b"one\ntwo\nthree\n");
    room.ok(&["--eos", "none", "-o", "stream", "a.txt"]);
    assert_eq!(room.decoded("stream"), b"onetwothree\n", "nobody knows where they end");
}

#[test]
fn dropout_is_off_and_a_lossy_tokenizer_is_said_to_be_one() {
    let room = Room::new();
    let text = "Some Text with CAPITALS, again and again and again\n".repeat(50);
    room.file("a.txt", &text);
    tokenizer(&room, "dropout.json", |json| json["model"]["dropout"] = 0.5.into());
    let out = room.ok(&["--tokenizer", "dropout.json", "-o", "one", "a.txt"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("dropout of 0.5 is off"));
    room.ok(&["--tokenizer", "dropout.json", "-o", "two", "a.txt"]);
    assert!(room.shard("one") == room.shard("two"));
    assert_eq!(room.manifest("one")["tokenizer"]["lossy"], false);
    tokenizer(&room, "lower.json", |json| json["normalizer"] = json!({"type": "Lowercase"}));
    let out = room.ok(&["--tokenizer", "lower.json", "-o", "lower", "a.txt"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("may rewrite the text"));
    let manifest = room.manifest("lower");
    assert_eq!(manifest["tokenizer"]["lossy"], true);
    assert_eq!(manifest["totals"]["bytes_of_text"], text.len() - 50);
    assert_eq!(room.decoded("lower"), text.to_lowercase().as_bytes());
}

#[test]
fn a_signal_is_heard_inside_one_huge_document() {
    let room = Room::new();
    // No byte-level vocabulary, so that the whole line is in the library's hands for many seconds.
    let vocab: Vec<Value> = ["<unk>", "\u{2581}", "a", "b", "ab", "ba", "aab"]
        .iter()
        .map(|t| json!([t, -1.0]))
        .collect();
    let unigram = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}});
    room.file("t.json", unigram.to_string());
    room.file("a.txt", "ab".repeat(24 << 20));
    let mut child = Command::new(env!("CARGO_BIN_EXE_ao-tokenize"))
        .args(["--tokenizer", "t.json", "--eos", "none", "-o", "out", "a.txt"])
        .current_dir(room.path(""))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !room.path("out/shard-000000.bin.part").exists()
        && !room.path("out/tokenizer.json").exists()
    {
        assert!(child.try_wait().unwrap().is_none(), "it ended before the signal");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "the document was too short for this test");
    let asked = std::time::Instant::now();
    assert!(
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed().as_secs_f64() < 2.0, "{:?}", asked.elapsed());
    assert!(room.path("out/resume.json").exists());
}

#[test]
fn padded_rows_are_cut_and_keep_the_tokens_at_their_ends() {
    let room = Room::new();
    room.file("ids.jsonl", "[5,6,7,8,9]\n[5]\n[]\n[5,6]\n");
    let ids = ["--ids", "--vocab-size", "20", "--pack", "pad", "--pad-length", "4"];
    let of = |out: &str, more: &[&str]| {
        room.ok(&[&ids[..], more, &["-o", out, "ids.jsonl"]].concat());
        let shard = room.shard(out);
        let words = shard[1024..].chunks_exact(2);
        words.map(|b| u16::from_le_bytes([b[0], b[1]])).collect::<Vec<u16>>()
    };
    assert_eq!(of("plain", &["--eos", "none"]), [5, 6, 7, 8, 5, 5, 6]);
    let both = ["--bos", "1", "--eos", "2"];
    assert_eq!(of("both", &both), [1, 5, 6, 2, 1, 5, 2, 1, 5, 6, 2]);
    let manifest = room.manifest("both");
    assert_eq!(manifest["packing"], json!({"rule": "pad", "length": 4, "bos_id": 1}));
    assert_eq!(manifest["totals"]["documents_cut"], 1);
    assert_eq!(manifest["totals"]["empty_documents_dropped"], 1);
    let kept = of("kept", &[&both[..], &["--keep-empty"]].concat());
    assert_eq!(kept, [1, 5, 6, 2, 1, 5, 2, 1, 2, 1, 5, 6, 2]);
    room.ok(&["--inspect", "both"]);
    // Text comes back without the ends, as far as it was kept, and its bytes are those of the rest.
    room.file("a.txt", "one two three four five six\nseven\n");
    let bos = ["--bos", "<|endoftext|>", "--pack", "pad", "--pad-length", "5"];
    room.ok(&[&bos[..], &["-o", "text", "a.txt"]].concat());
    assert_eq!(room.decoded("text"), b"one two three\nseven\n");
    let totals = &room.manifest("text")["totals"];
    assert_eq!((&totals["tokens"], &totals["documents_cut"]), (&8.into(), &1.into()));
    assert_eq!(totals["bytes_of_text"], 27 * 3 / 6 + 5);
    room.fails(&["--bos", "3", "-o", "no", "a.txt"], 2, &["--bos", "--pack other than pad"]);
    let call = [&bos[..4], &["--pad-length", "2", "-o", "no", "a.txt"]].concat();
    room.fails(&call, 2, &["--pad-length 2: leaves no room"]);
    let call = ["--bos", "[CLS]", "--pack", "pad", "-o", "no", "a.txt"];
    room.fails(&call, 2, &["--bos [CLS]: no such special token"]);
}

#[test]
fn flags_that_change_nothing_beside_the_others_are_refused_by_name() {
    let room = Room::new();
    room.file("a.txt", "one\ntwo\n");
    room.file("ids.jsonl", "[1,2]\n");
    room.ok(&["-o", "shards", "a.txt"]);
    let ids = ["--ids", "--vocab-size", "9", "-o", "out", "ids.jsonl"];
    let text = ["-o", "out", "a.txt"];
    for flag in [&["--strip"][..], &["--lossy"], &["--eos", "none"], &["--shard-tokens", "9"]] {
        room.fails(&[&["--decode", "shards"], flag].concat(), 2, &[flag[0], "--decode"]);
        room.fails(&[&["--inspect", "shards"], flag].concat(), 2, &[flag[0], "--inspect"]);
    }
    room.fails(&["--inspect", "shards", "--include", "*.bin"], 2, &["--include", "--inspect"]);
    for flag in [&["--field", "text"][..], &["--keep-newline"], &["--detokenizer", "lm1b"]] {
        room.fails(&[&ids, flag].concat(), 2, &[flag[0], "--ids"]);
    }
    for flag in [&["--compat-rows", "9"][..], &["--compat-procs", "2"]] {
        room.fails(&[&text, flag].concat(), 2, &[flag[0], "--pack"]);
    }
    room.fails(&[&text[..], &["--train-bytes", "9"]].concat(), 2, &["--train-tokenizer"]);
    let file = ["--document", "file", "--keep-newline"];
    room.fails(&[&text, &file[..]].concat(), 2, &["--keep-newline", "--document file"]);
    let raw = ["--write", "raw-u16", "--shard-tokens", "9"];
    room.fails(&[&text, &raw[..]].concat(), 2, &["--shard-tokens", "raw-u16"]);
    assert!(!room.path("out").exists());
}
