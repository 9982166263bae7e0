//! What a model is trained to do: the names of the field's objectives. Which of them a family takes
//! is one of its capabilities.

use serde::Serialize;

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
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use serde_json::json;

    #[test]
    fn a_name_is_the_same_on_the_command_line_and_in_records() {
        for &objective in Objective::value_variants() {
            assert_eq!(json!(objective), json!(objective.name()));
            assert_eq!(Objective::from_str(objective.name(), false).unwrap(), objective);
        }
    }
}
