//! A published model, opened: its config, and its tensors under this toolkit's names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::contents::{Average, AverageTensors, Contents, Tensor};
use super::{bind, hf, infer, view};
use crate::error::IoContext;
use crate::family::ModelConfig;
use crate::format::checkpoint::{DType, Kind, Metadata};
use crate::format::{Mapped, shard};
use crate::{Error, Result};

/// `--weights`: which of a file's weights to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsKind {
    /// The weights that the optimizer moves.
    Raw,
    /// Their moving average.
    Ema,
}

impl std::str::FromStr for WeightsKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "raw" => Ok(WeightsKind::Raw),
            "ema" => Ok(WeightsKind::Ema),
            _ => Err("allowed are raw and ema".into()),
        }
    }
}

/// Bytes of a file that are hashed before their memory is given back.
const HASHED: usize = 32 << 20;

/// How to open a [`Source`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Which weights; the average where there is one if `None`.
    pub weights: Option<WeightsKind>,
    /// A model config that is to be followed instead of the source's own.
    pub model_config: Option<PathBuf>,
}

/// One file of a source.
#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    map: Mapped,
}

/// A published model whose every parameter has been found, with the shape that its config implies.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    files: Vec<SourceFile>,
    config: ModelConfig,
    /// In the order of [`ModelConfig::parameters`].
    tensors: BTreeMap<String, Tensor>,
    order: Vec<String>,
    metadata: Metadata,
    tokenizer: Option<PathBuf>,
    passed_over: Vec<(String, usize)>,
}

/// Opens a file or folder with the weights that it would be scored with; see [`Source::open`].
///
/// # Errors
/// As [`Source::open`].
pub fn open_source(path: &Path) -> Result<Source> {
    Source::open(path, &OpenOptions::default())
}

impl Source {
    /// Opens a `.pt` file, a safetensors file or a Hugging Face folder, and finds each parameter.
    /// Tensors are not read yet, only looked for.
    ///
    /// # Errors
    /// One line: a damaged or foreign file, weights or a config that it does not have, tensors
    /// that are missing, too many or of another shape.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Source> {
        let folder = path.is_dir();
        let paths = if folder { hf::weight_files(path)? } else { vec![path.to_owned()] };
        let home = if folder { path } else { path.parent().unwrap_or(Path::new("")) };
        let mut files = Vec::new();
        let mut contents = Contents::default();
        for (i, path) in paths.iter().enumerate() {
            let (part, map) = Contents::open(path, i)?;
            files.push(SourceFile { path: path.clone(), map });
            if i == 0 {
                contents = part;
            } else {
                contents.named.extend(part.named);
                contents.others.extend(part.others);
                contents.passed_over.extend(part.passed_over);
            }
        }
        let at = |e: String| Error::input_at(path, e);
        let averaged = bind::take_counter(&mut contents.named);
        bind::clean_names(&mut contents.named).map_err(at)?;
        if let Some(Average { tensors: AverageTensors::Named(list), .. }) = &mut contents.average {
            bind::take_counter(list);
            bind::clean_names(list).map_err(at)?;
        }
        let resolved = resolve_config(path, home, &contents, options);
        let (config, conv1d) =
            resolved.map_err(|error| match (error, contents.others.first()) {
                // The tensors that tell an architecture may be those that are not read.
                (Error::Input { place, message }, Some(other)) => {
                    Error::Input { place, message: format!("{message}; it {}", unread(other)) }
                }
                (error, _) => error,
            })?;
        refuse_others(&contents.others, &config).map_err(at)?;
        let passed_over = std::mem::take(&mut contents.passed_over);
        let mut metadata = metadata_of(&contents, &config);
        if averaged {
            metadata.kind = Kind::Ema;
        }
        let named = choose(path, contents, &config, options.weights, &mut metadata)?;
        let sources: Vec<&[u8]> = files.iter().map(|file| &*file.map).collect();
        let tensors = bind::bind(named, &config, conv1d, &sources).map_err(at)?;
        let beside = home.join("tokenizer.json");
        let tokenizer = beside.is_file().then_some(beside);
        if let (None, Some(path)) = (&metadata.tokenizer, &tokenizer) {
            metadata.tokenizer = Some(shard::hash_file(path)?);
        }
        Ok(Source {
            path: path.into(),
            files,
            order: config.parameters().into_iter().map(|p| p.name).collect(),
            config,
            tensors,
            metadata,
            tokenizer,
            passed_over,
        })
    }

    /// Python's names of the objects beside the weights that were not read, and how many of each.
    pub fn passed_over(&self) -> &[(String, usize)] {
        &self.passed_over
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model config.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What the source says of its weights, as the metadata of a checkpoint; what it does not say
    /// is `None` or 0.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// A `tokenizer.json` beside the weights.
    pub fn tokenizer(&self) -> Option<&Path> {
        self.tokenizer.as_deref()
    }

    /// The files of weights and the XXH3 (64 bits, hexadecimal) of each.
    pub fn hashes(&self) -> Vec<(&Path, String)> {
        let hash = |file: &SourceFile| {
            let mut hash = xxhash_rust::xxh3::Xxh3::new();
            for (i, part) in file.map.chunks(HASHED).enumerate() {
                hash.update(part);
                file.map.release(i * HASHED, part.len());
            }
            format!("{:016x}", hash.digest())
        };
        self.files.iter().map(|file| (file.path.as_path(), hash(file))).collect()
    }

    /// Names of the parameters, in the order of the published module.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(String::as_str)
    }

    /// Type and shape of a parameter; `None` if there is none of this name.
    pub fn layout(&self, name: &str) -> Option<(DType, &[usize])> {
        self.tensors.get(name).map(|t| (t.view.dtype, &t.view.shape[..]))
    }

    /// The total number of bytes of the parameters.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.view.bytes() as u64).sum()
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).ok_or_else(|| {
            Error::input_at(&self.path, format!("has no parameter '{name}' in its config"))
        })
    }

    /// Hands the bytes of a parameter to `sink`, row-major and little-endian, piece by piece;
    /// `transposed` exchanges the dimensions of a matrix. Checks the archive's checksum first, and
    /// lets the system take the file's pages back afterwards.
    ///
    /// # Errors
    /// A checksum that differs, and those of `sink`.
    pub fn read(
        &self,
        name: &str,
        transposed: bool,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let tensor = self.tensor(name)?;
        let file = &self.files[tensor.file];
        if let Some(entry) = &tensor.entry {
            let place = || format!("{}, tensor '{name}'", file.path.display());
            entry.verify(&file.map).map_err(|e| Error::input(place(), e))?;
        }
        let view = &tensor.view;
        if transposed {
            view.clone().transposed().read(&file.map, sink)?;
        } else {
            view.read(&file.map, sink)?;
        }
        // An estimate for strided views; pages dropped too many come back when they are read.
        file.map.release(view.start, view.bytes().min(file.map.len() - view.start));
        Ok(())
    }

    /// A parameter as f32 (F64 is rounded), row-major.
    ///
    /// # Errors
    /// As [`Source::read`], and a number that is not finite.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        let mut numbers = Vec::with_capacity(tensor.view.count());
        let mut part = Vec::new();
        self.read(name, false, &mut |bytes| {
            self.check_finite(name, numbers.len(), bytes, &mut part)?;
            numbers.extend_from_slice(&part);
            Ok(())
        })?;
        Ok(numbers)
    }

    /// Refuses NaN and infinities among `bytes` of a parameter, whose first is element `from`; puts
    /// the numbers into `part`.
    ///
    /// # Errors
    /// [`Error::NonFinite`] with the element.
    pub(super) fn check_finite(
        &self,
        name: &str,
        from: usize,
        bytes: &[u8],
        part: &mut Vec<f32>,
    ) -> Result<()> {
        let tensor = self.tensor(name)?;
        view::floats(tensor.view.dtype, bytes, part);
        match part.iter().position(|x| !x.is_finite()) {
            None => Ok(()),
            Some(i) => Err(Error::NonFinite(format!(
                "{}, tensor '{name}': element {} is {}; take another checkpoint",
                self.files[tensor.file].path.display(),
                from + i,
                part[i]
            ))),
        }
    }
}

/// The config that is to be followed, and whether GPT-2's matrices are stored transposed.
fn resolve_config(
    path: &Path,
    home: &Path,
    contents: &Contents,
    options: &OpenOptions,
) -> Result<(ModelConfig, bool)> {
    let beside = home.join("config.json");
    if let Some(given) = &options.model_config {
        return Ok((ModelConfig::load(given)?, false));
    }
    let from_json = |value: serde_json::Value| {
        ModelConfig::from_json(&value)
            .map_err(|e| Error::input_at(path, format!("its config: {e}")))
    };
    if let Some(value) = &contents.config {
        return Ok((from_json(value.clone())?, false));
    }
    if contents.args.is_none() && beside.is_file() {
        let found = hf::read_config(&beside)?;
        return Ok((found.config, found.conv1d));
    }
    if path.is_dir() {
        let missing = std::fs::metadata(&beside).reading(&beside);
        return Err(missing.err().unwrap_or_else(|| Error::input_at(&beside, "is no file")));
    }
    let shapes: infer::Shapes =
        contents.named.iter().map(|(name, t)| (name.as_str(), &t.view.shape[..])).collect();
    let value = infer::config(&shapes, contents.args.as_ref());
    Ok((from_json(value.map_err(|e| Error::input_at(path, e))?)?, false))
}

/// What stands under a name and is no tensor, in words.
fn unread((name, kind): &(String, String)) -> String {
    format!("holds {kind} under '{name}', and no tensor that is read")
}

/// Refuses what is no tensor where the config has a parameter.
fn refuse_others(others: &[(String, String)], config: &ModelConfig) -> Result<(), String> {
    let table = config.parameters();
    let is_own = |name: &str| {
        let name = bind::clean_name(name);
        table.iter().any(|p| p.name == name || p.name.strip_prefix("transformer.") == Some(&name))
    };
    match others.iter().find(|(name, _)| is_own(name)) {
        None => Ok(()),
        Some(other) => Err(format!("{}; save its state_dict in F32, F16 or BF16", unread(other))),
    }
}

/// What is known before the choice of weights.
fn metadata_of(contents: &Contents, config: &ModelConfig) -> Metadata {
    let own = contents.metadata.clone();
    let mut metadata =
        own.unwrap_or_else(|| Metadata { step: contents.step.unwrap_or(0), ..Metadata::default() });
    metadata.config = config.to_json();
    // GPT-2's 50,257 ids rounded up to a multiple of 64, as nanoGPT does.
    let padded = config.mask_id().is_none() && config.vocab_size() == 50_304;
    metadata.n_vocab_used = metadata.n_vocab_used.or(padded.then_some(50_257));
    metadata
}

/// The tensors that `weights` asks for, by name.
fn choose(
    path: &Path,
    contents: Contents,
    config: &ModelConfig,
    weights: Option<WeightsKind>,
    metadata: &mut Metadata,
) -> Result<Vec<(String, Tensor)>> {
    let own = match metadata.kind {
        Kind::Model => WeightsKind::Raw,
        Kind::Ema => WeightsKind::Ema,
    };
    let has_average = contents.average.is_some();
    let wanted = weights.unwrap_or(if has_average { WeightsKind::Ema } else { own });
    match (wanted, contents.average) {
        (WeightsKind::Ema, Some(average)) => {
            metadata.kind = Kind::Ema;
            metadata.ema_decay = average.decay;
            metadata.ema_warmup = average.warmup;
            match average.tensors {
                AverageTensors::Named(named) => Ok(named),
                AverageTensors::Nameless(list) => bind::name_average(list, &contents.named, config)
                    .map_err(|e| Error::input_at(path, e)),
            }
        }
        (wanted, None) if wanted != own => Err(Error::input_at(
            path,
            match own {
                WeightsKind::Raw => "has no EMA weights, only raw ones; leave --weights out",
                WeightsKind::Ema => "holds an average, no raw weights; leave --weights out",
            },
        )),
        _ => Ok(contents.named),
    }
}
