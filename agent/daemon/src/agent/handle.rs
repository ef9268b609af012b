//! Answers the control socket's requests, by asking the loops.

use super::worker::{LoopStatus, Pushed, Query};
use crate::config::{Rule, resolve_rules};
use crate::control::{
    Answer, Counters, Flows, LearnerRecord, Request, Response, Snapshots, Status, Version, from_hex,
};
use crate::learning::LearnerView;
use crate::memory;
use crate::qlog::{self, Filter, Subscription};
use crate::sequences::{Admissions, RefusedSnapshot};
use ccplane_alg::Algorithm;
use ccplane_channel::clock;
use ccplane_core::{Candidate, Origin};
use ccplane_snapshot::{Snapshot, SnapshotError};
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;
use tracing::{error, info};

/// Reasons why a loop gave no answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("a loop of the agent has not answered for {0:?}")]
    Silent(Duration),
    #[error("a loop of the agent has ended, or is overwhelmed")]
    Gone,
}

/// Reasons why a snapshot is not pushed by hand.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("the snapshot is not in hexadecimal digits")]
    Digits,
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    #[error("{0}")]
    Refused(#[from] RefusedSnapshot),
    #[error("a canary's share is {0}: above 0 and below 1 is needed")]
    Share(f64),
}

/// Parts of the agent that serve requests on snapshots.
pub(super) struct ByHand {
    pub(super) learners: Vec<LearnerView>,
    pub(super) admissions: Admissions,
    /// All of them; some know destinations.
    pub(super) algorithms: Vec<Arc<dyn Algorithm>>,
}

impl ByHand {
    fn candidate(
        &self,
        digits: &str,
        share: Option<f64>,
        force: bool,
        allow_older: bool,
    ) -> Result<Candidate, Unfit> {
        let snapshot = Snapshot::parse(&from_hex(digits).ok_or(Unfit::Digits)?)?;
        if let Some(share) = share.filter(|s| !(*s > 0.0 && *s < 1.0)) {
            return Err(Unfit::Share(share));
        }
        let snapshot = self.admissions.admit(snapshot, allow_older)?;
        Ok(Candidate { snapshot, origin: Origin::Operator { share, force } })
    }

    fn records(&self) -> Vec<LearnerRecord> {
        self.learners.iter().map(LearnerView::record).collect()
    }
}

/// The agent as the control socket sees it.
pub(super) struct Handle {
    loops: Vec<SyncSender<Query>>,
    algorithms: Vec<&'static str>,
    started: Instant,
    timeout: Duration,
    /// Default algorithm and number of rules in force.
    rules: Mutex<(String, usize)>,
    by_hand: ByHand,
    /// Told when a client asks the agent to stop.
    pub(super) stop: Notify,
    /// Told when a client asks the agent to end and to leave its flows to the next.
    pub(super) leave: Notify,
    /// The outcome once it has stopped: `Some` with what went wrong, if anything did.
    outcome: watch::Sender<Option<Option<String>>>,
}

impl Handle {
    pub(super) fn new(
        loops: Vec<SyncSender<Query>>,
        algorithms: Vec<&'static str>,
        timeout: Duration,
        rules: (String, usize),
        by_hand: ByHand,
    ) -> Handle {
        let started = Instant::now();
        let (rules, stop, leave) = (Mutex::new(rules), Notify::new(), Notify::new());
        let outcome = watch::Sender::new(None);
        Handle { loops, algorithms, started, timeout, rules, by_hand, stop, leave, outcome }
    }

    /// Tells all who asked the agent to stop the outcome, and waits at most `patience` until they have received it.
    pub(super) async fn stopped(&self, problem: Option<String>, patience: Duration) {
        self.outcome.send_replace(Some(problem));
        // The control socket writes an answer in the same turn in which its question lets go of the outcome.
        let _ = timeout(patience, self.outcome.closed()).await;
    }

    /// Puts a question to every loop and waits for all answers.
    async fn ask<T>(&self, query: impl Fn(oneshot::Sender<T>) -> Query) -> Result<Vec<T>, AskError> {
        let mut waiting = Vec::new();
        for to in &self.loops {
            let (answer, answered) = oneshot::channel();
            to.try_send(query(answer)).map_err(|_| AskError::Gone)?;
            waiting.push(answered);
        }
        let mut answers = Vec::new();
        for answered in waiting {
            let within = timeout(self.timeout, answered).await.map_err(|_| AskError::Silent(self.timeout))?;
            answers.push(within.map_err(|_| AskError::Gone)?);
        }
        Ok(answers)
    }

    async fn request(&self, request: Request) -> Result<Response, AskError> {
        Ok(match request {
            Request::Version => Response::Version(Version {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
            }),
            Request::Status => Response::Status(self.status(self.ask(Query::Status).await?)),
            Request::Flows => {
                let (flows, unseen): (Vec<_>, Vec<u64>) = self.ask(Query::Flows).await?.into_iter().unzip();
                let flows = flows.into_iter().flatten().collect();
                Response::Flows(Flows { silent: None, flows, unseen: unseen.into_iter().sum() })
            }
            Request::Programs => {
                let mut programs: Vec<_> = self.ask(Query::Programs).await?.into_iter().flatten().collect();
                programs.sort_by(|a, b| {
                    (&a.algorithm, &a.program, a.uid).cmp(&(&b.algorithm, &b.program, b.uid))
                });
                Response::Programs { programs }
            }
            Request::SetRules { default_algorithm, rules } => {
                self.set_rules(default_algorithm, &rules).await?
            }
            Request::Adopt { from, netns } => {
                let adopt = |to| Query::Adopt(from.clone(), netns.clone(), to);
                match self.ask(adopt).await?.into_iter().flatten().next() {
                    Some(Ok(flows)) => Response::Adopted { flows },
                    Some(Err(error)) => Response::Error { message: error.to_string() },
                    None => Response::Error { message: "the kernel's flows are not steered".to_owned() },
                }
            }
            Request::Snapshots => {
                let standings = memory::standings(&self.by_hand.algorithms);
                let learners = self.by_hand.records();
                let mut all = Snapshots { learners, standings, ..Snapshots::default() };
                for (slots, decisions) in self.ask(Query::Snapshots).await? {
                    all.slots.extend(slots);
                    all.decisions.extend(decisions);
                }
                all.decisions.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
                Response::Snapshots(all)
            }
            Request::Push { snapshot, slot, canary, force, allow_older } => {
                match self.by_hand.candidate(&snapshot, canary, force, allow_older) {
                    Ok(candidate) => self.push(&candidate, slot).await?,
                    Err(unfit) => Response::Error { message: unfit.to_string() },
                }
            }
            Request::Rollback { slot } => {
                let outcomes = self.ask(|to| Query::Rollback(slot, to)).await?;
                let refused = outcomes.iter().find_map(|o| o.as_ref().err()?.clone());
                match (outcomes.iter().any(Result::is_ok), refused) {
                    (true, _) => Response::Done,
                    (false, Some(message)) => Response::Error { message },
                    (false, None) => {
                        Response::Error { message: format!("no datapath has policy slot {slot}") }
                    }
                }
            }
            // The server asks for the stream itself.
            Request::Qlog { .. } => Response::Error { message: "not here".to_owned() },
            Request::Stop => self.end(&self.stop).await?,
            Request::Leave => self.end(&self.leave).await?,
        })
    }

    /// Has the agent end in this way, and waits until it has.
    async fn end(&self, asked: &Notify) -> Result<Response, AskError> {
        let mut outcome = self.outcome.subscribe();
        asked.notify_one();
        let stopped = outcome.wait_for(Option::is_some).await.map_err(|_| AskError::Gone)?;
        Ok(Response::Stopped { problem: stopped.clone().flatten() })
    }

    async fn push(&self, candidate: &Candidate, slot: Option<u8>) -> Result<Response, AskError> {
        let answers = self.ask(|to| Query::Push(candidate.clone(), slot, to)).await?;
        let answers: Vec<Pushed> = answers.into_iter().flatten().collect();
        let done = answers.iter().any(|p| p.done);
        let decisions: Vec<String> = answers.into_iter().map(|p| p.text).collect();
        Ok(if decisions.is_empty() {
            let of = candidate.snapshot.spec().algorithm();
            let wanted = slot.map_or_else(|| format!("slot of algorithm `{of}`"), |n| format!("slot {n}"));
            Response::Error {
                message: format!("no datapath has a policy {wanted}, or it has not answered yet"),
            }
        } else if done {
            Response::Pushed { decisions }
        } else {
            Response::Error { message: decisions.join("; ") }
        })
    }

    /// Starts a stream at every loop that has what is asked for.
    async fn subscribe(&self, filter: &Filter) -> Result<Result<Subscription, String>, AskError> {
        let (subscriber, subscription) = qlog::channel(filter, clock::now_us());
        let answers = self.ask(|to| Query::Qlog(subscriber.share(), to)).await?;
        Ok(if answers.contains(&None) {
            Err(format!("{} readers follow flows, the most allowed", qlog::MAX_SUBSCRIBERS))
        } else if filter.flow.is_some() && answers.iter().all(|a| *a == Some(0)) {
            Err("there is no such flow; `ccplane flows` numbers those that there are".to_owned())
        } else {
            Ok(subscription)
        })
    }

    fn status(&self, loops: Vec<LoopStatus>) -> Status {
        let mut counters = Counters::default();
        loops.iter().for_each(|l| counters += l.counters);
        let (default_algorithm, rules) = self.rules.lock().map(|r| r.clone()).unwrap_or_default();
        Status {
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            default_algorithm,
            rules,
            loops: loops.iter().map(|l| l.record.clone()).collect(),
            datapaths: loops.into_iter().flat_map(|l| l.datapaths).collect(),
            counters,
        }
    }

    async fn set_rules(&self, default_algorithm: String, rules: &[Rule]) -> Result<Response, AskError> {
        let resolved = match resolve_rules(&default_algorithm, rules, &self.algorithms) {
            Ok(resolved) => resolved,
            Err(problem) => return Ok(Response::Error { message: problem.to_string() }),
        };
        let outcomes = self.ask(|to| Query::SetRules(resolved.clone(), to)).await?;
        // All loops have the same algorithms: they agree.
        if let Some(error) = outcomes.into_iter().find_map(Result::err) {
            return Ok(Response::Error { message: error.to_string() });
        }
        info!(rules = rules.len(), default_algorithm, "rules replaced");
        if let Ok(mut in_force) = self.rules.lock() {
            *in_force = (default_algorithm, rules.len());
        }
        Ok(Response::Done)
    }
}

impl Answer for Handle {
    fn events(
        &self,
        filter: Filter,
    ) -> Pin<Box<dyn Future<Output = Result<Subscription, String>> + Send + '_>> {
        Box::pin(async move { self.subscribe(&filter).await.unwrap_or_else(|error| Err(error.to_string())) })
    }

    fn answer(&self, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send + '_>> {
        Box::pin(async move {
            self.request(request).await.unwrap_or_else(|error| {
                error!(%error, "a request was not answered");
                Response::Error { message: error.to_string() }
            })
        })
    }
}
