//! `ao-train` through the real binary: the published training trace, and faults.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use ao_core::format::checkpoint::CheckpointFile;
use ao_torch::network::Weights;
use ao_torch::tch::no_grad;
use common::train::{
    checkpoint_bytes, flags, initial_weights, refuse, run, shards, steps, succeed, text, tool,
    trace,
};
use common::{floats, golden, golden_config, max_difference};

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
fn sigterm_and_ctrl_c_save_and_exit_with_128_and_the_signal() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let trace = trace();
        let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
        let mut args = flags(&trace, text(&init), text(&out));
        args.extend(["--steps", "1000000", "--save-every", "1000000", "--orders", "uniform"]);
        let mut child = Command::new(tool("ao-train")).args(&args).spawn().unwrap();
        while !out.join("metrics.jsonl").exists() || steps(&out).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(child.try_wait().unwrap().is_none(), "ended early");
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        let latest = std::fs::read_to_string(out.join("latest")).unwrap();
        let last = steps(&out).last().unwrap()["step"].as_u64().unwrap();
        assert_eq!(latest.trim(), format!("step-{last:08}"));
    }
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

/// Weights under which a token cannot be predicted: its logit is −∞, as a weight of −3·10³⁸ meets a
/// hidden value that adaLN holds near 20. Where it is a target, the loss is not finite.
fn weights_that_cannot_say(token: i64, dir: &Path) -> PathBuf {
    let source = initial_weights(dir);
    let file = CheckpointFile::open(&source).unwrap();
    let (config, _) = golden_config("train-trace");
    let weights = Weights::read(&config, &file, &source).unwrap();
    no_grad(|| {
        let _ = weights.get("lm_head.weight").get(token).get(0).fill_(-3e38);
        let _ = weights.get("transformer.final_layer.adaLN_final.1.bias").get(0).fill_(20.0);
    });
    let path = dir.join("poisoned.st");
    weights.write(&path, &file.ao_metadata().unwrap().unwrap().to_map(), true).unwrap();
    path
}

#[test]
fn updates_that_are_not_finite_are_left_out_as_often_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let init = weights_that_cannot_say(63, dir);
    // Two sequences a step: the third and the fourth step have the token as a target.
    let mut rows: Vec<Vec<u32>> =
        (0..12).map(|i| (0..8).map(|k| (i * 5 + k * 3) % 60).collect()).collect();
    rows[4][2] = 63;
    rows[7][6] = 63;
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let shards = shards(dir, &rows, 64);
    let start = |name: &str, extra: &[&str]| {
        let out = dir.join(name);
        let base = ["--init", text(&init), "--shards", text(&shards), "--out", text(&out)];
        let fixed = ["--no-shuffle", "--batch-size", "2", "--steps", "6", "--lr", "1e-3"];
        let more = ["--warmup", "0", "--save-every", "1", "--threads", "1", "--quiet"];
        (run(&tool("ao-train"), &[&base[..], &fixed, &more, extra].concat()), out)
    };
    let stopped = |result: &std::process::Output, out: &Path, at: &str, latest: &str| {
        let stderr = String::from_utf8_lossy(&result.stderr);
        assert_eq!(result.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        for words in [at, "loss is inf", "--skip-nonfinite", "is whole"] {
            assert!(stderr.contains(words), "{words}: {stderr}");
        }
        let found = std::fs::read_to_string(out.join("latest")).unwrap();
        assert_eq!(found.trim(), latest);
    };
    let (result, broken) = start("none", &[]);
    stopped(&result, &broken, "step 3:", "step-00000002");
    let rows = steps(&broken);
    assert_eq!(rows.len(), 3, "the step that failed has its record");
    assert!(rows[1]["loss_nats"].is_f64() && rows[2]["loss_nats"].is_null());
    let (result, out) = start("one", &["--skip-nonfinite", "1"]);
    stopped(&result, &out, "step 4:", "step-00000003");

    let (result, whole) = start("two", &["--skip-nonfinite", "2"]);
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    let records = steps(&whole);
    assert_eq!(records.len(), 6);
    for record in &records {
        let left_out = [3, 4].contains(&record["step"].as_u64().unwrap());
        assert_eq!(record["loss_nats"].is_null(), left_out, "{record}");
        assert_eq!(record["note"].is_string(), left_out, "{record}");
    }
    let state = std::fs::read(whole.join("checkpoints/step-00000006/trainer.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    assert_eq!((&state["step"], &state["updates"]), (&6.into(), &4.into()));

    // The run that stopped goes on so, and is then the same; the count in a row is kept too.
    let go_on = ["--resume", text(&broken), "--skip-nonfinite", "2"];
    succeed(&tool("ao-train"), &go_on);
    assert!(checkpoint_bytes(&whole) == checkpoint_bytes(&broken));
    let result = run(&tool("ao-train"), &["--resume", text(&out), "--quiet"]);
    stopped(&result, &out, "step 4:", "step-00000003");
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
    refuse_with(&["--eval-every", "5"], "--eval-every: there is nothing to validate on");
    refuse_with(&["--val-sequences", "5"], "--val-sequences: there is nothing to validate on");
    refuse_with(&["--ema", "none", "--no-ema-warmup"], "--no-ema-warmup: --ema none");
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
fn a_model_beyond_the_memory_is_refused_in_one_line() {
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
    let result = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("ao-train: --model: weights, "), "{stderr}");
    assert!(stderr.contains("smaller model") && !out.exists(), "{stderr}");
}

#[test]
fn a_batch_beyond_the_memory_and_weights_beyond_all_floats_are_refused_before_harm() {
    let trace = trace();
    let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
    let args = flags(&trace, text(&init), text(&out));
    let large = ["--batch-size", "1000000000", "--orders", "uniform"];
    refuse(&[&args[..], &large].concat(), "--batch-size 1000000000: a step takes about");
    assert!(!out.exists());
    // One step so long that weights are no longer finite: they are not saved.
    let rate = ["--steps", "1", "--decay-steps", "1", "--warmup", "0"];
    let lr = ["--lr", "3e38", "--min-lr", "3e38"];
    let result = run(&tool("ao-train"), &[&args[..], &rate, &lr].concat());
    let stderr = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("not finite, so the step is not saved"), "{stderr}");
    assert!(!out.join("latest").exists() && steps(&out).len() == 1);
}
