//! On which core a thread runs: beside the one that wakes it, or on another one while it polls.

use crate::sys;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use std::io;
use std::os::fd::BorrowedFd;

/// Looks in a row that have to agree before a thread is moved: the scheduler may take its partner back at once.
pub const LOOKS: u32 = 8;

/// The cores that the calling thread may run on.
///
/// # Errors
/// The error of sched_getaffinity(2).
pub fn cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect())
}

/// The core on which the calling thread runs now; without a promise for the next moment.
pub fn here() -> Option<usize> {
    sched_getcpu().ok()
}

/// The core on which the kernel handled the socket's last packet; `None` where it does not say.
pub fn incoming_core(socket: BorrowedFd<'_>) -> Option<usize> {
    usize::try_from(sys::option(socket, libc::SO_INCOMING_CPU).ok()?).ok()
}

/// Keeps the calling thread on one core; dropped on that thread, it may run where it could before.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
}

/// Keeps the calling thread, and those that it starts, on `core`.
///
/// # Errors
/// There is no such core, or it is not allowed.
pub fn pin(core: usize) -> io::Result<Pinned> {
    keep_to(&[core])
}

/// Keeps the calling thread, and those that it starts, on these cores.
///
/// # Errors
/// None of them is there and allowed, or one has a number that no core has.
pub fn keep_to(cores: &[usize]) -> io::Result<Pinned> {
    let this = Pid::from_raw(0);
    let before = sched_getaffinity(this)?;
    sched_setaffinity(this, &only(cores)?)?;
    Ok(Pinned { before })
}

fn only(cores: &[usize]) -> nix::Result<CpuSet> {
    let mut set = CpuSet::new();
    cores.iter().try_for_each(|core| set.set(*core))?;
    Ok(set)
}

impl Pinned {
    /// Goes on to another core.
    ///
    /// # Errors
    /// There is no such core, or it is not allowed.
    pub fn move_to(&mut self, core: usize) -> io::Result<()> {
        Ok(sched_setaffinity(Pid::from_raw(0), &only(&[core])?)?)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A core that was taken away meanwhile cannot be had back.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}

/// Decides, without I/O, where a thread runs by where its partner does: the one that raises its events.
///
/// Asleep it belongs on the partner's core, since a wake-up across cores costs several times as much. While it polls it
/// belongs on any other one, since on the same it would keep the partner from running.
#[derive(Clone, Debug)]
pub struct Follow {
    cores: Vec<usize>,
    /// The core that was wished for last, and how often in a row.
    wished: Option<(usize, u32)>,
}

impl Follow {
    /// Follows within these cores.
    pub fn new(cores: Vec<usize>) -> Follow {
        Follow { cores, wished: None }
    }

    /// Observes both; returns the core to move to, once [`LOOKS`] looks in a row agree on it.
    pub fn observe(&mut self, here: usize, partner: usize, polls: bool) -> Option<usize> {
        let wish = self.wish(here, partner, polls).filter(|core| *core != here);
        let Some(core) = wish else {
            self.wished = None;
            return None;
        };
        let looks = self.wished.filter(|(before, _)| *before == core).map_or(0, |(_, looks)| looks) + 1;
        self.wished = (looks < LOOKS).then_some((core, looks));
        (looks >= LOOKS).then_some(core)
    }

    fn wish(&self, here: usize, partner: usize, polls: bool) -> Option<usize> {
        if !polls {
            return self.cores.contains(&partner).then_some(partner);
        }
        if here != partner {
            return Some(here);
        }
        self.cores.iter().copied().find(|core| *core != partner)
    }
}

/// Moves the calling thread to where [`Follow`] says; dropped on that thread, it may run where it could before.
#[derive(Debug)]
pub struct Follower {
    follow: Follow,
    pinned: Option<Pinned>,
}

impl Follower {
    /// Follows within the cores that the calling thread may run on.
    ///
    /// # Errors
    /// The error of sched_getaffinity(2).
    pub fn new() -> io::Result<Follower> {
        Ok(Follower { follow: Follow::new(cores()?), pinned: None })
    }

    /// Observes the cores of the calling thread and its partner; returns the core to which the thread was moved, if it was.
    ///
    /// # Errors
    /// The core was taken away.
    pub fn observe(&mut self, partner: usize, polls: bool) -> io::Result<Option<usize>> {
        let core = here().and_then(|here| self.follow.observe(here, partner, polls));
        let Some(core) = core else { return Ok(None) };
        match &mut self.pinned {
            Some(pinned) => pinned.move_to(core)?,
            None => self.pinned = Some(pin(core)?),
        }
        Ok(Some(core))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn looks(follow: &mut Follow, here: usize, partner: usize, polls: bool) -> Vec<Option<usize>> {
        (0..LOOKS).map(|_| follow.observe(here, partner, polls)).collect()
    }

    #[test]
    fn a_sleeper_moves_to_its_partner_once_it_stays() {
        let mut follow = Follow::new(vec![0, 1, 2]);
        let found = looks(&mut follow, 0, 2, false);
        assert_eq!(found.iter().flatten().collect::<Vec<_>>(), [&2]);
        assert_eq!(found.last(), Some(&Some(2)));
        assert_eq!(looks(&mut follow, 2, 2, false), [None; LOOKS as usize]);
    }

    #[test]
    fn a_partner_that_goes_back_and_forth_is_not_followed() {
        let mut follow = Follow::new(vec![0, 1]);
        for n in 0..1_000 {
            assert_eq!(follow.observe(0, n % 2, false), None);
        }
    }

    #[test]
    fn a_poller_leaves_its_partners_core_and_stays_elsewhere() {
        let mut follow = Follow::new(vec![0, 1]);
        assert_eq!(looks(&mut follow, 0, 0, true).last(), Some(&Some(1)));
        assert_eq!(looks(&mut follow, 1, 0, true), [None; LOOKS as usize]);
        let mut alone = Follow::new(vec![0]);
        assert_eq!(looks(&mut alone, 0, 0, true), [None; LOOKS as usize]);
    }

    #[test]
    fn a_partner_on_a_core_that_is_not_allowed_is_not_followed() {
        let mut follow = Follow::new(vec![0]);
        assert_eq!(looks(&mut follow, 0, 5, false), [None; LOOKS as usize]);
    }

    #[test]
    fn a_follower_arrives_and_goes_back() {
        let before = cores().unwrap();
        let Some(other) = before.iter().copied().find(|core| Some(*core) != here()) else {
            return ccplane_testing::skipped("a thread that follows another", "one core");
        };
        let mut follower = Follower::new().unwrap();
        // The scheduler may move this thread meanwhile, and to that very core.
        for _ in 0..2 * LOOKS {
            follower.observe(other, false).unwrap();
        }
        if follower.pinned.is_some() {
            assert_eq!((cores().unwrap(), here()), (vec![other], Some(other)));
        }
        drop(follower);
        assert_eq!(cores().unwrap(), before);
    }

    #[test]
    fn a_thread_keeps_to_several_cores() {
        let before = cores().unwrap();
        let kept = keep_to(&before).unwrap();
        assert_eq!(cores().unwrap(), before);
        drop(kept);
        let none = keep_to(&[]).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::EINVAL));
        assert!(keep_to(&[CpuSet::count()]).is_err(), "no core has such a number");
        assert_eq!(cores().unwrap(), before);
    }

    #[test]
    fn a_pinned_thread_runs_there_and_later_where_it_could_before() {
        let before = cores().unwrap();
        for core in before.iter().copied() {
            let pinned = pin(core).unwrap();
            assert_eq!((cores().unwrap(), here()), (vec![core], Some(core)));
            drop(pinned);
            assert_eq!(cores().unwrap(), before);
        }
        assert!(pin(CpuSet::count() - 1).is_err() || before.contains(&(CpuSet::count() - 1)));
    }
}
