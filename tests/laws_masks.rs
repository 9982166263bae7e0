//! The frozen masks of masked diffusion, against rows of a separate implementation of
//! `docs/formats.md`.

mod common;

use ao_core::process::masking::Place;
use ao_core::process::{LogLinear, Masking, Masks, Objective};
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
        let schedule = LogLinear { eps: row["eps"].as_f64().unwrap() };
        let masks = Masks { id: 0, schedule, time_conditioned: false, scores: None };
        let length = whole("length") as usize;
        let draw = Masking::of(objective, &masks).unwrap().training_draw(place, length);
        assert_eq!(serde_json::json!(draw.masked), row["masked"], "{objective:?} {place:?}");
        for (ours, key) in [(draw.time, "time"), (draw.weight, "weight")] {
            let theirs = row[key].as_f64().unwrap();
            assert!((ours / theirs - 1.0).abs() < 1e-15, "{key}: {ours} and {theirs}");
        }
    }
}
