//! Checkpoints: safetensors files whose metadata map says what they are.
//!
//! - Bytes 0..8 are the header's length as a little-endian u64; it is at most 100 MB and fits the
//!   file.
//! - The header is one JSON object in UTF-8, padded with spaces to a multiple of 8 bytes. Its keys
//!   are tensor names, each once, with `{"dtype", "shape", "data_offsets": [begin, end]}`; the
//!   offsets count from the header's end. `__metadata__` is a map from text to text.
//! - The tensors lie back to back in row-major little-endian order: no overlap, no hole, and
//!   nothing behind the last one.
//! - Ours has `format: ao`, `version: 1` and the keys of [`Metadata`]. A plain safetensors file has
//!   none of them and is read just the same.
//!
//! A [`CheckpointFile`] maps the file, and the crate `safetensors` checks all of this before a byte
//! is handed out. The crate takes a name that comes twice for one tensor and names no tensor in
//! most of its errors; both are made good here. A [`CheckpointWriter`] is our own, as the crate
//! writes a file only from all of its tensors in memory: here all tensors are declared first, then
//! written in that order, and what is held is one piece of one tensor.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use super::Mapped;
use super::atomic::AtomicFile;
use crate::{Error, Result};

pub use super::checkpoint_metadata::{Kind, Metadata};

/// The longest header that is read.
const MAX_HEADER: u64 = 100_000_000;

/// The type of a tensor's elements, named as in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs)] // the names say it
pub enum DType {
    F64,
    F32,
    BF16,
    F16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    BOOL,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::BF16 | DType::F16 | DType::I16 | DType::U16 => 2,
            DType::I8 | DType::U8 | DType::BOOL => 1,
        }
    }

    /// Whether elements are floating-point numbers, which averaging and conversion apply to.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::BF16 | DType::F16)
    }
}

impl TryFrom<Dtype> for DType {
    type Error = String;

    fn try_from(dtype: Dtype) -> Result<DType, String> {
        Ok(match dtype {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::I64 => DType::I64,
            Dtype::I32 => DType::I32,
            Dtype::I16 => DType::I16,
            Dtype::I8 => DType::I8,
            Dtype::U64 => DType::U64,
            Dtype::U32 => DType::U32,
            Dtype::U16 => DType::U16,
            Dtype::U8 => DType::U8,
            Dtype::BOOL => DType::BOOL,
            other => {
                return Err(format!("holds {other}, which is not read; save it as BF16 or F32"));
            }
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One tensor of a [`CheckpointFile`], not copied.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Lengths of the dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements, little-endian, row-major; not aligned.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// The number of elements.
    pub fn element_count(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Puts elements `range` into `out` as f32 (cleared first): exact from F32, BF16 and F16,
    /// rounded from F64. False, with `out` empty, if the type is no float.
    ///
    /// # Panics
    /// When the range goes past [`TensorView::element_count`].
    pub fn read_f32(&self, range: std::ops::Range<usize>, out: &mut Vec<f32>) -> bool {
        out.clear();
        let size = self.dtype.size();
        let bytes = &self.bytes[range.start * size..range.end * size];
        match self.dtype {
            DType::F32 => out.extend(words(bytes).map(f32::from_le_bytes)),
            DType::BF16 => {
                out.extend(words(bytes).map(|b| half::bf16::from_le_bytes(b).to_f32()));
            }
            DType::F16 => out.extend(words(bytes).map(|b| half::f16::from_le_bytes(b).to_f32())),
            DType::F64 => out.extend(words(bytes).map(|b| f64::from_le_bytes(b) as f32)),
            _ => return false,
        }
        true
    }

    /// Adds `factor` times each element of `range` to `sums`, in f64; nothing if the type is no
    /// float.
    ///
    /// # Panics
    /// When the range goes past [`TensorView::element_count`].
    pub fn add_scaled(&self, range: std::ops::Range<usize>, factor: f64, sums: &mut [f64]) {
        fn add(sums: &mut [f64], factor: f64, numbers: impl Iterator<Item = f64>) {
            sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += factor * x);
        }
        let size = self.dtype.size();
        let bytes = &self.bytes[range.start * size..range.end * size];
        match self.dtype {
            DType::F64 => add(sums, factor, words(bytes).map(f64::from_le_bytes)),
            DType::F32 => add(sums, factor, words(bytes).map(|b| f32::from_le_bytes(b).into())),
            DType::BF16 => {
                add(sums, factor, words(bytes).map(|b| half::bf16::from_le_bytes(b).into()));
            }
            DType::F16 => {
                add(sums, factor, words(bytes).map(|b| half::f16::from_le_bytes(b).into()));
            }
            _ => {}
        }
    }
}

/// `bytes` cut into words of N bytes; a remainder does not occur in checked tensors.
fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.chunks_exact(N).map(|chunk| {
        let mut word = [0; N];
        word.copy_from_slice(chunk);
        word
    })
}

/// A tensor's entry in the header, offsets checked.
#[derive(Debug)]
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    begin: usize,
    end: usize,
}

/// A mapped checkpoint with a checked header.
#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    map: Mapped,
    data: usize,
    entries: Vec<Entry>,
    by_name: BTreeMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

impl CheckpointFile {
    /// Maps the file at `path` and checks its header; tensor bytes are not read yet.
    ///
    /// # Errors
    /// When the file cannot be read or breaks a rule of the format; the error names the tensor.
    pub fn open(path: &Path) -> Result<CheckpointFile> {
        let map = super::map_file(path)?;
        let (length, header) =
            SafeTensors::read_metadata(&map).map_err(|error| fault(path, &map, error))?;
        let data = 8 + length;
        // The crate has read this text, so what fails here is a name that comes twice.
        serde_json::from_slice::<Pairs<IgnoredAny>>(&map[8..data])
            .map_err(|e| Error::input_at(path, format!("{e}; the file is damaged")))?;
        let mut entries = Vec::new();
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else { continue }; // it is one of its keys
            let dtype = DType::try_from(info.dtype).map_err(|e| tensor_error(path, &name, e))?;
            let (shape, (begin, end)) = (info.shape.clone(), info.data_offsets);
            entries.push(Entry { name, dtype, shape, begin, end });
        }
        // Tensors without elements share their place; their order is that of their names.
        entries.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
        if entries.is_empty() {
            return Err(Error::input_at(path, "holds no tensors; give a model's file"));
        }
        let by_name = entries.iter().enumerate().map(|(i, e)| (e.name.clone(), i)).collect();
        let metadata = header.metadata().iter().flatten();
        let metadata = metadata.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(CheckpointFile { path: path.into(), map, data, entries, by_name, metadata })
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file's bytes, for a hash.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The mapping alone, for a reader that has noted where its tensors lie.
    pub(crate) fn into_mapped(self) -> Mapped {
        self.map
    }

    /// The metadata map as it stands in the file; empty where there is none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The metadata of a checkpoint of this toolkit; `None` for other safetensors files.
    ///
    /// # Errors
    /// When a key is missing or malformed, or the version is newer than this program.
    pub fn ao_metadata(&self) -> Result<Option<Metadata>> {
        Metadata::from_map(&self.path, &self.metadata)
    }

    /// The model config in the metadata, if there is one.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn config(&self) -> Result<Option<Value>> {
        let Some(text) = self.metadata.get("config") else { return Ok(None) };
        serde_json::from_str(text)
            .map(Some)
            .map_err(|e| Error::input_at(&self.path, format!("metadata 'config' is not JSON: {e}")))
    }

    /// Tensor names in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|e| e.name.as_str())
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let entry = &self.entries[*self.by_name.get(name)?];
        let bytes = &self.map[self.data + entry.begin..self.data + entry.end];
        Some(TensorView { dtype: entry.dtype, shape: entry.shape.clone(), bytes })
    }

    /// The tensor of this name, or an error that says it is missing.
    ///
    /// # Errors
    /// When there is no such tensor.
    pub fn require(&self, name: &str) -> Result<TensorView<'_>> {
        self.tensor(name).ok_or_else(|| {
            Error::input_at(&self.path, format!("tensor '{name}' is missing; give a whole model"))
        })
    }

    /// A floating-point tensor as f32 (F64 is rounded), its values not checked.
    ///
    /// # Errors
    /// When it is missing or holds integers.
    pub fn to_f32(&self, name: &str) -> Result<Vec<f32>> {
        let view = self.require(name)?;
        let mut out = Vec::new();
        if view.read_f32(0..view.element_count(), &mut out) {
            return Ok(out);
        }
        Err(self.at(name, format!("holds {}; floating-point numbers are needed", view.dtype)))
    }

    /// Refuses NaN and infinities in a floating-point tensor; other types pass.
    ///
    /// # Errors
    /// [`Error::NonFinite`] with the tensor's name and the first such element.
    pub fn check_finite(&self, name: &str) -> Result<()> {
        const CHUNK: usize = 1 << 16;
        let view = self.require(name)?;
        let count = view.element_count();
        let mut part = Vec::new();
        for start in (0..count).step_by(CHUNK) {
            if !view.read_f32(start..count.min(start + CHUNK), &mut part) {
                return Ok(());
            }
            if let Some(i) = part.iter().position(|x| !x.is_finite()) {
                return Err(Error::NonFinite(format!(
                    "{}, tensor '{name}': element {} is {}; take an earlier checkpoint",
                    self.path.display(),
                    start + i,
                    part[i]
                )));
            }
        }
        Ok(())
    }

    /// Lets the system take back the memory of elements already read, so that walking through many
    /// large files keeps little of them resident. They can still be read again.
    pub fn release(&self, name: &str, range: std::ops::Range<usize>) {
        if let Some(view) = self.tensor(name) {
            let start = view.bytes.as_ptr() as usize - self.map.as_ptr() as usize;
            let size = view.dtype.size();
            self.map.release(start + range.start * size, range.len() * size);
        }
    }

    /// An error about one tensor of this file.
    pub fn at(&self, name: &str, message: impl Into<String>) -> Error {
        tensor_error(&self.path, name, message)
    }
}

fn tensor_error(path: &Path, name: &str, message: impl Into<String>) -> Error {
    Error::input(format!("{}, tensor '{name}'", path.display()), message)
}

/// Bytes of a tensor of this shape, if they fit the address space.
fn byte_length(dtype: DType, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |product, &n| product.checked_mul(n))
}

/// What is wrong with a file that the crate refuses, with the tensor where it is one.
fn fault(path: &Path, file: &[u8], error: SafeTensorError) -> Error {
    let bad = |message: String| Error::input_at(path, message);
    if let Some(instead) = stand_in(file) {
        return bad(instead.into());
    }
    let Some((head, rest)) = file.split_first_chunk::<8>() else {
        let n = file.len();
        return bad(format!("{n} bytes are no safetensors file; give a whole one"));
    };
    let length = u64::from_le_bytes(*head);
    let header = usize::try_from(length).ok().filter(|_| length <= MAX_HEADER);
    let Some((header, data)) = header.and_then(|length| rest.split_at_checked(length)) else {
        return bad(format!(
            "not a safetensors file, or cut short: byte 0 announces a header of {length} bytes and \
             {} follow; give a whole file",
            rest.len()
        ));
    };
    let mut tensors = match serde_json::from_slice::<Pairs<TensorInfo>>(header) {
        Ok(Pairs(tensors)) => tensors,
        Err(e) => return bad(format!("broken safetensors header: {e}; save the file again")),
    };
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut place = 0;
    for (name, TensorInfo { dtype, shape, data_offsets: (begin, end) }) in &tensors {
        let bad = |message: String| tensor_error(path, name, message);
        if begin > end || *end > data.len() {
            let data = data.len();
            return bad(format!(
                "offsets {begin}..{end} lie outside the {data} bytes of data; the file is cut \
                 short or damaged"
            ));
        }
        let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let bits = elements.and_then(|n| n.checked_mul(dtype.bitsize()));
        if bits != (end - begin).checked_mul(8) {
            let got = end - begin;
            return bad(format!("shape {shape:?} of {dtype} does not fill {got} bytes"));
        }
        if *begin != place {
            let what = match begin < &place {
                true => "overlaps the one before it",
                false => "leaves a hole before it",
            };
            let fact = format!("begins at byte {begin} of the data and {what} (expected {place})");
            return bad(fact);
        }
        place = *end;
    }
    if place < data.len() {
        let more = data.len() - place;
        return bad(format!("{more} bytes follow the last tensor; the file is damaged"));
    }
    bad(format!("not a safetensors file: {error}; save the file again"))
}

/// What lies in a file's place where a download went wrong, told by its first bytes.
fn stand_in(file: &[u8]) -> Option<&'static str> {
    let start = file[..file.len().min(64)].trim_ascii_start().to_ascii_lowercase();
    if start.starts_with(b"version https://git-lfs") {
        return Some("is a pointer of git-lfs, not the file that it stands for; run git lfs pull");
    }
    let page = [&b"<!doctype"[..], b"<html", b"<?xml"].iter().any(|tag| start.starts_with(tag));
    page.then_some("is a web page, not a file of weights; download the file itself")
}

/// The tensors of a header by name, in its order; a name that comes twice is an error.
struct Pairs<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Keys<T> {
            type Value = Pairs<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                let mut seen = std::collections::HashSet::new();
                while let Some(key) = map.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        return Err(de::Error::custom(format!("'{key}' stands there twice")));
                    }
                    if key == "__metadata__" {
                        map.next_value::<BTreeMap<String, String>>()?;
                        continue;
                    }
                    let value = map
                        .next_value()
                        .map_err(|e| de::Error::custom(format!("tensor '{key}': {e}")))?;
                    pairs.push((key, value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Keys(std::marker::PhantomData))
    }
}

/// Writes a checkpoint tensor by tensor; the file appears at [`CheckpointWriter::finish`].
pub struct CheckpointWriter {
    file: AtomicFile,
    entries: Vec<(String, DType, usize)>,
    current: usize,
    written: usize,
    scratch: Vec<u8>,
}

impl CheckpointWriter {
    /// Starts the file at `path` with these tensors (name, type, shape), to be written in this
    /// order.
    ///
    /// # Errors
    /// When the target exists and `force` is false, cannot be created, or a name comes twice.
    pub fn create(
        path: &Path,
        force: bool,
        metadata: &BTreeMap<String, String>,
        entries: &[(String, DType, Vec<usize>)],
    ) -> Result<CheckpointWriter> {
        let mut header = Map::new();
        if !metadata.is_empty() {
            header.insert("__metadata__".into(), json!(metadata));
        }
        let mut lengths = Vec::with_capacity(entries.len());
        let mut place = 0usize;
        for (name, dtype, shape) in entries {
            let (length, end) = byte_length(*dtype, shape)
                .and_then(|length| Some((length, place.checked_add(length)?)))
                .ok_or_else(|| tensor_error(path, name, "is larger than the address space"))?;
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [place, end]});
            if name == "__metadata__" || header.insert(name.clone(), entry).is_some() {
                return Err(tensor_error(path, name, "is declared twice; give each name once"));
            }
            lengths.push((name.clone(), *dtype, length));
            place = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        if text.len() as u64 > MAX_HEADER {
            return Err(Error::input_at(path, "the header would pass 100 MB; store fewer tensors"));
        }
        let mut file = AtomicFile::create(path, force)?;
        file.put(&(text.len() as u64).to_le_bytes())?;
        file.put(&text)?;
        let mut writer = CheckpointWriter {
            file,
            entries: lengths,
            current: 0,
            written: 0,
            scratch: Vec::new(),
        };
        writer.skip_full();
        Ok(writer)
    }

    /// Appends `bytes` to the tensor whose turn it is: all of it or a piece, never past its end.
    ///
    /// # Errors
    /// When the bytes do not fit the declaration, or cannot be written.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let Some((name, _, length)) = self.entries.get(self.current) else {
            if bytes.is_empty() {
                return Ok(());
            }
            return Err(Error::input_at(self.file.path(), "more bytes than tensors declared"));
        };
        if bytes.len() > length - self.written {
            let (written, more) = (self.written, bytes.len());
            return Err(tensor_error(
                self.file.path(),
                name,
                format!("declared with {length} bytes, given {written} and {more} more"),
            ));
        }
        self.file.put(bytes)?;
        self.written += bytes.len();
        self.skip_full();
        Ok(())
    }

    /// Appends numbers, rounded to the type that the current tensor was declared with.
    ///
    /// # Errors
    /// As [`CheckpointWriter::put`], and when the tensor holds integers.
    pub fn put_f32(&mut self, numbers: &[f32]) -> Result<()> {
        const CHUNK: usize = 1 << 14;
        let (name, dtype) = match self.entries.get(self.current) {
            Some((name, dtype, _)) => (name, *dtype),
            None => return self.put(&[0; 4][..numbers.len().min(1)]),
        };
        if !dtype.is_float() {
            return Err(tensor_error(self.file.path(), name, format!("is {dtype}, not a float")));
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        for part in numbers.chunks(CHUNK) {
            scratch.clear();
            for &x in part {
                match dtype {
                    DType::F64 => scratch.extend(f64::from(x).to_le_bytes()),
                    DType::BF16 => scratch.extend(half::bf16::from_f32(x).to_le_bytes()),
                    DType::F16 => scratch.extend(half::f16::from_f32(x).to_le_bytes()),
                    _ => scratch.extend(x.to_le_bytes()),
                }
            }
            self.put(&scratch)?;
        }
        self.scratch = scratch;
        Ok(())
    }

    /// Syncs the file and gives it its name. Dropped without this, no file appears.
    ///
    /// # Errors
    /// When a tensor is incomplete, or the file cannot be written.
    pub fn finish(self) -> Result<()> {
        if let Some((name, _, length)) = self.entries.get(self.current) {
            let message = format!("only {} of {length} bytes were given", self.written);
            return Err(tensor_error(self.file.path(), name, message));
        }
        self.file.commit()
    }

    /// Moves on past tensors that have all their bytes (empty ones too).
    fn skip_full(&mut self) {
        while self.entries.get(self.current).is_some_and(|(_, _, n)| *n == self.written) {
            self.current += 1;
            self.written = 0;
        }
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
