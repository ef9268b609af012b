//! The settings and placements that a sweep or a search goes through.

use serde::{Deserialize, Serialize};

/// Knobs of a space, at most.
pub const MAX_KNOBS: usize = 16;
/// Levels of a knob, at most.
pub const MAX_LEVELS: usize = 64;
/// Cells of a space, at most.
pub const MAX_CELLS: u64 = 10_000_000;

/// The part of a host that a knob moves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The processors that run the receiving application; those of flow `n` follow at a distance of `n`.
    Application,
    /// The processors where packets come in: by the device's interrupts, or over veth by the thread that sends.
    Interrupt,
    /// The processors that TCP works on, by receive packet steering.
    Flow,
    /// Settings of the host, which get the level's value together.
    Settings(Vec<String>),
}

/// One thing that can be varied, with the values that are tried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Knob {
    pub name: String,
    pub role: Role,
    /// Values; an empty one leaves things as they were found.
    pub levels: Vec<String>,
    /// The level that is in force when nothing is changed.
    pub default: usize,
}

impl Knob {
    /// Whether the levels are processors.
    pub fn is_placement(&self) -> bool {
        !matches!(self.role, Role::Settings(_))
    }
}

/// All combinations of the knobs' levels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Knob>", into = "Vec<Knob>")]
pub struct Space {
    knobs: Vec<Knob>,
}

/// One level for each knob, in the order of the knobs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Cell(pub Vec<usize>);

/// Reasons why knobs make no space.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpaceError {
    /// No knob, or too many of them.
    #[error("{0} knobs, 1 to {MAX_KNOBS} are allowed")]
    Knobs(usize),
    /// A knob without levels or with too many, or whose default is none of them.
    #[error("{knob}: {levels} levels and default {default}; 1 to {MAX_LEVELS} levels are allowed")]
    Levels { knob: String, levels: usize, default: usize },
    /// A knob that is there twice, or a level of it.
    #[error("{0} is there twice")]
    Twice(String),
    /// More combinations than a sweep can hold.
    #[error("{0} combinations, at most {MAX_CELLS} are allowed: leave levels out")]
    Cells(u128),
}

impl Space {
    /// Checks knobs and makes a space of them.
    ///
    /// # Errors
    /// The first knob that is wrong, or too many combinations.
    pub fn new(knobs: Vec<Knob>) -> Result<Space, SpaceError> {
        if !(1..=MAX_KNOBS).contains(&knobs.len()) {
            return Err(SpaceError::Knobs(knobs.len()));
        }
        for (n, knob) in knobs.iter().enumerate() {
            let levels = knob.levels.len();
            if !(1..=MAX_LEVELS).contains(&levels) || knob.default >= levels {
                return Err(SpaceError::Levels { knob: knob.name.clone(), levels, default: knob.default });
            }
            if knobs[..n].iter().any(|other| other.name == knob.name) {
                return Err(SpaceError::Twice(knob.name.clone()));
            }
            let twice = knob.levels.iter().enumerate().find(|(m, level)| knob.levels[..*m].contains(level));
            if let Some((_, level)) = twice {
                return Err(SpaceError::Twice(format!("{}={level}", knob.name)));
            }
        }
        let cells: u128 = knobs.iter().map(|knob| knob.levels.len() as u128).product();
        if cells > u128::from(MAX_CELLS) { Err(SpaceError::Cells(cells)) } else { Ok(Space { knobs }) }
    }

    /// Returns the knobs in their order.
    pub fn knobs(&self) -> &[Knob] {
        &self.knobs
    }

    /// Returns the number of cells.
    pub fn cells(&self) -> u64 {
        self.knobs.iter().map(|knob| knob.levels.len() as u64).product()
    }

    /// Returns the cell of a number below [`Space::cells`]; the last knob's levels change fastest.
    pub fn cell(&self, number: u64) -> Cell {
        let mut rest = number;
        let mut levels: Vec<usize> = Vec::with_capacity(self.knobs.len());
        for knob in self.knobs.iter().rev() {
            let count = knob.levels.len() as u64;
            levels.push((rest % count) as usize);
            rest /= count;
        }
        levels.reverse();
        Cell(levels)
    }

    /// Returns the number of a cell, which [`Space::cell`] takes.
    pub fn number(&self, cell: &Cell) -> u64 {
        let digits = self.knobs.iter().zip(&cell.0);
        digits.fold(0, |number, (knob, level)| number * knob.levels.len() as u64 + *level as u64)
    }

    /// Returns the cell in which nothing is changed.
    pub fn default_cell(&self) -> Cell {
        Cell(self.knobs.iter().map(|knob| knob.default).collect())
    }

    /// Whether the cell has one level of each knob.
    pub fn contains(&self, cell: &Cell) -> bool {
        let fits = |(knob, level): (&Knob, &usize)| *level < knob.levels.len();
        cell.0.len() == self.knobs.len() && self.knobs.iter().zip(&cell.0).all(fits)
    }

    /// Returns the values of a cell, in the order of the knobs.
    pub fn values<'s>(&'s self, cell: &Cell) -> Vec<&'s str> {
        self.knobs.iter().zip(&cell.0).map(|(knob, level)| knob.levels[*level].as_str()).collect()
    }

    /// Returns the number of the knob of this role.
    pub fn knob_of(&self, role: &Role) -> Option<usize> {
        self.knobs.iter().position(|knob| knob.role == *role)
    }

    /// Returns the numbers of the knobs that set how many microseconds and how many frames a device waits, if both are there.
    pub fn coalescing(&self) -> Option<(usize, usize)> {
        let ends = |end: &str| {
            self.knobs.iter().position(|knob| match &knob.role {
                Role::Settings(names) => names.iter().any(|name| name.ends_with(end)),
                _ => false,
            })
        };
        Some((ends("/coalesce/rx-usecs")?, ends("/coalesce/rx-frames")?))
    }

    /// Returns the processors of each kind of work in a cell, by the knob's name; a kind that is as it was found is left out.
    pub fn places(&self, cell: &Cell, flows: u32, processors: &[u32]) -> Vec<(String, Vec<u32>)> {
        let place = |(knob, level): (&Knob, &usize)| {
            let first = knob.levels[*level].parse().ok().filter(|_| knob.is_placement())?;
            let cpus = (0..flows).filter_map(|n| nth_after(processors, first, n)).collect();
            Some((knob.name.clone(), cpus))
        };
        self.knobs.iter().zip(&cell.0).filter_map(place).collect()
    }

    /// Returns the processors that work on packets in a cell, in order: those of TCP, or else those where packets come in. Empty
    /// where both are as they were found.
    pub fn stack(&self, cell: &Cell, flows: u32, processors: &[u32]) -> Vec<u32> {
        let of = |role: Role| {
            let knob = self.knob_of(&role)?;
            let first = self.knobs[knob].levels[cell.0[knob]].parse().ok()?;
            let mut cpus: Vec<u32> = (0..flows).filter_map(|n| nth_after(processors, first, n)).collect();
            cpus.sort_unstable();
            cpus.dedup();
            Some(cpus)
        };
        of(Role::Flow).or_else(|| of(Role::Interrupt)).unwrap_or_default()
    }

    /// Writes a cell as `knob=value` for each knob that is not as it was found.
    pub fn shown(&self, cell: &Cell) -> String {
        let changed = self.knobs.iter().zip(&cell.0).filter(|(knob, level)| **level != knob.default);
        let words: Vec<String> =
            changed.map(|(knob, level)| format!("{}={}", knob.name, knob.levels[*level])).collect();
        if words.is_empty() { "defaults".to_owned() } else { words.join(" ") }
    }
}

/// Returns the processor `n` places after the first one, around the end of the list.
pub(crate) fn nth_after(processors: &[u32], first: u32, n: u32) -> Option<u32> {
    let at = processors.iter().position(|cpu| *cpu == first)?;
    processors.get((at + n as usize) % processors.len()).copied()
}

impl TryFrom<Vec<Knob>> for Space {
    type Error = SpaceError;

    fn try_from(knobs: Vec<Knob>) -> Result<Space, SpaceError> {
        Space::new(knobs)
    }
}

impl From<Space> for Vec<Knob> {
    fn from(space: Space) -> Vec<Knob> {
        space.knobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knob(name: &str, levels: &[&str]) -> Knob {
        let levels = levels.iter().map(|level| (*level).to_owned()).collect();
        Knob { name: name.to_owned(), role: Role::Settings(Vec::new()), levels, default: 0 }
    }

    #[test]
    fn each_number_is_one_cell() {
        let space = Space::new(vec![knob("a", &["1", "2"]), knob("b", &["x", "y", "z"])]).unwrap();
        let all: std::collections::BTreeSet<Cell> = (0..space.cells()).map(|n| space.cell(n)).collect();
        assert_eq!(all.len(), 6);
        for cell in &all {
            assert!(space.contains(cell));
            assert_eq!(space.cell(space.number(cell)), *cell);
        }
        assert_eq!(space.values(&Cell(vec![1, 2])), ["2", "z"]);
        assert_eq!(space.shown(&Cell(vec![0, 0])), "defaults");
        assert_eq!(space.shown(&Cell(vec![0, 2])), "b=z");
    }

    #[test]
    fn packets_are_worked_on_where_tcp_is_or_else_where_they_come_in() {
        let placement = |name: &str, role| Knob { role, ..knob(name, &["", "2", "5"]) };
        let space = Space::new(vec![
            placement("application", Role::Application),
            placement("interrupt", Role::Interrupt),
            placement("flow", Role::Flow),
        ]);
        let (space, processors) = (space.unwrap(), [1, 2, 5]);
        let stack = |levels: [usize; 3], flows| space.stack(&Cell(levels.to_vec()), flows, &processors);
        assert!(stack([1, 0, 0], 1).is_empty());
        assert_eq!(stack([0, 1, 0], 1), [2]);
        assert_eq!(stack([0, 1, 2], 1), [5]);
        // Flows go round the processors: the second one after 5 is on 1.
        assert_eq!(stack([0, 1, 2], 2), [1, 5]);
        assert_eq!(stack([0, 1, 0], 7), [1, 2, 5]);
        assert!(
            Space::new(vec![knob("a", &["1"])]).unwrap().stack(&Cell(vec![0]), 1, &processors).is_empty()
        );
    }

    #[test]
    fn knobs_that_make_no_space_are_refused() {
        assert_eq!(Space::new(Vec::new()), Err(SpaceError::Knobs(0)));
        assert_eq!(
            Space::new(vec![knob("a", &["1"]), knob("a", &["1"])]),
            Err(SpaceError::Twice("a".into()))
        );
        assert!(matches!(Space::new(vec![knob("a", &[])]), Err(SpaceError::Levels { .. })));
        assert_eq!(Space::new(vec![knob("a", &["1", "1"])]), Err(SpaceError::Twice("a=1".into())));
        let many: Vec<String> = (0..MAX_LEVELS).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let knobs = (0..5).map(|n| knob(&n.to_string(), &many)).collect();
        assert!(matches!(Space::new(knobs), Err(SpaceError::Cells(_))));
    }
}
