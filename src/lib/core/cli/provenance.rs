//! The `run` record: what made an output.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use crate::Result;
use crate::error::IoContext;

/// One input of a run and its hash.
#[derive(Debug, Clone, Serialize)]
pub struct Input {
    /// The path as it was given.
    pub path: String,
    /// XXH3 (64 bits, hexadecimal) of the bytes, or of a folder's manifest.
    pub xxh3: String,
}

impl Input {
    /// Hashes the file at `path` through a memory map.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of_file(path: &Path) -> Result<Input> {
        let bytes = crate::format::map_file(path)?;
        Ok(Input::of_bytes(path, &bytes))
    }

    /// The hash of bytes already in memory.
    pub fn of_bytes(path: &Path, bytes: &[u8]) -> Input {
        let hash = xxhash_rust::xxh3::xxh3_64(bytes);
        Input { path: path.display().to_string(), xxh3: format!("{hash:016x}") }
    }

    /// The hash of a folder's manifest, which holds the hashes of the rest.
    ///
    /// # Errors
    /// When the folder has no readable manifest.
    pub fn of_folder(path: &Path) -> Result<Input> {
        let manifest = path.join("manifest.json");
        let bytes = std::fs::read(&manifest).reading(&manifest)?;
        Ok(Input::of_bytes(path, &bytes))
    }
}

/// The first record of every output (`docs/formats.md`, records).
#[derive(Debug, Clone)]
pub struct RunRecord {
    /// The tool's name.
    pub tool: &'static str,
    /// The resolved options, keys as flags with underscores.
    pub config: Value,
    /// Seed, if the tool draws.
    pub seed: Option<u64>,
    /// Device, if the tool computes: `cpu`, `cuda:0`.
    pub device: Option<String>,
    /// Inputs with their hashes.
    pub inputs: Vec<Input>,
}

impl RunRecord {
    /// The record as a JSON object; further keys may be added by the tool.
    pub fn to_json(&self) -> Value {
        json!({
            "type": "run",
            "tool": self.tool,
            "version": super::VERSION,
            "argv": std::env::args().collect::<Vec<_>>(),
            "config": self.config,
            "seed": self.seed,
            "device": self.device,
            "inputs": self.inputs,
        })
    }
}
