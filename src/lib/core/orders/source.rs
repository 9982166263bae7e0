//! Where a tool's orders come from: a SPEC, an `.npy` or `.jsonl` file, or a pipe.
//!
//! Rows of JSON lines are arrays of integers, one a line, each a permutation of its own width.
//! Formats are told apart by their first byte, not by the name.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{MAX_BLOCK_SIZE, OrderSpec, OrderStream, check_permutation};
use crate::error::IoContext;
use crate::format::Mapped;
use crate::format::npy::{self, NpyFile, NpyReader};
use crate::{Error, Result};

type Input = Box<dyn BufRead + Send>;

/// What `--orders` names. Rows are checked to be permutations as they are read.
pub enum OrderSource {
    /// Rows of a SPEC, without end.
    Spec(OrderStream),
    /// A mapped `.npy` file, rows at random.
    Npy(PathBuf, NpyFile),
    /// A mapped file of JSON lines, rows at random.
    Jsonl(JsonlFile),
    /// A stream that only moves forward.
    Pipe(Pipe),
}

impl OrderSource {
    /// Opens what `arg` names: `-` is stdin; a name that ends in `.npy` or `.jsonl` is a file;
    /// else a SPEC, for rows of `block_size` entries under `seed`, or a file if it is one.
    ///
    /// # Errors
    /// When the SPEC is malformed or the file is unusable.
    pub fn open(arg: &str, block_size: usize, seed: u64) -> Result<OrderSource> {
        if arg == "-" {
            let stdin: Input = Box::new(BufReader::with_capacity(1 << 16, std::io::stdin()));
            return Pipe::open(stdin, Path::new("stdin")).map(OrderSource::Pipe);
        }
        let path = Path::new(arg);
        let named_file = (arg.ends_with(".npy") || arg.ends_with(".jsonl"))
            && !["fixed:", "mix:", "ramp:"].iter().any(|kind| arg.starts_with(kind));
        if named_file {
            return OrderSource::open_file(path);
        }
        match OrderSpec::parse(arg) {
            Ok(spec) => OrderStream::new(spec, block_size, seed).map(OrderSource::Spec),
            Err(_) if path.exists() => OrderSource::open_file(path),
            Err(error) => Err(error),
        }
    }

    /// Opens a file or named pipe of rows.
    ///
    /// # Errors
    /// When it cannot be read or holds no rows.
    pub fn open_file(path: &Path) -> Result<OrderSource> {
        let mut file = File::open(path).reading(path)?;
        let kind = file.metadata().reading(path)?;
        if !kind.is_file() && !kind.is_dir() {
            let input: Input = Box::new(BufReader::with_capacity(1 << 16, file));
            return Pipe::open(input, path).map(OrderSource::Pipe);
        }
        let mut first = [0; 6];
        let length = file.read(&mut first).reading(path)?;
        if npy::is_npy(&first[..length]) || path.extension().is_some_and(|e| e == "npy") {
            return Ok(OrderSource::Npy(path.into(), NpyFile::open(path)?));
        }
        JsonlFile::open(path).map(OrderSource::Jsonl)
    }

    /// Puts the order of row `index` for a sequence of `length` tokens into `out`. A wider row
    /// keeps its entries below `length` in their order.
    ///
    /// # Errors
    /// When there is no such row (naming both counts), it is no permutation or too narrow, or a
    /// pipe has moved past it.
    pub fn row(&mut self, index: u64, length: usize, out: &mut Vec<u32>) -> Result<()> {
        match self {
            OrderSource::Spec(stream) => stream.row(index, out),
            OrderSource::Npy(path, file) => {
                if index >= file.rows() {
                    let need = index.saturating_add(1);
                    return Err(too_few(&path.display().to_string(), file.rows(), need));
                }
                file.row(index, out)?;
            }
            OrderSource::Jsonl(file) => file.row(index, out)?,
            OrderSource::Pipe(pipe) => pipe.row(index, out)?,
        }
        let place = || format!("{}, row {index}", self.name());
        if !matches!(self, OrderSource::Spec(_)) {
            check_permutation(out, place)?;
        }
        if out.len() < length {
            let width = out.len();
            return Err(Error::input(
                place(),
                format!("{width} entries for a sequence of {length} tokens; give wider rows"),
            ));
        }
        if out.len() > length {
            out.retain(|&position| (position as usize) < length);
        }
        Ok(())
    }

    /// The number of rows, where it is known and finite.
    pub fn rows(&self) -> Option<u64> {
        match self {
            OrderSource::Spec(_) => None,
            OrderSource::Npy(_, file) => Some(file.rows()),
            OrderSource::Jsonl(file) => Some(file.starts.len() as u64),
            OrderSource::Pipe(pipe) => match &pipe.kind {
                PipeKind::Npy(reader) => Some(reader.rows()),
                PipeKind::Jsonl(_) => None,
            },
        }
    }

    /// Refuses a source of fewer than `need` rows before the work begins, where that is known.
    ///
    /// # Errors
    /// With both counts.
    pub fn require_rows(&self, need: u64) -> Result<()> {
        match self.rows() {
            Some(have) if have < need => Err(too_few(&self.name(), have, need)),
            _ => Ok(()),
        }
    }

    /// Whether rows can only be read forward, once.
    pub fn is_pipe(&self) -> bool {
        matches!(self, OrderSource::Pipe(_))
    }

    /// Whether every row is the same by its SPEC.
    pub fn is_one_order(&self) -> bool {
        matches!(self, OrderSource::Spec(stream) if stream.spec().is_one_order())
    }

    /// What the source is, for a run record: SPEC and seed, or file and hash.
    pub fn describe(&self) -> Value {
        let hash = |bytes: &[u8]| format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes));
        match self {
            OrderSource::Spec(s) => {
                json!({"spec": s.spec(), "seed": s.seed(), "block_size": s.block_size()})
            }
            OrderSource::Npy(path, file) => {
                json!({"path": path.display().to_string(), "rows": file.rows(),
                       "width": file.width(), "xxh3": hash(file.bytes())})
            }
            OrderSource::Jsonl(file) => {
                json!({"path": file.path.display().to_string(), "rows": file.starts.len(),
                       "xxh3": hash(&file.map)})
            }
            OrderSource::Pipe(pipe) => {
                json!({"path": pipe.path.display().to_string(), "rows": self.rows()})
            }
        }
    }

    /// What to call the source in an error.
    fn name(&self) -> String {
        match self {
            OrderSource::Spec(stream) => format!("orders '{}'", stream.spec()),
            OrderSource::Npy(path, _) => path.display().to_string(),
            OrderSource::Jsonl(file) => file.path.display().to_string(),
            OrderSource::Pipe(pipe) => pipe.path.display().to_string(),
        }
    }
}

/// The error of a source that ends before row `need - 1`.
fn too_few(name: &str, have: u64, need: u64) -> Error {
    Error::input(name, format!("holds {have} rows of orders where {need} are needed; make more"))
}

/// A mapped file of JSON lines with the places of its rows.
pub struct JsonlFile {
    path: PathBuf,
    map: Mapped,
    /// Byte offset and line number (from 1) of each row.
    starts: Vec<(usize, u64)>,
}

impl JsonlFile {
    fn open(path: &Path) -> Result<JsonlFile> {
        let map = crate::format::map_file(path)?;
        let mut starts = Vec::new();
        let mut at = 0;
        for (number, line) in map.split_inclusive(|&b| b == b'\n').enumerate() {
            if !line.iter().all(u8::is_ascii_whitespace) {
                starts.push((at, number as u64 + 1));
            }
            at += line.len();
        }
        Ok(JsonlFile { path: path.into(), map, starts })
    }

    fn row(&self, index: u64, out: &mut Vec<u32>) -> Result<()> {
        let at = usize::try_from(index).ok().and_then(|i| self.starts.get(i));
        let Some(&(start, number)) = at else {
            let name = self.path.display().to_string();
            return Err(too_few(&name, self.starts.len() as u64, index.saturating_add(1)));
        };
        let rest = &self.map[start..];
        let end = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        parse_line(&rest[..end], out)
            .map_err(|e| Error::input(format!("{}, line {number}", self.path.display()), e))
    }
}

/// One JSON array of integers.
fn parse_line(line: &[u8], out: &mut Vec<u32>) -> Result<(), String> {
    out.clear();
    let numbers: Vec<u32> = serde_json::from_slice(line)
        .map_err(|e| format!("not a JSON array of positions ({e}); give one order a line"))?;
    if numbers.is_empty() {
        return Err("an order of no positions".into());
    }
    *out = numbers;
    Ok(())
}

/// Rows that arrive one after the other.
pub struct Pipe {
    path: PathBuf,
    kind: PipeKind,
    next: u64,
}

enum PipeKind {
    Npy(NpyReader<Input>),
    Jsonl(JsonlPipe),
}

struct JsonlPipe {
    input: Input,
    line: u64,
    buffer: Vec<u8>,
}

impl Pipe {
    fn open(mut input: Input, path: &Path) -> Result<Pipe> {
        let first = input.fill_buf().reading(path)?.first().copied();
        let kind = if first == Some(0x93) {
            PipeKind::Npy(NpyReader::new(input, path)?)
        } else {
            PipeKind::Jsonl(JsonlPipe { input, line: 0, buffer: Vec::new() })
        };
        Ok(Pipe { path: path.into(), kind, next: 0 })
    }

    fn row(&mut self, index: u64, out: &mut Vec<u32>) -> Result<()> {
        if index < self.next {
            return Err(Error::input_at(
                &self.path,
                format!(
                    "row {index} has gone by (a pipe only moves forward, to row {} by now); give \
                     a file",
                    self.next
                ),
            ));
        }
        while self.next <= index {
            let more = match &mut self.kind {
                PipeKind::Npy(reader) => reader.next_row(out)?,
                PipeKind::Jsonl(reader) => reader.next_row(&self.path, out)?,
            };
            if !more {
                let name = self.path.display().to_string();
                return Err(too_few(&name, self.next, index.saturating_add(1)));
            }
            self.next += 1;
        }
        Ok(())
    }
}

impl JsonlPipe {
    /// The longest line that is held: each entry below 2^26 takes at most 10 bytes.
    const MAX_LINE: u64 = 10 * MAX_BLOCK_SIZE as u64;

    fn next_row(&mut self, path: &Path, out: &mut Vec<u32>) -> Result<bool> {
        loop {
            self.buffer.clear();
            let mut limited = (&mut self.input).take(Self::MAX_LINE);
            if limited.read_until(b'\n', &mut self.buffer).reading(path)? == 0 {
                return Ok(false);
            }
            self.line += 1;
            if self.buffer.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            parse_line(&self.buffer, out)
                .map_err(|e| Error::input(format!("{}, line {}", path.display(), self.line), e))?;
            return Ok(true);
        }
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
