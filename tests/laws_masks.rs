//! The frozen masks of masked diffusion, against rows of a separate implementation of
//! `docs/formats.md`.

mod common;

use ao_core::family::LogLinear;
use ao_core::masking::{Place, training_draw};
use ao_core::objective::Objective;
use clap::ValueEnum;
use common::golden;
use serde_json::Value;

#[test]
fn masks_are_those_of_the_golden_rows() {
    let rows = std::fs::read_to_string(golden("masks.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 16);
    for line in rows.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let whole = |key: &str| row[key].as_u64().unwrap();
        let objective = Objective::from_str(row["objective"].as_str().unwrap(), false).unwrap();
        let place = Place {
            seed: whole("seed"),
            index: whole("index"),
            first: whole("first"),
            count: whole("count"),
        };
        let noise = LogLinear { eps: row["eps"].as_f64().unwrap() };
        let length = whole("length") as usize;
        let draw = training_draw(objective.noise().unwrap(), noise, place, length);
        let masked: Vec<u64> = draw.masked.iter().map(|&p| p as u64).collect();
        assert_eq!(serde_json::json!(masked), row["masked"], "{objective:?} {place:?}");
        for (ours, key) in [(draw.time, "time"), (draw.weight, "weight")] {
            let theirs = row[key].as_f64().unwrap();
            assert!((ours / theirs - 1.0).abs() < 1e-15, "{key}: {ours} and {theirs}");
        }
    }
}
