//! A drawn link: its plan.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use ccplane_runner::plan::{Known, Overrides, Plan};

use crate::cell::Goal;
use crate::draw::Draw;
use crate::error::LeagueError;
use crate::family::{Family, Spec};
use crate::traces::trace;

/// Links of one family in one set.
pub const MAX_LINKS: u32 = 1 << 16;

/// What links are for. Sets share no seed, and only the test reaches the ends of ranges.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Set {
    /// What policies are trained on.
    Training,
    /// What choices are made by.
    Validation,
    /// What is measured once all choices are made.
    Test,
}

impl Set {
    /// All of them.
    pub const ALL: [Set; 3] = [Set::Training, Set::Validation, Set::Test];

    /// As commands and names spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Set::Training => "training",
            Set::Validation => "validation",
            Set::Test => "test",
        }
    }

    pub(crate) fn seed(self) -> u64 {
        match self {
            Set::Training => 0x7261_696e,
            Set::Validation => 0x7661_6c69,
            Set::Test => 0x7465_7374,
        }
    }
}

/// A member of a family. Its name, `steady/validation/3`, says all of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Link {
    /// The family.
    pub family: Family,
    /// What it is for.
    pub set: Set,
    /// Counts from 0.
    pub number: u32,
}

impl Link {
    /// What makes an algorithm good there.
    #[must_use]
    pub fn goal(self) -> Goal {
        self.family.goal()
    }

    /// Decides losses and arrivals; the same for every algorithm.
    #[must_use]
    pub fn seed(self) -> u64 {
        self.set.seed() ^ u64::from(self.number) << 40 ^ (self.family as u64) << 32
    }

    /// The plan's text, with this algorithm on this datapath.
    #[must_use]
    pub fn text(self, algorithm: &str, datapath: &str) -> String {
        let mut draw = Draw::new(self.family, self.set, self.number);
        let Spec { duration_s, warmup_s, tables } = self.family.draw(&mut draw);
        format!(
            "title = \"{self}\"\nduration_s = {duration_s}\nwarmup_s = {warmup_s}\nrepeats = 1\nseed = {}\n\n[simulator]\nemulated = true\n\n{tables}\n\
             [[algorithm]]\nalgorithm = \"{algorithm}\"\nname = \"{algorithm}\"\ndatapath = \"{datapath}\"\n",
            self.seed()
        )
    }

    /// Its plan, checked.
    ///
    /// # Errors
    /// What the plan's parser refuses, such as an algorithm that there is not.
    pub fn plan(self, algorithm: &str, datapath: &str, known: &Known<'_>) -> Result<Plan, LeagueError> {
        let name = self.to_string();
        let known = Known { traces: &trace, ..*known };
        let text = self.text(algorithm, datapath);
        Plan::parse(Path::new(&name), &text, &known, Overrides::default())
            .map_err(|why| LeagueError::Plan { link: name, why: why.to_string() })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.family.name(), self.set.name(), self.number)
    }
}

impl FromStr for Link {
    type Err = LeagueError;

    fn from_str(text: &str) -> Result<Link, LeagueError> {
        let refused = || LeagueError::NoLink { found: text.to_owned() };
        let mut parts = text.splitn(3, '/');
        let mut next = || parts.next().ok_or_else(refused);
        let (family, set, number) = (next()?.parse()?, next()?, next()?);
        let set = Set::ALL.into_iter().find(|s| s.name() == set).ok_or_else(refused)?;
        let number = number.parse().ok().filter(|n| *n < MAX_LINKS).ok_or_else(refused)?;
        Ok(Link { family, set, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_member_of_every_family_makes_a_plan_and_its_name_says_all() {
        let algorithms = ccplane_algs::all();
        let known = Known { algorithms: &algorithms, kernel: None, traces: &trace, cellular: None };
        for family in Family::ALL.iter().copied() {
            for set in Set::ALL {
                for number in 0..12 {
                    let link = Link { family, set, number };
                    let plan = link.plan("copa", "sim", &known).unwrap();
                    assert_eq!((plan.runs(), plan.scenarios.len()), (1, 1));
                    assert_eq!(link.to_string().parse::<Link>().unwrap(), link);
                    assert_eq!(link.text("copa", "sim"), link.text("copa", "sim"));
                }
            }
        }
        assert!("steady/validation".parse::<Link>().is_err());
        assert!("steady/final/1".parse::<Link>().is_err());
        assert!("none/test/1".parse::<Link>().unwrap_err().to_string().contains("there are steady"));
    }

    /// No link is in two sets: all texts but the titles differ, and so do the seeds.
    #[test]
    fn sets_share_nothing() {
        let (mut texts, mut seeds) = (BTreeSet::new(), BTreeSet::new());
        let mut count = 0;
        for family in Family::ALL.iter().copied() {
            for set in Set::ALL {
                for number in 0..40 {
                    let link = Link { family, set, number };
                    let text = link.text("reno", "sim");
                    texts.insert(text.split_once("[[link]]").unwrap().1.to_owned() + family.name());
                    seeds.insert(link.seed());
                    count += 1;
                }
            }
        }
        assert_eq!((texts.len(), seeds.len()), (count, count));
    }
}
