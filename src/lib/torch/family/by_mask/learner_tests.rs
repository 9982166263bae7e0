//! The masked step's gradients against plain autograd, and against themselves under other cuts.

use ao_core::family::ModelConfig;
use ao_core::process::{Masks, Objective};
use serde_json::{Value, json};
use tch::{Device, Kind};

use super::*;
use crate::train::test_support::{network, weights, worst};

const T: usize = 9;
const V: usize = 23;

fn config(arch: &str, more: Value) -> ModelConfig {
    let mut value = json!({"arch": arch, "block_size": T, "vocab_size": V, "n_layer": 2,
                           "n_head": 2, "n_embd": 12});
    for (key, entry) in more.as_object().unwrap() {
        value[key] = entry.clone();
    }
    ModelConfig::from_json(&value).unwrap()
}

/// Every family with every objective that it takes; a mask inside the vocabulary; a model that is
/// told the time.
fn cases() -> Vec<(ModelConfig, Objective)> {
    let mut cases = Vec::new();
    for objective in [Objective::TDce, Objective::LambdaDce, Objective::KDce] {
        cases.push((config("radd", json!({})), objective));
        cases.push((config("radd", json!({"mask_id": 7})), objective));
        cases.push((config("mdlm", json!({"cond_dim": 5})), objective));
        cases.push((config("mdlm", json!({"cond_dim": 5, "time_conditioning": true})), objective));
    }
    cases.push((config("sedd", json!({"cond_dim": 5})), Objective::ScoreEntropy));
    let free = json!({"cond_dim": 5, "scale_by_sigma": false});
    cases.push((config("sedd", free), Objective::ScoreEntropy));
    cases
}

/// Texts of uneven lengths, 1 to the block size, without id 7.
fn texts(count: usize) -> Vec<Vec<u32>> {
    let id = |x: u32| if x % V as u32 == 7 { 8 } else { x % V as u32 };
    (0..count as u32)
        .map(|i| (0..i * 5 % T as u32 + 1).map(|k| id(k * 7 + i * 3)).collect())
        .collect()
}

/// How texts are masked for `objective`, and the model's masks.
fn masking((config, objective): &(ModelConfig, Objective)) -> (Masking, Masks) {
    let masks = config.capabilities().masks.unwrap();
    (Masking::of(*objective, &masks).unwrap(), masks)
}

/// Numbers of the step's first sequence, the run's seed.
const FIRST: u64 = 40;
const SEED: u64 = 2;

fn scale(texts: &[Vec<u32>]) -> f64 {
    1.0 / texts.iter().map(Vec::len).sum::<usize>() as f64
}

/// Loss and gradients as a step makes them, from micro-batches of `cut` sequences.
fn by_step(
    case: &(ModelConfig, Objective),
    compute: Kind,
    texts: &[Vec<u32>],
    cut: usize,
) -> (f64, Weights) {
    let kind = if compute == Kind::Double { Kind::Double } else { Kind::Float };
    let weights = weights(&case.0, kind);
    let network = network(&case.0, &weights, compute);
    let gradients = weights.require_gradients(&network.base().names.list());
    let mut learner = MaskLearner { network, masking: masking(case).0, seed: SEED };
    let mut sum = 0.0;
    for (i, part) in texts.chunks(cut).enumerate() {
        let micro = Micro {
            texts: part,
            index: FIRST + (i * cut) as u64,
            first: FIRST,
            count: texts.len() as u64,
            scale: scale(texts),
            dropout: 0.0,
        };
        sum += learner.accumulate(micro, &gradients, &mut Clock::start()).unwrap();
    }
    (sum * scale(texts), gradients)
}

/// The papers' formulas over whole logits, sequence by sequence, and autograd through everything;
/// the network's products and the head's in `compute`.
fn by_autograd(
    case: &(ModelConfig, Objective),
    compute: Kind,
    texts: &[Vec<u32>],
) -> (f64, Weights) {
    let kind = if compute == Kind::Double { Kind::Double } else { Kind::Float };
    let weights = weights(&case.0, kind);
    let gradients = weights.require_gradients(&[]);
    let (network, loss) = plain_loss(case, &weights, compute, texts);
    loss.backward();
    network.base().add_token_gradients(&gradients);
    (loss.double_value(&[0]), gradients)
}

fn plain_loss(
    case: &(ModelConfig, Objective),
    weights: &Weights,
    compute: Kind,
    texts: &[Vec<u32>],
) -> (Box<dyn Network>, Tensor) {
    let (kind, objective) = (Kind::Double, case.1);
    let network = network(&case.0, weights, compute);
    let (masking, masks) = masking(case);
    let (schedule, mask) = (masks.schedule, masks.id);
    let real: Vec<i64> = (0..V as i64).filter(|&y| y != mask as i64).collect();
    let mut loss = Tensor::zeros([1], (kind, Device::Cpu));
    for (i, text) in texts.iter().enumerate() {
        let (index, count) = (FIRST + i as u64, texts.len() as u64);
        let place = Place { seed: SEED, index, first: FIRST, count };
        let draw = masking.training_draw(place, text.len());
        if draw.masked.is_empty() {
            continue;
        }
        let mut ids: Vec<i64> = text.iter().map(|&x| i64::from(x)).collect();
        draw.masked.iter().for_each(|&p| ids[p as usize] = mask as i64);
        let t = draw.time;
        let sigma = schedule.sigma(t).min(1e3f64.ln());
        let ids = Tensor::from_slice(&ids).unsqueeze(0);
        let hidden =
            forward_masked(network.as_ref(), ids, &[text.len()], &[sigma], 0.0).squeeze_dim(0);
        let head = weights.get("output_layer.linear.weight").to_kind(compute);
        let logits = hidden.to_kind(compute).matmul(&head.tr()).to_kind(kind)
            + weights.get("output_layer.linear.bias");
        for &p in &draw.masked {
            let row = logits.get(i64::from(p)).index_select(0, &Tensor::from_slice(&real));
            let at = real.iter().position(|&y| y == i64::from(text[p as usize])).unwrap() as i64;
            let term = if objective == Objective::ScoreEntropy {
                let log_score = row - masks.scores.unwrap().offset(sigma);
                let a = 1.0 / (sigma.exp() - 1.0);
                let entropy =
                    log_score.exp().sum(kind) - log_score.get(at) * a + a * (a.ln() - 1.0);
                entropy * schedule.rate(t)
            } else {
                let weight = match objective {
                    Objective::TDce => schedule.rate(t) / (schedule.sigma(t).exp() - 1.0),
                    Objective::LambdaDce => 1.0 / t,
                    _ => text.len() as f64 / draw.masked.len() as f64,
                };
                -row.log_softmax(-1, kind).get(at) * weight
            };
            loss += term * scale(texts);
        }
    }
    (network, loss)
}

#[test]
fn gradients_by_hand_from_masked_rows_alone_are_those_of_plain_autograd() {
    let texts = texts(8);
    for case in cases() {
        let (plain_loss, plain) = by_autograd(&case, Kind::Double, &texts);
        // How far bf16 is from f64 depends on the model and the processor: no farther than plainly.
        let (_, rounded) = by_autograd(&case, Kind::BFloat16, &texts);
        let rounded = 1.3 * worst(&rounded, &plain).0;
        for (compute, bound, most) in
            [(Kind::Double, 1e-9, 1e-9), (Kind::Float, 1e-4, 1e-4), (Kind::BFloat16, 5e-2, rounded)]
        {
            let (loss, gradients) = by_step(&case, compute, &texts, 8);
            let name = format!("{} {:?}, {compute:?}", case.0.arch(), case.1);
            let difference = (loss / plain_loss - 1.0).abs();
            assert!(difference <= bound, "{name}: loss {loss}, plainly {plain_loss}");
            let (difference, tensor) = worst(&gradients, &plain);
            assert!(difference <= most, "{name}: {tensor} differs by {difference}");
        }
    }
}

#[test]
fn any_cut_of_a_step_masks_the_same_and_gives_the_same_gradients() {
    let texts = texts(12);
    for case in cases() {
        let (whole_loss, whole) = by_step(&case, Kind::Double, &texts, 12);
        for cut in [1, 4, 6] {
            let (loss, gradients) = by_step(&case, Kind::Double, &texts, cut);
            let difference = (loss - whole_loss).abs();
            assert!(difference <= 1e-12 * whole_loss, "{:?}, cut {cut}: {loss}", case.1);
            let (difference, name) = worst(&gradients, &whole);
            assert!(difference <= 1e-10, "{:?}, cut {cut}: {name} differs by {difference}", case.1);
        }
    }
}

#[test]
fn a_text_that_holds_the_mask_is_refused() {
    let config = config("radd", json!({"mask_id": 7}));
    let weights = weights(&config, Kind::Float);
    let network = network(&config, &weights, Kind::Float);
    let draw = MaskDraw { time: 0.5, weight: 2.0, masked: vec![0] };
    let error = MaskedTexts::new(network.as_ref(), &[vec![3, 7, 2]], &[draw]);
    let error = error.err().unwrap().to_string();
    assert!(error.contains("id 7") && error.contains("mask_id"), "{error}");
}

/// The rows of the table are leaves of their own, in the step and in the plain forward alike.
#[test]
fn the_token_tables_gradient_is_the_slope_of_the_loss() {
    let texts = texts(8);
    let case = (config("sedd", json!({"cond_dim": 5})), Objective::ScoreEntropy);
    let (_, gradients) = by_step(&case, Kind::Double, &texts, 3);
    let table = gradients.get("vocab_embed.embedding");
    let direction = Tensor::arange(table.numel() as i64, (Kind::Double, Device::Cpu)).sin();
    let direction = direction.view_as(&table);
    let at = |step: f64| {
        let weights = weights(&case.0, Kind::Double);
        let _ = weights.get("vocab_embed.embedding").g_add_(&(&direction * step));
        plain_loss(&case, &weights, Kind::Double, &texts).1.double_value(&[0])
    };
    let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
    let ours = (table * direction).sum(Kind::Double).double_value(&[]);
    assert!((ours / slope - 1.0).abs() < 1e-6, "{ours}, by differences {slope}");
}
