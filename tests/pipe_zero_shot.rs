//! The zero-shot pipeline's script over small sets: which are there, what is scored, what is left
//! for a second run, and the table.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::scoring::{tiny, write_model, write_shards};

fn pipeline(folder: &Path, methods: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/zero-shot.sh");
    let programs = Path::new(env!("CARGO_BIN_EXE_ao-score")).parent().unwrap();
    Command::new("sh")
        .arg(script)
        .arg(programs)
        .args(["m.st", "sets", "out", "cpu", methods, "2", "4", "3", "--quiet"])
        .current_dir(folder)
        .output()
        .unwrap()
}

#[test]
fn sets_that_are_there_are_scored_in_every_way_and_tabled_with_errors() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    write_model(&folder.join("m.st"), &tiny(8, 50), true);
    let documents = |k: u32| -> Vec<Vec<u32>> {
        (0..5).map(|d| (0..6 + d).map(|i| (i * 7 + d * k) % 50).collect()).collect()
    };
    std::fs::create_dir(folder.join("sets")).unwrap();
    for (set, k) in [("ptb", 3), ("lambada", 11)] {
        write_shards(folder, 50, &documents(k));
        std::fs::rename(folder.join("data"), folder.join("sets").join(set)).unwrap();
    }
    let out = pipeline(folder, "l2r any ensemble");
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{words}");
    for missing in ["wikitext2", "wikitext103", "lm1b"] {
        assert!(words.contains(&format!("sets/{missing} is not there")), "{words}");
    }
    let table = std::fs::read_to_string(folder.join("out/table.md")).unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), table);
    assert!(table.contains("Not comparable with published tables: not GPT-2's ids"), "{table}");
    let rows: Vec<&str> =
        table.lines().filter(|l| l.contains("ptb") || l.contains("lambada")).collect();
    assert_eq!(rows.len(), 6, "{table}");
    for (row, estimate) in rows.iter().zip(["exact", "bound of 2", "ensemble of 4"].iter().cycle())
    {
        assert!(row.contains(estimate) && row.contains('±'), "{row}");
    }
    // A second run has nothing to score, and says the same.
    let file = folder.join("out/ptb-any.jsonl");
    let before = std::fs::read(&file).unwrap();
    let again = pipeline(folder, "l2r any ensemble");
    assert!(again.status.success());
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(again.stdout, out.stdout);
    // What is no method, and no set at all, is refused.
    assert_eq!(pipeline(folder, "sideways").status.code(), Some(2));
    std::fs::remove_dir_all(folder.join("sets")).unwrap();
    assert_eq!(pipeline(folder, "l2r").status.code(), Some(2));
}
