//! The agent's metrics: which loops they come from, and how they are asked.

use super::worker::{Query, Worker};
use crate::config::{Config, MetricsConfig};
use crate::learning::LearnerView;
use crate::metrics::{
    Endpoint, EndpointError, LoopMetrics, LoopSample, MIN_SAMPLE_INTERVAL, Metrics, Page, SAMPLE_INTERVAL,
    Sampler, serve,
};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

/// The longest time in which a loop has to answer.
const PATIENCE: Duration = Duration::from_millis(250);

/// The metrics of all loops; empty where metrics are off.
pub(super) struct Observed {
    metrics: Option<Metrics>,
    loops: Vec<(&'static str, LoopMetrics)>,
    queries: Vec<SyncSender<Query>>,
    learners: Vec<LearnerView>,
}

impl Observed {
    pub(super) fn new(config: &Config) -> Observed {
        let metrics = config.metrics.listen.map(|_| Metrics::new());
        Observed { metrics, loops: Vec::new(), queries: Vec::new(), learners: Vec::new() }
    }

    /// Adds the learners that run beside the loops.
    pub(super) fn learners(&mut self, learners: Vec<LearnerView>) {
        self.learners = learners;
    }

    /// Returns the counters of the loop of this name.
    pub(super) fn of_loop(&self, name: &'static str) -> Option<LoopMetrics> {
        self.metrics.as_ref().map(|m| m.of_loop(name))
    }

    /// A loop runs, and is asked from now on.
    pub(super) fn started(&mut self, name: &'static str, metrics: Option<LoopMetrics>, worker: &Worker) {
        if let Some(metrics) = metrics {
            self.loops.push((name, metrics));
            self.queries.push(worker.queries());
        }
    }

    /// Binds the metrics endpoint, if one is configured; the returned future serves it and never ends.
    pub(super) async fn serve(
        self,
        config: &MetricsConfig,
    ) -> Result<impl Future<Output = ()> + use<>, EndpointError> {
        let (clients, limit) = (config.max_clients.count(), config.timeout_ms.millis());
        let endpoint = match config.listen {
            Some(address) => Some(Endpoint::bind(address, clients, limit).await?),
            None => None,
        };
        if let Some(Ok(address)) = endpoint.as_ref().map(Endpoint::address) {
            info!(%address, "metrics served");
        }
        Ok(async move {
            let (Some(endpoint), Some(metrics)) = (endpoint, self.metrics) else {
                return std::future::pending().await;
            };
            let sampler = Sampler::new(metrics, self.loops, self.learners);
            let state = Mutex::new(State { sampler, sampled: None });
            let page = Arc::new(Asked { state, queries: self.queries });
            let sampling = async {
                let mut ticks = interval(SAMPLE_INTERVAL);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    page.refresh(SAMPLE_INTERVAL / 2).await;
                }
            };
            tokio::join!(sampling, serve(endpoint, Arc::clone(&page) as Arc<dyn Page>));
        })
    }
}

struct State {
    sampler: Sampler,
    sampled: Option<Instant>,
}

struct Asked {
    state: Mutex<State>,
    queries: Vec<SyncSender<Query>>,
}

impl Asked {
    /// Asks every loop, unless that was done less than `age` ago.
    async fn refresh(&self, age: Duration) {
        let mut state = self.state.lock().await;
        if state.sampled.is_some_and(|at| at.elapsed() < age) {
            return;
        }
        let ask = |to: &SyncSender<Query>| {
            let (answer, answered) = oneshot::channel();
            to.try_send(Query::Sample(answer)).is_ok().then_some(answered)
        };
        let waiting: Vec<_> = self.queries.iter().map(ask).collect();
        let mut samples: Vec<Option<LoopSample>> = Vec::new();
        for answered in waiting {
            samples.push(match answered {
                Some(answered) => timeout(PATIENCE, answered).await.ok().and_then(Result::ok),
                None => None,
            });
        }
        state.sampler.add(&samples);
        state.sampled = Some(Instant::now());
    }
}

impl Page for Asked {
    fn text(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async move {
            self.refresh(MIN_SAMPLE_INTERVAL).await;
            let text = self.state.lock().await.sampler.text();
            text.inspect_err(|error| warn!(%error, "write metrics")).ok()
        })
    }
}
