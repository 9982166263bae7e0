//! From a file's tensors to the parameters of a config: names, order, shapes.

use std::collections::{BTreeMap, BTreeSet};

use super::contents::Tensor;
use super::{hf, infer};
use crate::family::ModelConfig;

/// What wrappers put before every name: compilation, data parallelism and averaging (`module.`),
/// Lightning's Fabric, FSDP, checkpointed activations, the class around a network.
const PREFIXES: [&str; 9] = [
    "_orig_mod.",
    "module.",
    "_forward_module.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "backbone.",
    "model.",
    "network.",
    "net.",
];

/// Those of them that also stand inside names, around a part of the network.
const INSIDE: [&str; 3] = ["._orig_mod.", "._fsdp_wrapped_module.", "._checkpoint_wrapped_module."];

/// The counter that `torch.optim.swa_utils.AveragedModel` keeps beside its average.
const N_AVERAGED: &str = "n_averaged";

/// What the names of a bare GPT-2 begin with, which others have behind `transformer.`.
const BARE: [&str; 4] = ["wte.", "wpe.", "h.", "ln_f."];

/// A name without the prefixes of wrappers.
pub fn clean_name(name: &str) -> String {
    let mut short = name.to_owned();
    for wrapper in INSIDE {
        short = short.replace(wrapper, ".");
    }
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| short.strip_prefix(prefix)) {
        short = rest.to_owned();
    }
    short
}

/// Takes `AveragedModel`'s counter out of the tensors; whether it was there, so that they are an
/// average.
pub fn take_counter(named: &mut Vec<(String, Tensor)>) -> bool {
    let count = named.len();
    named.retain(|(name, _)| name != N_AVERAGED);
    named.len() < count
}

/// Takes wrappers' prefixes off the names, and gives bare GPT-2 names their `transformer.`.
///
/// # Errors
/// When two names become one.
pub fn clean_names(named: &mut [(String, Tensor)]) -> Result<(), String> {
    named.iter_mut().for_each(|(name, _)| *name = clean_name(name));
    let bare = |name: &str| BARE.iter().any(|start| name.starts_with(start));
    if named.iter().any(|(name, _)| name == "wte.weight") {
        for (name, _) in named.iter_mut().filter(|(name, _)| bare(name)) {
            name.insert_str(0, "transformer.");
        }
    }
    let mut seen = BTreeSet::new();
    match named.iter().find(|(name, _)| !seen.insert(name)) {
        Some((name, _)) => Err(format!("tensor '{name}' stands there twice")),
        None => Ok(()),
    }
}

/// Names for a nameless average, whose tensors are those of `model.parameters()` in its order.
///
/// That order is the config's; it is held against the order of the weights that the same file
/// names, as a module whose parts were defined in another order would be named wrongly in silence.
///
/// # Errors
/// A count, an order or a shape that differs, with the place in the list.
pub fn name_average(
    list: Vec<Tensor>,
    named: &[(String, Tensor)],
    config: &ModelConfig,
) -> Result<Vec<(String, Tensor)>, String> {
    let table = config.parameters();
    if list.len() != table.len() {
        return Err(format!(
            "its moving average has {} tensors, a model of its config {}; is the config its own?",
            list.len(),
            table.len()
        ));
    }
    let known: BTreeSet<&str> = table.iter().map(|p| p.name.as_str()).collect();
    let own = named.iter().map(|(name, _)| name.as_str()).filter(|name| known.contains(name));
    if let Some((i, (own, parameter))) =
        own.zip(&table).enumerate().find(|(_, (own, parameter))| *own != parameter.name)
    {
        return Err(format!(
            "its parameter {i} is '{own}', that of the published module '{}', so its nameless \
             moving average cannot be named safely; take --weights raw",
            parameter.name
        ));
    }
    let pairs = table.into_iter().zip(list).enumerate();
    pairs
        .map(|(i, (parameter, tensor))| {
            if tensor.view.shape == parameter.shape {
                Ok((parameter.name, tensor))
            } else {
                Err(format!(
                    "tensor {i} of its moving average has shape {:?}, '{}' needs {:?}; is the \
                     config its own?",
                    tensor.view.shape, parameter.name, parameter.shape
                ))
            }
        })
        .collect()
}

/// The parameters of `config` out of a file's tensors. `conv1d` says that GPT-2's matrices are
/// stored transposed; `files` are the bytes that the tensors lie in.
///
/// # Errors
/// Tensors that are missing, too many, of another shape or type, and a head that is not the token
/// table though the family ties them.
pub fn bind(
    named: Vec<(String, Tensor)>,
    config: &ModelConfig,
    conv1d: bool,
    files: &[&[u8]],
) -> Result<BTreeMap<String, Tensor>, String> {
    let table = config.parameters();
    let mut found: BTreeMap<String, Tensor> = named.into_iter().collect();
    check_names(&found, &table, config)?;
    if let Some((repeated, parameter)) = config.tied()
        && let Some(head) = found.remove(repeated)
    {
        let same = found.get(parameter).is_some_and(|table| same_elements(&head, table, files));
        if !same {
            return Err(format!(
                "'{repeated}' differs from '{parameter}', to which {} ties it",
                config.arch()
            ));
        }
    }
    let mut bound = BTreeMap::new();
    let mut bytes = 0usize;
    for parameter in table {
        let Some(mut tensor) = found.remove(&parameter.name) else { continue }; // checked above
        let name = parameter.name;
        if conv1d && hf::CONV1D.iter().any(|end| name.ends_with(end)) {
            tensor.view = tensor.view.transposed();
        }
        if tensor.view.shape != parameter.shape {
            let turned = tensor.view.shape.iter().rev().eq(&parameter.shape);
            let why = match (conv1d, turned) {
                (true, _) => " (turned, as Hugging Face stores it)",
                (false, true) => {
                    "; a file in Hugging Face's layout needs its config.json beside it"
                }
                (false, false) => "; is the config its own?",
            };
            let (shape, needed) = (&tensor.view.shape, &parameter.shape);
            return Err(format!(
                "tensor '{name}' has shape {shape:?}, its config needs {needed:?}{why}"
            ));
        }
        if !tensor.view.dtype.is_float() {
            let dtype = tensor.view.dtype;
            return Err(format!("tensor '{name}' holds {dtype}; weights are floating-point"));
        }
        bytes = bytes.saturating_add(tensor.view.bytes());
        bound.insert(name, tensor);
    }
    // Tensors may share storage, so a small file could tell a model without end.
    let held: usize = files.iter().map(|file| file.len()).sum();
    if bytes > 2 * held {
        return Err(format!("its tensors name {bytes} bytes, the file has {held}; it is damaged"));
    }
    Ok(bound)
}

/// Refuses tensors that are missing and such as are not the model's.
fn check_names(
    found: &BTreeMap<String, Tensor>,
    table: &[crate::family::Parameter],
    config: &ModelConfig,
) -> Result<(), String> {
    let known: BTreeSet<&str> = table.iter().map(|p| p.name.as_str()).collect();
    let missing: Vec<&str> =
        known.iter().copied().filter(|name| !found.contains_key(*name)).collect();
    let repeated = config.tied().map(|(repeated, _)| repeated);
    let extra: Vec<&str> = found
        .keys()
        .map(String::as_str)
        .filter(|&name| !known.contains(name) && !config.is_buffer(name) && repeated != Some(name))
        .collect();
    let more = |list: &[&str]| match list.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let shapes = found.iter().map(|(name, t)| (name.as_str(), &t.view.shape[..])).collect();
    let other = infer::arch(&shapes).filter(|&arch| {
        let same = |a: &str| if a == "mdlm" { "sedd" } else { a }.to_owned();
        same(arch) != same(config.arch())
    });
    let hint = match other {
        Some(arch) => format!("its tensors are named like those of {arch}"),
        None => "is the config its own?".into(),
    };
    match (missing.first(), extra.first()) {
        (Some(first), _) => Err(format!(
            "tensor '{first}'{} of {} is missing; {hint}",
            more(&missing),
            config.arch()
        )),
        (None, Some(first)) => Err(format!(
            "tensor '{first}'{} is not one of {}'s with this config; {hint}",
            more(&extra),
            config.arch()
        )),
        (None, None) => Ok(()),
    }
}

/// Whether two tensors hold the same numbers; nothing is read where they are one.
fn same_elements(a: &Tensor, b: &Tensor, files: &[&[u8]]) -> bool {
    if (a.file, &a.view) == (b.file, &b.view) {
        return true;
    }
    if a.view.shape != b.view.shape || a.view.dtype != b.view.dtype {
        return false;
    }
    let contents = |tensor: &Tensor| {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let read = tensor.view.read(files[tensor.file], &mut |bytes| {
            hash.update(bytes);
            Ok(())
        });
        read.ok().map(|()| hash.digest128())
    };
    contents(a) == contents(b)
}
