//! What the tests of `ao-train` share: the published trace as shards, orders and weights, calls of
//! the binary, and what a run left behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ao_core::format::checkpoint::CheckpointFile;
use serde_json::Value;

use super::{golden, golden_config, integers};

/// A program of this build.
pub fn tool(name: &str) -> PathBuf {
    let train = PathBuf::from(env!("CARGO_BIN_EXE_ao-train"));
    train.with_file_name(name)
}

/// Runs it to its end.
pub fn run(tool: &Path, args: &[&str]) -> Output {
    Command::new(tool).args(args).output().unwrap()
}

/// Exit 0.
pub fn succeed(tool: &Path, args: &[&str]) {
    let out = run(tool, args);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{} {args:?}: {stderr}", tool.display());
}

/// Limits a resource of the process that `command` will start.
pub fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, most: u64) {
    use std::os::unix::process::CommandExt;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: setrlimit may be called between fork and exec, and the closure does nothing else.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// Exit 2 and one line on stderr.
pub fn refuse(args: &[&str], words: &str) {
    let out = run(&tool("ao-train"), args);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains(words), "{stderr}");
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Shards of bare ids, one row a document.
pub fn shards(dir: &Path, rows: &[&[u32]], vocab: usize) -> PathBuf {
    let ids = dir.join("ids.jsonl");
    let lines: Vec<String> = rows.iter().map(|r| format!("{r:?}")).collect();
    std::fs::write(&ids, lines.join("\n") + "\n").unwrap();
    let out = dir.join("shards");
    let vocab = vocab.to_string();
    succeed(
        &tool("ao-tokenize"),
        &[
            "--ids",
            "--vocab-size",
            &vocab,
            "--eos",
            "none",
            "--pack",
            "document",
            "-o",
            text(&out),
            text(&ids),
        ],
    );
    out
}

/// The published trace's data, and where it lies.
pub struct Trace {
    _dir: tempfile::TempDir,
    pub dir: PathBuf,
    pub shards: PathBuf,
    pub orders: PathBuf,
}

/// Writes the trace's data into a folder that goes with the value.
pub fn trace() -> Trace {
    let guard = tempfile::tempdir().unwrap();
    let dir = guard.path().to_owned();
    let file = CheckpointFile::open(&golden("train-trace/trace.safetensors")).unwrap();
    let (shape, tokens) = integers(&file, "tokens");
    let (_, orders) = integers(&file, "orders");
    let t = shape[3];
    let rows: Vec<&[u32]> = tokens.chunks(t).collect();
    let shards = shards(&dir, &rows, 64);
    let path = dir.join("orders.jsonl");
    let lines: Vec<String> = orders.chunks(t).map(|r| format!("{r:?}")).collect();
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    Trace { _dir: guard, dir, shards, orders: path }
}

/// The flags of the published trace.
pub fn flags<'a>(trace: &'a Trace, init: &'a str, out: &'a str) -> Vec<&'a str> {
    vec![
        "--init",
        init,
        "--shards",
        text(&trace.shards),
        "--orders",
        text(&trace.orders),
        "--out",
        out,
        "--no-shuffle",
        "--batch-size",
        "4",
        "--accumulate",
        "2",
        "--steps",
        "24",
        "--lr",
        "0.006",
        "--min-lr",
        "0.0006",
        "--warmup",
        "4",
        "--decay-steps",
        "20",
        "--weight-decay",
        "0.05",
        "--beta1",
        "0.9",
        "--beta2",
        "0.95",
        "--grad-clip",
        "1",
        "--ema",
        "0.9999",
        "--device",
        "cpu",
        "--threads",
        "2",
        "--quiet",
    ]
}

/// The golden initial weights as one of our checkpoints.
pub fn initial_weights(dir: &Path) -> PathBuf {
    use ao_core::format::checkpoint::{CheckpointWriter, Metadata};
    let (model, _) = golden_config("train-trace");
    let source = CheckpointFile::open(&golden("train-trace/init.safetensors")).unwrap();
    let metadata =
        Metadata { config: model.to_json(), created_by: "test".into(), ..Metadata::default() };
    let entries: Vec<_> = source
        .names()
        .map(|n| (n.to_owned(), source.tensor(n).unwrap().dtype, source.tensor(n).unwrap().shape))
        .collect();
    let path = dir.join("init.st");
    let mut writer = CheckpointWriter::create(&path, true, &metadata.to_map(), &entries).unwrap();
    for (name, _, _) in &entries {
        writer.put(source.tensor(name).unwrap().bytes).unwrap();
    }
    writer.finish().unwrap();
    path
}

/// The step records of a run.
pub fn steps(run: &Path) -> Vec<Value> {
    std::fs::read_to_string(run.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap())
        .filter(|r| r["type"] == "step")
        .collect()
}

/// The tensor files of a run's latest step.
pub fn checkpoint_bytes(run: &Path) -> Vec<(String, Vec<u8>)> {
    let latest = std::fs::read_to_string(run.join("latest")).unwrap();
    let folder = run.join("checkpoints").join(latest.trim());
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "st"))
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(p).unwrap()))
        .collect();
    files.sort();
    files
}

/// Step records without their timings.
pub fn curve(run: &Path) -> Vec<Value> {
    let mut records = steps(run);
    for record in &mut records {
        for key in ["seconds", "tokens_per_second"] {
            record.as_object_mut().unwrap().remove(key);
        }
    }
    records
}
