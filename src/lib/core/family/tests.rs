use super::*;
use serde_json::json;

fn small() -> Value {
    json!({"arch": "ao-gpt", "block_size": 1024, "vocab_size": 50304,
           "n_layer": 12, "n_head": 12, "n_embd": 768})
}

#[test]
fn the_papers_sizes_have_exactly_their_parameter_counts() {
    let small = ModelConfig::from_json(&small()).unwrap();
    assert_eq!(small.parameter_count(), 170_605_952);
    let medium = json!({"arch": "ao-gpt", "block_size": 1024, "vocab_size": 50304,
                        "n_layer": 24, "n_head": 16, "n_embd": 1024});
    assert_eq!(ModelConfig::from_json(&medium).unwrap().parameter_count(), 425_804_928);
}

#[test]
fn a_config_reads_back_as_it_was_written() {
    for family in all() {
        let mut value = small();
        value["arch"] = json!(family.name());
        if family.name() == "gpt2" {
            value["activation"] = json!("gelu_tanh");
        }
        let config = ModelConfig::from_json(&value).unwrap();
        assert_eq!(ModelConfig::from_json(&config.to_json()).unwrap(), config);
        assert_eq!(config.to_json()["arch"], family.name());
    }
}

#[test]
fn wrong_keys_are_refused_by_name() {
    let with = |key: &str, value: Value| {
        let mut object = small();
        object[key] = value;
        ModelConfig::from_json(&object).unwrap_err()
    };
    assert!(with("n_layers", json!(3)).contains("n_layers"));
    assert!(with("arch", json!("gpt9")).contains("gpt9"));
    assert!(with("n_head", json!(7)).contains("n_head 7"));
    assert!(with("n_embd", json!(0)).contains("n_embd 0"));
    assert!(with("vocab_size", json!(u64::MAX)).contains("vocab_size"));
    assert!(with("dropout", json!(1.0)).contains("dropout 1"));
    let missing = json!({"arch": "ao-gpt"});
    assert!(ModelConfig::from_json(&missing).unwrap_err().contains("block_size"));
}

#[test]
fn a_token_costs_six_operations_a_matrix_element_and_attention() {
    let config = |arch: &str| {
        let mut value = small();
        value["arch"] = json!(arch);
        ModelConfig::from_json(&value).unwrap().flops_per_token()
    };
    let blocks = 12.0 * 12.0 * 768.0 * 768.0;
    let attention = 12.0 * 12.0 * 768.0 * 1024.0;
    let decoder = 6.0 * (blocks + 50304.0 * 768.0) + attention;
    // The head is counted once, tied or not.
    assert_eq!(config("ao-gpt"), decoder);
    assert_eq!(config("sigma-gpt"), decoder);
    // Masked diffusion: half the head, whose rows are the real ids and the mask.
    assert_eq!(config("radd"), 6.0 * (blocks + 0.5 * 50305.0 * 768.0) + attention);
}

#[test]
fn each_family_takes_its_own_objectives_and_names_them_when_given_another() {
    use clap::ValueEnum;
    for (arch, takes) in [
        ("ao-gpt", "ao, l2r"),
        ("sigma-gpt", "ao, l2r"),
        ("sigma-official", "ao, l2r"),
        ("gpt2", "l2r"),
        ("radd", "lambda-dce, t-dce, k-dce"),
        ("mdlm", "t-dce, lambda-dce, k-dce"),
        ("sedd", "score-entropy"),
    ] {
        let mut value = small();
        value["arch"] = json!(arch);
        if arch == "gpt2" {
            value["activation"] = json!("gelu");
        }
        let config = ModelConfig::from_json(&value).unwrap();
        let own = config.objective(None).unwrap();
        assert!(takes.starts_with(own.name()), "{arch}: {}", own.name());
        for &objective in Objective::value_variants() {
            let chosen = config.objective(Some(objective));
            if takes.split(", ").any(|name| name == objective.name()) {
                assert_eq!(chosen.unwrap(), objective);
            } else {
                let text = chosen.unwrap_err().to_string();
                assert!(text.contains(objective.name()) && text.ends_with(takes), "{text}");
            }
        }
    }
}
