//! A bulk flow under way, whatever carries it.

use std::net::SocketAddr;

use crate::error::Result;
use crate::quic::QuicFlow;
use crate::traffic::{BulkFlow, Outcome, TcpSample};

/// Dropping it ends it.
#[derive(Debug)]
pub(crate) enum LiveFlow {
    Tcp(BulkFlow),
    Quic(QuicFlow),
}

impl LiveFlow {
    /// The sender's address.
    pub(crate) fn local(&self) -> SocketAddr {
        match self {
            LiveFlow::Tcp(flow) => flow.local(),
            LiveFlow::Quic(flow) => flow.local(),
        }
    }

    /// The receiver's address.
    pub(crate) fn remote(&self) -> SocketAddr {
        match self {
            LiveFlow::Tcp(flow) => flow.remote(),
            LiveFlow::Quic(flow) => flow.remote(),
        }
    }

    /// The newest sample.
    pub(crate) fn latest(&self) -> Option<TcpSample> {
        match self {
            LiveFlow::Tcp(flow) => flow.latest(),
            LiveFlow::Quic(flow) => flow.latest(),
        }
    }

    /// Whether the sender has ended.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            LiveFlow::Tcp(flow) => flow.is_finished(),
            LiveFlow::Quic(flow) => flow.is_finished(),
        }
    }

    /// Asks the flow to end now; does not wait.
    pub(crate) fn stop(&self) {
        match self {
            LiveFlow::Tcp(flow) => flow.stop(),
            LiveFlow::Quic(flow) => flow.stop(),
        }
    }

    /// Waits for the flow's end.
    pub(crate) fn finish(self) -> Result<Outcome> {
        match self {
            LiveFlow::Tcp(flow) => flow.finish(),
            LiveFlow::Quic(flow) => flow.finish(),
        }
    }
}
