//! What `ao-train` says of a run through the real binary: validations, budgets, speed, memory, a
//! plan without a run, and TensorBoard's files.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use ao_core::format::events::EventReader;
use common::golden_config;
use common::train::{Trace, refuse, run, steps, succeed, text, tool, trace};
use serde_json::Value;

/// Records of a type.
fn records(run: &Path, kind: &str) -> Vec<Value> {
    std::fs::read_to_string(run.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap())
        .filter(|r| r["type"] == kind)
        .collect()
}

/// The trace's model in a file, and flags of a short run.
fn model(trace: &Trace) -> PathBuf {
    let (model, _) = golden_config("train-trace");
    let path = trace.dir.join("model.json");
    std::fs::write(&path, model.to_json().to_string()).unwrap();
    path
}

fn short<'a>(trace: &'a Trace, model: &'a str, out: &'a str) -> Vec<&'a str> {
    let shards = text(&trace.shards);
    let mut flags = vec!["--model", model, "--shards", shards, "--out", out, "--steps", "5"];
    flags.extend(["--batch-size", "4", "--lr", "0.01", "--warmup", "0", "--decay-steps", "5"]);
    flags.extend(["--device", "cpu", "--threads", "1", "--quiet"]);
    flags
}

#[test]
fn validations_come_every_n_steps_and_at_the_end_for_raw_and_averaged_weights() {
    let trace = trace();
    let (model, out) = (model(&trace), trace.dir.join("run"));
    let args = short(&trace, text(&model), text(&out));
    let shards = text(&trace.shards);
    let eval = ["--val-shards", shards, "--eval-every", "2", "--val-sequences", "20"];
    let more = ["--ema", "0.5,0.9", "--save-every", "1", "--keep-last", "9"];
    succeed(&tool("ao-train"), &[&args[..], &eval, &more].concat());
    let found = records(&out, "eval");
    let names: Vec<_> = found
        .iter()
        .map(|r| (r["step"].as_u64().unwrap(), r["weights"].as_str().unwrap().to_owned()))
        .collect();
    let expected: Vec<_> = [2, 4, 5]
        .iter()
        .flat_map(|&s| ["raw", "ema:0.5", "ema:0.9"].map(|w| (s, w.to_owned())))
        .collect();
    assert_eq!(names, expected);
    // The same as what ao-score says of the checkpoint.
    for record in &found {
        let step = format!("checkpoints/step-{:08}", record["step"].as_u64().unwrap());
        let file = match record["weights"].as_str().unwrap().strip_prefix("ema:") {
            Some(decay) => format!("ema-{decay}.st"),
            None => "model.st".into(),
        };
        let ckpt = out.join(step).join(file);
        let score = ["--ckpt", text(&ckpt), "--shards", shards, "--max-sequences", "20"];
        let way = ["--orders", "mix:0.1*l2r+0.9*uniform", "--quiet", "--threads", "1"];
        let scored = run(&tool("ao-score"), &[&score[..], &way].concat());
        let last = String::from_utf8(scored.stdout).unwrap();
        let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
        let number = |r: &Value| r["nll_nats_per_token"].as_f64().unwrap();
        assert!((number(&last) - number(record)).abs() < 1e-5, "{record} {last}");
        assert_eq!(
            (&last["sequences"], &last["token_count"]),
            (&record["sequences"], &record["token_count"])
        );
    }
    // A finished run that is resumed has nothing to add.
    succeed(&tool("ao-train"), &["--resume", text(&out)]);
    assert_eq!(records(&out, "eval").len(), found.len());
}

#[test]
fn a_budget_of_tokens_seconds_or_operations_stops_and_saves() {
    let trace = trace();
    let model = model(&trace);
    // A step has 4 sequences of 16 tokens; a token costs 6·N + 12·L·C·T operations.
    let matrices = 2 * 12 * 32 * 32 + 64 * 32;
    let token = f64::from(6 * matrices + 12 * 2 * 32 * 16);
    let two_steps = format!("{}", 65.0 * token);
    for (flag, most, reason, at) in [
        ("--max-tokens", "128", "max_tokens", 2),
        ("--max-tokens", "129", "max_tokens", 3),
        ("--max-seconds", "1e-9", "max_seconds", 1),
        ("--max-flops", &two_steps, "max_flops", 2),
        ("--max-flops", "1e18", "steps", 5),
    ] {
        let out = trace.dir.join("run");
        let args = short(&trace, text(&model), text(&out));
        let budget = [flag, most, "--log-every", "100", "--force"];
        succeed(&tool("ao-train"), &[&args[..], &budget].concat());
        let latest = std::fs::read_to_string(out.join("latest")).unwrap();
        assert_eq!(latest.trim(), format!("step-{at:08}"), "{flag} {most}");
        let (summary, last) = (&records(&out, "summary")[0], &steps(&out)[0]);
        assert_eq!(steps(&out).len(), 1, "the last step alone is logged");
        for record in [summary, last] {
            assert_eq!(record["step"], at);
            assert_eq!(record["tokens"], 64 * at);
            assert_eq!(record["flops"].as_f64().unwrap(), 64.0 * f64::from(at) * token);
        }
        assert_eq!(summary["stopped_by"], reason);
    }
    let out = trace.dir.join("other");
    let args = short(&trace, text(&model), text(&out));
    refuse(&[&args[..], &["--max-flops", "nan"]].concat(), "--max-flops");
    refuse(&[&args[..], &["--peak-tflops", "0"]].concat(), "measure");
    assert!(!out.exists());
}

#[test]
fn the_summary_says_where_time_and_memory_went_and_mfu_needs_a_ceiling() {
    let trace = trace();
    let (model, out) = (model(&trace), trace.dir.join("run"));
    let args = short(&trace, text(&model), text(&out));
    succeed(&tool("ao-train"), &[&args[..], &["--steps", "3"]].concat());
    let number = |r: &Value, key: &str| r[key].as_f64().unwrap_or_else(|| panic!("{key}: {r}"));
    let summary = &records(&out, "summary")[0];
    assert!(summary["mfu"].is_null() && steps(&out).iter().all(|r| r["mfu"].is_null()));
    assert!(records(&out, "run")[0]["peak"].is_null());
    let parts = ["data", "forward", "head", "backward", "optimizer"];
    let seconds: f64 = parts.iter().map(|p| number(summary, &format!("{p}_seconds"))).sum();
    assert!(parts[1..].iter().all(|p| number(summary, &format!("{p}_seconds")) > 0.0));
    // All of a step's time is accounted for, and nothing else.
    let total = number(summary, "seconds");
    assert!(seconds <= total && seconds > 0.9 * total, "{seconds} of {total}");
    assert_eq!(number(summary, "evaluate_seconds"), 0.0);
    assert!(number(summary, "save_seconds") > 0.0);
    // libtorch alone takes more than 50 MB.
    assert!((50e6..50e9).contains(&number(summary, "peak_memory_bytes")));

    // A given ceiling makes mfu a number, a resumed run counts its own steps.
    let more = ["--resume", text(&out), "--steps", "5", "--peak-tflops", "0.5"];
    succeed(&tool("ao-train"), &more);
    let summary = &records(&out, "summary")[1];
    assert_eq!((&summary["step"], &summary["steps_of_start"]), (&5.into(), &2.into()));
    for record in [summary, &steps(&out)[4]] {
        let share =
            number(record, "tokens_per_second") * number(summary, "flops_per_token") / 0.5e12;
        assert!((number(record, "mfu") / share - 1.0).abs() < 1e-9, "{record}");
    }
    // Or a measured one, which is recorded with what measuring took.
    succeed(
        &tool("ao-train"),
        &["--resume", text(&out), "--steps", "6", "--peak-tflops", "measure"],
    );
    let peak = &records(&out, "run")[2]["peak"];
    assert!(number(peak, "tflops") > 0.0 && number(peak, "measured_seconds") > 0.1, "{peak}");
    let mfu = number(&records(&out, "summary")[2], "mfu");
    assert!(mfu > 0.0 && mfu < 1.0, "a tiny model reached {mfu} of the ceiling");
}

#[test]
fn a_dry_run_says_what_would_be_run_and_leaves_nothing() {
    let trace = trace();
    let (model, out) = (model(&trace), trace.dir.join("run"));
    let mut args = short(&trace, text(&model), text(&out));
    args.retain(|&flag| flag != "--quiet");
    let all = [&args[..], &["--dry-run", "--ema", "0.9,0.99", "--accumulate", "3"]].concat();
    let result = run(&tool("ao-train"), &all);
    let stderr = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{stderr}");
    assert!(!out.exists());
    let stdout = String::from_utf8(result.stdout).unwrap();
    assert_eq!(stdout.lines().count(), 1);
    let plan: Value = serde_json::from_str(&stdout).unwrap();
    let (config, _) = golden_config("train-trace");
    let parameters = config.parameter_count();
    assert_eq!(plan["type"], "plan");
    assert_eq!(plan["parameters"], parameters);
    assert_eq!(plan["tokens_per_step"], 4 * 16 * 3);
    assert_eq!(plan["tokens"], 4 * 16 * 3 * 5);
    assert_eq!(plan["weights_bytes"], 4 * parameters);
    assert_eq!(plan["moments_bytes"], 8 * parameters);
    assert_eq!(plan["averages_bytes"], 8 * parameters);
    assert_eq!(plan["logits_bytes"], 4 * 16 * 64 * 4);
    let least = plan["least_seconds_per_step"].as_f64().unwrap();
    assert!((plan["least_seconds"].as_f64().unwrap() / least - 5.0).abs() < 1e-9);
    assert!(least > 0.0 && plan["peak"]["measured_seconds"].as_f64().unwrap() > 0.0);
    // Everything that defines the run is said.
    let shards = text(&trace.shards);
    for words in [
        "ao-gpt",
        "2 layers x 32",
        "192 tokens",
        shards,
        "shuffled",
        "mix:0.1*l2r+0.9*uniform",
        "seed 0",
        "lr 0.01 -> 0.001",
        "weight decay 0.05",
        "clip 1",
        "ema 0.9,0.99",
        "device cpu",
        "f32",
        "1 threads",
        "memory about",
        "TFLOP/s",
    ] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
}

/// Scalars of a run's event file: by tag, steps with values.
fn events(folder: &Path) -> BTreeMap<String, Vec<(u64, f32)>> {
    let path = EventReader::path_in(folder);
    let bytes = std::fs::read(&path).unwrap();
    let mut reader = EventReader::new(&bytes, &path);
    assert_eq!(
        reader.next_event().unwrap().unwrap().file_version.as_deref(),
        Some("brain.Event:2")
    );
    let mut found: BTreeMap<String, Vec<(u64, f32)>> = BTreeMap::new();
    while let Some(event) = reader.next_event().unwrap() {
        for (tag, value) in event.scalars {
            found.entry(tag).or_default().push((event.step, value));
        }
    }
    found
}

#[test]
fn tensorboard_has_each_step_once_however_often_the_run_was_stopped() {
    let trace = trace();
    let (model, out) = (model(&trace), trace.dir.join("run"));
    let board = trace.dir.join("board/a");
    let args = short(&trace, text(&model), text(&out));
    let eval = ["--val-shards", text(&trace.shards), "--eval-every", "2", "--val-sequences", "4"];
    let more = ["--tensorboard", text(&board), "--save-every", "2", "--ema", "0.9"];
    let all = [&args[..], &eval, &more].concat();
    succeed(&tool("ao-train"), &[&all[..], &["--steps", "3"]].concat());
    // As if it had been killed in step 4, after the checkpoint of step 2.
    std::fs::remove_dir_all(out.join("checkpoints/step-00000003")).unwrap();
    std::fs::write(out.join("latest"), "step-00000002\n").unwrap();
    let path = EventReader::path_in(&board);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend([40, 0, 0, 0]);
    std::fs::write(&path, bytes).unwrap();
    succeed(&tool("ao-train"), &["--resume", text(&out), "--steps", "5"]);

    let found = events(&board);
    let of = |kind: &str, key: &str, weights: Option<&str>| -> Vec<(u64, f32)> {
        records(&out, kind)
            .iter()
            .filter(|r| weights.is_none_or(|w| r["weights"] == w))
            .map(|r| (r["step"].as_u64().unwrap(), r[key].as_f64().unwrap() as f32))
            .collect()
    };
    assert_eq!(found["train/loss_nats"].iter().map(|p| p.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for key in ["loss_nats", "lr", "grad_norm", "tokens_per_second"] {
        assert_eq!(found[&format!("train/{key}")], of("step", key, None), "{key}");
    }
    for weights in ["raw", "ema:0.9"] {
        let key = "nll_nats_per_token";
        let expected = of("eval", key, Some(weights));
        assert_eq!(found[&format!("eval/{weights}/{key}")], expected, "{weights}");
    }
    assert!(!found.contains_key("train/mfu"), "a figure without a ceiling");

    // Another run does not write among these.
    let other = trace.dir.join("other");
    let args = short(&trace, text(&model), text(&other));
    refuse(&[&args[..], &["--tensorboard", text(&board)]].concat(), "--tensorboard");
    assert!(!other.exists());
    let forced = [&args[..], &["--tensorboard", text(&board), "--force", "--steps", "1"]].concat();
    succeed(&tool("ao-train"), &forced);
    assert_eq!(events(&board)["train/loss_nats"].len(), 1);
}

#[test]
fn any_cut_of_a_step_has_the_same_loss_and_gradient() {
    let trace = trace();
    let model = model(&trace);
    let figures = |batch: &str, accumulate: &str| {
        let out = trace.dir.join(format!("{batch}-{accumulate}"));
        let args = short(&trace, text(&model), text(&out));
        let cut = ["--batch-size", batch, "--accumulate", accumulate, "--lr", "0.001"];
        succeed(&tool("ao-train"), &[&args[..], &cut].concat());
        let of = |r: &Value, key: &str| r[key].as_f64().unwrap();
        steps(&out).iter().map(|r| (of(r, "loss_nats"), of(r, "grad_norm"))).collect::<Vec<_>>()
    };
    let whole = figures("12", "1");
    for (batch, accumulate) in [("6", "2"), ("4", "3"), ("1", "12")] {
        for (a, b) in whole.iter().zip(figures(batch, accumulate)) {
            let worst = (a.0 - b.0).abs().max((a.1 - b.1).abs());
            assert!(worst < 1e-5, "{batch} x {accumulate}: {a:?} {b:?}");
        }
    }
}

#[test]
fn help_says_how_operations_are_counted() {
    let out = Command::new(tool("ao-train")).arg("--help").output().unwrap();
    let help = String::from_utf8(out.stdout).unwrap();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["6·N + 12·L·C·T", "--peak-tflops", "--tensorboard", "--max-flops"] {
        assert!(words.contains(part), "{part}");
    }
}
