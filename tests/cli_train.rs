//! `ao-train` through the real binary: the published training trace, resume, and faults.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ao_core::format::checkpoint::CheckpointFile;
use common::{floats, golden, golden_config, integers, max_difference};
use serde_json::Value;

fn tool(name: &str) -> PathBuf {
    let train = PathBuf::from(env!("CARGO_BIN_EXE_ao-train"));
    train.with_file_name(name)
}

fn run(tool: &Path, args: &[&str]) -> Output {
    Command::new(tool).args(args).output().unwrap()
}

fn succeed(tool: &Path, args: &[&str]) {
    let out = run(tool, args);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{} {args:?}: {stderr}", tool.display());
}

/// Limits a resource of the process that `command` will start.
fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, most: u64) {
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
fn refuse(args: &[&str], words: &str) {
    let out = run(&tool("ao-train"), args);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains(words), "{stderr}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Shards of bare ids, one row a document.
fn shards(dir: &Path, rows: &[&[u32]], vocab: usize) -> PathBuf {
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
struct Trace {
    _dir: tempfile::TempDir,
    dir: PathBuf,
    shards: PathBuf,
    orders: PathBuf,
}

fn trace() -> Trace {
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
fn flags<'a>(trace: &'a Trace, init: &'a str, out: &'a str) -> Vec<&'a str> {
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
fn initial_weights(dir: &Path) -> PathBuf {
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

fn steps(run: &Path) -> Vec<Value> {
    std::fs::read_to_string(run.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap())
        .filter(|r| r["type"] == "step")
        .collect()
}

fn worst(run: &Path, file: &str, reference: &str) -> f64 {
    let ours = CheckpointFile::open(&run.join("checkpoints/step-00000024").join(file)).unwrap();
    let theirs = CheckpointFile::open(&golden("train-trace").join(reference)).unwrap();
    theirs
        .names()
        .map(|name| max_difference(&floats(&ours, name).1, &floats(&theirs, name).1))
        .fold(0.0, f64::max)
}

#[test]
fn the_published_training_trace_is_followed() {
    let trace = trace();
    let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
    succeed(&tool("ao-train"), &flags(&trace, text(&init), text(&out)));
    let file = CheckpointFile::open(&golden("train-trace/trace.safetensors")).unwrap();
    let records = steps(&out);
    assert_eq!(records.len(), 24);
    let column = |key: &str| records.iter().map(|r| r[key].as_f64().unwrap()).collect::<Vec<_>>();
    let loss = max_difference(&column("loss_nats"), &floats(&file, "loss").1);
    assert!(loss <= 2e-5, "loss differs by {loss}");
    let lr = max_difference(&column("lr"), &floats(&file, "lr").1);
    assert!(lr <= 1e-15, "lr differs by {lr}");
    let norm = max_difference(&column("grad_norm"), &floats(&file, "grad_norm").1);
    assert!(norm <= 1e-4, "grad_norm differs by {norm}");
    let weights = worst(&out, "model.st", "final.safetensors");
    assert!(weights <= 5e-5, "final weights differ by {weights}");
    let ema = worst(&out, "ema-0.9999.st", "ema.safetensors");
    assert!(ema <= 5e-5, "EMA weights differ by {ema}");
}

/// All files of a step folder but the timings.
fn checkpoint_bytes(run: &Path) -> Vec<(String, Vec<u8>)> {
    let folder = run.join("checkpoints/step-00000024");
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
fn curve(run: &Path) -> Vec<Value> {
    let mut records = steps(run);
    for record in &mut records {
        for key in ["seconds", "tokens_per_second"] {
            record.as_object_mut().unwrap().remove(key);
        }
    }
    records
}

#[test]
fn a_run_resumed_from_any_checkpoint_has_the_bits_of_an_unbroken_one() {
    let trace = trace();
    let init = initial_weights(&trace.dir);
    let whole = trace.dir.join("whole");
    let mut args = flags(&trace, text(&init), text(&whole));
    args.extend(["--ema", "0,0.99,0.9999"]);
    succeed(&tool("ao-train"), &args);
    for stop in ["1", "7", "23"] {
        let broken = trace.dir.join(format!("broken-{stop}"));
        let mut args = flags(&trace, text(&init), text(&broken));
        args.extend(["--ema", "0,0.99,0.9999", "--steps", stop]);
        succeed(&tool("ao-train"), &args);
        succeed(&tool("ao-train"), &["--resume", text(&broken), "--steps", "24"]);
        assert!(checkpoint_bytes(&whole) == checkpoint_bytes(&broken), "stopped at {stop}");
        assert_eq!(curve(&whole), curve(&broken), "stopped at {stop}");
    }
    assert_eq!(checkpoint_bytes(&whole).len(), 5);
}

#[test]
fn a_killed_run_goes_on_from_a_whole_checkpoint() {
    let trace = trace();
    let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
    let mut args = flags(&trace, text(&init), text(&out));
    args.extend(["--save-every", "1", "--steps", "1", "--orders", "uniform"]);
    succeed(&tool("ao-train"), &args);
    let mut before = 1;
    for round in 0..20u64 {
        let mut child = Command::new(tool("ao-train"))
            .args(["--resume", text(&out), "--steps", "4000"])
            .spawn()
            .unwrap();
        // From before the first step of this start to the middle of some later save.
        let logged = steps(&out).len();
        let started = std::time::Instant::now();
        while round % 5 > 0 && steps(&out).len() == logged && started.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::thread::sleep(std::time::Duration::from_millis(round * 3));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        let latest = std::fs::read_to_string(out.join("latest")).unwrap();
        let folder = out.join("checkpoints").join(latest.trim());
        let state: Value =
            serde_json::from_slice(&std::fs::read(folder.join("trainer.json")).unwrap()).unwrap();
        for file in ["model.st", "ema-0.9999.st", "optimizer.st"] {
            CheckpointFile::open(&folder.join(file)).unwrap();
        }
        let step = state["step"].as_u64().unwrap();
        let logged = steps(&out).last().map_or(0, |r| r["step"].as_u64().unwrap());
        assert!(step >= before, "went back from {before} to {step}");
        assert!(logged <= step + 1, "lost more than one save: {logged} logged, {step} saved");
        before = step;
    }
    assert!(before > 1, "no step was made in twenty starts");
}

#[test]
fn sigterm_saves_and_exits_with_143() {
    let trace = trace();
    let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
    let mut args = flags(&trace, text(&init), text(&out));
    args.extend(["--steps", "1000000", "--save-every", "1000000", "--orders", "uniform"]);
    let mut child = Command::new(tool("ao-train")).args(&args).spawn().unwrap();
    while !out.join("metrics.jsonl").exists() || steps(&out).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(child.try_wait().unwrap().is_none(), "ended early");
    }
    assert!(
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let latest = std::fs::read_to_string(out.join("latest")).unwrap();
    let last = steps(&out).last().unwrap()["step"].as_u64().unwrap();
    assert_eq!(latest.trim(), format!("step-{last:08}"));
}

#[test]
fn a_loss_that_is_not_finite_stops_before_anything_is_written() {
    let trace = trace();
    let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
    let mut args = flags(&trace, text(&init), text(&out));
    args.extend(["--lr", "1e30", "--min-lr", "1e30", "--warmup", "0", "--grad-clip", "0"]);
    let result = run(&tool("ao-train"), &args);
    let stderr = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("step ") && stderr.contains("--skip-nonfinite"), "{stderr}");
    assert!(!out.join("latest").exists());
}

#[test]
fn unusable_calls_are_refused_in_one_line_and_leave_nothing() {
    let trace = trace();
    let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
    let with = |extra: &[&'static str]| {
        let mut args: Vec<String> =
            flags(&trace, text(&init), text(&out)).iter().map(|s| s.to_string()).collect();
        args.extend(extra.iter().map(|s| s.to_string()));
        args
    };
    let refuse_with = |extra: &[&'static str], words: &str| {
        let args = with(extra);
        refuse(&args.iter().map(String::as_str).collect::<Vec<_>>(), words);
        assert!(!out.exists(), "{extra:?} left a run folder");
    };
    refuse_with(&["--beta1", "1.5"], "--beta1 1.5");
    refuse_with(&["--ema", "2"], "--ema");
    refuse_with(&["--lr", "nan"], "--lr");
    refuse_with(&["--orders", "unifrm"], "unifrm");
    refuse_with(&["--shards", "no/such/folder"], "no/such/folder");
    refuse_with(&["--init", "no/such/file.st"], "no/such/file.st");
    refuse_with(&["--batch-size", "0"], "at least 1");
    refuse_with(&["--device", "gpu"], "gpu");
    refuse(&["--resume", text(&trace.dir)], "no run folder");
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let trace = trace();
    let init = initial_weights(&trace.dir);
    let bytes = std::fs::read(&init).unwrap();
    let out = trace.dir.join("run");
    let broken = trace.dir.join("broken.st");
    let check = |bytes: &[u8], words: &str| {
        std::fs::write(&broken, bytes).unwrap();
        refuse(&flags(&trace, text(&broken), text(&out)), words);
        assert!(!out.exists());
    };
    check(&bytes[..bytes.len() - 1], "broken.st");
    check(&bytes[..20], "broken.st");
    let mut nan = bytes.clone();
    let at = nan.len() - 4;
    nan[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    check(&nan, "must be finite");
    let renamed = String::from_utf8_lossy(&bytes[..8000]).find("wnonee").unwrap();
    let mut extra = bytes.clone();
    extra[renamed..renamed + 6].copy_from_slice(b"wnonex");
    check(&extra, "wnonex");
}

#[test]
fn a_used_folder_is_refused_without_resume_or_force() {
    let trace = trace();
    let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
    let mut args = flags(&trace, text(&init), text(&out));
    args.extend(["--steps", "2"]);
    succeed(&tool("ao-train"), &args);
    refuse(&args, "--resume");
    args.push("--force");
    succeed(&tool("ao-train"), &args);
}

#[test]
fn what_libtorch_refuses_is_one_line() {
    let trace = trace();
    let model = trace.dir.join("huge.json");
    // 4 TiB of token table.
    let config = r#"{"arch":"ao-gpt","block_size":8,"vocab_size":16777216,"n_layer":1,"n_head":1,
                     "n_embd":65536}"#;
    std::fs::write(&model, config).unwrap();
    let out = trace.dir.join("run");
    let shards = text(&trace.shards);
    let mut command = Command::new(tool("ao-train"));
    command.args(["--model", text(&model), "--shards", shards, "--out", text(&out), "--quiet"]);
    limit(&mut command, libc::RLIMIT_AS, 64 << 30);
    let result = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("ao-train: libtorch: "), "{stderr}");
    assert!(stderr.contains("allocate memory") && stderr.contains("smaller"), "{stderr}");
}
