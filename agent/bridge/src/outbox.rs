//! Messages on their way to portus, in a bounded queue.

use ccplane_wire::EncodeError;
use ccplane_wire::v1::ToAgent;
use std::collections::VecDeque;

/// Messages that wait before reports are dropped: what is older is of no use to an algorithm.
pub(crate) const MAX_WAITING_REPORTS: usize = 256;
/// Messages that wait in all; beyond, portus is as good as gone.
pub(crate) const MAX_WAITING: usize = 16_384;
/// Buffers kept for messages to come.
const MAX_SPARE: usize = 64;

/// The reason for which a message is not queued.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum QueueError {
    #[error("{0} messages wait")]
    Full(usize),
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

#[derive(Default, Debug)]
pub(crate) struct Outbox {
    waiting: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Outbox {
    pub fn push(&mut self, message: &ToAgent<'_>) -> Result<(), QueueError> {
        let limit = if matches!(message, ToAgent::Measure(_)) { MAX_WAITING_REPORTS } else { MAX_WAITING };
        if self.waiting.len() >= limit {
            return Err(QueueError::Full(limit));
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        message.encode(&mut buffer)?;
        self.waiting.push_back(buffer);
        Ok(())
    }

    pub fn front(&self) -> Option<&[u8]> {
        self.waiting.front().map(Vec::as_slice)
    }

    pub fn pop(&mut self) {
        if let Some(buffer) = self.waiting.pop_front()
            && self.spare.len() < MAX_SPARE
        {
            self.spare.push(buffer);
        }
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}
