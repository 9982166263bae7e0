//! What `ao-sample` can ask a causal network for.

use ao_core::process::Orders;
use ao_core::process::order::UNIFORM;
use ao_core::{Error, Result};

use crate::decode::SampleSettings;
use crate::decode::causal::CausalPredictor;
use crate::decode::engine::Engine;
use crate::decode::settings::Drafts;
use crate::family::engine_sampler::{EngineSampler, Method};
use crate::family::traits::Sampler;
use crate::network::Network;

/// The sampler that the settings ask for.
///
/// # Errors
/// Settings that causal networks, or this family, do not take.
pub fn open(network: Box<dyn Network>, settings: &SampleSettings) -> Result<Box<dyn Sampler>> {
    let config = network.base().config.clone();
    let arch = config.arch();
    if settings.sampler.is_some() {
        return Err(Error::usage(format!(
            "--sampler: {arch} draws along --order and takes no masks away; leave it out"
        )));
    }
    let (method, flag) = match (settings.adaptive, settings.drafts) {
        (Some(_), Some(_)) => {
            return Err(Error::usage(
                "--speculative: drafts need an order that is known before; give another --order",
            ));
        }
        (Some(order), None) => (Method::Adaptive(order), "--order adaptive"),
        (None, Some(Drafts::Speculative(depth))) => (Method::Speculative(depth), "--speculative"),
        (None, Some(Drafts::Rejection(orders))) => (Method::Rejection(orders), "--rejection"),
        (None, None) if settings.steps.is_some() => (Method::Groups, "--steps"),
        (None, None) => (Method::Groups, ""),
    };
    if config.capabilities().orders == Orders::LeftToRight && !flag.is_empty() {
        return Err(Error::usage(format!(
            "{flag}: {arch} predicts the next token alone, one a pass; leave it out"
        )));
    }
    let orders = match method {
        Method::Adaptive(_) | Method::Rejection(_) => None,
        _ => Some(config.orders(settings.order.as_deref(), UNIFORM)?),
    };
    let predictor = Box::new(CausalPredictor::new(network));
    let engine = Engine::new(predictor, None, settings.filter.clone(), settings.candidates);
    Ok(Box::new(EngineSampler::new(engine, &config, method, orders, settings)))
}
