//! Flows of datapaths that have no native algorithm: [`FALLBACK`]'s program steers those whose own cannot run. Flows whose
//! algorithm's code failed are reported in the same way.

use crate::attached::Attached;
use crate::catalog::Catalog;
use crate::flow::{FlowState, NativeReason};
use crate::rules::{FALLBACK, NATIVE};
use crate::start::start;
use ccplane_contract::FlowId;
use std::collections::BTreeSet;

/// An algorithm that the flows of one kind of datapath do without.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// The kind of the datapath, as its capabilities name it.
    pub kind: &'static str,
    /// The algorithm that the rules name.
    pub algorithm: &'static str,
    pub reason: NativeReason,
    /// The algorithm that runs instead, [`NATIVE`] the datapath's own; `None` where flows keep their first window.
    pub instead: Option<&'static str>,
}

/// The fallbacks so far, each of which is reported once.
#[derive(Default)]
pub(crate) struct Fallbacks {
    known: BTreeSet<(&'static str, &'static str)>,
    untold: Vec<Fallback>,
}

impl Fallbacks {
    /// Takes the fallbacks that were not reported yet.
    pub fn take(&mut self) -> Vec<Fallback> {
        std::mem::take(&mut self.untold)
    }

    /// Starts [`FALLBACK`] on a flow that goes native, where its datapath has no native algorithm; false if the flow is
    /// to be released.
    pub fn fall_back(
        &mut self,
        catalog: &Catalog,
        attached: &mut Attached,
        flow: FlowId,
        state: &mut FlowState,
        reason: NativeReason,
    ) -> bool {
        // A host that has not answered yet may still steer it.
        let is_left = matches!(reason, NativeReason::Stopping | NativeReason::Hosted(_));
        let (kind, algorithm) = (attached.capabilities.kind, state.algorithm);
        if attached.capabilities.has_native() || is_left {
            if matches!(reason, NativeReason::Panicked(_)) {
                self.note_fallback(Fallback { kind, algorithm, reason, instead: Some(NATIVE) });
            }
            return false;
        }
        let by_rule = reason == NativeReason::Rule;
        let entry = catalog.entry(FALLBACK).filter(|entry| !by_rule && entry.name != state.algorithm);
        let entry = entry.filter(|_| state.fell_back.is_none());
        if entry.is_some() {
            attached.queue.drop_commands(flow);
        }
        let started = entry.and_then(|e| start(e, e.algorithm.clone(), attached, flow, state, None).ok());
        let instead = started.as_ref().map(|running| running.name);
        self.note_fallback(Fallback { kind, algorithm, reason: reason.clone(), instead });
        let Some(running) = started else { return false };
        state.fell_back = Some(Box::new(reason));
        state.steered = Ok(running);
        true
    }

    fn note_fallback(&mut self, fallback: Fallback) {
        if self.known.insert((fallback.kind, fallback.algorithm)) {
            self.untold.push(fallback);
        }
    }
}
