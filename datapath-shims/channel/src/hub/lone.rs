//! A datapath with a carrier of its own, which shares the hub's protocol and nothing else.

use ccplane_contract::{FlowStats, Forward};
use ccplane_wire::DecodeError;

use super::HubOptions;
use super::carrier::Carrier;
use super::link::PeerLink;
use super::v2::{self, V2Peer};

/// A conversation with one datapath, whose messages its owner brings in.
#[derive(Debug)]
pub struct LonePeer(V2Peer);

/// Reasons why a conversation does not start.
#[derive(Debug, thiserror::Error)]
pub enum GreetError {
    #[error("the first message is no HELLO")]
    NoHello,
    #[error("the first message cannot be read: {0}")]
    Decode(#[from] DecodeError),
    /// The datapath was turned away, or cannot be answered.
    #[error("the datapath speaks another version, or does not hear")]
    NotWelcome,
}

impl LonePeer {
    /// Answers the HELLO of the datapath at the other end of `carrier`.
    ///
    /// # Errors
    /// [`GreetError`].
    pub fn greet(
        carrier: Box<dyn Carrier>,
        hello: &[u8],
        options: &HubOptions,
    ) -> Result<LonePeer, GreetError> {
        let said = v2::hello(hello)?.ok_or(GreetError::NoHello)?;
        V2Peer::welcome(PeerLink::over(carrier), &said, options).map(LonePeer).ok_or(GreetError::NotWelcome)
    }

    /// Takes frames that it sent.
    ///
    /// # Errors
    /// What cannot be parsed; the conversation is of no more use.
    pub fn take(&mut self, frames: &[u8]) -> Result<(), DecodeError> {
        self.0.take(frames)
    }

    /// Asks for the flows' statistics. Where the datapath answers at once, the next frames have them.
    pub fn ask_for_flows(&mut self) {
        self.0.ask_for_flows();
    }

    /// The flows as of the last answer, with those that have started since.
    pub fn listed(&self) -> Vec<FlowStats> {
        self.0.listed()
    }

    /// Whether a command waits for room. The next poll tries again.
    pub fn has_backlog(&self) -> bool {
        self.0.has_backlog()
    }

    /// Says that the agent stops.
    pub fn farewell(&mut self) {
        self.0.farewell();
    }

    /// Reports the end of all its flows, because the datapath has gone.
    pub fn close_all(&mut self) {
        self.0.close_all();
    }
}

impl Forward for LonePeer {
    ccplane_contract::forward_to!(0);
}
