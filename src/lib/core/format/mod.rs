//! Every byte that the toolkit writes, and reads back without trusting it.
//!
//! Each format has its specification (the module's own text), writer and reader side by side.
//! `docs/formats.md` is the same for users.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::Result;
use crate::error::IoContext;

pub mod atomic;
pub mod checkpoint;
mod checkpoint_metadata;
pub mod events;
pub mod jsonl;
pub mod manifest;
pub mod npy;
pub mod run_folder;
pub mod shard;

/// Maps a file into memory for reading. An empty file gives an empty slice.
///
/// # Errors
/// When the file cannot be opened or mapped, or is not a regular file.
pub fn map_file(path: &Path) -> Result<Mapped> {
    let file = File::open(path).reading(path)?;
    let metadata = file.metadata().reading(path)?;
    if !metadata.is_file() {
        return Err(crate::Error::input_at(path, "not a regular file"));
    }
    if metadata.len() == 0 {
        return Ok(Mapped(None));
    }
    // SAFETY: the map is read-only. A file that another process cuts short while it is mapped
    // raises SIGBUS, as with every memory map; files under their final names are never rewritten
    // in place by this toolkit.
    let map = unsafe { Mmap::map(&file) }.reading(path)?;
    Ok(Mapped(Some(map)))
}

/// The bytes of a file, mapped.
#[derive(Debug)]
pub struct Mapped(Option<Mmap>);

impl Mapped {
    /// Tells the system that these bytes need not stay in memory; a later read brings them back.
    pub fn release(&self, start: usize, length: usize) {
        if let Some(map) = &self.0 {
            // SAFETY: the map is shared and read-only, so what is dropped is read from the file
            // again at the next access. A refusal changes nothing.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, length)
            };
        }
    }
}

impl std::ops::Deref for Mapped {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}
