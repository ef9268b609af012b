//! Hours of changing links: what an algorithm that chooses loses against single ones, its arms among them.
//!
//! An hour is a row of segments. Each is a drawn link that flows to one and the same destination cross, from their
//! start to their end. The algorithm under test keeps what it knows from segment to segment; each of the others begins
//! anew, which costs it nothing.

use std::sync::Arc;
use std::thread;

use ccplane_alg::{Algorithm, Standing};
use ccplane_runner::plan::Overrides;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::cell::Cell;
use crate::error::LeagueError;
use crate::family::Family;
use crate::link::FamilyLink;
use crate::play::Fixture;
use crate::set::Set;
use crate::traces::Traces;

/// The algorithm that the tested one may not be worse than.
const SAFE: &str = "cubic";
/// Algorithms that the tested one is held against, beside its own arms.
pub const HELD_AGAINST: [&str; 6] = ["dual", "copa", "bbr", "mocc", "vegas", SAFE];

/// The configuration of an hour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HourConfig {
    /// The set that its links are drawn from.
    pub set: Set,
    /// The families that its links are drawn from.
    pub families: Vec<Family>,
    pub segments: u32,
    /// The length of each segment, milliseconds.
    pub segment_ms: u64,
    /// The number of the hour, from 0; hours share no link.
    pub number: u32,
}

impl HourConfig {
    /// Twelve segments of five minutes, of all families but those that need recordings.
    #[must_use]
    pub fn new(set: Set, number: u32) -> HourConfig {
        let families = Family::ALL.iter().copied().filter(|f| *f != Family::Recorded).collect();
        HourConfig { set, families, segments: 12, segment_ms: 300_000, number }
    }

    /// Draws the links of the hour's segments.
    ///
    /// # Errors
    /// A number is too large.
    pub fn links(&self) -> Result<Vec<FamilyLink>, LeagueError> {
        let mut random = ChaCha8Rng::seed_from_u64(self.set.seed());
        random.set_stream(self.number.into());
        let of = |segment: u32| {
            let family = self.families[random.next_u32() as usize % self.families.len().max(1)];
            // Beyond those that a league plays.
            FamilyLink::new(family, self.set, 1000 + self.number * self.segments + segment)
        };
        (0..self.segments).map(of).collect()
    }
}

/// A segment: what the tested algorithm and those that it is held against achieved.
#[derive(Clone, PartialEq, Debug)]
pub struct Segment {
    /// The cell of the tested algorithm.
    pub tested: Cell,
    /// The cells of the arms, in their order, then those of the others that it is held against.
    pub single: Vec<Cell>,
    /// The tested algorithm's knowledge of destinations at the end of the segment.
    pub known: Vec<Standing>,
}

impl Segment {
    fn best(&self) -> f64 {
        self.single.iter().map(Cell::score).fold(f64::MIN_POSITIVE, f64::max)
    }

    /// A score over that of the segment's best single algorithm.
    #[must_use]
    pub fn reward(&self, of: &Cell) -> f64 {
        of.score() / self.best()
    }

    /// The tested algorithm's score over the best single one's.
    #[must_use]
    pub fn of_best(&self) -> f64 {
        self.reward(&self.tested)
    }

    /// The tested algorithm's score over CUBIC's.
    #[must_use]
    pub fn of_cubic(&self) -> f64 {
        let cubic = self.single.iter().find(|cell| cell.algorithm == SAFE).map_or(0.0, Cell::score);
        self.tested.score() / cubic.max(f64::MIN_POSITIVE)
    }
}

/// An hour that was played.
#[derive(Clone, PartialEq, Debug)]
pub struct PlayedHour {
    /// The segments in order.
    pub segments: Vec<Segment>,
}

impl PlayedHour {
    /// Plays it: the tested algorithm's segments one after the other, the single algorithms' on so many cores.
    ///
    /// # Errors
    /// A link cannot be played.
    pub fn play(
        config: &HourConfig,
        tested: &Arc<dyn Algorithm>,
        traces: &Traces,
        cores: usize,
    ) -> Result<PlayedHour, LeagueError> {
        let links = config.links()?;
        let overrides = Overrides { duration_ms: Some(config.segment_ms), ..Overrides::default() };
        let mut known = ccplane_algs::all();
        known.retain(|a| a.name() != tested.name());
        known.push(Arc::clone(tested));
        let mut names: Vec<String> = tested.arms().iter().map(|arm| arm.name().to_owned()).collect();
        for name in HELD_AGAINST {
            if !names.iter().any(|arm| arm == name) {
                names.push(name.to_owned());
            }
        }
        let fixture = |link: FamilyLink, name: &str| Fixture { link, algorithm: name.to_owned() };
        let play = |fixture: &Fixture| fixture.play_with_knowledge(&known, traces, overrides);
        let fixtures: Vec<Fixture> =
            links.iter().flat_map(|link| names.iter().map(|name| fixture(*link, name))).collect();
        let (alone, single) = thread::scope(|scope| {
            let in_turn = scope.spawn(|| -> Result<Vec<(Cell, Vec<Standing>)>, LeagueError> {
                let of = |link: &FamilyLink| {
                    let cell = play(&fixture(*link, tested.name()))?;
                    Ok((cell, tested.memory().map(|memory| memory.standings()).unwrap_or_default()))
                };
                links.iter().map(of).collect()
            });
            let single = crate::play::on_cores(&fixtures, cores.saturating_sub(1).max(1), &play);
            (in_turn.join(), single)
        });
        let alone = match alone {
            Ok(cells) => cells?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let single = single?;
        let parts = single.chunks(names.len().max(1)).map(<[Cell]>::to_vec);
        let segment = |((tested, known), single)| Segment { tested, single, known };
        let segments = alone.into_iter().zip(parts).map(segment).collect();
        Ok(PlayedHour { segments })
    }

    /// The tested algorithm's rewards, summed, over those of the best single algorithm in hindsight; its name.
    #[must_use]
    pub fn of_best_single(&self) -> (f64, String) {
        let own: f64 = self.segments.iter().map(Segment::of_best).sum();
        let names = self.segments.first().map_or(&[][..], |s| &s.single).iter().enumerate();
        let sum =
            |n: usize| self.segments.iter().filter_map(|s| s.single.get(n).map(|c| s.reward(c))).sum::<f64>();
        let sums = names.map(|(n, cell)| (sum(n), cell.algorithm.clone()));
        let best = sums.reduce(|best, other| if other.0 > best.0 { other } else { best });
        best.map_or((0.0, String::new()), |(sum, name)| (own / sum.max(f64::MIN_POSITIVE), name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_algs::{COPA, CUBIC, Dual, Portfolio};

    /// Minutes on links that training has, by three arms: what the whole hour is to show (examples/hour.rs), smaller.
    #[test]
    fn choosing_nearly_beats_the_best_single_algorithm_and_is_never_far_below_cubic() {
        let config = HourConfig {
            families: vec![Family::Steady, Family::Deep, Family::Steps],
            segments: 4,
            segment_ms: 100_000,
            ..HourConfig::new(Set::Training, 7)
        };
        let hour = PlayedHour::play(&config, &portfolio(), &Traces::default(), 2).unwrap();
        assert_eq!(hour.segments.len(), 4);
        let (of_single, single) = hour.of_best_single();
        assert!(of_single > 0.8, "{of_single} of {single}");
        for segment in &hour.segments {
            let (of_best, of_cubic) = (segment.of_best(), segment.of_cubic());
            assert!(of_best > 0.6 && of_cubic > 0.9, "{}: {of_best} {of_cubic}", segment.tested.link);
            assert_eq!(segment.known.len(), 1, "all segments are one destination");
        }
        assert!(hour.segments[3].known[0].evidence.iter().any(|arm| arm.intervals > 0));
        assert_eq!(
            PlayedHour::play(&config, &portfolio(), &Traces::default(), 2).unwrap(),
            hour,
            "the same again"
        );
    }

    /// A trial leaves no lasting harm where the way back gathers acknowledgements: the arm that has the flow again goes on with what
    /// it kept. From the mean rate alone it carries less than a hundredth.
    #[test]
    fn a_failed_trial_on_a_lumpy_way_back_costs_little() {
        let config = HourConfig {
            families: vec![Family::LumpyReturn],
            segments: 1,
            segment_ms: 60_000,
            ..HourConfig::new(Set::Training, 2)
        };
        let tested: Arc<dyn Algorithm> = Arc::new(Portfolio::default());
        let hour = PlayedHour::play(&config, &tested, &Traces::default(), 2).unwrap();
        let segment = &hour.segments[0];
        let tried = segment.known[0].evidence.iter().any(|arm| arm.arm == "copa" && arm.intervals > 0);
        assert!(tried && segment.of_best() > 0.6, "{} {:?}", segment.of_best(), segment.known);
    }

    fn portfolio() -> Arc<dyn Algorithm> {
        let arms: [Arc<dyn Algorithm>; 3] = [Arc::new(CUBIC), Arc::new(Dual::default()), Arc::new(COPA)];
        Arc::new(Portfolio::among(arms.to_vec()).unwrap())
    }

    #[test]
    fn hours_share_no_link_and_none_of_the_leagues() {
        let links = |set, number| HourConfig::new(set, number).links().unwrap();
        let (first, second) = (links(Set::Validation, 0), links(Set::Validation, 1));
        assert!(first.iter().all(|link| !second.contains(link)));
        assert_eq!((first.len(), links(Set::Validation, 0)), (12, first));
        let config = HourConfig::new(Set::Test, 0);
        assert!(matches!(config.links(), Err(LeagueError::Sealed { .. })));
    }
}
