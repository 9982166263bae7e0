//! From a [`Source`] to files: a checkpoint of this toolkit, or a Hugging Face folder.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::Source;
use super::hf::CONV1D;
use crate::family::{Activation, Gpt2Config};
use crate::format::atomic::AtomicFile;
use crate::format::checkpoint::{CheckpointWriter, DType};
use crate::tokens::Tokenizer;
use crate::{Error, Result};

/// Writes the parameters to a checkpoint at `path`, each in the type that the source stores it in,
/// in the order of the published module. `done` is told the bytes written.
///
/// # Errors
/// A weight that is not finite, a checksum that differs, a target that exists or cannot be
/// written; no file appears then.
pub fn write_checkpoint(
    source: &Source,
    path: &Path,
    force: bool,
    metadata: &BTreeMap<String, String>,
    mut done: impl FnMut(u64),
) -> Result<()> {
    let entries = entries(source);
    let mut writer = CheckpointWriter::create(path, force, metadata, &entries)?;
    for (name, _, _) in &entries {
        put(source, name, false, &mut writer, &mut done)?;
    }
    writer.finish()
}

/// Name, type and shape of each parameter.
fn entries(source: &Source) -> Vec<(String, DType, Vec<usize>)> {
    let entry = |name: &str| {
        source.layout(name).map(|(dtype, shape)| (name.to_owned(), dtype, shape.to_vec()))
    };
    source.names().filter_map(entry).collect()
}

fn put(
    source: &Source,
    name: &str,
    transposed: bool,
    writer: &mut CheckpointWriter,
    done: &mut impl FnMut(u64),
) -> Result<()> {
    let (mut at, mut part) = (0, Vec::new());
    source.read(name, transposed, &mut |bytes| {
        source.check_finite(name, at, bytes, &mut part)?;
        at += part.len();
        writer.put(bytes)?;
        done(bytes.len() as u64);
        Ok(())
    })
}

/// Refuses a model that no class of Hugging Face's library computes.
///
/// # Errors
/// For every family but GPT-2.
pub fn check_exportable(source: &Source) -> Result<()> {
    match source.config().of::<Gpt2Config>() {
        Some(_) => Ok(()),
        None => Err(Error::usage(format!(
            "--export hf: Hugging Face's library has a class for gpt2 alone, {} is {}; its \
             safetensors file needs no export to be read elsewhere",
            source.path().display(),
            source.config().arch()
        ))),
    }
}

/// Writes `config.json`, `generation_config.json`, `model.safetensors` and, where the source has
/// one, `tokenizer.json` into `folder`, as Hugging Face's GPT-2 class loads them. The weights are
/// written last.
///
/// A model without biases gets biases of zero, as that class always adds them.
///
/// # Errors
/// As [`write_checkpoint`], and [`check_exportable`].
pub fn write_hugging_face(
    source: &Source,
    folder: &Path,
    tokenizer: Option<&Tokenizer>,
    mut done: impl FnMut(u64),
) -> Result<()> {
    check_exportable(source)?;
    let Some(config) = source.config().of::<Gpt2Config>() else { return Ok(()) }; // checked above
    // The end-of-text token is the tokenizer's; GPT-2's own stands before the padding rows.
    let eos = match tokenizer {
        Some(tokenizer) => tokenizer.eos_id().map(u64::from),
        None => matches!(config.vocab_size, 50_257 | 50_304).then_some(50_256),
    };
    let activation = match config.activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_new",
    };
    let object = json!({
        "activation_function": activation,
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": config.dropout,
        "bos_token_id": eos,
        "embd_pdrop": config.dropout,
        "eos_token_id": eos,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "model_type": "gpt2",
        "n_embd": config.n_embd,
        "n_head": config.n_head,
        "n_inner": null,
        "n_layer": config.n_layer,
        "n_positions": config.block_size,
        "resid_pdrop": config.dropout,
        "scale_attn_by_inverse_layer_idx": false,
        "scale_attn_weights": true,
        "tie_word_embeddings": true,
        "use_cache": true,
        "vocab_size": config.vocab_size,
    });
    write_json(&folder.join("config.json"), &object)?;
    let generation = json!({"bos_token_id": eos, "eos_token_id": eos});
    write_json(&folder.join("generation_config.json"), &generation)?;
    if let Some(tokenizer) = tokenizer {
        AtomicFile::write(&folder.join("tokenizer.json"), tokenizer.json(), true)?;
    }

    let mut listed = Vec::new();
    let mut zeros = Vec::new();
    for (name, dtype, mut shape) in entries(source) {
        if is_conv1d(&name) {
            shape.swap(0, 1);
        }
        let width = shape.last().copied().unwrap_or(0);
        // Matrices of blocks and norms have biases; the two tables have none.
        let bias = name.starts_with("transformer.h.") || name.starts_with("transformer.ln_f.");
        let bias = name.strip_suffix(".weight").filter(|_| bias && !config.bias);
        let bias = bias.map(|stem| format!("{stem}.bias"));
        listed.push((name, dtype, shape));
        if let Some(bias) = bias {
            zeros.push(bias.clone());
            listed.push((bias, dtype, vec![width]));
        }
    }
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let path = folder.join("model.safetensors");
    let mut writer = CheckpointWriter::create(&path, true, &metadata, &listed)?;
    for (name, dtype, shape) in &listed {
        if zeros.contains(name) {
            writer.put(&vec![0; shape.iter().product::<usize>() * dtype.size()])?;
        } else {
            put(source, name, is_conv1d(name), &mut writer, &mut done)?;
        }
    }
    writer.finish()
}

fn is_conv1d(name: &str) -> bool {
    CONV1D.iter().any(|end| name.ends_with(end))
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::input_at(path, format!("cannot be written as JSON: {e}")))?;
    AtomicFile::write(path, format!("{text}\n").as_bytes(), true)
}
