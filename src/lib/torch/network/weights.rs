//! Weights by name: one flat buffer, and a view of it for each parameter.
//!
//! One buffer lets the optimizer, clipping and the averages be one pass. Parameters with weight
//! decay come first, so that each of the two groups is one contiguous range; files keep the order
//! of the published module.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use ao_core::family::{Init, ModelConfig, Parameter};
use ao_core::format::checkpoint::{CheckpointFile, CheckpointWriter, DType};
use ao_core::import::Source;
use ao_core::rng::{Domain, Stream};
use ao_core::{Error, Result};
use tch::{Device, Kind, Tensor};

/// The parameters of one model.
pub struct Weights {
    table: Vec<Parameter>,
    offsets: Vec<usize>,
    index: HashMap<String, usize>,
    flat: Tensor,
    views: Vec<Tensor>,
    decayed: usize,
}

impl Weights {
    /// All zero, of `kind` (`Float`; `Double` in tests of exactness).
    pub fn zeros(config: &ModelConfig, kind: Kind, device: Device) -> Weights {
        let table = config.parameters();
        let mut offsets = vec![0; table.len()];
        let mut next = 0;
        let mut decayed = 0;
        for decays in [true, false] {
            for (offset, parameter) in offsets.iter_mut().zip(&table) {
                if parameter.decays() == decays {
                    *offset = next;
                    next += parameter.count();
                }
            }
            if decays {
                decayed = next;
            }
        }
        let index = table.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        let flat = Tensor::zeros([next as i64], (kind, device));
        let views = views_of(&table, &offsets, &flat);
        Weights { table, offsets, index, flat, views, decayed }
    }

    /// Drawn from the initial laws; parameter i of the table takes stream (seed, Init, i).
    pub fn init(config: &ModelConfig, seed: u64, device: Device) -> Weights {
        let weights = Weights::zeros(config, Kind::Float, Device::Cpu);
        tch::no_grad(|| {
            for (i, parameter) in weights.table.iter().enumerate() {
                let values = draw(parameter, &mut Stream::new(seed, Domain::Init, i as u64));
                weights.views[i].view([-1]).copy_(&Tensor::from_slice(&values));
            }
        });
        weights.to_device(device)
    }

    /// Reads the tensors of a checkpoint, after checking every name, shape, dtype and value.
    ///
    /// # Errors
    /// Missing, extra or mis-shaped tensors and non-finite values, by name.
    pub fn read(config: &ModelConfig, file: &CheckpointFile, path: &Path) -> Result<Weights> {
        let weights = Weights::zeros(config, Kind::Float, Device::Cpu);
        let tied = config.tied();
        for name in file.names() {
            let known = weights.index.contains_key(name) || config.is_buffer(name);
            if !known && tied.is_none_or(|(repeated, _)| repeated != name) {
                return Err(Error::input_at(
                    path,
                    format!("tensor '{name}' is not one of this model's; is the config its own?"),
                ));
            }
        }
        if let Some((repeated, table)) = tied
            && file.tensor(repeated).is_some()
            && file.to_f32(repeated)? != file.to_f32(table)?
        {
            return Err(Error::input_at(
                path,
                format!("'{repeated}' differs from '{table}', to which this family ties it"),
            ));
        }
        for parameter in &weights.table {
            weights.fill(parameter, file, &parameter.name, path)?;
        }
        Ok(weights)
    }

    /// Reads a published model, one parameter at a time.
    ///
    /// # Errors
    /// As [`Source::read_f32`].
    pub fn import(source: &Source) -> Result<Weights> {
        let weights = Weights::zeros(source.config(), Kind::Float, Device::Cpu);
        for (parameter, view) in weights.table.iter().zip(&weights.views) {
            let values = source.read_f32(&parameter.name)?;
            tch::no_grad(|| view.view([-1]).copy_(&Tensor::from_slice(&values)));
        }
        Ok(weights)
    }

    /// Fills one parameter from the tensor `name` of a file.
    fn fill(
        &self,
        parameter: &Parameter,
        file: &CheckpointFile,
        name: &str,
        path: &Path,
    ) -> Result<()> {
        let Some(view) = file.tensor(name) else {
            return Err(Error::input_at(path, format!("tensor '{name}' is missing")));
        };
        if view.shape != parameter.shape {
            return Err(Error::input_at(
                path,
                format!(
                    "tensor '{name}' has shape {:?}, the model needs {:?}",
                    view.shape, parameter.shape
                ),
            ));
        }
        let values = file.to_f32(name)?;
        if let Some(at) = values.iter().position(|x| !x.is_finite()) {
            return Err(Error::input_at(
                path,
                format!(
                    "tensor '{name}' holds {} at element {at}; weights must be finite",
                    values[at]
                ),
            ));
        }
        tch::no_grad(|| self.get(&parameter.name).view([-1]).copy_(&Tensor::from_slice(&values)));
        Ok(())
    }

    /// Fills the buffer from tensors named `PREFIX` + parameter name, as an optimizer file has.
    ///
    /// # Errors
    /// As [`Weights::read`]; extra tensors are left alone.
    pub fn read_prefixed(&self, prefix: &str, file: &CheckpointFile, path: &Path) -> Result<()> {
        for parameter in &self.table {
            self.fill(parameter, file, &format!("{prefix}{}", parameter.name), path)?;
        }
        Ok(())
    }

    /// Writes the tensors in f32, in the table's order, under their own names.
    ///
    /// # Errors
    /// [`Error::Write`], for instance when the disk is full.
    pub fn write(
        &self,
        path: &Path,
        metadata: &BTreeMap<String, String>,
        force: bool,
    ) -> Result<()> {
        write_all(path, metadata, force, &[("", self)])
    }

    /// The parameter called `name`, as a view of the buffer.
    ///
    /// # Panics
    /// When the table has no such name: a mistake in a model, not in a file.
    pub fn get(&self, name: &str) -> Tensor {
        self.find(name).unwrap_or_else(|| panic!("the parameter table has no '{name}'"))
    }

    /// As [`Weights::get`], `None` where the table has no such name.
    pub fn find(&self, name: &str) -> Option<Tensor> {
        self.index.get(name).map(|&i| self.views[i].shallow_clone())
    }

    /// Makes every parameter but those named a leaf whose gradient is a view of one flat buffer of
    /// the same layout, which is returned, zero: autograd then adds into it.
    pub fn require_gradients(&self, except: &[&str]) -> Weights {
        let gradients = self.like(false);
        for (i, parameter) in self.table.iter().enumerate() {
            if except.contains(&parameter.name.as_str()) {
                continue;
            }
            let leaf = self.views[i].set_requires_grad(true);
            // A gradient must exist before its storage can be replaced.
            leaf.sum(leaf.kind()).backward();
            tch::no_grad(|| leaf.grad().set_data(&gradients.views[i]));
        }
        gradients
    }

    /// The table's names in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.table.iter().map(|p| p.name.as_str())
    }

    /// The flat buffer, (P); parameters with weight decay first.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// How many elements at the start of the buffer have weight decay.
    pub fn decayed(&self) -> usize {
        self.decayed
    }

    /// The first parameter that holds a value that is not finite, where one does.
    pub fn first_nonfinite(&self) -> Option<&str> {
        let finite = |t: &Tensor| t.isfinite().all().int64_value(&[]) != 0;
        if tch::no_grad(|| finite(&self.flat)) {
            return None;
        }
        let at = self.views.iter().position(|view| !tch::no_grad(|| finite(view)));
        at.map(|i| self.table[i].name.as_str())
    }

    /// A buffer of the same layout with its own storage: zeros, or a copy.
    pub fn like(&self, copy: bool) -> Weights {
        let flat = tch::no_grad(|| if copy { self.flat.copy() } else { self.flat.zeros_like() });
        self.with_flat(flat)
    }

    /// The same layout over `flat`.
    fn with_flat(&self, flat: Tensor) -> Weights {
        let views = views_of(&self.table, &self.offsets, &flat);
        Weights {
            views,
            table: self.table.clone(),
            offsets: self.offsets.clone(),
            index: self.index.clone(),
            flat,
            decayed: self.decayed,
        }
    }

    /// The same weights on another device.
    pub fn to_device(&self, device: Device) -> Weights {
        self.with_flat(self.flat.to_device(device))
    }

    /// The same weights in another kind (`Double` in tests of exactness).
    pub fn to_kind(&self, kind: Kind) -> Weights {
        self.with_flat(self.flat.to_kind(kind))
    }
}

/// Each parameter's view of the buffer.
fn views_of(table: &[Parameter], offsets: &[usize], flat: &Tensor) -> Vec<Tensor> {
    table
        .iter()
        .zip(offsets)
        .map(|(parameter, &offset)| {
            let shape: Vec<i64> = parameter.shape.iter().map(|&n| n as i64).collect();
            flat.narrow(0, offset as i64, parameter.count() as i64).view(&shape[..])
        })
        .collect()
}

/// Writes several buffers of one layout into one file, each under its own prefix.
///
/// # Errors
/// [`Error::Write`].
pub(crate) fn write_all(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    force: bool,
    parts: &[(&str, &Weights)],
) -> Result<()> {
    let entries: Vec<_> = parts
        .iter()
        .flat_map(|(prefix, weights)| {
            weights
                .table
                .iter()
                .map(move |p| (format!("{prefix}{}", p.name), DType::F32, p.shape.clone()))
        })
        .collect();
    let mut writer = CheckpointWriter::create(path, force, metadata, &entries)?;
    for (_, weights) in parts {
        for i in 0..weights.table.len() {
            let values =
                Vec::<f32>::try_from(weights.views[i].detach().to_device(Device::Cpu).view([-1]))
                    .map_err(crate::device::torch_error)?;
            writer.put_f32(&values)?;
        }
    }
    writer.finish()
}

/// Values of one parameter, row-major.
fn draw(parameter: &Parameter, stream: &mut Stream) -> Vec<f32> {
    let count = parameter.count();
    match parameter.init {
        Init::Zeros => vec![0.0; count],
        Init::Ones => vec![1.0; count],
        Init::Normal(std) => (0..count).map(|_| (stream.normal() * std) as f32).collect(),
        Init::Uniform(bound) => {
            (0..count).map(|_| ((2.0 * stream.uniform() - 1.0) * bound) as f32).collect()
        }
        Init::TruncatedNormal(std) => (0..count)
            .map(|_| {
                loop {
                    let z = stream.normal();
                    if z.abs() <= 3.0 {
                        return (z * std) as f32;
                    }
                }
            })
            .collect(),
    }
}
