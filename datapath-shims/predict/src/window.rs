//! Sequence numbers, and which of the last ones still await feedback.

use crate::Refusal;

/// Requests that feedback may be late: older tokens are refused.
pub const WINDOW: u64 = 1 << 20;
/// Words of the bit map.
pub const WINDOW_WORDS: usize = (WINDOW / 64) as usize;

/// A bit for each of the last [`WINDOW`] sequence numbers: set while its token is out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// The sequence number of the next request.
    next: u64,
    open: Box<[u64]>,
}

impl Default for Window {
    fn default() -> Window {
        Window { next: 1, open: vec![0; WINDOW_WORDS].into() }
    }
}

impl Window {
    /// Goes on from what was kept; `None` unless these are a window's words.
    pub fn resume(next: u64, open: Vec<u64>) -> Option<Window> {
        (next > 0 && open.len() == WINDOW_WORDS).then(|| Window { next, open: open.into() })
    }

    /// The sequence number of the next request.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The bit map: sequence number s has bit `s % 64` of word `s % WINDOW / 64`.
    pub fn words(&self) -> &[u64] {
        &self.open
    }

    /// Gives out a sequence number.
    pub fn issue(&mut self) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let (word, bit) = place(sequence);
        if let Some(word) = self.open.get_mut(word) {
            *word |= bit;
        }
        sequence
    }

    /// Takes a sequence number back, once.
    ///
    /// # Errors
    /// [`Refusal::Late`] if it was not given out within the window, [`Refusal::Repeated`] if it was taken back before.
    pub fn close(&mut self, sequence: u64) -> Result<(), Refusal> {
        if sequence >= self.next || self.next - sequence > WINDOW {
            return Err(Refusal::Late);
        }
        let (word, bit) = place(sequence);
        let word = self.open.get_mut(word).filter(|word| **word & bit != 0).ok_or(Refusal::Repeated)?;
        *word &= !bit;
        Ok(())
    }
}

fn place(sequence: u64) -> (usize, u64) {
    ((sequence % WINDOW / 64) as usize, 1 << (sequence % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_counts_once_and_not_for_ever() {
        let mut window = Window::default();
        assert_eq!(window.close(0), Err(Refusal::Repeated), "never given out");
        assert_eq!((window.issue(), window.issue()), (1, 2));
        assert_eq!(window.close(3), Err(Refusal::Late), "not given out yet");
        assert_eq!(window.close(1), Ok(()));
        assert_eq!(window.close(1), Err(Refusal::Repeated));
        while window.next() < 2 + WINDOW {
            window.issue();
        }
        assert_eq!(window.close(2), Ok(()), "{WINDOW} requests late");
        window.issue();
        assert_eq!(window.close(2), Err(Refusal::Late));
        // The place of number 2 is that of 2 + WINDOW, which is out.
        assert_eq!(window.close(2 + WINDOW), Ok(()));
        assert_eq!(window.close(2 + WINDOW), Err(Refusal::Repeated));
    }

    #[test]
    fn goes_on_from_what_was_kept() {
        let mut window = Window::default();
        window.issue();
        window.issue();
        window.close(2).unwrap();
        let mut again = Window::resume(window.next(), window.words().to_vec()).unwrap();
        assert_eq!(again.close(2), Err(Refusal::Repeated));
        assert_eq!(again.close(1), Ok(()));
        assert_eq!(again.issue(), 3);
        assert_eq!(Window::resume(0, window.words().to_vec()), None);
        assert_eq!(Window::resume(1, vec![0; 3]), None);
    }
}
