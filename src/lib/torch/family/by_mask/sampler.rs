//! What `ao-sample` can ask a bidirectional network for: reverse masked diffusion.

use ao_core::process::order::UNIFORM;
use ao_core::{Error, Result};

use crate::decode::SampleSettings;
use crate::decode::engine::Engine;
use crate::decode::masked::MaskedPredictor;
use crate::decode::settings::{DiffusionSampler, Drafts};
use crate::family::engine_sampler::{EngineSampler, Method};
use crate::family::traits::Sampler;
use crate::network::{Network, masks};

/// The sampler that the settings ask for.
///
/// # Errors
/// Settings that this family has no use for.
pub fn open(network: Box<dyn Network>, settings: &SampleSettings) -> Result<Box<dyn Sampler>> {
    let config = network.base().config.clone();
    let arch = config.arch();
    if let Some(drafts) = settings.drafts {
        let flag = match drafts {
            Drafts::Speculative(_) => "--speculative",
            Drafts::Rejection(_) => "--rejection",
        };
        return Err(Error::usage(format!(
            "{flag}: the passes of {arch} test no draft; leave it out"
        )));
    }
    let ordered = settings.order.is_some() || settings.adaptive.is_some();
    let sampler = settings.sampler.unwrap_or(match ordered {
        true => DiffusionSampler::Ordered,
        false => DiffusionSampler::Tweedie,
    });
    if sampler != DiffusionSampler::Ordered && ordered {
        return Err(Error::usage(format!(
            "--order: --sampler {} draws the order itself; leave one out",
            sampler.name()
        )));
    }
    if sampler == DiffusionSampler::FirstHitting && settings.steps.is_some() {
        return Err(Error::usage(
            "--steps: --sampler first-hitting takes one pass a token; leave one out",
        ));
    }
    let masks = masks(network.as_ref());
    let method = match (sampler, settings.adaptive, masks.scores) {
        (_, Some(order), _) => Method::Adaptive(order),
        (DiffusionSampler::Tweedie, None, Some(scores)) => Method::Analytic(scores),
        (DiffusionSampler::Tweedie, None, None) => Method::Tweedie,
        (DiffusionSampler::FirstHitting, None, _) => Method::FirstHitting,
        (DiffusionSampler::Ordered, None, _) => Method::Groups,
    };
    let orders = match method {
        Method::Groups => Some(config.orders(settings.order.as_deref(), UNIFORM)?),
        _ => None,
    };
    let timed = masks.time_conditioned && sampler != DiffusionSampler::Ordered;
    let predictor = Box::new(MaskedPredictor::new(network));
    let engine = Engine::new(predictor, Some(masks), settings.filter.clone(), settings.candidates);
    let sampler_of = EngineSampler::new(engine, &config, method, orders, settings);
    Ok(Box::new(sampler_of.named(sampler, timed)))
}
