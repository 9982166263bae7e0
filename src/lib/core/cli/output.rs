//! `-o FILE`, `--force`, and the sink that data goes to.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::format::atomic::AtomicFile;
use crate::{Error, Result};

/// `-o` and `--force`, the same in every tool.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct OutputArgs {
    /// File to write; `-` is stdout
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
    /// Overwrite the output if it exists
    #[arg(long)]
    pub force: bool,
}

impl OutputArgs {
    /// Opens the sink.
    ///
    /// # Errors
    /// When the target exists and `--force` is not given, or cannot be created.
    pub fn open(&self) -> Result<Sink> {
        Sink::open(&self.output, self.force)
    }

    /// Opens the sink for bytes that would garble a terminal.
    ///
    /// # Errors
    /// As [`OutputArgs::open`], and when stdout is a terminal.
    pub fn open_binary(&self) -> Result<Sink> {
        if self.is_stdout() && io::stdout().is_terminal() {
            return Err(Error::usage(
                "stdout is a terminal and the data is binary; give -o FILE or a pipe",
            ));
        }
        self.open()
    }

    /// Whether data goes to stdout.
    pub fn is_stdout(&self) -> bool {
        self.output == Path::new("-")
    }
}

/// `-o` and `--force` of a tool whose result is no stream.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct TargetArgs {
    /// File to write; it has no default
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Overwrite the output if it exists
    #[arg(long)]
    pub force: bool,
}

impl TargetArgs {
    /// The path, which is not that of stdout; `what` names the result in the error.
    ///
    /// # Errors
    /// When it is `-`.
    pub fn file(&self, what: &str) -> Result<&Path> {
        match self.output.as_os_str().as_encoded_bytes() {
            b"-" => Err(Error::usage(format!("-o -: {what} is no stream; give a path"))),
            _ => Ok(&self.output),
        }
    }
}

/// Where a tool's data goes: stdout, or a file that appears whole or not at all.
pub enum Sink {
    /// Standard output, buffered.
    Stdout(BufWriter<io::Stdout>),
    /// A file under a temporary name until [`Sink::finish`].
    File(AtomicFile),
}

impl Sink {
    /// Opens `path` for writing; `-` is stdout.
    ///
    /// # Errors
    /// When the target exists and `force` is false, or cannot be created.
    pub fn open(path: &Path, force: bool) -> Result<Sink> {
        if path == Path::new("-") {
            Ok(Sink::Stdout(BufWriter::with_capacity(1 << 16, io::stdout())))
        } else {
            Ok(Sink::File(AtomicFile::create(path, force)?))
        }
    }

    /// What to name in an error.
    pub fn path(&self) -> &Path {
        match self {
            Sink::Stdout(_) => Path::new("stdout"),
            Sink::File(file) => file.path(),
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// [`Error::BrokenPipe`] when the reader has gone, else [`Error::Write`].
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Sink::Stdout(out) => out.write_all(bytes).map_err(|e| Error::write("stdout", e)),
            Sink::File(file) => file.put(bytes),
        }
    }

    /// Hands on what is buffered, for a reader that follows along.
    ///
    /// # Errors
    /// As [`Sink::put`].
    pub fn flush(&mut self) -> Result<()> {
        match self {
            Sink::Stdout(out) => out.flush().map_err(|e| Error::write("stdout", e)),
            Sink::File(file) => file.flush(),
        }
    }

    /// Flushes, syncs and gives the file its name. Dropped without this, no file appears.
    ///
    /// # Errors
    /// As [`Sink::put`].
    pub fn finish(self) -> Result<()> {
        match self {
            Sink::Stdout(mut out) => out.flush().map_err(|e| Error::write("stdout", e)),
            Sink::File(file) => file.commit(),
        }
    }
}
