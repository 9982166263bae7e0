//! `ao-ema` through the real binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ao_core::ema::EmaDecay;
use ao_core::format::checkpoint::{CheckpointFile, CheckpointWriter, DType, Kind, Metadata};
use serde_json::{Value, json};

fn ema(args: &[&str], files: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ao-ema")).args(args).args(files).output().unwrap()
}

fn refusal(args: &[&str], files: &[PathBuf], code: i32) -> String {
    let out = ema(args, files);
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn metadata(step: u64) -> Metadata {
    Metadata {
        config: json!({"arch": "ao-gpt", "n_layer": 2}),
        step,
        tokens_seen: 10 * step,
        ..Metadata::default()
    }
}

/// A checkpoint of `w`, of an integer buffer and of one more tensor, in this order or reversed.
fn write(path: &Path, meta: &Metadata, dtype: DType, w: &[f32], count: i64, reversed: bool) {
    let mut entries = vec![
        ("w".to_owned(), dtype, vec![w.len()]),
        ("count".to_owned(), DType::I64, vec![]),
        ("b".to_owned(), DType::F32, vec![1]),
    ];
    if reversed {
        entries.reverse();
    }
    let mut writer = CheckpointWriter::create(path, true, &meta.to_map(), &entries).unwrap();
    for (name, _, _) in &entries {
        match name.as_str() {
            "w" => writer.put_f32(w).unwrap(),
            "count" => writer.put(&count.to_le_bytes()).unwrap(),
            _ => writer.put_f32(&[count as f32]).unwrap(),
        }
    }
    writer.finish().unwrap();
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    /// Three checkpoints of steps 1 to 3, the second in bf16 and in another order of tensors.
    fn three(&self) -> Vec<PathBuf> {
        (1..=3)
            .map(|i| {
                let path = self.path(&format!("{i}.st"));
                let (dtype, x) = (if i == 2 { DType::BF16 } else { DType::F32 }, i as f32);
                write(&path, &metadata(i), dtype, &[x, -x, 8.0 * x], i as i64, i == 2);
                path
            })
            .collect()
    }
    fn average(&self, args: &[&str], files: &[PathBuf]) -> CheckpointFile {
        let out = self.path("out.st");
        let result = ema(&[args, &["--force", "-o", out.to_str().unwrap()]].concat(), files);
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        CheckpointFile::open(&out).unwrap()
    }
}

#[test]
fn averages_go_by_name_and_keep_the_last_integer_buffers() {
    let folder = Folder::new();
    let files = folder.three();
    for (args, w) in [
        (&["--mean"][..], 2.0),
        (&["--coefficients=1,2,3"], 14.0 / 6.0),
        (&["--decay=0.5"], 0.25 + 0.5 + 1.5),
        (&["--decay=0"], 3.0),
    ] {
        let out = folder.average(args, &files);
        let got = out.to_f32("w").unwrap();
        for (got, want) in got.iter().zip([w, -w, 8.0 * w]) {
            assert!((got - want).abs() < 1e-6, "{args:?}: {got} {want}");
        }
        assert!((out.to_f32("b").unwrap()[0] - w).abs() < 1e-6);
        assert_eq!(out.tensor("count").unwrap().bytes, 3i64.to_le_bytes());
    }
}

#[test]
fn the_result_says_what_it_is_and_what_it_was_made_of() {
    let folder = Folder::new();
    let out = folder.average(&["--decay=0.9"], &folder.three());
    let meta = out.ao_metadata().unwrap().unwrap();
    assert_eq!((meta.kind, meta.ema_decay, meta.step), (Kind::Ema, Some(0.9), 3));
    assert_eq!(meta.config, metadata(0).config);
    let source: Value = serde_json::from_str(&out.metadata()["ema_source"]).unwrap();
    assert_eq!(source["inputs"].as_array().unwrap().len(), 3);
    assert_eq!(source["inputs"][0]["xxh3"].as_str().unwrap().len(), 16);
}

#[test]
fn bf16_files_are_averaged_in_more_than_their_own_precision() {
    let folder = Folder::new();
    let files: Vec<PathBuf> = [1.0, 1.0078125]
        .iter()
        .enumerate()
        .map(|(i, &x)| {
            let path = folder.path(&format!("{i}.st"));
            write(&path, &metadata(i as u64), DType::BF16, &[x], 0, false);
            path
        })
        .collect();
    let out = folder.average(&["--mean"], &files);
    assert_eq!(out.to_f32("w").unwrap(), [1.003_906_2]); // no bf16 number
}

#[test]
fn posthoc_builds_what_another_decay_would_have_kept() {
    let folder = Folder::new();
    let walk = |step: u64| 0.1 * (0.3 * step as f64).sin() + 0.01 * step as f64;
    let accumulated = |decay: f64, until: u64| {
        let law = EmaDecay { decay, warmup: true };
        let mut average = walk(0);
        for step in 1..=until {
            let decay = law.effective(step);
            average = decay * average + (1.0 - decay) * walk(step);
        }
        average
    };
    let mut files = Vec::new();
    for step in (20..=300).step_by(20) {
        for decay in [0.9, 0.99] {
            let path = folder.path(&format!("{step:03}-{decay}.st"));
            let meta = Metadata {
                kind: Kind::Ema,
                ema_decay: Some(decay),
                ema_warmup: Some(true),
                ..metadata(step)
            };
            write(&path, &meta, DType::F32, &[accumulated(decay, step) as f32], 0, false);
            files.push(path);
        }
    }
    let out = folder.average(&["--posthoc=decay:0.95"], &files);
    let (got, want) = (f64::from(out.to_f32("w").unwrap()[0]), accumulated(0.95, 300));
    assert!((got - want).abs() < 0.01, "{got} {want}");
    assert!((accumulated(0.99, 300) - want).abs() > 0.05, "the test must tell decays apart");
    let meta = out.ao_metadata().unwrap().unwrap();
    assert_eq!((meta.ema_decay, meta.step, meta.tokens_seen), (Some(0.95), 300, 3000));

    let sigma = folder.average(&["--posthoc=sigma:0.1"], &files);
    let gamma: f64 = sigma.metadata()["ema_power"].parse().unwrap();
    assert!((gamma - 6.94).abs() < 0.01, "{gamma}");
    files.push(folder.path("out.st"));
    let text = refusal(&["--posthoc=decay:0.95", "-o", "/no/x.st"], &files, 2);
    assert!(text.contains("out.st: is an average of files"), "{text}");
}

#[test]
fn checkpoints_that_differ_are_refused_by_the_difference() {
    let folder = Folder::new();
    let mut files = folder.three();
    let out = folder.path("out.st");
    let args = ["--mean", "--quiet", "-o", out.to_str().unwrap()];
    let other = folder.path("other.st");
    files.push(other.clone());

    let mut meta = metadata(4);
    meta.config["n_layer"] = json!(3);
    write(&other, &meta, DType::F32, &[0.0; 3], 0, false);
    let text = refusal(&args, &files, 2);
    assert!(text.contains("other.st: config 'n_layer' is 3, but 2 in"), "{text}");

    write(&other, &metadata(4), DType::F32, &[0.0; 4], 0, false);
    let text = refusal(&args, &files, 2);
    assert!(text.contains("tensor 'w' has shape [4], but [3] in"), "{text}");

    let one = [("w".to_owned(), DType::F32, vec![0])];
    CheckpointWriter::create(&other, true, &metadata(4).to_map(), &one).unwrap().finish().unwrap();
    let text =
        refusal(&args, &files[3..].iter().chain(&files[..1]).cloned().collect::<Vec<_>>(), 2);
    assert!(text.contains("tensor 'w' has shape"), "{text}");

    write(&other, &metadata(4), DType::F32, &[0.0, f32::NAN, 0.0], 0, false);
    let text = refusal(&args, &files, 1);
    assert!(text.contains("other.st, tensor 'w': element 1 is not finite"), "{text}");
    assert!(!out.exists());
}

#[test]
fn wrong_calls_are_one_line_and_exit_2() {
    let folder = Folder::new();
    let files = folder.three();
    for (args, want) in [
        (&["--mean"][..], "not provided: --output <FILE>"),
        (&["--mean", "-o", "-"], "-o -: a checkpoint is no stream; give a path"),
        (&["-o", "x.st"], "--decay"),
        (&["--mean", "--decay=0.9", "-o", "x.st"], "cannot be used with"),
        (&["--decay=1", "-o", "x.st"], "--decay 1: must be at least 0 and below 1"),
        (&["--decay=nan", "-o", "x.st"], "--decay NaN"),
        (&["--coefficients=1,2", "-o", "x.st"], "2 numbers for 3 files"),
        (&["--coefficients=1,-2,1", "-o", "x.st"], "sum to 0"),
        (&["--posthoc=beta:1", "-o", "x.st"], "allowed are decay:B"),
        (&["--posthoc=sigma:0.3", "-o", "x.st"], "below 0.288"),
    ] {
        let text = refusal(args, &files, 2);
        assert!(text.contains(want), "{args:?}: {text}");
    }
    let text = refusal(&["--mean", "-o", "x.st"], &[folder.path("missing.st")], 2);
    assert!(text.contains("missing.st: no such file"), "{text}");
}

#[test]
fn one_file_comes_out_bit_for_bit_in_its_own_types() {
    let folder = Folder::new();
    let source = folder.path("one.st");
    write(&source, &metadata(7), DType::BF16, &[-0.0, 1.0078125, f32::MIN_POSITIVE], 3, false);
    let want = CheckpointFile::open(&source).unwrap();
    for rule in ["--mean", "--decay=0.9", "--coefficients=3"] {
        let got = folder.average(&[rule], std::slice::from_ref(&source));
        assert_eq!(got.names().collect::<Vec<_>>(), want.names().collect::<Vec<_>>());
        for name in want.names() {
            let (got, want) = (got.tensor(name).unwrap(), want.tensor(name).unwrap());
            assert_eq!((got.dtype, &got.shape, got.bytes), (want.dtype, &want.shape, want.bytes));
        }
    }
    let broken = folder.path("broken.st");
    write(&broken, &metadata(7), DType::BF16, &[1.0, f32::NAN, 1.0], 3, false);
    let out = folder.path("no.st");
    let text = refusal(&["--mean", "--quiet", "-o", out.to_str().unwrap()], &[broken], 1);
    assert!(text.contains("element 1 is NaN") && !out.exists(), "{text}");
}

#[test]
fn factors_are_told_as_a_table() {
    let folder = Folder::new();
    let files = folder.three();
    let out = folder.path("out.st");
    let result = ema(&["--coefficients=1,1,2", "-o", out.to_str().unwrap()], &files);
    let text = String::from_utf8(result.stderr).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["factor", "step", "weights", "file"], "{text}");
    let names: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
    assert_eq!(lines[1], ["0.250000", "1", "raw", &names[0]], "{text}");
    assert_eq!(lines[3], ["0.500000", "3", "raw", &names[2]], "{text}");
}

#[test]
fn help_says_that_the_output_has_no_default() {
    let out = ema(&["--help"], &[]);
    let text = String::from_utf8(out.stdout).unwrap();
    let at = text.find("--output <FILE>").unwrap();
    assert!(text[at..].starts_with("--output <FILE>") && !text.contains("[default: -]"), "{text}");
}

#[test]
fn an_average_that_the_files_do_not_hold_is_warned_of() {
    let folder = Folder::new();
    let mut files = Vec::new();
    for step in [10, 20] {
        let path = folder.path(&format!("{step}.st"));
        let kept = Metadata { kind: Kind::Ema, ema_decay: Some(0.5), ..metadata(step) };
        write(&path, &kept, DType::F32, &[step as f32], 0, false);
        files.push(path);
    }
    let told = |profile: &str| {
        let out = folder.path("out.st");
        let target = ["--force", "-o", out.to_str().unwrap()];
        let result = ema(&[&[profile], &target[..]].concat(), &files);
        assert!(result.status.success());
        String::from_utf8(result.stderr).unwrap()
    };
    let far = told("--posthoc=power:1");
    assert!(far.contains("warning: this is not the average that --posthoc names"), "{far}");
    let own = told("--posthoc=decay:0.5");
    assert!(own.contains("profile off by 0.000 %") && !own.contains("warning"), "{own}");
}
