//! What a file of weights holds before it is known which model it is: tensors by the names that
//! the file gives them, a moving average, and settings.

use std::path::Path;

use serde_json::{Map, Value};

use super::pickle::{Node, Pickle, Ref};
use super::torch_file::TorchFile;
use super::view::View;
use super::zip::Entry;
use crate::format::Mapped;
use crate::format::checkpoint::{CheckpointFile, Metadata};
use crate::{Error, Result};

/// A tensor and where it comes from.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Where its elements lie.
    pub view: View,
    /// Which of the source's files they lie in.
    pub file: usize,
    /// The archive's entry that they belong to, with its checksum.
    pub entry: Option<Entry>,
}

/// A moving average of the weights, as training codes save it beside them.
#[derive(Debug)]
pub struct Average {
    /// Names, or only their places in the order of the module's parameters.
    pub tensors: AverageTensors,
    /// The decay, where the file says it.
    pub decay: Option<f64>,
    /// Whether the file counts updates, and so warmed the decay up.
    pub warmup: Option<bool>,
}

/// The tensors of an [`Average`].
#[derive(Debug)]
pub enum AverageTensors {
    /// One for each of `model.parameters()`.
    Nameless(Vec<Tensor>),
    /// A dictionary like the model's.
    Named(Vec<(String, Tensor)>),
}

/// Everything that was found.
#[derive(Debug, Default)]
pub struct Contents {
    /// Tensors in the order of the file.
    pub named: Vec<(String, Tensor)>,
    /// A moving average.
    pub average: Option<Average>,
    /// The settings that the training code saved (nanoGPT's `model_args`).
    pub args: Option<Map<String, Value>>,
    /// Optimizer steps done, where the file says it.
    pub step: Option<u64>,
    /// The metadata of a checkpoint of this toolkit.
    pub metadata: Option<Metadata>,
    /// The model config of a safetensors file of this toolkit.
    pub config: Option<Value>,
    /// What stands under names of the weights and is no tensor, and what it is.
    pub others: Vec<(String, String)>,
    /// Names of Python's that stand for objects beside the weights, and how many of each.
    pub passed_over: Vec<(String, usize)>,
}

impl Contents {
    /// Opens the file at `path` as number `file` of a source.
    ///
    /// # Errors
    /// When it is no safetensors file and none of `torch.save`, or a damaged one.
    pub fn open(path: &Path, file: usize) -> Result<(Contents, Mapped)> {
        let head = crate::format::map_file(path)?;
        if TorchFile::is_one(&head) {
            return Self::of_torch(path, file);
        }
        // A safetensors header of such a length begins alike, and goes on with its brace.
        if head.starts_with(b"\x80") && head.get(8) != Some(&b'{') {
            return Err(Error::input_at(
                path,
                "is a bare pickle; the archives of torch.save and safetensors files are read",
            ));
        }
        let checkpoint = CheckpointFile::open(path)?;
        let (metadata, config) = (checkpoint.ao_metadata()?, checkpoint.config()?);
        let base = checkpoint.bytes().as_ptr() as usize;
        let named = checkpoint.names().filter_map(|name| {
            let tensor = checkpoint.tensor(name)?;
            let start = tensor.bytes.as_ptr() as usize - base;
            let view = View::row_major(tensor.dtype, tensor.shape, start);
            Some((name.to_owned(), Tensor { view, file, entry: None }))
        });
        let contents = Contents { named: named.collect(), metadata, config, ..Contents::default() };
        Ok((contents, checkpoint.into_mapped()))
    }

    fn of_torch(path: &Path, file: usize) -> Result<(Contents, Mapped)> {
        let torch = TorchFile::open(path)?;
        let reader = Reader { path, file, torch: &torch, values: &torch.pickle };
        let contents = reader.read()?;
        Ok((contents, torch.map))
    }
}

/// The names under which training codes save the weights: nanoGPT and SEDD, Lightning, others,
/// DeepSpeed.
const MODEL: [&str; 5] = ["model", "state_dict", "model_state_dict", "net", "module"];
/// And a moving average: AO-GPT; SEDD, RADD and MDLM; others.
const AVERAGE: [&str; 4] = ["ema_model", "ema", "ema_state_dict", "model_ema"];
/// And the number of steps: nanoGPT and AO-GPT; SEDD and RADD; Lightning.
const STEP: [&str; 3] = ["iter_num", "step", "global_step"];

struct Reader<'a> {
    path: &'a Path,
    file: usize,
    torch: &'a TorchFile,
    values: &'a Pickle,
}

impl Reader<'_> {
    fn read(&self) -> Result<Contents> {
        let root = self.values.root();
        if !matches!(self.values.node(root), Node::Dict(_)) {
            return Err(self.bad(format!(
                "holds {}, and no dictionary of tensors; save the model's state_dict",
                self.values.node(root).kind()
            )));
        }
        let get = |keys: &[&str]| keys.iter().find_map(|key| self.values.get(root, key));
        let model = get(&MODEL).unwrap_or(root);
        let mut others = Vec::new();
        let average = get(&AVERAGE).map(|at| self.average(at, &mut others)).transpose()?.flatten();
        let named = self.named(model, "the model", &mut others)?;
        if named.is_empty() && average.is_none() {
            let what = match others.first() {
                Some((name, kind)) => format!("holds no tensors, but {kind} under '{name}'"),
                None => "holds no tensors".into(),
            };
            return Err(self.bad(format!("{what}; save the model's state_dict")));
        }
        let passed_over = self.values.unknown().map(|(name, n)| (name.to_owned(), n)).collect();
        Ok(Contents {
            named,
            average,
            others,
            passed_over,
            args: self.values.get(root, "model_args").and_then(|at| self.settings(at)),
            step: get(&STEP).and_then(|at| self.values.count(at)),
            ..Contents::default()
        })
    }

    fn bad(&self, what: String) -> Error {
        Error::input_at(self.path, what)
    }

    /// The tensors of a state_dict; what else stands in it goes to `others`.
    fn named(
        &self,
        dict: Ref,
        what: &str,
        others: &mut Vec<(String, String)>,
    ) -> Result<Vec<(String, Tensor)>> {
        let Node::Dict(pairs) = self.values.node(dict) else {
            let kind = self.values.node(dict).kind();
            return Err(self.bad(format!(
                "{what} is {kind}, and no dictionary of tensors; save its state_dict"
            )));
        };
        let mut named = Vec::with_capacity(pairs.len());
        for &(key, value) in pairs {
            let kind = |at| self.values.node(at).kind();
            match (self.values.text(key), self.values.tensor(value)) {
                (Some(name), Some(_)) => named.push((name.to_owned(), self.tensor(value, name)?)),
                (Some(name), None) => others.push((name.to_owned(), kind(value).into_owned())),
                (None, None) => {}
                (None, Some(_)) => {
                    let kind = kind(key);
                    return Err(self.bad(format!("{what} has a tensor under {kind}, not a name")));
                }
            }
        }
        Ok(named)
    }

    fn tensor(&self, at: Ref, name: &str) -> Result<Tensor> {
        let place = || format!("{}, tensor '{name}'", self.path.display());
        let tensor = self
            .values
            .tensor(at)
            .ok_or_else(|| Error::input(place(), format!("is {}", self.values.node(at).kind())))?;
        let (view, entry) = self.torch.view(tensor).map_err(|e| Error::input(place(), e))?;
        Ok(Tensor { view, file: self.file, entry: Some(entry) })
    }

    /// `{decay, num_updates, shadow_params}`, or a dictionary like the model's; `None` where a
    /// training code left an empty place for it.
    fn average(&self, at: Ref, others: &mut Vec<(String, String)>) -> Result<Option<Average>> {
        let Some(shadow) = self.values.get(at, "shadow_params") else {
            return match self.values.node(at) {
                Node::None => Ok(None),
                _ => {
                    let named = self.named(at, "the moving average", others)?;
                    let tensors = AverageTensors::Named(named);
                    Ok(Some(Average { tensors, decay: None, warmup: None }))
                }
            };
        };
        let Node::List(list) = self.values.node(shadow) else {
            return Err(self.bad("'shadow_params' of its moving average is no list".into()));
        };
        let tensors = list.iter().enumerate();
        let tensors = tensors.map(|(i, &at)| self.tensor(at, &format!("shadow_params[{i}]")));
        let tensors = AverageTensors::Nameless(tensors.collect::<Result<_>>()?);
        let decay = self.values.get(at, "decay").and_then(|at| self.values.number(at));
        let updates = self.values.get(at, "num_updates");
        let warmup = updates.map(|at| !matches!(self.values.node(at), Node::None));
        let decay = decay.filter(|d| (0.0..=1.0).contains(d));
        Ok(Some(Average { tensors, decay, warmup }))
    }

    /// A flat dictionary of settings as JSON.
    fn settings(&self, at: Ref) -> Option<Map<String, Value>> {
        let Node::Dict(pairs) = self.values.node(at) else { return None };
        let mut settings = Map::new();
        for &(key, value) in pairs {
            let value = match self.values.node(value) {
                Node::None => Value::Null,
                Node::Bool(b) => Value::Bool(*b),
                Node::Int(n) => Value::from(*n),
                Node::Float(x) => Value::from(*x),
                Node::Text(text) => Value::from(&**text),
                other => Value::from(other.kind().into_owned()),
            };
            settings.insert(self.values.text(key)?.to_owned(), value);
        }
        Some(settings)
    }
}
