//! ao-tokenize run for real: what it makes of every kind of input, and that nothing is lost.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

#[path = "common/tokenize.rs"]
mod tokenize;
use tokenize::Room;

const TEXT: &str = "The first line, with a café — and “quotes”.\nsecond\tline   with  spaces \n\
                    <|endoftext|> is text\n日本語 😀\nlast without an end";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    pack("gzip", &["-c"], bytes)
}

fn pack(tool: &str, args: &[&str], bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new(tool)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{tool}: {e}"));
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    out.stdout
}

fn ids_of(shard: &[u8]) -> Vec<u32> {
    let tokens = shard[1024..].chunks_exact(2);
    tokens.map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect()
}

/// Some hundred documents with words of many lengths.
fn corpus(documents: usize) -> String {
    let words = ["the", "tide", "harbour", "Ünder", "stands", "12", "o'clock", "…", "a", "ropes"];
    let mut text = String::new();
    for i in 0..documents {
        for j in 0..(i % 17 + 3) {
            text.push_str(words[(i * 7 + j * 3) % words.len()]);
            text.push(' ');
        }
        text.push_str(&format!("{i}\n"));
    }
    text
}

#[test]
fn every_kind_of_input_gives_the_same_tokens_and_the_text_back() {
    let room = Room::new();
    let text = TEXT.as_bytes();
    room.file("a.txt", text);
    room.file("misnamed.txt", gzip(text));
    let lines: String =
        TEXT.lines().map(|l| serde_json::json!({"id": 1, "body": l}).to_string() + "\n").collect();
    room.file("a.jsonl", &lines);
    room.file("folder/sub/part", text);
    room.file("folder/.hidden", "not this");
    let tar = Command::new("tar")
        .args(["-czf", "a.tar.gz", "folder/sub"])
        .current_dir(room.path(""))
        .status()
        .unwrap();
    assert!(tar.success());
    let inputs: [(&str, &[&str]); 5] = [
        ("a.txt", &[]),
        ("misnamed.txt", &[]),
        ("a.jsonl", &["--field", "body"]),
        ("folder", &[]),
        ("a.tar.gz", &["--include", "*/part"]),
    ];
    let mut shards = Vec::new();
    for (i, (input, extra)) in inputs.iter().enumerate() {
        let out = format!("out{i}");
        room.ok(&[&["--tokenizer", "gpt2", "-o", &out, input], *extra].concat());
        shards.push(room.shard(&out));
    }
    let out = room.run_with(&["-o", "out-stdin"], text);
    assert!(out.status.success());
    shards.push(room.shard("out-stdin"));
    assert!(shards.windows(2).all(|w| w[0] == w[1]));
    assert_eq!(room.decoded("out0"), format!("{TEXT}\n").as_bytes());
    let ids = ids_of(&shards[0]);
    assert_eq!(ids.iter().filter(|&&id| id == 50_256).count(), 5);
    assert_eq!(room.manifest("out0")["totals"]["tokens"], ids.len());
    assert_eq!(room.manifest("out0")["totals"]["bytes_of_text"], text.len() - 4);
}

/// `testdata/three-rows.parquet` comes from another implementation, Apache Arrow's.
#[test]
fn a_parquet_file_is_read_by_its_column_or_named_with_the_feature_it_needs() {
    let room = Room::new();
    let bytes = include_bytes!("../testdata/three-rows.parquet");
    room.file("rows.bin", bytes); // told by its content
    if cfg!(feature = "parquet") {
        room.ok(&["--keep-newline", "--eos", "none", "-o", "out", "rows.bin"]);
        assert_eq!(room.manifest("out")["totals"]["documents"], 2);
        let text = String::from_utf8(room.decoded("out")).unwrap();
        assert!(text.contains("The lamp is lit.") && text.contains("Zo\u{eb} rows\nout"), "{text}");
        room.fails(&["--field", "body", "-o", "x", "rows.bin"], 2, &["rows.bin", "body"]);
        room.file("cut.parquet", &bytes[..bytes.len() / 2]);
        room.fails(&["-o", "x", "cut.parquet"], 2, &["cut.parquet"]);
    } else {
        room.fails(&["-o", "out", "rows.bin"], 2, &["rows.bin", "--features parquet"]);
    }
    assert!(!room.path("x").exists());
}

#[test]
fn a_file_as_one_document_keeps_every_byte() {
    let room = Room::new();
    let text = "\nfirst\r\n\n  \u{0} end \n\n";
    room.file("a.txt", text);
    room.ok(&["--document", "file", "-o", "out", "a.txt"]);
    assert_eq!(room.decoded("out"), format!("{text}\n").as_bytes());
    assert_eq!(room.manifest("out")["totals"]["documents"], 1);
}

#[test]
fn marks_line_ends_nul_and_empty_lines_do_what_the_documentation_says() {
    let room = Room::new();
    room.file("a.txt", b"\xef\xbb\xbfone\r\n\n \ntwo\0\rx\n\r\nthree");
    room.file("empty.txt", b"");
    room.ok(&["-o", "out", "a.txt", "empty.txt"]);
    assert_eq!(room.decoded("out"), b"one\n \ntwo\0\rx\nthree\n");
    let totals = &room.manifest("out")["totals"];
    for (key, count) in [
        ("documents", 4),
        ("empty_documents_dropped", 2),
        ("byte_order_marks_removed", 1),
        ("carriage_returns_removed", 2),
        ("invalid_utf8_replaced", 0),
        ("bytes_of_text", 15),
    ] {
        assert_eq!(totals[key], count, "{key}");
    }
    room.ok(&["--keep-empty", "-o", "kept", "a.txt"]);
    assert_eq!(room.manifest("kept")["totals"]["documents"], 6);
    // The published WikiText rows: the line feed is text, a blank line is an empty document.
    room.ok(&["--keep-empty", "--keep-newline", "-o", "rows", "a.txt"]);
    assert_eq!(room.decoded("rows"), b"one\r\n\n\n\ntwo\0\rx\n\n\nthree\n");
}

#[test]
fn bytes_that_are_not_utf8_are_named_or_counted() {
    let room = Room::new();
    room.file("a.txt", b"good\nb\xffad\xc3\n");
    room.fails(&["-o", "out", "a.txt"], 2, &["a.txt, line 2, byte 6", "0xff", "--lossy"]);
    assert!(!room.path("out").exists());
    room.ok(&["--lossy", "-o", "out", "a.txt"]);
    assert_eq!(room.decoded("out"), "good\nb\u{fffd}ad\u{fffd}\n".as_bytes());
    assert_eq!(room.manifest("out")["totals"]["invalid_utf8_replaced"], 2);
}

#[test]
fn inputs_at_fault_are_named_and_leave_nothing() {
    let room = Room::new();
    room.file("a.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"b\"}\n");
    room.fails(&["-o", "out", "a.jsonl"], 2, &["a.jsonl, line 2", "--field"]);
    room.file("b.jsonl", "{\"text\":\"a\"}\n{\"text\":\n");
    room.fails(&["-o", "out", "b.jsonl"], 2, &["b.jsonl, line 2", "not JSON"]);
    room.file("none.txt", "\n\n");
    room.fails(&["-o", "out", "none.txt"], 2, &["no document"]);
    room.fails(&["-o", "out", "missing.txt"], 2, &["missing.txt", "no such file"]);
    let packed = gzip(corpus(2000).as_bytes());
    room.file("cut.gz", &packed[..packed.len() / 2]);
    room.fails(&["-o", "out", "cut.gz"], 2, &["cut.gz", "damaged or cut"]);
    room.file("t.json", "{\"model\": 3}");
    room.fails(&["--tokenizer", "t.json", "-o", "out", "none.txt"], 2, &["t.json"]);
    room.fails(&["none.txt"], 2, &["-o"]);
    assert!(!room.path("out").exists());
}

#[test]
fn bad_documents_are_left_out_and_counted_when_asked_for() {
    let room = Room::new();
    room.file(
        "a.jsonl",
        "{\"text\":\"a\"}\n{\"txt\":\"b\"}\nrubbish\n{\"text\":\"\\ud800\"}\n{\"text\":\"c\"}\n",
    );
    let out = room.ok(&["--skip-bad", "-o", "out", "a.jsonl"]);
    assert_eq!(room.decoded("out"), b"a\nc\n");
    let totals = &room.manifest("out")["totals"];
    assert_eq!((&totals["documents"], &totals["bad_documents_skipped"]), (&2.into(), &3.into()));
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(text.contains("left out: a.jsonl, line 3: not JSON"), "{text}");
}

#[test]
fn a_folder_that_is_no_shard_folder_is_never_replaced() {
    let room = Room::new();
    room.file("a.txt", TEXT);
    room.file("precious/thesis.tex", "x");
    room.fails(&["--force", "-o", "precious", "a.txt"], 2, &["precious", "no shard folder"]);
    assert_eq!(room.names("precious"), ["thesis.tex"]);
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let room = Room::new();
    room.file("a.txt", corpus(30_000));
    let mut bytes = Vec::new();
    for threads in ["1", "4"] {
        room.ok(&[
            "--train-tokenizer",
            "400",
            "--split",
            "val=0.2",
            "--pack",
            "document",
            "--shard-tokens",
            "100k",
            "--threads",
            threads,
            "-o",
            threads,
            "a.txt",
        ]);
        let mut all = Vec::new();
        for folder in ["train", "val"] {
            for name in room.names(&format!("{threads}/{folder}")) {
                if name != "manifest.json" {
                    let path = room.path(threads).join(folder).join(&name);
                    all.push((format!("{folder}/{name}"), std::fs::read(path).unwrap()));
                }
            }
        }
        bytes.push(all);
    }
    assert!(bytes[0].len() > 6, "several shards: {}", bytes[0].len());
    assert!(bytes[0] == bytes[1]);
}

#[test]
fn the_split_does_not_move_when_text_is_reordered_or_appended() {
    let room = Room::new();
    let text = corpus(500);
    let mut lines: Vec<&str> = text.lines().collect();
    room.file("a.txt", &text);
    lines.reverse();
    room.file("b.txt", lines.join("\n") + "\na new line\n");
    let val = |input: &str| {
        let out = format!("out-{input}");
        room.ok(&["--split", "val=0.1", "-o", &out, input]);
        let decoded = |side: &str| -> Vec<String> {
            let bytes = room.decoded(&format!("{out}/{side}"));
            String::from_utf8(bytes).unwrap().lines().map(String::from).collect()
        };
        let (train, mut val) = (decoded("train"), decoded("val"));
        assert_eq!(room.manifest(&format!("{out}/val"))["totals"]["documents"], val.len());
        val.retain(|l| l != "a new line");
        val.sort();
        (train.len() + val.len(), val)
    };
    let (count, a) = val("a.txt");
    let (_, b) = val("b.txt");
    assert_eq!((count, a.clone()), (500, b));
    assert!((20..90).contains(&a.len()), "{}", a.len());
}

#[test]
fn ids_take_16_bits_up_to_65536_of_them_and_32_beyond() {
    let room = Room::new();
    room.file(
        "ids.jsonl",
        "[0,65535]\n\n{\"type\":\"sample\",\"tokens\":[7]}\n{\"type\":\"run\"}\n[]\n",
    );
    let args = ["--ids", "--eos", "none", "--pack", "document"];
    room.ok(&[&args[..], &["--vocab-size", "65536", "-o", "narrow", "ids.jsonl"]].concat());
    let shard = room.shard("narrow");
    assert_eq!(
        shard[..12],
        [&20240520i32.to_le_bytes()[..], &1i32.to_le_bytes(), &3i32.to_le_bytes()].concat()
    );
    assert_eq!(ids_of(&shard), [0, 65_535, 7]);
    let lengths = std::fs::read(room.path("narrow/shard-000000.len")).unwrap();
    assert_eq!(lengths, [2u32.to_le_bytes(), 1u32.to_le_bytes()].concat());
    let totals = &room.manifest("narrow")["totals"];
    assert_eq!(
        (&totals["records_skipped"], &totals["empty_documents_dropped"]),
        (&2.into(), &1.into())
    );
    assert!(!room.path("narrow/tokenizer.json").exists());
    room.ok(&[&args[..], &["--vocab-size", "65537", "-o", "wide", "ids.jsonl"]].concat());
    let shard = room.shard("wide");
    assert_eq!(shard[..8], [20240801i32.to_le_bytes(), 7i32.to_le_bytes()].concat());
    assert_eq!(shard[1024..].len(), 12);
    let small = [&args[..], &["--vocab-size", "65535", "-o", "no", "ids.jsonl"]].concat();
    room.fails(&small, 2, &["ids.jsonl, line 1", "65535"]);
    room.file("bad.jsonl", "[1, 2.5]\n");
    let bad = [&args[..], &["--vocab-size", "9", "-o", "no", "bad.jsonl"]].concat();
    room.fails(&bad, 2, &["bad.jsonl, line 1", "entry 1"]);
}

#[test]
fn raw_and_llm_c_files_go_out_and_come_back() {
    let room = Room::new();
    room.file("a.txt", corpus(300));
    room.ok(&["-o", "shards", "a.txt"]);
    room.ok(&["--write", "raw-u16", "-o", "train.bin", "a.txt"]);
    let shard = room.shard("shards");
    assert_eq!(std::fs::read(room.path("train.bin")).unwrap(), shard[1024..]);
    let ids = ["--ids", "--vocab-size", "50257", "--eos", "50256"];
    room.ok(&[&ids[..], &["--raw-u16", "-o", "from-raw", "train.bin"]].concat());
    room.ok(&[&ids[..], &["-o", "from-shard", "shards/shard-000000.bin"]].concat());
    assert_eq!(room.shard("from-raw"), shard);
    assert_eq!(room.shard("from-shard"), shard);
    assert_eq!(room.manifest("from-raw")["totals"]["documents"], 300);
    let text = room.ok(&["--decode", "--tokenizer", "gpt2", "from-raw"]).stdout;
    assert_eq!(text, corpus(300).as_bytes());
    let shown = room.ok(&["--inspect", "--raw-u16", "train.bin"]).stdout;
    assert!(String::from_utf8(shown).unwrap().contains("the Ünder o'clock"));
}

#[test]
fn special_text_is_text_unless_allowed() {
    let room = Room::new();
    room.file("a.txt", "a<|endoftext|>b\n");
    room.ok(&["-o", "plain", "a.txt"]);
    room.ok(&["--allow-special", "-o", "special", "a.txt"]);
    let count = |folder| ids_of(&room.shard(folder)).iter().filter(|&&id| id == 50_256).count();
    assert_eq!((count("plain"), count("special")), (1, 2));
    assert_eq!(room.decoded("plain"), b"a<|endoftext|>b\n");
}

#[test]
fn ids_on_standard_input_are_decoded_and_a_closed_pipe_is_no_error() {
    let room = Room::new();
    let out = room.run_with(&["--decode", "--tokenizer", "gpt2"], b"[15496,995,50256]\n[]\n");
    assert_eq!((out.status.code(), &out.stdout[..]), (Some(0), &b"Hello world\n\n"[..]));
    let out = room.run_with(&["--decode", "--tokenizer", "gpt2"], b"[1]\n[50257]\n");
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("stdin, line 2") && text.contains("50257"), "{text}");
    room.file("many.jsonl", "[15496,995]\n".repeat(100_000));
    let tool = env!("CARGO_BIN_EXE_ao-tokenize");
    let script =
        format!("{{ {tool} --decode --tokenizer gpt2 many.jsonl; echo $? >&2; }} | head -1");
    let out = Command::new("sh").args(["-c", &script]).current_dir(room.path("")).output().unwrap();
    assert_eq!((&out.stdout[..], &out.stderr[..]), (&b"Hello world\n"[..], &b"0\n"[..]));
}

#[test]
fn inspect_answers_by_its_exit_status() {
    let room = Room::new();
    room.file("a.txt", corpus(50));
    room.ok(&["--pack", "document", "-o", "out", "a.txt"]);
    let shown = String::from_utf8(room.ok(&["--inspect", "out"]).stdout).unwrap();
    for word in ["documents     50", "gpt2", "end token     50256", "the Ünder o'clock"] {
        assert!(shown.contains(word), "no '{word}' in {shown}");
    }
    let shard = room.path("out/shard-000000.bin");
    let whole = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &whole[..whole.len() - 1]).unwrap();
    room.fails(&["--inspect", "out"], 2, &["shard-000000.bin", "byte", "rebuild"]);
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, &changed).unwrap();
    room.fails(&["--inspect", "out"], 2, &["shard-000000.bin", "hash"]);
    std::fs::write(&shard, &whole).unwrap();
    let manifest = room.path("out/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    for (from, to, word) in [
        ("\"version\": 1", "\"version\": 2", "version 2"),
        ("\"complete\": true", "\"complete\": false", "incomplete"),
        ("\"documents\": 50", "\"documents\": 49", "lengths"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&manifest, text.replace(from, to)).unwrap();
        room.fails(&["--inspect", "out"], 2, &[word]);
    }
    std::fs::write(&manifest, text).unwrap();
    room.ok(&["--inspect", "out"]);
    std::fs::remove_file(&shard).unwrap();
    room.fails(&["--inspect", "out"], 2, &["shard-000000.bin"]);
}

/// The tool as `sh` runs it.
fn sh(room: &Room, script: &str) -> Output {
    let script = script.replace("TOOL", env!("CARGO_BIN_EXE_ao-tokenize"));
    Command::new("sh").args(["-c", &script]).current_dir(room.path("")).output().unwrap()
}

#[test]
fn a_file_size_limit_is_an_error_and_the_earlier_data_stay() {
    let room = Room::new();
    room.file("a.txt", corpus(20_000));
    room.file("small.txt", "earlier\n");
    let limited = "ulimit -f 64; exec TOOL --tokenizer t.json --force -o out a.txt";
    // A small vocabulary, so that its file is below the limit.
    room.ok(&["--train-tokenizer", "300", "-o", "first", "small.txt"]);
    std::fs::copy(room.path("first/tokenizer.json"), room.path("t.json")).unwrap();
    let out = sh(&room, limited);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("shard-000000.bin: cannot write: file too large"), "{text}");
    assert!(!room.path("out").exists());
    room.ok(&["-o", "out", "small.txt"]);
    let before = room.shard("out");
    assert_eq!(sh(&room, limited).status.code(), Some(1));
    assert_eq!(room.shard("out"), before);
    room.ok(&["--inspect", "out"]);
    assert_eq!(room.names(""), ["a.txt", "first", "out", "small.txt", "t.json"]);
}

/// Starts on a named pipe, feeds it `text` and waits until the tool has taken all of it.
fn start_on_pipe(room: &Room, args: &[&str], text: &[u8]) -> (std::process::Child, std::fs::File) {
    assert!(Command::new("mkfifo").arg(room.path("in")).status().unwrap().success());
    let child = Command::new(env!("CARGO_BIN_EXE_ao-tokenize"))
        .args(args)
        .current_dir(room.path(""))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = std::fs::File::options().write(true).open(room.path("in")).unwrap();
    pipe.write_all(text).unwrap();
    (child, pipe)
}

fn signal(child: &std::process::Child, name: &str) {
    let kill = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
}

#[test]
fn a_run_stopped_by_a_signal_is_refused_and_goes_on_to_the_same_bytes() {
    let room = Room::new();
    let text = corpus(60_000);
    let args = ["--pack", "document", "--split", "val=0.1", "--shard-tokens", "150k", "in", "-o"];
    let half = &text.as_bytes()[..2_000_000];
    let (child, pipe) = start_on_pipe(&room, &[&args[..], &["out"]].concat(), half);
    signal(&child, "-TERM");
    let out = child.wait_with_output().unwrap();
    drop(pipe);
    assert_eq!(out.status.code(), Some(143), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(room.manifest("out/train")["complete"], false);
    assert!(room.path("out/resume.json").exists());
    room.fails(&["--inspect", "out/train"], 2, &["incomplete", "--resume"]);
    // The pipe makes room for the whole text under its name.
    std::fs::remove_file(room.path("in")).unwrap();
    room.file("in", &text);
    room.fails(&[&args[..], &["out"]].concat(), 2, &["--resume", "--force"]);
    let other = [&args[..], &["out", "--resume", "--keep-empty"]].concat();
    room.fails(&other, 2, &["other options"]);
    room.ok(&[&args[..], &["out", "--resume"]].concat());
    room.ok(&[&args[..], &["whole"]].concat());
    for side in ["train", "val"] {
        let (a, b) = (format!("out/{side}"), format!("whole/{side}"));
        assert_eq!(room.names(&a), room.names(&b));
        assert!(room.names(&a).len() > 3 || side == "val");
        for name in room.names(&a).iter().filter(|n| *n != "manifest.json") {
            let read = |f: &str| std::fs::read(room.path(f).join(name)).unwrap();
            assert!(read(&a) == read(&b), "{side}/{name}");
        }
        for key in ["totals", "shards", "complete"] {
            assert_eq!(room.manifest(&a)[key], room.manifest(&b)[key], "{side} {key}");
        }
    }
    assert!(!room.path("out/resume.json").exists());
    // Asked again, a complete run has nothing to do.
    room.ok(&[&args[..], &["out", "--resume"]].concat());
}

#[test]
fn changed_inputs_are_not_gone_on_with() {
    let room = Room::new();
    let text = corpus(60_000);
    let (child, pipe) = start_on_pipe(&room, &["in", "-o", "out"], &text.as_bytes()[..2_000_000]);
    signal(&child, "-INT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    drop(pipe);
    std::fs::remove_file(room.path("in")).unwrap();
    room.file("in", text.replacen("tide", "tied", 1));
    room.fails(&["in", "-o", "out", "--resume"], 2, &["inputs are not those"]);
    room.file("in", "short\n");
    room.fails(&["in", "-o", "out", "--resume"], 2, &["inputs are not those"]);
}

#[test]
fn a_killed_run_is_refused_and_can_be_started_over() {
    let room = Room::new();
    let text = corpus(20_000);
    let (mut child, pipe) = start_on_pipe(&room, &["in", "-o", "out"], &text.as_bytes()[..300_000]);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(pipe);
    // Killed before its manifest, there is no folder to speak of.
    if room.path("out/manifest.json").exists() {
        assert_eq!(room.manifest("out")["complete"], false);
        room.fails(&["--inspect", "out"], 2, &["incomplete"]);
    }
    std::fs::remove_file(room.path("in")).unwrap();
    room.file("in", &text);
    room.ok(&["in", "-o", "out", "--resume"]);
    room.ok(&["--inspect", "out"]);
    assert_eq!(room.names("out"), ["manifest.json", "shard-000000.bin", "tokenizer.json"]);
}

#[test]
fn a_line_of_megabytes_without_a_break_and_millions_of_empty_ones_pass() {
    let room = Room::new();
    let mut text = vec![b'\n'; 3_000_000];
    text.extend(std::iter::repeat_n(*b"ab", 500_000).flatten());
    room.file("a.txt", &text);
    room.ok(&["-o", "out", "a.txt"]);
    let decoded = room.decoded("out");
    assert!(decoded[..decoded.len() - 1] == text[3_000_000..]);
    assert_eq!(room.manifest("out")["totals"]["empty_documents_dropped"], 3_000_000);
}

#[test]
fn help_opens_with_an_example_that_works() {
    let room = Room::new();
    let help = String::from_utf8(room.ok(&["--help"]).stdout).unwrap();
    let example = help.lines().nth(1).unwrap().trim().strip_prefix("ao-tokenize ").unwrap();
    room.file("testdata/toy/stories.txt", TEXT);
    room.ok(&example.split(' ').collect::<Vec<_>>());
    assert!(Path::new(&room.path("data/toy/manifest.json")).exists());
}
