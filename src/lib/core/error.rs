//! The one error type of the toolkit: what failed, where, and how to mend it, in one line.

use std::io;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can end a tool early.
///
/// Each variant prints as one line (`place: fact; remedy`) and knows its exit code: 2 when the
/// arguments or the input bytes are at fault, 1 when the disk, the memory, the device or a
/// non-finite number is, 130 and 143 after a signal, 0 for a reader downstream that has gone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A wrong argument: exit 2. The text names the flag and the remedy.
    #[error("{0}")]
    Usage(String),
    /// Unusable input: exit 2. `place` is a path, with line, byte, row or tensor where known.
    #[error("{place}: {message}")]
    Input {
        /// The file (or `stdin`), with line, byte, row or tensor name where known.
        place: String,
        /// The fact and the remedy.
        message: String,
    },
    /// The operating system refused to read: exit 2 when the path is at fault, else 1.
    #[error("{}: {}", .path.display(), io_text(.source))]
    Read {
        /// What was read.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The operating system refused to write: exit 1.
    #[error("{}: cannot write: {}", .path.display(), io_text(.source))]
    Write {
        /// What was written.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The device, libtorch or memory failed: exit 1.
    #[error("{0}")]
    Device(String),
    /// A loss, gradient or weight is not finite: exit 1.
    #[error("{0}")]
    NonFinite(String),
    /// A check asked for by the user found a fault (`--inspect`, `--verify`): exit 1.
    #[error("{0}")]
    CheckFailed(String),
    /// The reader downstream has gone: a quiet success.
    #[error("broken pipe")]
    BrokenPipe,
    /// Stopped by this signal, after saving what could be saved: exit 128 + signal.
    #[error("stopped by signal {0}")]
    Interrupted(i32),
}

/// An `io::Error` in the words of the system alone, without "(os error 28)".
fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

impl Error {
    /// A wrong argument; `message` names the flag and the remedy.
    pub fn usage(message: impl Into<String>) -> Self {
        Error::Usage(message.into())
    }

    /// Unusable input at `place`; `message` holds the fact and the remedy.
    pub fn input(place: impl std::fmt::Display, message: impl Into<String>) -> Self {
        Error::Input { place: place.to_string(), message: message.into() }
    }

    /// Unusable input in the file at `path`.
    pub fn input_at(path: &Path, message: impl Into<String>) -> Self {
        Error::input(path.display(), message)
    }

    /// Reading `path` failed.
    pub fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Read { path: path.into(), source }
    }

    /// Writing `path` failed; a broken pipe becomes [`Error::BrokenPipe`].
    pub fn write(path: impl Into<PathBuf>, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            return Error::BrokenPipe;
        }
        Error::Write { path: path.into(), source }
    }

    /// The exit code that belongs to this error (design: exit codes).
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::BrokenPipe => 0,
            Error::Usage(_) | Error::Input { .. } => 2,
            Error::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::InvalidData
                | io::ErrorKind::UnexpectedEof => 2,
                _ => 1,
            },
            Error::Write { .. }
            | Error::Device(_)
            | Error::NonFinite(_)
            | Error::CheckFailed(_) => 1,
            Error::Interrupted(signal) => 128 + signal,
        }
    }
}

/// Gives the results of `std::io` the path that they are about.
pub trait IoContext<T> {
    /// Marks a failure as one of reading `path`.
    fn reading(self, path: &Path) -> Result<T>;
    /// Marks a failure as one of writing `path`.
    fn writing(self, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn reading(self, path: &Path) -> Result<T> {
        self.map_err(|e| Error::read(path, e))
    }
    fn writing(self, path: &Path) -> Result<T> {
        self.map_err(|e| Error::write(path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_who_is_at_fault() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(Error::usage("x").exit_code(), 2);
        assert_eq!(Error::read("a", missing).exit_code(), 2);
        assert_eq!(Error::write("a", full).exit_code(), 1);
        assert_eq!(Error::write("a", io::ErrorKind::BrokenPipe.into()).exit_code(), 0);
        assert_eq!(Error::Interrupted(2).exit_code(), 130);
        assert_eq!(Error::Interrupted(15).exit_code(), 143);
    }

    #[test]
    fn system_errors_print_without_their_number() {
        let full = io::Error::from_raw_os_error(28);
        let text = Error::write("out.npy", full).to_string();
        assert_eq!(text, "out.npy: cannot write: no space left on device");
    }
}
