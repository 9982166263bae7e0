//! `ao-train` stopped, killed, out of disk and resumed: to the same bits, from a whole checkpoint.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ao_core::format::checkpoint::CheckpointFile;
use common::golden_config;
use common::train::{
    Trace, checkpoint_bytes, curve, flags, initial_weights, limit, refuse, shards, steps, succeed,
    text, tool, trace,
};
use serde_json::Value;

/// Every state that a run can have: dropout, micro-batches, four averages, orders from a file.
fn stateful<'a>(trace: &'a Trace, model: &'a str, out: &'a str) -> Vec<&'a str> {
    vec![
        "--model",
        model,
        "--shards",
        text(&trace.shards),
        "--orders",
        text(&trace.orders),
        "--out",
        out,
        "--batch-size",
        "4",
        "--accumulate",
        "2",
        "--steps",
        "8",
        "--decay-steps",
        "8",
        "--warmup",
        "2",
        "--lr",
        "0.01",
        "--ema",
        "0,0.99,0.999,0.9999",
        "--seed",
        "5",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--quiet",
    ]
}

/// The trace's model with dropout.
fn model_with_dropout(dir: &Path) -> PathBuf {
    let (model, _) = golden_config("train-trace");
    let mut config = model.to_json();
    config["dropout"] = 0.2.into();
    let path = dir.join("model.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[test]
fn a_run_resumed_from_any_step_has_the_bits_of_an_unbroken_one() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    // Ten more documents, which the eight steps go through more than twice.
    let few: Vec<Vec<u32>> = (0..10).map(|i| (0..16).map(|k| (i * k + 3) % 64).collect()).collect();
    let few: Vec<&[u32]> = few.iter().map(Vec::as_slice).collect();
    let other = trace.dir.join("other");
    std::fs::create_dir(&other).unwrap();
    let other = shards(&other, &few, 64);
    let mixture = format!("{}:0.6,{}:0.4", text(&trace.shards), text(&other));
    for (name, more, stops) in [
        ("cold", &["--no-ema-warmup"][..], &["3"][..]),
        ("mixed", &["--shards", &mixture, "--orders", "mix:0.5*l2r+0.5*uniform"], &["2", "6"]),
        ("bf16", &["--dtype", "bf16"], &["5"]),
        ("warm", &[], &["1", "2", "4", "5", "7"]),
    ] {
        let whole = trace.dir.join(format!("{name}-whole"));
        let args = stateful(&trace, text(&model), text(&whole));
        succeed(&tool("ao-train"), &[&args[..], more].concat());
        assert_eq!(checkpoint_bytes(&whole).len(), 6);
        for stop in stops {
            let broken = trace.dir.join(format!("{name}-{stop}"));
            let args = stateful(&trace, text(&model), text(&broken));
            succeed(&tool("ao-train"), &[&args[..], more, &["--steps", stop]].concat());
            succeed(&tool("ao-train"), &["--resume", text(&broken), "--steps", "8"]);
            let same = checkpoint_bytes(&whole) == checkpoint_bytes(&broken);
            assert!(same, "{name}, stopped at {stop}");
            assert_eq!(curve(&whole), curve(&broken), "{name}, stopped at {stop}");
        }
    }
    let average = |run: &str| {
        let run = trace.dir.join(run);
        checkpoint_bytes(&run).into_iter().find(|(n, _)| n == "ema-0.999.st").unwrap()
    };
    assert_ne!(average("cold-whole"), average("warm-whole"));
}

#[test]
fn a_run_on_two_threads_resumes_to_the_same_bits_too() {
    let trace = trace();
    let init = initial_weights(&trace.dir);
    let (whole, broken) = (trace.dir.join("whole"), trace.dir.join("broken"));
    succeed(&tool("ao-train"), &flags(&trace, text(&init), text(&whole)));
    let mut args = flags(&trace, text(&init), text(&broken));
    args.extend(["--steps", "7"]);
    succeed(&tool("ao-train"), &args);
    succeed(&tool("ao-train"), &["--resume", text(&broken), "--steps", "24"]);
    assert!(checkpoint_bytes(&whole) == checkpoint_bytes(&broken));
    assert_eq!(curve(&whole), curve(&broken));
}

#[test]
fn orders_from_a_pipe_are_piped_again_from_their_start() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let (whole, broken) = (trace.dir.join("whole"), trace.dir.join("broken"));
    let piped = |args: &[&str], orders: &str| {
        let mut command = Command::new(tool("ao-train"));
        let orders = std::fs::File::open(orders).unwrap();
        command.args(args).stdin(orders).stderr(Stdio::piped()).output().unwrap()
    };
    let args = stateful(&trace, text(&model), text(&whole));
    succeed(&tool("ao-train"), &args);
    let args = stateful(&trace, text(&model), text(&broken));
    let orders = text(&trace.orders);
    let first = piped(&[&args[..], &["--orders", "-", "--steps", "3"]].concat(), orders);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let resume = ["--resume", text(&broken), "--steps", "8", "--quiet"];

    // Nothing in the pipe, or too little: one line, and the checkpoint stays as it was.
    let short = trace.dir.join("short.jsonl");
    let rows = std::fs::read_to_string(orders).unwrap();
    let few: Vec<&str> = rows.lines().take(20).collect();
    std::fs::write(&short, few.join("\n")).unwrap();
    for (pipe, held) in [("/dev/null", "holds 0 rows"), (text(&short), "holds 20 rows")] {
        let refused = piped(&resume, pipe);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("stdin") && stderr.contains(held), "{stderr}");
        assert_eq!(std::fs::read_to_string(broken.join("latest")).unwrap(), "step-00000003\n");
    }
    let last = piped(&resume, orders);
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    assert!(checkpoint_bytes(&whole) == checkpoint_bytes(&broken));
    assert_eq!(curve(&whole), curve(&broken));
}

#[test]
fn orders_that_run_out_are_told_at_the_start_or_cost_nothing_that_was_trained() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let (whole, run) = (trace.dir.join("whole"), trace.dir.join("run"));
    succeed(&tool("ao-train"), &stateful(&trace, text(&model), text(&whole)));
    let rows = std::fs::read_to_string(&trace.orders).unwrap();
    let few: Vec<&str> = rows.lines().take(40).collect();
    let few_rows = trace.dir.join("few.jsonl");
    std::fs::write(&few_rows, few.join("\n")).unwrap();
    let args = stateful(&trace, text(&model), text(&run));
    // Eight steps of eight sequences need 64: a file is counted before anything is written.
    let with = |orders: &'static str| [&args[..], &["--orders", orders]].concat();
    let file = [&args[..], &["--orders", text(&few_rows)]].concat();
    refuse(&file, "40 rows of orders where 64 are needed");
    assert!(!run.exists());
    // Five steps are enough, and a budget may be.
    succeed(&tool("ao-train"), &[&file[..], &["--steps", "5"]].concat());
    succeed(&tool("ao-train"), &[&file[..], &["--max-tokens", "100", "--force"]].concat());
    // A pipe is not known to be short until it ends: what was trained by then is saved.
    let pipe = std::fs::File::open(&few_rows).unwrap();
    let mut command = Command::new(tool("ao-train"));
    let ended = command.args(with("-")).arg("--force").stdin(pipe).output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("stdin") && stderr.contains("holds 40 rows"), "{stderr}");
    assert_eq!(std::fs::read_to_string(run.join("latest")).unwrap(), "step-00000005\n");
    let resume = ["--resume", text(&run), "--orders", text(&trace.orders)];
    succeed(&tool("ao-train"), &resume);
    assert!(checkpoint_bytes(&whole) == checkpoint_bytes(&run));
    assert_eq!(curve(&whole), curve(&run));
}

#[test]
fn a_full_disk_keeps_the_checkpoint_before_and_the_run_goes_on_once_there_is_room() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let (whole, run) = (trace.dir.join("whole"), trace.dir.join("run"));
    succeed(&tool("ao-train"), &stateful(&trace, text(&model), text(&whole)));
    let args = stateful(&trace, text(&model), text(&run));
    succeed(&tool("ao-train"), &[&args[..], &["--steps", "3", "--keep-last", "1"]].concat());
    let before = checkpoint_bytes(&run);
    let size = before.iter().find(|(n, _)| n == "model.st").unwrap().1.len() as u64;
    // The disk is full in the middle of the first file, and behind the weights and averages.
    for room in [size / 2, size + 4096] {
        let mut command = Command::new(tool("ao-train"));
        command.args(["--resume", text(&run), "--steps", "8", "--save-every", "2", "--quiet"]);
        limit(&mut command, libc::RLIMIT_FSIZE, room);
        let result = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&result.stderr);
        assert_eq!(result.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("cannot write") && stderr.contains(".st"), "{stderr}");
        assert_eq!(std::fs::read_to_string(run.join("latest")).unwrap(), "step-00000003\n");
        assert!(before == checkpoint_bytes(&run), "the older checkpoint has changed");
        assert_eq!(checkpoints(&run), ["step-00000003"], "{room} bytes: something half is left");
    }
    succeed(&tool("ao-train"), &["--resume", text(&run), "--steps", "8"]);
    assert!(checkpoint_bytes(&whole) == checkpoint_bytes(&run));
    assert_eq!(curve(&whole), curve(&run));
}

/// Everything in a run's `checkpoints/`, by name.
fn checkpoints(run: &Path) -> Vec<String> {
    names(&run.join("checkpoints"))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_a_killed_run_left_half_written_goes_at_the_next_start() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let run = trace.dir.join("run");
    let args = stateful(&trace, text(&model), text(&run));
    let args = [&args[..], &["--steps", "1"]].concat();
    succeed(&tool("ao-train"), &args);
    let (clean, folder) = (names(&run), run.join("checkpoints"));
    let litter = || {
        let half = folder.join(".step-00000002.tmp-4000001");
        std::fs::create_dir(&half).unwrap();
        std::fs::write(half.join("model.st"), "half").unwrap();
        std::fs::write(run.join(".latest.tmp-4000001"), "step").unwrap();
        std::fs::write(run.join("notes.txt"), "mine").unwrap();
    };
    litter();
    succeed(&tool("ao-train"), &["--resume", text(&run), "--steps", "2"]);
    assert_eq!(checkpoints(&run), ["step-00000001", "step-00000002"]);
    std::fs::remove_file(run.join("notes.txt")).expect("what is not ours stays");
    assert_eq!(names(&run), clean);
    litter();
    succeed(&tool("ao-train"), &[&args[..], &["--force"]].concat());
    assert_eq!(checkpoints(&run), ["step-00000001"]);
    std::fs::remove_file(run.join("notes.txt")).expect("what is not ours stays");
    assert_eq!(names(&run), clean);
}

#[test]
fn rotation_keeps_the_newest_every_nth_and_what_latest_names() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let run = trace.dir.join("run");
    let args = stateful(&trace, text(&model), text(&run));
    let keep = ["--save-every", "1", "--keep-last", "2", "--keep-every", "3", "--steps", "8"];
    succeed(&tool("ao-train"), &[&args[..], &keep].concat());
    let kept = ["step-00000003", "step-00000006", "step-00000007", "step-00000008"];
    assert_eq!(checkpoints(&run), kept);
    // Sent back by hand: later steps are not newer than what the run writes now.
    std::fs::write(run.join("latest"), "step-00000003\n").unwrap();
    let resume = ["--resume", text(&run), "--steps", "5", "--keep-last", "1", "--keep-every", "0"];
    succeed(&tool("ao-train"), &resume);
    assert_eq!(std::fs::read_to_string(run.join("latest")).unwrap(), "step-00000005\n");
    assert_eq!(&checkpoints(&run)[..1], ["step-00000005"]);
}

#[test]
fn a_killed_run_goes_on_from_a_whole_checkpoint() {
    let trace = trace();
    let (init, out) = (initial_weights(&trace.dir), trace.dir.join("run"));
    let mut args = flags(&trace, text(&init), text(&out));
    args.extend([
        "--save-every",
        "1",
        "--keep-last",
        "1",
        "--steps",
        "1",
        "--orders",
        "uniform",
        "--threads",
        "1",
    ]);
    succeed(&tool("ao-train"), &args);
    let mut before = 1;
    for round in 0..20u64 {
        let mut child = Command::new(tool("ao-train"))
            .args(["--resume", text(&out), "--steps", "4000", "--quiet"])
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
fn a_folder_is_trained_in_by_one_process_at_a_time() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let run = trace.dir.join("run");
    let args = stateful(&trace, text(&model), text(&run));
    let endless = ["--steps", "1000000", "--save-every", "1", "--orders", "uniform"];
    let mut child =
        Command::new(tool("ao-train")).args([&args[..], &endless].concat()).spawn().unwrap();
    while !run.join("latest").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert!(child.try_wait().unwrap().is_none(), "ended early");
    }
    let before = steps(&run).len();
    refuse(&["--resume", text(&run)], "another ao-train works in this folder");
    refuse(&[&args[..], &["--force"]].concat(), "another ao-train works in this folder");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(steps(&run).len() >= before, "the refused ones have touched the records");
    succeed(&tool("ao-train"), &["--resume", text(&run), "--steps", "1"]);
}

/// What a start says on stderr.
fn said(args: &[&str]) -> String {
    let out = common::train::run(&tool("ao-train"), args);
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{args:?}: {stderr}");
    stderr
}

#[test]
fn what_becomes_of_the_learning_rate_is_said_when_a_run_goes_on_longer() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let run = trace.dir.join("run");
    let args: Vec<&str> = stateful(&trace, text(&model), text(&run));
    let decay = args.iter().position(|&flag| flag == "--decay-steps").unwrap();
    let args: Vec<&str> = [&args[..decay], &args[decay + 2..], &["--steps", "4"]].concat();
    let rates = || -> Vec<f64> { steps(&run).iter().map(|r| r["lr"].as_f64().unwrap()).collect() };
    assert_eq!(said(&args), "", "--quiet");

    // The decay ends where it would have ended, and a run of an older version says so too.
    let state = run.join("checkpoints/step-00000004/trainer.json");
    let mut old: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    assert_eq!(old.as_object_mut().unwrap().remove("decay_steps"), Some(4.into()));
    std::fs::write(&state, old.to_string()).unwrap();
    let go_on = ["--resume", text(&run)];
    let stderr = said(&[&go_on[..], &["--steps", "6"]].concat());
    let line = "the learning rate keeps its decay to step 4 and is 0.001 after it; --decay-steps 6 \
                would go on at 5.500e-3";
    assert!(stderr.lines().any(|l| l == line), "--quiet is not of the run: {stderr}");
    assert_eq!(rates()[4..], [0.001, 0.001]);

    // Another end is a jump.
    let stderr = said(&[&go_on[..], &["--steps", "8", "--decay-steps", "10"]].concat());
    let line = "warning: the learning rate goes on at 5.500e-3, not at the 1.000e-3 of the run so \
                far (lr 0.01 -> 0.001, warm-up 2, decay to step 4)";
    assert!(stderr.lines().any(|l| l == line), "{stderr}");
    assert!((rates()[6] - 0.0055).abs() < 1e-12, "{:?}", rates());
    let stderr = said(&[&go_on[..], &["--steps", "9"]].concat());
    assert!(stderr.contains("keeps its decay to step 10\n"), "{stderr}");
    assert!(!stderr.contains("warning"), "{stderr}");
    let quiet = said(&[&go_on[..], &["--steps", "10", "--quiet"]].concat());
    assert_eq!(quiet, "");
}

#[test]
fn a_warm_up_beyond_the_run_or_its_decay_is_told() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let args = stateful(&trace, text(&model), "none");
    let args: Vec<&str> = args.into_iter().filter(|&flag| flag != "--quiet").collect();
    let dry =
        |more: &[&str]| said(&[&args[..], &["--dry-run", "--peak-tflops", "1"], more].concat());
    assert!(!dry(&[]).contains("warning"));
    let long = dry(&["--warmup", "9"]);
    assert!(long.contains("warning: --warmup 9 is longer than the 8 steps"), "{long}");
    let early = dry(&["--warmup", "5", "--decay-steps", "4"]);
    assert!(early.contains("warning: --warmup 5 is longer than the decay to step 4"), "{early}");
}

#[test]
fn what_a_run_has_for_good_is_refused_beside_resume_and_its_record_stays_true() {
    let trace = trace();
    let init = initial_weights(&trace.dir);
    let (first, run) = (trace.dir.join("first"), trace.dir.join("run"));
    let mut args = flags(&trace, text(&init), text(&first));
    args.extend(["--steps", "1"]);
    succeed(&tool("ao-train"), &args);
    std::fs::rename(&first, &run).unwrap();
    for flag in ["--model", "--init", "--out"] {
        let call = ["--resume", text(&run), flag, text(&init)];
        refuse(&call, &format!("{flag}: --resume {} goes on with", run.display()));
    }
    let ema = ["--resume", text(&run), "--ema", "0.99"];
    refuse(&ema, "--ema 0.99: the run keeps 0.9999; a resumed run cannot begin another average");
    // Shards of the same number of ids with a tokenizer.
    let other = trace.dir.join("other");
    let words = trace.dir.join("words.txt");
    std::fs::write(&words, "the cat sat on the mat and the dog sat on the log\n".repeat(9))
        .unwrap();
    succeed(&tool("ao-tokenize"), &["--train-tokenizer", "260", "-o", text(&other), text(&words)]);
    let mut config = golden_config("train-trace").0.to_json();
    config["vocab_size"] = 260.into();
    let model = trace.dir.join("large.json");
    std::fs::write(&model, config.to_string()).unwrap();
    let large = trace.dir.join("large");
    let args: Vec<&str> = stateful(&trace, text(&model), text(&large));
    succeed(&tool("ao-train"), &[&args[..], &["--steps", "1"]].concat());
    let shards = ["--resume", text(&large), "--shards", text(&other), "--orders", "uniform"];
    refuse(&shards, "--shards: their tokenizer is");
    // The folder has moved, and the weights that the run began with are still known.
    succeed(&tool("ao-train"), &["--resume", text(&run), "--steps", "2"]);
    let config: Value =
        serde_json::from_slice(&std::fs::read(run.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["out"], text(&run));
    assert_eq!(config["init"], text(&init));
    assert_eq!((&config["steps"], &config["quiet"]), (&2.into(), &false.into()));
}

#[test]
fn without_latest_the_newest_whole_checkpoint_is_gone_on_from() {
    let trace = trace();
    let model = model_with_dropout(&trace.dir);
    let (whole, broken) = (trace.dir.join("whole"), trace.dir.join("broken"));
    succeed(&tool("ao-train"), &stateful(&trace, text(&model), text(&whole)));
    let args = stateful(&trace, text(&model), text(&broken));
    let more = ["--steps", "4", "--save-every", "2"];
    succeed(&tool("ao-train"), &[&args[..], &more].concat());
    let latest = broken.join("latest");
    std::fs::remove_file(&latest).unwrap();
    for (steps, newest) in [("6", 4), ("8", 6)] {
        let resume = ["--resume", text(&broken), "--steps", steps, "--quiet"];
        let out = Command::new(tool("ao-train")).args(resume).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{stderr}");
        assert!(stderr.contains(&format!("taking the newest, step {newest}")), "{stderr}");
        if steps == "6" {
            std::fs::write(&latest, "").unwrap();
        }
    }
    assert_eq!(std::fs::read_to_string(&latest).unwrap(), "step-00000008\n");
    assert_eq!(checkpoint_bytes(&broken), checkpoint_bytes(&whole));
}
