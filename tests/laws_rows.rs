//! Passes of few rows on the toolkit's own kernels give what libtorch's passes give.

mod common;

use std::sync::Arc;

use ao_core::family::ModelConfig;
use ao_core::format::checkpoint::CheckpointFile;
use ao_torch::decode::rows::RowTrunk;
use ao_torch::decode::session::{Ask, Line, Session};
use ao_torch::kernels::pool::Pool;
use ao_torch::network::{Decoder, Weights, decoder};
use ao_torch::tch::{Device, Kind, Tensor};
use common::{floats, golden, golden_config, integers, max_difference, noisy_weights};
use serde_json::json;

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).contiguous().view([-1])).unwrap()
}

/// The trunk of a model, or a note that this machine has not the vectors for it.
fn trunk_of(model: &dyn Decoder, threads: usize) -> Option<RowTrunk> {
    let trunk = RowTrunk::new(model, &model.conditioning(), Arc::new(Pool::new(threads)));
    if trunk.is_none() {
        eprintln!("skipped: no AVX-512 here");
    }
    trunk
}

fn model(config: &ModelConfig, compute: Kind) -> Box<dyn Decoder> {
    ao_torch::tch::set_num_threads(1);
    let weights = noisy_weights(config, Kind::Float);
    let mut model = decoder(config, &weights, compute, 1).unwrap();
    model.freeze();
    model
}

/// Sequences of different lengths, gaps and numbers of given tokens over several passes: the largest
/// differences of the two ways' hidden rows and cached keys and values.
fn compare(config: &ModelConfig, compute: Kind) -> (f64, f64) {
    let model = model(config, compute);
    let conditioning = model.conditioning();
    let Some(trunk) = trunk_of(model.as_ref(), 2) else { return (0.0, 0.0) };
    let full = [5u32, 1, 0, 2, 2, 4, 3];
    let lines: Vec<Line> =
        [(&[3u32, 0, 4, 1, 2, 6, 5][..], 0), (&[1, 0, 2], 2), (&[4, 3, 2, 1, 0], 3)]
            .iter()
            .map(|(order, given)| Line::new(order.to_vec(), full[..*given].to_vec()))
            .collect();
    let mut plain = Session::new(model.as_ref(), &conditioning, lines.clone());
    let mut own = Session::new(model.as_ref(), &conditioning, lines).with_rows(Some(&trunk));
    let (mut hidden, mut cached) = (0f64, 0f64);
    // The positions that copies predict, and then the tokens that become known.
    let passes: [[(&[u32], usize); 3]; 4] = [
        [(&[0, 4], 3), (&[], 1), (&[0], 1)],
        [(&[], 1), (&[], 0), (&[], 1)],
        [(&[6, 5], 2), (&[], 0), (&[], 0)],
        [(&[], 1), (&[], 0), (&[], 0)],
    ];
    for pass in &passes {
        let asks: Vec<Ask> = own
            .lines
            .iter()
            .zip(pass)
            .map(|(line, (copies, _))| match line.left() {
                0 => Ask::default(),
                _ => Ask { until: line.tokens.len() + 1, copies, wanted: copies.len() + 1 },
            })
            .collect();
        let (a, b) = (plain.pass(&asks).unwrap(), own.pass(&asks).unwrap());
        hidden = hidden.max(max_difference(&values(&a), &values(&b)));
        for session in [&mut plain, &mut own] {
            for (line, (_, known)) in session.lines.iter_mut().zip(pass) {
                let start = line.tokens.len();
                line.tokens.extend(&full[start..start + known.min(&line.left())]);
            }
        }
    }
    for layer in 0..2 {
        let ((k, v), (own_k, own_v)) = (plain.cache().layer(layer), own.cache().layer(layer));
        for (plain, own) in [(k, own_k), (v, own_v)] {
            cached = cached.max(max_difference(&values(&plain), &values(&own)));
        }
    }
    assert_eq!(plain.rows_forwarded, own.rows_forwarded);
    (hidden, cached)
}

#[test]
fn every_way_of_telling_the_target_gives_the_rows_of_libtorch() {
    for encoding in ["adaln", "input", "every-block", "per-block"] {
        for (width, bias) in [(16, true), (24, false), (64, true)] {
            let config = ModelConfig::from_json(&json!({
                "arch": "ao-gpt", "block_size": 7, "vocab_size": 9, "n_layer": 2, "n_head": 2,
                "n_embd": width, "cond_dim": 8, "bias": bias, "position_encoding": encoding
            }))
            .unwrap();
            let (hidden, cached) = compare(&config, Kind::Float);
            assert!(hidden < 2e-5 && cached < 2e-5, "{encoding}, {width}: {hidden}, {cached}");
        }
    }
}

#[test]
fn weights_in_bf16_give_rows_no_further_from_f32_than_those_of_libtorch() {
    let config = ModelConfig::from_json(&json!({
        "arch": "ao-gpt", "block_size": 7, "vocab_size": 9, "n_layer": 2, "n_head": 2,
        "n_embd": 32, "cond_dim": 8
    }))
    .unwrap();
    let (hidden, cached) = compare(&config, Kind::BFloat16);
    assert!(hidden < 0.1 && cached < 0.1, "{hidden}, {cached}");

    let (rounded, exact) = (model(&config, Kind::BFloat16), model(&config, Kind::Float));
    let Some(trunk) = trunk_of(rounded.as_ref(), 1) else { return };
    let (conditioning, of_exact) = (rounded.conditioning(), exact.conditioning());
    let line = Line::new(vec![3, 0, 4, 1, 2, 6, 5], vec![5, 1, 0, 2, 2, 4]);
    let ask = [Ask { until: 7, copies: &[], wanted: 7 }];
    let session = |m: &'_ dyn Decoder, c, trunk| {
        let mut session = Session::new(m, c, vec![line.clone()]).with_rows(trunk);
        values(&session.pass(&ask).unwrap())
    };
    let truth = session(exact.as_ref(), &of_exact, None);
    let own = max_difference(&session(rounded.as_ref(), &conditioning, Some(&trunk)), &truth);
    let libtorch = max_difference(&session(rounded.as_ref(), &conditioning, None), &truth);
    assert!(own < 1.5 * libtorch, "{own} against {libtorch}");
}

#[test]
fn a_row_is_the_same_to_the_last_bit_in_any_company_and_with_any_threads() {
    let config = ModelConfig::from_json(&json!({
        "arch": "ao-gpt", "block_size": 12, "vocab_size": 50, "n_layer": 2, "n_head": 2,
        "n_embd": 48, "cond_dim": 8
    }))
    .unwrap();
    for compute in [Kind::Float, Kind::BFloat16] {
        let model = model(&config, compute);
        let conditioning = model.conditioning();
        let Some(one) = trunk_of(model.as_ref(), 1) else { return };
        let Some(three) = trunk_of(model.as_ref(), 3) else { return };
        let line = |i: usize| {
            let order = (0..12).map(|k| (k * 5 + i as u32) % 12).collect();
            Line::new(order, (0..i as u32 % 7).collect())
        };
        let lines: Vec<Line> = (0..9).map(line).collect();
        let asks: Vec<Ask> = lines
            .iter()
            .map(|l| Ask { until: l.tokens.len() + 1, copies: &[11, 10], wanted: 3 })
            .collect();
        let mut together = Session::new(model.as_ref(), &conditioning, lines.clone());
        together = together.with_rows(Some(&three));
        let together = values(&together.pass(&asks).unwrap());
        for (i, (line, ask)) in lines.into_iter().zip(&asks).enumerate() {
            let mut alone = Session::new(model.as_ref(), &conditioning, vec![line]);
            alone = alone.with_rows(Some(&one));
            let alone = values(&alone.pass(std::slice::from_ref(ask)).unwrap());
            assert_eq!(alone, together[i * 3 * 48..(i + 1) * 3 * 48]);
        }
    }
}

#[test]
fn cached_steps_on_own_kernels_have_the_logits_of_the_published_code() {
    for folder in ["ao-gpt", "ao-gpt-short"] {
        let (config, figures) = golden_config(folder);
        let path = golden(folder).join("model.safetensors");
        let file = CheckpointFile::open(&path).unwrap();
        let weights = Weights::read(&config, &file, &path).unwrap().to_device(Device::Cpu);
        let model = decoder(&config, &weights, Kind::Float, 1).unwrap();
        let conditioning = model.conditioning();
        let Some(trunk) = trunk_of(model.as_ref(), 2) else { return };
        let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
        let (shape, tokens) = integers(&cases, "tokens");
        let (_, orders) = integers(&cases, "orders");
        let t = shape[1];
        let lines = orders.chunks(t).map(|order| Line::new(order.to_vec(), Vec::new())).collect();
        let mut session =
            Session::new(model.as_ref(), &conditioning, lines).with_rows(Some(&trunk));
        for (step, group) in figures["decode_groups"].as_array().unwrap().iter().enumerate() {
            let edge = |i: usize| group[i].as_u64().unwrap() as usize;
            let hidden = session.advance(&vec![edge(1) - edge(0); shape[0]]).unwrap();
            let vocab = config.vocab_size();
            let mut logits = vec![0f32; hidden.size()[0] as usize * vocab];
            trunk.logits(&hidden, &mut logits);
            let logits: Vec<f64> = logits.into_iter().map(f64::from).collect();
            let expected = floats(&cases, &format!("step{step}.logits"));
            let difference = max_difference(&logits, &expected.1);
            assert!(difference <= 2e-5, "{folder} step {step}: {difference}");
            for (r, line) in session.lines.iter_mut().enumerate() {
                let known = edge(0)..edge(1);
                line.tokens.extend(known.map(|k| tokens[r * t + line.order[k] as usize]));
            }
        }
    }
}
