//! Cached decoding has the logits of the published code and of whole forwards.

mod common;

use ao_core::format::checkpoint::CheckpointFile;
use ao_torch::decode::causal::CausalPredictor;
use ao_torch::decode::predictor::Predictor;
use ao_torch::decode::sequence::Sequence;
use ao_torch::network::attention::{Attention, Causal};
use ao_torch::network::{Network, OrderedTexts};
use ao_torch::tch::{Device, Kind, Tensor, no_grad};
use common::{
    floats, golden, golden_config, golden_network, integers, logits, max_difference, next,
    sequence, tiny, values,
};

/// Logits of the next tokens of each sequence, as many as `sizes` says, through the cache.
fn advance(model: &mut CausalPredictor, sequences: &[Sequence], sizes: &[usize]) -> Vec<f64> {
    let hidden = model.predict(sequences, &next(sequences, sizes)).unwrap();
    values(&model.network().base().head.logits(&hidden))
}

fn golden_steps(folder: &str) {
    let (_, figures) = golden_config(folder);
    let mut model = CausalPredictor::new(golden_network(folder).0);
    let cases = CheckpointFile::open(&golden(folder).join("cases.safetensors")).unwrap();
    let (shape, tokens) = integers(&cases, "tokens");
    let (_, orders) = integers(&cases, "orders");
    let t = shape[1];
    let mut sequences: Vec<Sequence> = orders.chunks(t).map(|o| sequence(o, &[])).collect();
    model.start(&sequences);
    let groups = figures["decode_groups"].as_array().unwrap();
    for (step, group) in groups.iter().enumerate() {
        let edge = |i: usize| group[i].as_u64().unwrap() as usize;
        let size = edge(1) - edge(0);
        let logits = advance(&mut model, &sequences, &vec![size; shape[0]]);
        let expected = floats(&cases, &format!("step{step}.logits"));
        let difference = max_difference(&logits, &expected.1);
        assert!(difference <= 2e-5, "{folder} step {step}: {difference}");
        for (r, sequence) in sequences.iter_mut().enumerate() {
            for k in edge(0)..edge(1) {
                sequence.tokens.push(tokens[r * t + sequence.order[k] as usize]);
            }
        }
    }
    // 2n − S + 1 − (last group) rows a sequence.
    let last = groups.last().unwrap();
    let last = last[1].as_u64().unwrap() - last[0].as_u64().unwrap();
    let rows = 2 * t as u64 - groups.len() as u64 + 1 - last;
    assert_eq!(model.rows_forwarded(), rows * shape[0] as u64);
}

#[test]
fn cached_steps_have_the_logits_of_the_published_code() {
    golden_steps("ao-gpt");
    golden_steps("ao-gpt-short");
}

/// Logits of the next tokens after `known`, each from a whole forward of its own.
fn plainly(
    model: &dyn Network,
    order: &[u32],
    tokens: &[u32],
    known: usize,
    size: usize,
) -> Vec<f64> {
    (known..known + size)
        .flat_map(|k| {
            // The order with step k moved to `known`: what it predicts there sees `known` tokens.
            let mut moved = order.to_vec();
            moved[known..=k].rotate_right(1);
            let text = sequence(order, tokens).text(0);
            let logits = logits(model, &[&text], &[&moved]);
            values(&logits.select(0, 0).select(0, known as i64))
        })
        .collect()
}

#[test]
fn cached_decoding_equals_whole_forwards_for_every_grouping() {
    let (t, v) = (5, 6);
    let mut model = CausalPredictor::new(tiny(t, v, Kind::Double));
    let order = vec![3, 0, 4, 1, 2];
    let tokens = vec![5, 1, 0, 2, 2];
    for given in 0..t {
        for cuts in 0..1u32 << (t - given - 1) {
            let mut sequences = [sequence(&order, &tokens[..given])];
            model.start(&sequences);
            let mut known = given;
            while known < t {
                let mut size = 1;
                while known + size < t && cuts >> (known + size - given - 1) & 1 == 0 {
                    size += 1;
                }
                let logits = advance(&mut model, &sequences, &[size]);
                let expected = plainly(model.network(), &order, &tokens, known, size);
                let difference = max_difference(&logits, &expected);
                assert!(difference < 1e-9, "given {given}, cuts {cuts:b}: {difference}");
                sequences[0].tokens.extend(&tokens[known..known + size]);
                known += size;
            }
        }
    }
}

#[test]
fn batches_of_different_lengths_and_gaps_give_each_sequence_its_own_logits() {
    let mut model = CausalPredictor::new(tiny(7, 6, Kind::Double));
    let full = [5, 1, 0, 2, 2, 4, 3];
    let cases: [(&[u32], usize, &[usize]); 4] = [
        (&[3, 0, 4, 1, 2, 6, 5], 0, &[3, 1, 3]),
        (&[1, 0, 2], 2, &[1]),
        (&[4, 3, 2, 1, 0], 3, &[1, 1]),
        (&[0, 1], 2, &[]),
    ];
    let mut sequences: Vec<Sequence> =
        cases.iter().map(|(order, given, _)| sequence(order, &full[..*given])).collect();
    model.start(&sequences);
    for step in 0..3 {
        let sizes: Vec<usize> =
            cases.iter().map(|(_, _, groups)| groups.get(step).copied().unwrap_or(0)).collect();
        let logits = advance(&mut model, &sequences, &sizes);
        let mut expected = Vec::new();
        for (sequence, (&size, (order, _, _))) in sequences.iter_mut().zip(sizes.iter().zip(&cases))
        {
            let known = sequence.tokens.len();
            expected.extend(plainly(model.network(), order, &full[..order.len()], known, size));
            sequence.tokens.extend(&full[known..known + size]);
        }
        assert!(max_difference(&logits, &expected) < 1e-9);
    }
}

#[test]
fn the_prefill_leaves_the_keys_and_values_of_the_training_forward() {
    #[derive(Default)]
    struct Record(Causal, Vec<(Tensor, Tensor)>);
    impl Attention for Record {
        fn store(&mut self, layer: usize, k: &Tensor, v: &Tensor) {
            self.0.store(layer, k, v);
            self.1.push((k.copy(), v.copy()));
        }

        fn look(&mut self, layer: usize, q: &Tensor) -> Tensor {
            self.0.look(layer, q)
        }
    }
    let mut model = CausalPredictor::new(tiny(6, 6, Kind::Double));
    let order = vec![2, 5, 1, 0, 4, 3];
    let tokens = vec![1, 2, 3, 4, 5, 0];
    let sequences = [sequence(&order, &tokens[..4])];
    model.start(&sequences);
    let _ = advance(&mut model, &sequences, &[2]);
    let text = sequence(&order, &tokens).text(0);
    let rows = OrderedTexts::new(&[&text], &[&order]).unwrap().rows(0, Device::Cpu);
    let mut record = Record::default();
    let _ = no_grad(|| model.network().forward(&rows, &mut record, 0.0));
    assert_eq!(record.1.len(), 2);
    for (layer, (k, v)) in record.1.iter().enumerate() {
        let (kept_k, kept_v) = model.cache().unwrap().layer(layer);
        for (kept, full) in [(kept_k, k), (kept_v, v)] {
            let part = |x: &Tensor| values(&x.narrow(2, 0, 5));
            assert!(max_difference(&part(&kept), &part(full)) < 1e-12);
        }
    }
}
