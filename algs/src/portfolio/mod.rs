//! Portfolio: chooses among other algorithms, for each destination and while flows run. A prediction server chooses
//! among predictors by bandits (Okuyama et al.), and so does this: by discounted UCB (Garivier and Moulines, ALT 2011)
//! on what each arm is worth.
//!
//! - **A path** is a destination prefix (/24, /48). Its flows run the same arm, so that they are fair to each other. An
//!   arm is measured by what all of them achieve together.
//! - **Worth** of an interval: `ln(throughput^2 / mean RTT)`, plus the logarithm of Jain's index among the path's flows (the league's score;
//!   [`Utility`]). Worths are compared as ratios, so that a fast path and a slow one share what is known.
//! - **Trials** go back and forth, `a c a`: an interval of the arm in use, one of the candidate, one of the arm in use again; the candidate is
//!   compared with the mean of the two, so that a link that changes meanwhile tells for neither side. A candidate that is worth
//!   less than half is left after a second. The next candidate is that of the largest upper confidence bound.
//! - **Cost**: what trials lose is added up and may be a small share of the time; a path whose level jumps is explored anew.
//! - **Rivals**: where the arm in use says that others fill the queue ([`Flow::rivals`](ccplane_alg::Flow::rivals)), the path has the arm
//!   that can tell: `neural` before `dual`. Both are fair to rivals. Where another one is better beside them, the one that can tell
//!   looks every so often whether they have gone.
//! - **Hand-over**: an arm starts with the rate, the window and the smallest RTT of the one before it
//!   ([`Algorithm::resume`]), so that nothing starts from nothing. Soon after a trial it goes on with what it kept
//!   ([`Flow::kept`](ccplane_alg::Flow::kept)). In place of an arm that has done nothing yet it starts as on a new flow.
//!
//! The agent decides it, from the samples that datapaths take of their flows anyway; the datapath's work is that of the arm.

mod chooser;
mod file;
mod knowledge;
mod meter;
mod path;
mod prefix;
mod record;

use crate::copa::COPA;
use crate::dual::Dual;
use crate::placed::algorithm_of;
use ccplane_alg::{Algorithm, Chooser, Control, Flow, FlowInfo, Memory, Parameter, ProgramSource, renewed};
use chooser::PathChooser;
use knowledge::Shared;
use std::sync::Arc;

/// Most arms of a portfolio.
pub const MAX_ARMS: usize = 16;

// Config

/// The rule by which an interval is valued.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Utility {
    /// The exponent of throughput; that of the mean RTT is -1.
    pub throughput: f64,
    /// The exponent of Jain's index among the path's flows.
    pub fairness: f64,
}

impl Utility {
    fn log(&self, bytes_per_s: f64, rtt_us: f64, jain: f64) -> f64 {
        // Of nothing, a byte arrived.
        self.throughput * bytes_per_s.max(1.0).ln() - rtt_us.ln() + self.fairness * jain.max(1e-9).ln()
    }
}

/// The settings by which flows choose among arms.
#[derive(Clone, PartialEq, Debug)]
pub struct PortfolioConfig {
    pub utility: Utility,
    /// The shortest interval, microseconds.
    pub interval_us: u64,
    /// Share of the time that trials may lose in the long run, millionths.
    pub cost_ppm: u64,
}

// Defaults

impl Default for Utility {
    fn default() -> Self {
        Utility { throughput: 2.0, fairness: 1.0 }
    }
}

impl Default for PortfolioConfig {
    fn default() -> Self {
        PortfolioConfig { utility: Utility::default(), interval_us: 2_000_000, cost_ppm: 10_000 }
    }
}

impl PortfolioConfig {
    /// The defaults with these parameters in their place.
    fn of(values: &[(&'static str, i64)]) -> PortfolioConfig {
        let mut config = PortfolioConfig::default();
        for (name, value) in values {
            let value = u64::try_from(*value).unwrap_or(0);
            match *name {
                "throughput_exponent_percent" => config.utility.throughput = value as f64 / 100.0,
                "fairness_exponent_percent" => config.utility.fairness = value as f64 / 100.0,
                "interval_ms" => config.interval_us = value * 1000,
                "cost_ppm" => config.cost_ppm = value,
                _ => {}
            }
        }
        config
    }
}

/// Mean scores over the best one on the league's training links, 30 of each family; of `neural`, dual's and the 0.01 that it has over it
/// on 20 of each.
const PRIORS: [(&str, f64); 7] = [
    ("neural", 0.89),
    ("dual", 0.88),
    ("copa", 0.77),
    ("bbr", 0.74),
    ("mocc", 0.68),
    ("vegas", 0.59),
    ("cubic", 0.51),
];
/// The prior of an algorithm that does not play there.
const UNKNOWN_PRIOR: f64 = 0.5;

const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "throughput_exponent_percent",
        about: "exponent of throughput in the utility, where that of the mean RTT is -100",
        default: 200,
        min: 0,
        max: 1000,
    },
    Parameter {
        name: "fairness_exponent_percent",
        about: "exponent of Jain's index among a destination's flows in the utility",
        default: 100,
        min: 0,
        max: 1000,
    },
    Parameter {
        name: "interval_ms",
        about: "shortest interval that an arm is measured for",
        default: 2000,
        min: 200,
        max: 60_000,
    },
    Parameter {
        name: "cost_ppm",
        about: "share of the time that trials may lose in the long run, millionths",
        default: 10_000,
        min: 0,
        max: 1_000_000,
    },
];

/// An arm and what is expected of it before anything is known: the mean of its score over the best arm's, alone and as a rule.
#[derive(Clone)]
pub struct Arm {
    /// The algorithm that the arm runs.
    pub algorithm: Arc<dyn Algorithm>,
    /// Expected utility over the best arm's, 0 to 1.
    pub prior: f64,
}

/// Reasons why arms make no portfolio.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArmsError {
    /// Their number is outside 1 to [`MAX_ARMS`].
    Count { found: usize },
    /// One has arms itself, or is named twice.
    Unfit { arm: &'static str },
}

impl std::fmt::Display for ArmsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ArmsError::Count { found } => write!(f, "{found} arms, 1 to {MAX_ARMS} are allowed"),
            ArmsError::Unfit { arm } => write!(f, "`{arm}` is named twice, or has arms itself"),
        }
    }
}

impl std::error::Error for ArmsError {}

// Factory

/// Makes flows that change their algorithm for the best one. What is [`configured`](Algorithm::configured) of it shares its knowledge.
#[derive(Clone)]
pub struct Portfolio {
    /// For every flow that starts.
    pub config: PortfolioConfig,
    arms: Vec<Arm>,
    shared: Arc<Shared>,
}

impl Default for Portfolio {
    /// Dual and Copa. In hours of training links no further arm earned more beside them: each costs trials, and starves
    /// rivals that nobody tells of where that pays.
    fn default() -> Self {
        Portfolio::of(vec![Arc::new(Dual::default()), Arc::new(COPA)])
    }
}

impl Portfolio {
    /// Of these algorithms, with the league's priors.
    fn of(algorithms: Vec<Arc<dyn Algorithm>>) -> Portfolio {
        let prior = |name: &str| {
            let known = PRIORS.iter().find(|(of, _)| *of == algorithm_of(name));
            known.map_or(UNKNOWN_PRIOR, |(_, prior)| *prior)
        };
        let arm = |algorithm: Arc<dyn Algorithm>| Arm { prior: prior(algorithm.name()), algorithm };
        Portfolio::knowing_nothing(algorithms.into_iter().map(arm).collect(), PortfolioConfig::default())
    }

    /// Of these arms, each as good as its prior.
    fn knowing_nothing(arms: Vec<Arm>, config: PortfolioConfig) -> Portfolio {
        let known = arms.iter().map(|arm| (arm.algorithm.name(), arm.prior)).collect();
        Portfolio { config, arms, shared: Arc::new(Shared::new(known)) }
    }

    /// Of these algorithms; what is expected of each is its mean score in the league, where it plays there.
    ///
    /// # Errors
    /// `Count`, `Unfit`.
    pub fn among(algorithms: Vec<Arc<dyn Algorithm>>) -> Result<Portfolio, ArmsError> {
        let portfolio = Portfolio::of(algorithms);
        Portfolio::new(portfolio.arms, portfolio.config)
    }

    /// Of these arms; the first of the largest prior starts where nothing is known.
    ///
    /// # Errors
    /// `Count`, `Unfit`.
    pub fn new(arms: Vec<Arm>, config: PortfolioConfig) -> Result<Portfolio, ArmsError> {
        if !(1..=MAX_ARMS).contains(&arms.len()) {
            return Err(ArmsError::Count { found: arms.len() });
        }
        for (n, arm) in arms.iter().enumerate() {
            let name = arm.algorithm.name();
            let again = arms.iter().take(n).any(|other| other.algorithm.name() == name);
            if again || !arm.algorithm.arms().is_empty() {
                return Err(ArmsError::Unfit { arm: name });
            }
        }
        Ok(Portfolio::knowing_nothing(arms, config))
    }
}

impl Algorithm for Portfolio {
    fn name(&self) -> &'static str {
        "portfolio"
    }

    /// Its arms have programs.
    fn programs(&self) -> Vec<ProgramSource> {
        Vec::new()
    }

    /// Outside an agent, which asks for [`Algorithm::chooser`], it is its first arm.
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        match self.arms.first() {
            Some(arm) => arm.algorithm.flow(info, control),
            None => unreachable!(),
        }
    }

    fn arms(&self) -> Vec<Arc<dyn Algorithm>> {
        self.arms.iter().map(|arm| Arc::clone(&arm.algorithm)).collect()
    }

    fn chooser(&self, info: &FlowInfo) -> Option<Box<dyn Chooser>> {
        Some(Box::new(PathChooser::new(Arc::clone(&self.shared), info, self.config.clone())))
    }

    fn memory(&self) -> Option<Arc<dyn Memory>> {
        Some(Arc::clone(&self.shared) as Arc<dyn Memory>)
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Portfolio { config: PortfolioConfig::of(values), ..self.clone() }))
    }

    fn renewed(&self) -> Option<Arc<dyn Algorithm>> {
        let algorithms = renewed(&self.arms()).into_iter().zip(&self.arms);
        let arms = algorithms.map(|(algorithm, arm)| Arm { algorithm, prior: arm.prior }).collect();
        Some(Arc::new(Portfolio::knowing_nothing(arms, self.config.clone())))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_alg::configure;

    #[test]
    fn parameters_set_the_utility_the_interval_and_the_cost() {
        let set = |name, value| PortfolioConfig::of(&[(name, value)]);
        let default = PortfolioConfig::default();
        assert_eq!(PortfolioConfig::of(&[]), default);
        let utility = |throughput, fairness| Utility { throughput, fairness };
        assert_eq!(set("throughput_exponent_percent", 150).utility, utility(1.5, 1.0));
        assert_eq!(set("fairness_exponent_percent", 0).utility, utility(2.0, 0.0));
        assert_eq!(set("interval_ms", 500), PortfolioConfig { interval_us: 500_000, ..default.clone() });
        assert_eq!(set("cost_ppm", 1), PortfolioConfig { cost_ppm: 1, ..default.clone() });
        for parameter in PARAMETERS {
            assert_eq!(set(parameter.name, parameter.default), default, "{}", parameter.name);
        }
        let portfolio: Arc<dyn Algorithm> = Arc::new(Portfolio::default());
        assert!(configure(&portfolio, [("throughput_exponent_percent", 1001)]).is_err());
    }
}
