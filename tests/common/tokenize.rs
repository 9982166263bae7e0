//! ao-tokenize, run for real in a folder of its own.
#![allow(dead_code)] // each test program uses a part

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder of its own, in which the tool runs.
pub struct Room(tempfile::TempDir);

impl Room {
    pub fn new() -> Self {
        Room(tempfile::tempdir().unwrap())
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
    /// Runs the tool here.
    pub fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, b"")
    }
    pub fn run_with(&self, args: &[&str], stdin: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ao-tokenize"))
            .args(args)
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let stdin = stdin.to_vec();
        let writer = std::thread::spawn(move || {
            let _ = input.write_all(&stdin); // the tool may stop reading at an error
        });
        let out = child.wait_with_output().unwrap();
        writer.join().unwrap();
        out
    }
    pub fn ok(&self, args: &[&str]) -> Output {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        out
    }
    /// Runs the tool, which must fail with `code` and one line that holds all of `words`.
    pub fn fails(&self, args: &[&str], code: i32, words: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        for word in words {
            assert!(text.contains(word), "no '{word}' in: {text}");
        }
        text
    }
    pub fn manifest(&self, folder: &str) -> Value {
        let path = self.path(folder).join("manifest.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }
    pub fn shard(&self, folder: &str) -> Vec<u8> {
        std::fs::read(self.path(folder).join("shard-000000.bin")).unwrap()
    }
    pub fn decoded(&self, folder: &str) -> Vec<u8> {
        self.ok(&["--decode", folder]).stdout
    }
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}
