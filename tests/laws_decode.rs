//! Cached decoding has the logits of the published code and of whole forwards.

mod common;

use ao_core::format::checkpoint::CheckpointFile;
use ao_torch::decode::generate::text_order;
use ao_torch::decode::session::{Line, Session};
use ao_torch::network::{Attend, Batch, Decoder};
use ao_torch::tch::{Device, Kind, Tensor};
use common::{floats, golden, golden_config, golden_decoder, integers, max_difference, tiny};

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).contiguous().view([-1])).unwrap()
}

fn golden_steps(folder: &str) {
    let (_, figures) = golden_config(folder);
    let model = golden_decoder(folder);
    let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
    let (shape, tokens) = integers(&cases, "tokens");
    let (_, orders) = integers(&cases, "orders");
    let t = shape[1];
    let conditioning = model.conditioning();
    let lines = orders.chunks(t).map(|order| Line::new(order.to_vec(), Vec::new())).collect();
    let mut session = Session::new(model.as_ref(), &conditioning, lines);
    let groups = figures["decode_groups"].as_array().unwrap();
    for (step, group) in groups.iter().enumerate() {
        let edge = |i: usize| group[i].as_u64().unwrap() as usize;
        let size = edge(1) - edge(0);
        let hidden = session.advance(&vec![size; shape[0]]).unwrap();
        let logits = values(&model.head().logits(&hidden));
        let expected = floats(&cases, &format!("step{step}.logits"));
        let difference = max_difference(&logits, &expected.1);
        assert!(difference <= 2e-5, "{folder} step {step}: {difference}");
        for (r, line) in session.lines.iter_mut().enumerate() {
            for k in edge(0)..edge(1) {
                line.tokens.push(tokens[r * t + line.order[k] as usize]);
            }
        }
    }
    // 2n − S + 1 − (last group) rows a sequence.
    let last = groups.last().unwrap();
    let last = last[1].as_u64().unwrap() - last[0].as_u64().unwrap();
    let rows = 2 * t as u64 - groups.len() as u64 + 1 - last;
    assert_eq!(session.rows_forwarded, rows * shape[0] as u64);
}

#[test]
fn cached_steps_have_the_logits_of_the_published_code() {
    golden_steps("ao-gpt");
    golden_steps("ao-gpt-short");
}

/// Log-probabilities of the next tokens after `known`, each from a whole forward of its own.
fn plainly(
    model: &dyn Decoder,
    order: &[u32],
    tokens: &[u32],
    known: usize,
    size: usize,
) -> Vec<f64> {
    let conditioning = model.conditioning();
    (known..known + size)
        .flat_map(|k| {
            // The order with step k moved to `known`: what it predicts there sees `known` tokens.
            let mut moved = order.to_vec();
            moved[known..=k].rotate_right(1);
            let text = text_order(order, tokens);
            let batch = Batch::new(&[&text], &[&moved]).unwrap();
            let hidden = model.hidden(&batch, &conditioning);
            values(&model.head().logits(&hidden.select(0, 0).narrow(0, known as i64, 1)))
        })
        .collect()
}

#[test]
fn cached_decoding_equals_whole_forwards_for_every_grouping() {
    let (t, v) = (5, 6);
    let model = tiny(t, v, Kind::Double);
    let conditioning = model.conditioning();
    let order = vec![3, 0, 4, 1, 2];
    let tokens = vec![5, 1, 0, 2, 2];
    for given in 0..t {
        for cuts in 0..1u32 << (t - given - 1) {
            let mut line = Line::new(order.clone(), tokens[..given].to_vec());
            line.tokens.reserve(t);
            let mut session = Session::new(model.as_ref(), &conditioning, vec![line]);
            let mut known = given;
            while known < t {
                let mut size = 1;
                while known + size < t && cuts >> (known + size - given - 1) & 1 == 0 {
                    size += 1;
                }
                let hidden = session.advance(&[size]).unwrap();
                let logits = values(&model.head().logits(&hidden));
                let expected = plainly(model.as_ref(), &order, &tokens, known, size);
                let difference = max_difference(&logits, &expected);
                assert!(difference < 1e-9, "given {given}, cuts {cuts:b}: {difference}");
                session.lines[0].tokens.extend(&tokens[known..known + size]);
                known += size;
            }
        }
    }
}

#[test]
fn batches_of_different_lengths_and_gaps_give_each_sequence_its_own_logits() {
    let model = tiny(7, 6, Kind::Double);
    let conditioning = model.conditioning();
    let full = [5, 1, 0, 2, 2, 4, 3];
    let cases: [(&[u32], usize, &[usize]); 4] = [
        (&[3, 0, 4, 1, 2, 6, 5], 0, &[3, 1, 3]),
        (&[1, 0, 2], 2, &[1]),
        (&[4, 3, 2, 1, 0], 3, &[1, 1]),
        (&[0, 1], 2, &[]),
    ];
    let lines = cases
        .iter()
        .map(|(order, given, _)| Line::new(order.to_vec(), full[..*given].to_vec()))
        .collect();
    let mut session = Session::new(model.as_ref(), &conditioning, lines);
    for step in 0..3 {
        let sizes: Vec<usize> =
            cases.iter().map(|(_, _, groups)| groups.get(step).copied().unwrap_or(0)).collect();
        let hidden = session.advance(&sizes).unwrap();
        let logits = values(&model.head().logits(&hidden));
        let mut expected = Vec::new();
        for (line, (&size, (order, _, _))) in session.lines.iter_mut().zip(sizes.iter().zip(&cases))
        {
            let known = line.tokens.len();
            expected.extend(plainly(model.as_ref(), order, &full[..order.len()], known, size));
            line.tokens.extend(&full[known..known + size]);
        }
        assert!(max_difference(&logits, &expected) < 1e-9);
    }
}

#[test]
fn the_prefill_leaves_the_keys_and_values_of_the_training_forward() {
    struct Record(Vec<(Tensor, Tensor)>);
    impl Attend for Record {
        fn attend(&mut self, _: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
            self.0.push((k.copy(), v.copy()));
            Tensor::scaled_dot_product_attention::<Tensor>(q, k, v, None, 0.0, true, None, false)
        }
    }
    let model = tiny(6, 6, Kind::Double);
    let conditioning = model.conditioning();
    let order = vec![2, 5, 1, 0, 4, 3];
    let tokens = vec![1, 2, 3, 4, 5, 0];
    let line = Line::new(order.clone(), tokens[..4].to_vec());
    let mut session = Session::new(model.as_ref(), &conditioning, vec![line]);
    let _ = session.advance(&[2]).unwrap();
    let batch = Batch::new(&[&text_order(&order, &tokens)], &[&order]).unwrap();
    let mut record = Record(Vec::new());
    let held = model.token_rows(&batch.tokens_tensor(Device::Cpu).narrow(1, 0, 5));
    let order = batch.order_tensor(Device::Cpu);
    let rows = model.input_rows(&held, &order);
    let _ = model.forward(&rows, &order, &conditioning, &mut record, 0.0);
    for (layer, (k, v)) in record.0.iter().enumerate() {
        let (kept_k, kept_v) = session.cache().layer(layer);
        for (kept, full) in [(kept_k, k), (kept_v, v)] {
            let part = |x: &Tensor| values(&x.narrow(2, 0, 5));
            assert!(max_difference(&part(&kept), &part(full)) < 1e-12);
        }
    }
}
