//! Chains along orders, or bounds.

use ao_core::process::{Level, MaskDraw, Objective};
use ao_core::score::{Cost, Estimate, GivenMasks, Manner};
use ao_core::{Error, Result};
use serde_json::Value;

use super::bound::{Bound, Strata};
use super::chain::{Line, chain_nll};
use super::questions::{Asker, holds_mask};
use crate::family::traits::{ScoreSettings, Scored, Scorer, Work};
use crate::network::{Network, masks};

/// Which time a network that is conditioned on it gets along an order.
const TIME_OF_CHAIN: &str = "t = k/n with k of n tokens masked";

/// A bidirectional network that scores, and what it has cost so far.
pub struct MaskScorer {
    network: Box<dyn Network>,
    /// Masked copies in one pass.
    at_once: usize,
    /// The orders of chains; `None` for a bound.
    orders: Option<String>,
    bound: Option<Bound>,
    seed: u64,
    strata: Strata,
    /// The draws, where a file gives them.
    given: Option<GivenMasks>,
    cost: Cost,
}

impl MaskScorer {
    /// A scorer as the settings say: along orders where there are any, else by random masks.
    ///
    /// # Errors
    /// Settings of other families, and a bound that this one has not.
    pub fn new(network: Box<dyn Network>, settings: &ScoreSettings) -> Result<MaskScorer> {
        let arch = network.base().config.arch();
        let usage = |text: String| Err(Error::usage(text));
        if let Some(ensemble) = &settings.ensemble {
            return usage(format!(
                "--ensemble {}: {arch} sees a context without an ordering; it takes an any-order \
                 decoder",
                ensemble.size
            ));
        }
        let wanted = match (settings.bound, &settings.orders, settings.spans) {
            (Some(_), _, true) => {
                return usage("--elbo: --cloze scores along an order; leave one out".into());
            }
            (Some(_), Some(_), _) => {
                return usage("--elbo: a bound has no --orders; leave one of them out".into());
            }
            (None, Some(_), _) | (None, None, true) => None,
            (objective, None, false) => Some(objective.flatten()),
        };
        let bound = match wanted {
            None => None,
            Some(objective) => Some(bound(network.as_ref(), objective, settings.published)?),
        };
        if bound.is_some() && settings.per_token {
            return usage(
                "--per-token: a bound has no NLL of each token; give --orders, or leave it out"
                    .into(),
            );
        }
        let given = match (&settings.masks, &bound) {
            (Some(_), None) => {
                return usage(format!("--masks: {arch} is scored along orders here; leave it out"));
            }
            (Some(_), Some(Bound { masking })) if masking.level == Level::WholeTime => {
                let form = masking.objective.name();
                return usage(format!(
                    "--masks: a file of times gives the published form alone; say --elbo \
                     {form}:published, or another form"
                ));
            }
            (Some(path), Some(bound)) => Some(GivenMasks::open(path, bound.masking.has_levels())?),
            (None, _) => None,
        };
        let spans = settings.spans.then(|| "l2r".to_owned());
        Ok(MaskScorer {
            network,
            at_once: settings.batch_size,
            orders: if bound.is_some() { None } else { spans.or(settings.orders.clone()) },
            bound,
            seed: settings.seed,
            strata: Strata::new(settings.seed, settings.mc),
            given,
            cost: Cost::default(),
        })
    }
}

fn bound(network: &dyn Network, objective: Option<Objective>, published: bool) -> Result<Bound> {
    Bound::of(network, objective, published).ok_or_else(|| {
        let config = &network.base().config;
        let takes: Vec<&str> = config.capabilities().objectives.iter().map(|o| o.name()).collect();
        Error::usage(format!(
            "--elbo {}: {} takes {}",
            objective.map_or("", Objective::name),
            config.arch(),
            takes.join(", ")
        ))
    })
}

impl Scorer for MaskScorer {
    fn orders(&self) -> Option<&str> {
        self.orders.as_deref()
    }

    fn given(&self) -> usize {
        0
    }

    fn score(&mut self, works: &[Work]) -> Result<Vec<Scored>> {
        let mask = masks(self.network.as_ref()).id as u32;
        if works.iter().any(|work| work.tokens.contains(&mask)) {
            return Err(holds_mask(mask));
        }
        let mut asker = Asker::new(self.network.as_ref(), self.at_once);
        let nll: Vec<Vec<f64>> = match self.bound {
            None => {
                let lines: Vec<Line> = works.iter().map(line).collect();
                chain_nll(&mut asker, &lines)
            }
            Some(bound) => {
                let draw = |work: &Work| -> Result<MaskDraw> {
                    let length = work.tokens.len();
                    if let Some(masks) = &self.given {
                        let given = masks.of(work.row, length)?;
                        return Ok(bound.masking.given(&given.masked, given.level, length));
                    }
                    let (fraction, mut stream) = self.strata.of(work.row);
                    Ok(bound.masking.draw_at(fraction, length, &mut stream))
                };
                let draws = works.iter().map(draw).collect::<Result<Vec<MaskDraw>>>()?;
                let texts: Vec<&[u32]> = works.iter().map(|w| w.tokens.as_slice()).collect();
                let values = bound.values(&mut asker, &texts, &draws);
                values.into_iter().map(|value| vec![value]).collect()
            }
        };
        self.cost.rows_forwarded += asker.rows_forwarded;
        self.cost.rows_through_head += asker.rows_through_head;
        let scored = works.iter().zip(nll).map(|(work, nll)| Scored {
            nth: work.nth,
            sum: nll.iter().sum(),
            curve: None,
            subset: None,
            nll,
        });
        Ok(scored.collect())
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn estimate(&self) -> Option<Estimate> {
        self.bound.map(|bound| bound.estimate())
    }

    fn manner(&self) -> Manner {
        let conditioned = masks(self.network.as_ref()).time_conditioned;
        let time = conditioned.then(|| TIME_OF_CHAIN.to_owned());
        self.bound.map_or(Manner { time, ..Manner::default() }, |bound| bound.manner())
    }

    fn draws(&self) -> Option<Value> {
        let given = self.given.as_ref().map(GivenMasks::place);
        self.bound.map(|bound| bound.describe(self.seed, given))
    }

    fn curve_sizes(&self) -> Option<Vec<usize>> {
        None
    }
}

/// A work as the chain's line.
fn line(work: &Work) -> Line<'_> {
    Line { tokens: &work.tokens, order: &work.order, held: work.held.as_deref() }
}
