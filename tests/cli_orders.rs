//! `ao-orders` through the real binary.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn orders(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ao-orders")).args(args).output().unwrap()
}

fn succeed(args: &[&str]) -> Vec<u8> {
    let out = orders(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// The one line on stderr of a call that must exit with 2.
fn refusal(args: &[&str]) -> String {
    let out = orders(args);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn rows_equal_those_frozen_in_the_golden_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden/orders.jsonl");
    let golden = std::fs::read_to_string(path).unwrap();
    assert!(golden.lines().count() >= 12);
    for line in golden.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| match &case[key] {
            serde_json::Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        let got = succeed(&[
            &text("spec"),
            "--block-size",
            &text("block_size"),
            "--seed",
            &text("seed"),
            "--skip",
            &text("index"),
            "--count=1",
            "--format=jsonl",
        ]);
        assert_eq!(String::from_utf8(got).unwrap().trim(), case["row"].to_string(), "{line}");
    }
}

#[test]
fn pieces_join_without_a_seam() {
    let spec = "ramp:5..90:mix:0.5*l2r+0.5*blocks:7->uniform";
    let base = [spec, "--block-size=40", "--seed=9", "--format=jsonl"];
    let piece = |skip: &str, count: &str| {
        succeed(&[&base[..], &["--skip", skip, "--count", count]].concat())
    };
    let whole = piece("0", "100");
    assert_eq!(whole.iter().filter(|&&b| b == b'\n').count(), 100);
    assert_eq!([piece("0", "33"), piece("33", "1"), piece("34", "66")].concat(), whole);
}

#[test]
fn a_file_equals_the_stream_and_carries_its_provenance() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("o.npy");
    let path = path.to_str().unwrap();
    let args = ["uniform", "--block-size=100", "--count=1k", "--threads=2"];
    succeed(&[&args[..], &["-o", path, "--quiet"]].concat());
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes, succeed(&args));
    assert_eq!(bytes.len(), 128 + 1000 * 100 * 2);
    let meta = std::fs::read(format!("{path}.meta.json")).unwrap();
    let meta: serde_json::Value = serde_json::from_slice(&meta).unwrap();
    assert_eq!(meta["spec"], "uniform");
    assert_eq!(meta["config"]["count"], 1000);
    assert_eq!(meta["seed"], 0);
    let text = refusal(&[&args[..], &["-o", path]].concat());
    assert!(text.contains("--force"), "{text}");
}

#[test]
fn npy_and_json_lines_hold_the_same_rows() {
    let base = ["uniform", "--block-size=5", "--count=3", "--seed=2"];
    let npy = succeed(&base);
    let rows: Vec<u16> =
        npy[128..].chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    let mut lines = String::new();
    for row in rows.chunks(5) {
        lines += &format!("{}\n", serde_json::to_string(row).unwrap());
    }
    assert_eq!(succeed(&[&base[..], &["--format=jsonl"]].concat()), lines.as_bytes());
}

#[test]
fn a_reader_that_leaves_ends_an_endless_stream_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ao-orders"))
        .args(["uniform", "--block-size=64", "--format=jsonl"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 1000];
    child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Starts an endless run that writes `out`, and waits for its temporary file.
fn start_writing(out: &std::path::Path) -> (std::process::Child, std::path::PathBuf) {
    let child = Command::new(env!("CARGO_BIN_EXE_ao-orders"))
        .args(["l2r", "--block-size=2", "--count=100G", "--threads=1", "--quiet", "-o"])
        .arg(out)
        .spawn()
        .unwrap();
    let name = format!(".{}.tmp-{}", out.file_name().unwrap().to_str().unwrap(), child.id());
    let temporary = out.with_file_name(name);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !std::fs::metadata(&temporary).is_ok_and(|m| m.len() > 0) {
        assert!(std::time::Instant::now() < deadline, "{} never came", temporary.display());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    (child, temporary)
}

#[test]
fn what_a_killed_run_left_goes_with_the_next_one_but_not_what_a_live_one_writes() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("o.npy");
    let (mut killed, left) = start_writing(&out);
    killed.kill().unwrap(); // SIGKILL: nothing of its own can clean up
    killed.wait().unwrap();
    assert!(left.exists());
    let (mut alive, writing) = start_writing(&out);
    assert!(!left.exists(), "the next run of the same output did not clear it");
    let base = ["l2r", "--block-size=2", "--count=3", "--quiet", "--force", "-o"];
    succeed(&[&base[..], &[out.to_str().unwrap()]].concat());
    assert!(writing.exists(), "a file that is being written was cleared");
    assert_eq!(std::fs::metadata(&out).unwrap().len(), 128 + 12);
    alive.kill().unwrap();
    alive.wait().unwrap();
}

#[test]
fn wrong_calls_are_one_line_and_exit_2() {
    for (args, want) in [
        (&["l2x", "--count=1"][..], "character 3: 'x' cannot stand here; allowed here: l2r, r2l"),
        (&["uniform"], "--count is needed"),
        (&["uniform", "--block-size=0", "--count=1"], "--block-size 0: must be 1 to"),
        (&["blocks:3:inner=0,2,1", "--block-size=10", "--count=1"], "no multiple of 3"),
        (&["fixed:@/no/such.npy", "--count=1"], "/no/such.npy: no such file"),
        (&["uniform", "--skip=18446744073709551615", "--count=1G"], "pass 2^64 rows"),
        (&["uniform", "--count=-1"], "--count"),
        (&[], "<SPEC>"),
    ] {
        let text = refusal(args);
        assert!(text.contains(want), "{args:?}: {text}");
    }
}

#[test]
fn help_opens_with_an_example_that_works() {
    let help = String::from_utf8(succeed(&["--help"])).unwrap();
    let example = help.lines().nth(1).unwrap().trim();
    assert!(example.starts_with("ao-orders 'mix:"), "{help}");
    let dir = tempfile::tempdir().unwrap();
    let tool = env!("CARGO_BIN_EXE_ao-orders");
    let line = example.replacen("ao-orders", tool, 1);
    let status = Command::new("sh").args(["-c", &line]).current_dir(dir.path()).status().unwrap();
    assert!(status.success());
    assert!(dir.path().join("orders.npy").is_file());
}
