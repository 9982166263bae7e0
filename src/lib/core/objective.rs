//! What a model is trained to do: the objectives of the field, which family takes which, and
//! whether the number that one gives is a likelihood or a bound on it.

use serde::Serialize;

use crate::config::{Family, ModelConfig};
use crate::masking::{Level, Spread};
use crate::{Error, Result};

/// A training objective, as `--objective` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// NLL along the orders given, one a sequence (arXiv 2506.19935, equation 2).
    Ao,
    /// NLL from left to right.
    L2r,
    /// Masked tokens' NLL over the time t: the continuous-time bound (arXiv 2406.07524; t-DCE of
    /// arXiv 2406.03736).
    TDce,
    /// The same over the mask probability λ (λ-DCE of arXiv 2406.03736).
    LambdaDce,
    /// The same over the number k of masked tokens (k-DCE of arXiv 2406.03736).
    KDce,
    /// Denoising score entropy (arXiv 2310.16834).
    ScoreEntropy,
}

impl Objective {
    /// All of them.
    const ALL: [Objective; 6] = [
        Objective::Ao,
        Objective::L2r,
        Objective::TDce,
        Objective::LambdaDce,
        Objective::KDce,
        Objective::ScoreEntropy,
    ];

    /// The name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Objective::Ao => "ao",
            Objective::L2r => "l2r",
            Objective::TDce => "t-dce",
            Objective::LambdaDce => "lambda-dce",
            Objective::KDce => "k-dce",
            Objective::ScoreEntropy => "score-entropy",
        }
    }

    /// The objective that a family's paper trains it with.
    pub fn default_of(config: &ModelConfig) -> Objective {
        match config {
            ModelConfig::AoGpt(_) | ModelConfig::SigmaGpt(_) | ModelConfig::SigmaOfficial(_) => {
                Objective::Ao
            }
            ModelConfig::Gpt2(_) => Objective::L2r,
            ModelConfig::Radd(_) => Objective::LambdaDce,
            ModelConfig::Mdlm(_) => Objective::TDce,
            ModelConfig::Sedd(_) => Objective::ScoreEntropy,
        }
    }

    /// Whether `config`'s family can be trained so.
    pub fn suits(self, config: &ModelConfig) -> bool {
        match (config.family(), self) {
            (Family::AnyOrder, Objective::Ao | Objective::L2r) => true,
            (Family::LeftToRight, Objective::L2r) => true,
            // SEDD's output is a score, whose normalisation the other losses would leave free.
            (Family::Encoder, Objective::ScoreEntropy) => matches!(config, ModelConfig::Sedd(_)),
            (Family::Encoder, Objective::TDce | Objective::LambdaDce | Objective::KDce) => {
                !matches!(config, ModelConfig::Sedd(_))
            }
            _ => false,
        }
    }

    /// The objective of a run: the one `given`, or else the family's own.
    ///
    /// # Errors
    /// When the family does not take it; the text lists those it takes.
    pub fn choose(given: Option<Objective>, config: &ModelConfig) -> Result<Objective> {
        let chosen = given.unwrap_or_else(|| Objective::default_of(config));
        if chosen.suits(config) {
            return Ok(chosen);
        }
        let takes: Vec<&str> =
            Objective::ALL.iter().filter(|o| o.suits(config)).map(|o| o.name()).collect();
        Err(Error::usage(format!(
            "--objective {}: arch {} takes {}",
            chosen.name(),
            config.arch(),
            takes.join(", ")
        )))
    }

    /// What the noise level of a masked objective is, and how training spreads it; `None` for
    /// those of decoders.
    pub fn noise(self) -> Option<(Level, Spread)> {
        match self {
            Objective::Ao | Objective::L2r => None,
            Objective::TDce => Some((Level::Time, Spread::Shifted)),
            Objective::LambdaDce => Some((Level::Probability, Spread::Stratified)),
            Objective::KDce => Some((Level::Count, Spread::Independent)),
            Objective::ScoreEntropy => Some((Level::Time, Spread::Independent)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(arch: &str) -> ModelConfig {
        let mut value = json!({"arch": arch, "block_size": 8, "vocab_size": 5, "n_layer": 1,
                               "n_head": 1, "n_embd": 8});
        if arch == "gpt2" {
            value["activation"] = json!("gelu");
        }
        ModelConfig::from_json(&value).unwrap()
    }

    #[test]
    fn each_family_takes_its_own_and_names_them_when_given_another() {
        for (arch, takes) in [
            ("ao-gpt", "ao, l2r"),
            ("sigma-gpt", "ao, l2r"),
            ("sigma-official", "ao, l2r"),
            ("gpt2", "l2r"),
            ("radd", "t-dce, lambda-dce, k-dce"),
            ("mdlm", "t-dce, lambda-dce, k-dce"),
            ("sedd", "score-entropy"),
        ] {
            let config = config(arch);
            let own = Objective::choose(None, &config).unwrap();
            assert!(takes.split(", ").any(|name| name == own.name()), "{arch}: {}", own.name());
            for objective in Objective::ALL {
                let chosen = Objective::choose(Some(objective), &config);
                if takes.split(", ").any(|name| name == objective.name()) {
                    assert_eq!(chosen.unwrap(), objective);
                } else {
                    let text = chosen.unwrap_err().to_string();
                    assert!(text.contains(objective.name()) && text.ends_with(takes), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_name_is_the_same_on_the_command_line_and_in_records() {
        use clap::ValueEnum;
        for objective in Objective::ALL {
            assert_eq!(json!(objective), json!(objective.name()));
            assert_eq!(Objective::from_str(objective.name(), false).unwrap(), objective);
        }
    }
}
