//! The step's gradients against plain autograd, and against themselves under other cuts.

use ao_core::family::ModelConfig;
use serde_json::json;
use tch::{Device, IndexOp, Kind, Tensor};

use super::*;
use crate::train::test_support::{network, weights, worst};

/// ε of every norm of the published code.
const NORM_EPS: f64 = 1e-5;

fn config() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "arch": "ao-gpt", "block_size": 9, "vocab_size": 23, "n_layer": 2, "n_head": 2,
        "n_embd": 12, "cond_dim": 5
    }))
    .unwrap()
}

/// Sequences of uneven lengths, 1 to the block size, and their orders.
fn sequences(count: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    (0..count as u32)
        .map(|i| {
            let n = i * 5 % 9 + 1;
            let tokens = (0..n).map(|k| (k * 7 + i * 3) % 23).collect();
            // Steps of 2 and of 1 visit every position where n is odd and where it is even.
            let stride = if n % 2 == 1 { 2 } else { 1 };
            let order = (0..n).map(|k| (k * stride + i) % n).rev().collect();
            (tokens, order)
        })
        .collect()
}

fn ordered(rows: &[(Vec<u32>, Vec<u32>)]) -> OrderedTexts {
    let tokens: Vec<&[u32]> = rows.iter().map(|(t, _)| t.as_slice()).collect();
    let orders: Vec<&[u32]> = rows.iter().map(|(_, o)| o.as_slice()).collect();
    OrderedTexts::new(&tokens, &orders).unwrap()
}

/// Loss (mean NLL) and gradients as a step makes them, from micro-batches of `cut` sequences.
fn by_step(
    config: &ModelConfig,
    compute: Kind,
    rows: &[(Vec<u32>, Vec<u32>)],
    cut: usize,
) -> (f64, Weights) {
    let weights = weights(config, if compute == Kind::Double { compute } else { Kind::Float });
    let network = network(config, &weights, compute);
    let gradients = weights.require_gradients(&network.base().names.list());
    let counted: usize = rows.iter().map(|(t, _)| t.len() - network.base().given()).sum();
    let scale = 1.0 / counted as f64;
    let mut sum = 0.0;
    for part in rows.chunks(cut) {
        let clock = &mut Clock::start();
        sum += accumulate(network.as_ref(), &ordered(part), scale, 0.0, &gradients, clock)
            .iter()
            .sum::<f64>();
    }
    (sum * scale, gradients)
}

/// The same written out plainly: adaLN for every token, attention with its matrix of scores,
/// log-softmax over all logits at once, and autograd through everything.
fn by_autograd(kind: Kind, rows: &[(Vec<u32>, Vec<u32>)]) -> (f64, Weights) {
    let config = config();
    let weights = weights(&config, kind);
    let gradients = weights.require_gradients(&[]);
    let loss = plain_loss(&config, &weights, &ordered(rows));
    loss.backward();
    (loss.double_value(&[]), gradients)
}

fn plain_loss(config: &ModelConfig, weights: &Weights, texts: &OrderedTexts) -> Tensor {
    let w = |name: &str| weights.get(name);
    let (b, t, c) = (texts.sequences as i64, texts.length as i64, config.n_embd() as i64);
    let (heads, hs) = (config.n_head() as i64, (config.n_embd() / config.n_head()) as i64);
    let kind = w("lm_head.weight").kind();
    let linear = |x: &Tensor, name: &str| {
        x.matmul(&w(&format!("{name}.weight")).tr()) + w(&format!("{name}.bias"))
    };
    let norm = |x: &Tensor, name: &str| {
        let square = x.square().mean_dim([-1i64].as_slice(), true, kind);
        x / (square + NORM_EPS).sqrt() * w(name)
    };
    let look_up = |name: &str, ids: &Tensor| w(name).index_select(0, &ids.reshape([-1]));

    let of = |values: &[i64]| Tensor::from_slice(values).view([b, t]);
    let (tokens, order) = (of(&texts.tokens), of(&texts.order));
    let held = look_up("transformer.wte.weight", &tokens)
        + look_up("transformer.wpe.weight", &(&order + 1));
    let held = held.view([b, t, c]).narrow(1, 0, t - 1);
    let none = w("transformer.wnonee.weight") + w("transformer.wpe.weight").narrow(0, 0, 1);
    let mut x = Tensor::cat(&[none.view([1, 1, c]).expand([b, 1, c], false), held], 1);
    let condition = look_up("transformer.wtpe.weight", &order).view([b, t, -1]).silu();
    let future = Tensor::ones([t, t], (Kind::Bool, Device::Cpu)).triu(1);

    for i in 0..config.n_layer() {
        let name = |part: &str| format!("transformer.h.{i}.{part}");
        let ada = linear(&condition, &name("adaLN.1")).chunk(6, -1);
        let h = norm(&x, &name("ln_1.weight")) * (&ada[1] + 1.0) + &ada[0];
        let qkv = linear(&h, &name("attn.c_attn")).view([b, t, 3, heads, hs]);
        let part = |k: i64| qkv.i((.., .., k)).transpose(1, 2); // (B, H, T, hs)
        let q = norm(&part(0), &name("attn.q_norm.weight"));
        let k = norm(&part(1), &name("attn.k_norm.weight"));
        let scores = q.matmul(&k.transpose(2, 3)) / (hs as f64).sqrt();
        let scores = scores.masked_fill(&future, f64::NEG_INFINITY);
        let y = scores.softmax(-1, kind).matmul(&part(2)).transpose(1, 2).reshape([b, t, c]);
        x = &x + linear(&y, &name("attn.c_proj")) * &ada[2];
        let h = norm(&x, &name("ln_2.weight")) * (&ada[4] + 1.0) + &ada[3];
        let m = linear(&linear(&h, &name("mlp.c_fc")).gelu("none"), &name("mlp.c_proj"));
        x = &x + m * &ada[5];
    }
    let ada = linear(&condition, "transformer.final_layer.adaLN_final.1").chunk(2, -1);
    let h = norm(&x, "transformer.final_layer.ln_f.weight") * (&ada[1] + 1.0) + &ada[0];
    mean_nll(&linear(&h, "lm_head"), &texts.targets)
}

/// Mean NLL of the targets that are not −1, of logits (…, V).
fn mean_nll(logits: &Tensor, targets: &[i64]) -> Tensor {
    let kind = logits.kind();
    let log_softmax = logits.log_softmax(-1, kind).reshape([targets.len() as i64, -1]);
    let targets = Tensor::from_slice(targets).view([-1, 1]);
    let counted = targets.ge(0).to_kind(kind);
    let nll = -(log_softmax.gather(-1, &targets.clamp_min(0), false) * &counted);
    nll.sum(kind) / counted.sum(kind)
}

/// Autograd through a network's own forward and all logits at once.
fn through_the_network(config: &ModelConfig, rows: &[(Vec<u32>, Vec<u32>)]) -> (f64, Weights) {
    let weights = weights(config, Kind::Double);
    let network = network(config, &weights, Kind::Double);
    let gradients = weights.require_gradients(&[]);
    let (texts, base) = (ordered(rows), network.base());
    let input = texts.rows(base.given(), Device::Cpu);
    let hidden = network.forward(&input, &mut Causal::default(), 0.0);
    let mut logits = hidden.matmul(&weights.get(base.names.head_weight).tr());
    if let Some(bias) = weights.find(base.names.head_bias) {
        logits += bias;
    }
    let loss = mean_nll(&logits, &texts.targets_after(base.given()));
    loss.backward();
    base.add_token_gradients(&gradients);
    (loss.double_value(&[]), gradients)
}

#[test]
fn gradients_by_hand_in_chunks_and_from_tables_are_those_of_plain_autograd() {
    let rows = sequences(8);
    for (compute, kind, bound) in [
        (Kind::Double, Kind::Double, 1e-9),
        (Kind::Float, Kind::Float, 2e-5),
        (Kind::BFloat16, Kind::Float, 5e-2),
    ] {
        let (loss, gradients) = by_step(&config(), compute, &rows, 8);
        let (plain_loss, plain) = by_autograd(kind, &rows);
        let difference = (loss - plain_loss).abs() / plain_loss;
        assert!(difference <= bound, "{compute:?}: loss {loss}, plainly {plain_loss}");
        let (difference, name) = worst(&gradients, &plain);
        assert!(difference <= bound, "{compute:?}: {name} differs by {difference}");
    }
}

#[test]
fn any_cut_of_a_batch_gives_the_same_gradients() {
    let rows = sequences(12);
    for (kind, bound) in [(Kind::Double, 1e-12), (Kind::Float, 1e-5)] {
        let (whole_loss, whole) = by_step(&config(), kind, &rows, 12);
        for cut in [1, 2, 3, 4, 6] {
            let (loss, gradients) = by_step(&config(), kind, &rows, cut);
            assert!((loss - whole_loss).abs() <= bound, "{kind:?}, cut {cut}: loss {loss}");
            let (difference, name) = worst(&gradients, &whole);
            assert!(difference <= bound, "{kind:?}, cut {cut}: {name} differs by {difference}");
        }
    }
}

#[test]
fn every_causal_network_has_the_gradients_of_autograd_with_tied_heads_and_given_tokens_too() {
    let rows = sequences(8);
    let sizes = json!({"block_size": 9, "vocab_size": 23, "n_layer": 2, "n_head": 2, "n_embd": 12});
    for (arch, activation) in
        [("ao-gpt", ""), ("sigma-gpt", ""), ("sigma-official", ""), ("gpt2", "gelu")]
    {
        let mut object = sizes.clone();
        object["arch"] = arch.into();
        if !activation.is_empty() {
            object["activation"] = activation.into();
        }
        let config = ModelConfig::from_json(&object).unwrap();
        let (loss, gradients) = by_step(&config, Kind::Double, &rows, 3);
        let (plain_loss, plain) = through_the_network(&config, &rows);
        assert!((loss - plain_loss).abs() <= 1e-12 * plain_loss, "{arch}: {loss}, {plain_loss}");
        let (difference, name) = worst(&gradients, &plain);
        assert!(difference <= 1e-9, "{arch}: {name} differs by {difference}");
    }
}
