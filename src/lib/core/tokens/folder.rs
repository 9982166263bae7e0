//! Writing a shard folder so that a stop at any moment loses nothing that was checkpointed.
//!
//! A shard grows under `NAME.part` with a header of zeros, gets its real header when it is full,
//! and only then its name. `manifest.json` says incomplete from the first moment and complete at
//! the very end.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::IoContext;
use crate::format::manifest::{Manifest, ShardEntry};
use crate::format::shard::{HEADER_BYTES, MAX_TOKENS, Width, hash_file, header};
use crate::{Error, Result};

const BUFFER_BYTES: usize = 1 << 20;

/// Writes one shard folder.
pub struct FolderWriter {
    folder: PathBuf,
    manifest: Manifest,
    shard_tokens: u64,
    open: Option<OpenShard>,
    bytes: Vec<u8>,
}

/// The shard that is being written.
struct OpenShard {
    entry: ShardEntry,
    tokens: BufWriter<File>,
    lengths: Option<BufWriter<File>>,
}

/// What a folder has safely on the disk, for a later run to go on from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FolderState {
    /// The manifest so far.
    pub manifest: Manifest,
    /// The shard that was open, if one was.
    pub open: Option<ShardEntry>,
}

impl FolderWriter {
    /// Starts `folder`, which must exist, with a manifest that says incomplete.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn start(folder: &Path, mut manifest: Manifest, shard_tokens: u64) -> Result<Self> {
        manifest.complete = false;
        manifest.write(folder)?;
        let shard_tokens = shard_tokens.clamp(1, MAX_TOKENS);
        Ok(FolderWriter {
            folder: folder.into(),
            manifest,
            shard_tokens,
            open: None,
            bytes: Vec::new(),
        })
    }

    /// Goes on from `state`: what was written after it is cut off.
    ///
    /// # Errors
    /// When a shard is missing or shorter than the state says.
    pub fn resume(folder: &Path, state: FolderState, shard_tokens: u64) -> Result<Self> {
        let mut writer = FolderWriter::start(folder, state.manifest, shard_tokens)?;
        for entry in &writer.manifest.shards {
            crate::format::shard::Shard::open(&folder.join(&entry.file))?;
        }
        // A shard that was closed after the checkpoint is opened again under its old name.
        let next = writer.name();
        let unfinished = folder.join(&next);
        for path in [unfinished.clone(), unfinished.with_extension("len")] {
            if path.exists() {
                std::fs::rename(&path, part(&path)).writing(&path)?;
            }
        }
        if let Some(entry) = state.open {
            let path = folder.join(&entry.file);
            let width = writer.manifest.token_type.bytes() as u64;
            let tokens = reopen(&part(&path), HEADER_BYTES as u64 + entry.tokens * width)?;
            let lengths = match writer.manifest.packing.needs_lengths() {
                true => Some(reopen(&part(&path.with_extension("len")), entry.documents * 4)?),
                false => None,
            };
            writer.open = Some(OpenShard { entry, tokens, lengths });
        }
        Ok(writer)
    }

    /// The manifest so far.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The counts to which the caller adds what was dropped and repaired.
    pub fn manifest_mut(&mut self) -> &mut Manifest {
        &mut self.manifest
    }

    fn name(&self) -> String {
        format!("shard-{:06}.bin", self.manifest.shards.len())
    }

    /// Adds one document of `ids`, which stand for `text_bytes` bytes of text.
    ///
    /// # Errors
    /// When the document is longer than a shard can be, or the disk is full.
    pub fn push(&mut self, ids: &[u32], text_bytes: u64) -> Result<()> {
        let tokens = ids.len() as u64;
        if tokens > MAX_TOKENS {
            return Err(Error::usage(format!(
                "a document of {tokens} tokens is longer than a shard can be ({MAX_TOKENS}); \
                 split it"
            )));
        }
        let full = |entry: &ShardEntry| {
            entry.tokens >= self.shard_tokens || entry.tokens + tokens > MAX_TOKENS
        };
        if self.open.as_ref().is_some_and(|open| full(&open.entry)) {
            self.close_shard()?;
        }
        if self.open.is_none() {
            self.open = Some(self.create_shard()?);
        }
        let width = self.manifest.token_type;
        self.bytes.clear();
        width.append(ids, &mut self.bytes).map_err(|id| {
            Error::usage(format!("token id {id} does not fit the shards' token type"))
        })?;
        let folder = &self.folder;
        let Some(open) = &mut self.open else { return Ok(()) }; // opened above
        let path = || folder.join(&open.entry.file);
        open.tokens.write_all(&self.bytes).map_err(|e| Error::write(path(), e))?;
        if let Some(lengths) = &mut open.lengths {
            let length = (tokens as u32).to_le_bytes(); // at most MAX_TOKENS
            lengths
                .write_all(&length)
                .map_err(|e| Error::write(path().with_extension("len"), e))?;
        }
        open.entry.tokens += tokens;
        open.entry.documents += 1;
        open.entry.bytes_of_text += text_bytes;
        let totals = &mut self.manifest.totals;
        totals.documents += 1;
        totals.tokens += tokens;
        totals.bytes_of_text += text_bytes;
        Ok(())
    }

    fn create_shard(&self) -> Result<OpenShard> {
        let name = self.name();
        let path = self.folder.join(&name);
        let create = |path: PathBuf| {
            let file = File::create(part(&path)).writing(&path)?;
            Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
        };
        let mut tokens = create(path.clone())?;
        tokens.write_all(&[0; HEADER_BYTES]).writing(&path)?;
        let lengths = match self.manifest.packing.needs_lengths() {
            true => Some(create(path.with_extension("len"))?),
            false => None,
        };
        let entry = ShardEntry {
            file: name,
            tokens: 0,
            documents: 0,
            bytes_of_text: 0,
            xxh3: String::new(),
        };
        Ok(OpenShard { entry, tokens, lengths })
    }

    fn close_shard(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let path = self.folder.join(&open.entry.file);
        let width: Width = self.manifest.token_type;
        open.tokens.flush().writing(&path)?;
        let file = open.tokens.get_mut();
        file.seek(SeekFrom::Start(0)).writing(&path)?;
        file.write_all(&header(width, open.entry.tokens)).writing(&path)?;
        file.sync_all().writing(&path)?;
        open.entry.xxh3 = hash_file(&part(&path))?;
        if let Some(mut lengths) = open.lengths.take() {
            let path = path.with_extension("len");
            lengths.flush().writing(&path)?;
            lengths.get_ref().sync_all().writing(&path)?;
            std::fs::rename(part(&path), &path).writing(&path)?;
        }
        std::fs::rename(part(&path), &path).writing(&path)?;
        self.manifest.shards.push(open.entry);
        Ok(())
    }

    /// Brings everything so far to the disk and says what that is.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn checkpoint(&mut self) -> Result<FolderState> {
        if let Some(open) = &mut self.open {
            let path = self.folder.join(&open.entry.file);
            for file in [Some(&mut open.tokens), open.lengths.as_mut()].into_iter().flatten() {
                file.flush().writing(&path)?;
                file.get_ref().sync_data().writing(&path)?;
            }
        }
        let open = self.open.as_ref().map(|o| o.entry.clone());
        Ok(FolderState { manifest: self.manifest.clone(), open })
    }

    /// Closes the last shard and says complete.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn finish(mut self) -> Result<Manifest> {
        self.close_shard()?;
        self.manifest.complete = true;
        self.manifest.write(&self.folder)?;
        Ok(self.manifest)
    }
}

/// The name of a file that is still being written.
fn part(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Opens an unfinished file and cuts it to `length`, ready to be appended to.
fn reopen(path: &Path, length: u64) -> Result<BufWriter<File>> {
    let mut file = File::options().read(true).write(true).open(path).reading(path)?;
    let found = file.metadata().reading(path)?.len();
    if found < length {
        return Err(Error::input_at(
            path,
            format!("{found} bytes, the checkpoint says {length}; start over with --force"),
        ));
    }
    file.set_len(length).writing(path)?;
    file.seek(SeekFrom::End(0)).writing(path)?;
    Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
}
