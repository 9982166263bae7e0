//! `ao-train` through the real binary: the published training trace, and faults.

mod common;

use std::path::Path;
use std::process::Command;

use ao_core::format::checkpoint::CheckpointFile;
use common::train::{
    flags, initial_weights, limit, refuse, run, steps, succeed, text, tool, trace,
};
use common::{floats, golden, max_difference};

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
