//! What every program says of itself: its man page, its completions, its version.

use std::process::{Command, Output};

const PROGRAMS: [(&str, &str); 9] = [
    ("ao-bench", env!("CARGO_BIN_EXE_ao-bench")),
    ("ao-ema", env!("CARGO_BIN_EXE_ao-ema")),
    ("ao-import", env!("CARGO_BIN_EXE_ao-import")),
    ("ao-orders", env!("CARGO_BIN_EXE_ao-orders")),
    ("ao-sample", env!("CARGO_BIN_EXE_ao-sample")),
    ("ao-score", env!("CARGO_BIN_EXE_ao-score")),
    ("ao-summary", env!("CARGO_BIN_EXE_ao-summary")),
    ("ao-tokenize", env!("CARGO_BIN_EXE_ao-tokenize")),
    ("ao-train", env!("CARGO_BIN_EXE_ao-train")),
];

/// Those that load libtorch.
const TENSORS: [&str; 4] = ["ao-bench", "ao-sample", "ao-score", "ao-train"];

fn run(path: &str, args: &[&str]) -> Output {
    Command::new(path).args(args).output().unwrap()
}

fn text(path: &str, args: &[&str]) -> String {
    let out = run(path, args);
    assert!(out.status.success(), "{path} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn every_program_writes_its_page_and_its_completions() {
    for (name, path) in PROGRAMS {
        let help = text(path, &["--help"]);
        let flags: Vec<&str> = help
            .lines()
            .filter_map(|line| {
                line.trim_start().split("--").nth(1).filter(|_| line.contains("  --"))
            })
            .filter_map(|rest| rest.split([' ', '[', '=', ',', '.']).next())
            .filter(|flag| flag.len() > 1)
            .collect();
        assert!(flags.contains(&"config"), "{name}: {flags:?}");
        let page = text(path, &["--generate", "man"]);
        assert!(page.contains(&format!(".TH {name} 1")), "{page}");
        // Two programs have their examples in the description.
        let examples = if help.starts_with("Example") { "EXAMPLES" } else { "DESCRIPTION" };
        for section in ["NAME", "SYNOPSIS", examples, "OPTIONS", "VERSION"] {
            assert!(page.contains(&format!(".SH {section}\n")), "{name} has no section {section}");
        }
        assert!(page.contains(&name.replace('-', "\\-")) && !page.contains("\\-\\-generate"));
        for (shell, start) in [("bash", "_ao"), ("zsh", "#compdef"), ("fish", "complete -c")] {
            let script = text(path, &["--generate", shell]);
            assert!(script.contains(start) && script.contains(name), "{name}, {shell}");
            for flag in &flags {
                assert!(script.contains(flag), "{name}, {shell}: no {flag}");
            }
        }
        assert!(!help.contains("--generate"), "{help}");
        let out = run(path, &["--generate", "csh"]);
        assert_eq!(out.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&out.stderr).contains("man, bash, zsh, fish"));
    }
}

#[test]
fn a_man_page_is_one_that_man_reads() {
    for (name, path) in PROGRAMS {
        for line in text(path, &["--generate", "man"]).lines() {
            // A request is one of a page's few; text never begins like one.
            if let Some(request) = line.strip_prefix('.') {
                let word = request.split(' ').next().unwrap();
                let known =
                    ["TH", "SH", "TP", "nf", "fi", "ie", "el", "br", "RS", "RE", "PP", "IP"];
                assert!(known.contains(&word), "{name}: {line}");
            }
        }
    }
}

#[test]
fn the_long_version_names_libtorch_and_instructions_where_they_matter() {
    for (name, path) in PROGRAMS {
        let short = text(path, &["-V"]);
        assert_eq!(short, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
        let long = text(path, &["--version"]);
        let more = long.strip_prefix(&short).unwrap();
        if TENSORS.contains(&name) {
            let lines: Vec<&str> = more.lines().collect();
            assert_eq!(lines[0], "libtorch 2.11.0");
            let sets = lines[1].strip_prefix("instruction sets: ").unwrap();
            let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
            let has = |flag: &str| flags.lines().any(|l| l.split(' ').any(|f| f == flag));
            let cases = [("avx2", "avx2"), ("avx512f", "avx512f"), ("avx512bf16", "avx512_bf16")];
            for (set, flag) in cases {
                assert_eq!(sets.split(' ').any(|s| s == set), has(flag), "{set}: {sets}");
            }
        } else {
            assert_eq!(more, "");
        }
    }
}

#[test]
fn the_options_that_a_program_prints_are_a_config_file_of_the_same_options() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("options.json");
    let file = file.to_str().unwrap();
    for (name, args) in [
        ("ao-orders", &["l2r", "--count", "4"][..]),
        ("ao-sample", &["--ckpt", "m.st", "--speculative", "3"]),
        ("ao-score", &["--ckpt", "m.st", "--shards", "data"]),
        ("ao-score", &["--ref", "m.st", "--protocol", "mdlm", "s.jsonl"]),
        ("ao-score", &["--compare", "a.jsonl", "b.jsonl"]),
        ("ao-tokenize", &["-o", "out", "--pack", "compat", "--compat-rows", "9", "a.txt"]),
        ("ao-train", &["--model", "m.json", "--shards", "data", "--out", "run", "--no-shuffle"]),
    ] {
        let (_, path) = PROGRAMS.iter().find(|(own, _)| *own == name).unwrap();
        let printed = text(path, &[args, &["--print-config"]].concat());
        std::fs::write(file, &printed).unwrap();
        // What has no flag is said again.
        let bare = |word: &&&str| ["l2r", "s.jsonl", "a.txt"].contains(*word);
        let bare: Vec<&str> = args.iter().filter(bare).copied().collect();
        let again = [&bare[..], &["--config", file, "--print-config"]].concat();
        assert_eq!(text(path, &again), printed, "{name}");
        // A later file wins over an earlier one, with its defaults too.
        if name == "ao-train" {
            let other = dir.path().join("other.json");
            std::fs::write(&other, "{\"steps\": 7, \"lr\": 0.5, \"force\": true}").unwrap();
            let both = ["--config", other.to_str().unwrap(), "--config", file, "--print-config"];
            assert_eq!(text(path, &both), printed);
        }
    }
}
