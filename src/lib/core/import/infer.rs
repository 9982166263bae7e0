//! Which architecture a file's tensors are of, and its config where the file carries none.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Shapes by name.
pub type Shapes<'a> = BTreeMap<&'a str, &'a [usize]>;

/// The settings of nanoGPT's `model_args` and its descendants.
const SETTINGS: [&str; 7] =
    ["block_size", "vocab_size", "n_layer", "n_head", "n_embd", "dropout", "bias"];

/// The `arch` whose tensors have such names, told by the parts that only it has. SEDD's and MDLM's
/// names are the same; `sedd` stands for both.
pub fn arch(shapes: &Shapes) -> Option<&'static str> {
    let width = |name: &str| shapes.get(name).and_then(|shape| shape.last()).copied();
    let has = |name: &str| shapes.contains_key(name);
    if has("transformer.h.0.adaLN.1.weight") {
        Some("ao-gpt")
    } else if has("transformer.wnonee.weight") && has("transformer.h.0.ln_1.weight") {
        Some("sigma-gpt")
    } else if has("transformer.h.0.attn.c_attn.weight") {
        let (wte, wpe) = (width("transformer.wte.weight")?, width("transformer.wpe.weight")?);
        Some(if wpe * 2 == wte { "sigma-official" } else { "gpt2" })
    } else if has("sigma_map.mlp.0.weight") && has("blocks.0.adaLN_modulation.weight") {
        Some("sedd")
    } else if has("blocks.0.attn_qkv.weight") {
        Some("radd")
    } else {
        None
    }
}

/// A model config out of the settings that a training code saved, and out of the shapes for what
/// they leave out.
///
/// # Errors
/// One line: the architecture is not known, a setting is not, or the sizes cannot be told.
pub fn config(shapes: &Shapes, args: Option<&Map<String, Value>>) -> Result<Value, String> {
    let Some(arch) = arch(shapes) else {
        let first = shapes.keys().next().copied().unwrap_or("none");
        return Err(format!(
            "its tensors ('{first}', …) are of no architecture that is known; known are AO-GPT's, \
             σ-GPT's, GPT-2's, SEDD's, RADD's and MDLM's"
        ));
    };
    if matches!(arch, "sedd" | "radd") {
        return Err("carries no model config; give --model-config FILE.json".into());
    }
    let mut object = Map::new();
    object.insert("arch".into(), arch.into());
    for (key, value) in args.into_iter().flatten() {
        if SETTINGS.contains(&key.as_str()) {
            // nanoGPT leaves the vocabulary None until the model is built.
            if !value.is_null() {
                object.insert(key.clone(), value.clone());
            }
        } else {
            return Err(format!(
                "its setting '{key}' is not known, so the model may be another than {arch}; give \
                 --model-config FILE.json if it is not"
            ));
        }
    }
    for (key, value) in by_shape(arch, shapes) {
        object.entry(key).or_insert(value);
    }
    if !object.contains_key("n_head") {
        return Err("says nothing of its number of heads; give --model-config FILE.json".into());
    }
    Ok(Value::Object(object))
}

/// What the shapes alone tell of a GPT-like model.
fn by_shape(arch: &str, shapes: &Shapes) -> Vec<(String, Value)> {
    let length =
        |name: &str, dim: usize| shapes.get(name).and_then(|shape| shape.get(dim)).copied();
    let has = |name: &str| shapes.contains_key(name);
    let layers = (0..1024).take_while(|i| has(&format!("transformer.h.{i}.ln_1.weight"))).count();
    let wpe = length("transformer.wpe.weight", 0);
    let none_row = usize::from(matches!(arch, "ao-gpt" | "sigma-gpt"));
    let n_embd = length("transformer.wte.weight", 1);
    let heads = length("transformer.h.0.attn.q_norm.weight", 0)
        .zip(n_embd)
        .and_then(|(head, width)| width.checked_div(head));
    let mut told: Vec<(&str, Option<usize>)> = vec![
        ("block_size", wpe.and_then(|rows| rows.checked_sub(none_row))),
        ("vocab_size", length("transformer.wte.weight", 0)),
        ("n_layer", Some(layers)),
        ("n_head", heads),
        ("n_embd", n_embd),
    ];
    if arch == "ao-gpt" {
        told.push(("cond_dim", length("transformer.wtpe.weight", 1)));
    }
    let told = told.into_iter().filter_map(|(key, n)| Some((key.to_owned(), Value::from(n?))));
    let mut told: Vec<_> = told.collect();
    told.push(("bias".into(), has("transformer.h.0.attn.c_attn.bias").into()));
    if arch == "gpt2" {
        told.push(("activation".into(), "gelu".into())); // nanoGPT's is exact
    }
    told
}
