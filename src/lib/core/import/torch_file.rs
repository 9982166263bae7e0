//! Files of `torch.save`: a zip archive of one pickle and the bytes of each storage.
//!
//! `NAME/data.pkl` holds the values, `NAME/data/KEY` the bytes of storage KEY, little-endian;
//! `NAME/byteorder` says `little` where it is there. Tensors are views of storages: shape, strides
//! and offset come from the pickle, and several may share one storage.

use std::path::Path;

use super::pickle::{Pickle, Tensor};
use super::view::View;
use super::zip::{Archive, Entry};
use crate::format::{Mapped, map_file};
use crate::{Error, Result};

/// A mapped file of `torch.save`, its values read, its tensors not yet.
#[derive(Debug)]
pub struct TorchFile {
    /// The bytes of the file.
    pub map: Mapped,
    /// The values.
    pub pickle: Pickle,
    archive: Archive,
    /// The folder of all entries, `NAME`.
    name: String,
}

/// The first bytes of an archive.
const ZIP: &[u8] = b"PK\x03\x04";

/// The first bytes of what `torch.save` wrote before 2020: a pickled magic number.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

impl TorchFile {
    /// Whether the file begins as one of `torch.save`, of today or of the past.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(ZIP) || bytes.starts_with(LEGACY)
    }

    /// Maps and reads the file at `path`.
    ///
    /// # Errors
    /// When it is damaged, compressed, or needs a name of Python's that is not known.
    pub fn open(path: &Path) -> Result<TorchFile> {
        let map = map_file(path)?;
        let bad = |what: String| Error::input_at(path, what);
        if map.starts_with(LEGACY) {
            return Err(bad("was saved in the form that torch.save had before PyTorch 1.6; load \
                            it there and save it anew, or take a safetensors file"
                .into()));
        }
        let archive = Archive::read(&map).map_err(bad)?;
        let pickles: Vec<&str> = archive
            .names()
            .filter_map(|name| name.strip_suffix("/data.pkl"))
            .filter(|folder| !folder.contains('/'))
            .collect();
        let name = match pickles[..] {
            [name] => name.to_owned(),
            [] => return Err(bad("is an archive without data.pkl, none of torch.save's".into())),
            _ => return Err(bad("is an archive with more than one data.pkl".into())),
        };
        if archive.get(&format!("{name}/constants.pkl")).is_some() {
            return Err(bad(
                "is a TorchScript program; export its state_dict with torch.save".into()
            ));
        }
        if let Some(order) = archive.get(&format!("{name}/byteorder"))
            && map[order.bytes.clone()] != *b"little"
        {
            return Err(bad("was saved on a big-endian machine; save it anew on another".into()));
        }
        let Some(values) = archive.get(&format!("{name}/data.pkl")) else {
            return Err(bad("lost its data.pkl".into())); // it was just found
        };
        values.verify(&map).map_err(|e| bad(format!("data.pkl: {e}")))?;
        let pickle = Pickle::read(&map[values.bytes.clone()]).map_err(bad)?;
        Ok(TorchFile { map, pickle, archive, name })
    }

    /// Where the elements of a tensor lie, and the entry that they belong to.
    ///
    /// # Errors
    /// When its storage is missing or shorter than the pickle says.
    pub fn view(&self, tensor: &Tensor) -> Result<(View, Entry), String> {
        let storage = &tensor.storage;
        let entry = self
            .archive
            .get(&format!("{}/data/{}", self.name, storage.key))
            .ok_or_else(|| format!("its storage data/{} is not in the archive", storage.key))?;
        let size = storage.dtype.size();
        let length = entry.bytes.len();
        if storage.count.checked_mul(size).is_none_or(|need| need > length) {
            return Err(format!(
                "its storage data/{} has {length} bytes, too few for {} elements of {}",
                storage.key, storage.count, storage.dtype
            ));
        }
        // The pickle's reader has checked that all elements lie within the storage; an empty
        // tensor may begin behind its end.
        let start = entry.bytes.start + tensor.offset.min(storage.count) * size;
        let (shape, stride) = (tensor.shape.clone(), tensor.stride.clone());
        Ok((View { dtype: storage.dtype, shape, stride, start }, entry.clone()))
    }
}
