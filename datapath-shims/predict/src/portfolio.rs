//! The predictors of a server: integer networks of the same inputs and classes.

use crate::packet::Limits;
use ccplane_bandit::integer::{MAX_ARMS, Weights};
use ccplane_infer::{ImageError, MAX_INPUTS, Prepared};
use ccplane_snapshot::{DeployOptions, Hash, TrustedSnapshot};

/// Longest name of a predictor, bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// Reasons why networks do not make a portfolio.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PortfolioError {
    /// No predictors are given, or too many.
    #[error("{found} predictors, 1 to {MAX_ARMS} are allowed")]
    Predictors { found: usize },
    /// A name is empty, too long, or has characters other than visible ASCII.
    #[error("{name:?} is no name of a predictor: 1 to {MAX_NAME_BYTES} visible ASCII characters")]
    Name { name: String },
    /// Two predictors have the same name.
    #[error("two predictors have the name {name}")]
    Twice { name: String },
    /// A network has one output, so that it is no classifier.
    #[error("predictor {name} has one output: a classifier has two or more")]
    NoClassifier { name: String },
    /// A predictor's inputs differ from those of the first one.
    #[error("predictor {name} has other inputs than {first}: names, order and ranges must be the same")]
    Inputs { name: String, first: String },
    /// A predictor's classes differ from those of the first one.
    #[error("predictor {name} has {found} classes, {first} has {expected}")]
    Classes { name: String, first: String, found: usize, expected: usize },
    /// An input's range does not fit one byte.
    #[error("input {input} ranges from {lo} to {hi}: a request carries one byte, 0 to 255 or -128 to 127")]
    Byte { input: String, lo: i32, hi: i32 },
    /// A network does not run.
    #[error("predictor {name}: {source}")]
    Image { name: String, source: ImageError },
}

/// A network that answers requests.
#[derive(Clone, Debug)]
pub struct Predictor {
    name: String,
    snapshot: TrustedSnapshot,
    prepared: Box<Prepared>,
}

impl Predictor {
    /// The predictor's name, which its weight follows when it is replaced.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The network's name.
    pub fn hash(&self) -> Hash {
        self.snapshot.hash()
    }

    /// The network, from which other datapaths make their images.
    pub fn snapshot(&self) -> &TrustedSnapshot {
        &self.snapshot
    }
}

/// Predictors that a bandit chooses among.
#[derive(Clone, Debug)]
pub struct Portfolio {
    predictors: Vec<Predictor>,
    inputs: u8,
    classes: u8,
    signed: bool,
    even: Weights,
}

/// The inputs of a request as a network reads them.
pub(crate) type Cells = [i32; MAX_INPUTS];

impl Portfolio {
    /// Makes a portfolio of named networks.
    ///
    /// # Errors
    /// The first network that does not fit.
    pub fn new(networks: Vec<(String, TrustedSnapshot)>) -> Result<Portfolio, PortfolioError> {
        let found = networks.len();
        let first = networks.first().filter(|_| found <= MAX_ARMS);
        let (first_name, first) = first.cloned().ok_or(PortfolioError::Predictors { found })?;
        let even = Weights::new(found).ok_or(PortfolioError::Predictors { found })?;
        let (features, classes) = (first.spec().inputs(), first.shape().outputs());
        let signed = features.iter().any(|feature| feature.lo < 0);
        let (least, most) = if signed { (-128, 127) } else { (0, 255) };
        if let Some(feature) = features.iter().find(|f| f.lo < least || f.hi > most) {
            let (input, lo, hi) = (feature.name.clone(), feature.lo, feature.hi);
            return Err(PortfolioError::Byte { input, lo, hi });
        }
        let mut predictors: Vec<Predictor> = Vec::with_capacity(found);
        for (name, snapshot) in networks {
            let is_name =
                (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
            if !is_name {
                return Err(PortfolioError::Name { name });
            }
            if predictors.iter().any(|other| other.name == name) {
                return Err(PortfolioError::Twice { name });
            }
            let found = snapshot.shape().outputs();
            if found < 2 {
                return Err(PortfolioError::NoClassifier { name });
            }
            if found != classes {
                let first = first_name;
                return Err(PortfolioError::Classes { name, first, found, expected: classes });
            }
            if snapshot.spec().inputs() != features {
                return Err(PortfolioError::Inputs { name, first: first_name });
            }
            let image = snapshot.image(&DeployOptions::ONLY);
            let prepared = Prepared::new(snapshot.shape(), &image);
            let prepared = prepared.map_err(|source| PortfolioError::Image { name: name.clone(), source })?;
            predictors.push(Predictor { name, snapshot, prepared: Box::new(prepared) });
        }
        Ok(Portfolio { predictors, inputs: features.len() as u8, classes: classes as u8, signed, even })
    }

    /// The predictors, in the order of their arms.
    pub fn predictors(&self) -> &[Predictor] {
        &self.predictors
    }

    /// The names, in the order of the arms.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.predictors.iter().map(Predictor::name)
    }

    /// Equal weights for all predictors.
    pub(crate) fn even_weights(&self) -> &Weights {
        &self.even
    }

    /// The limits of datagrams to a server of these predictors with so many slots.
    pub fn limits(&self, slots: u8) -> Limits {
        Limits { slots, inputs: self.inputs, classes: self.classes }
    }

    /// Whether a request's bytes are signed: where an input's range begins below 0.
    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// Whether the other portfolio takes the same inputs and tells the same number of classes.
    pub fn answers_as(&self, other: &Portfolio) -> bool {
        let inputs = |portfolio: &Portfolio| {
            portfolio.predictors.first().map(|first| first.snapshot.spec().inputs().to_vec())
        };
        self.classes == other.classes && inputs(self) == inputs(other)
    }

    /// The inputs of a request as a network reads them.
    pub(crate) fn cells(&self, inputs: &[u8]) -> Cells {
        let mut cells = [0; MAX_INPUTS];
        for (cell, input) in cells.iter_mut().zip(inputs) {
            *cell = if self.signed { i32::from(*input as i8) } else { i32::from(*input) };
        }
        cells
    }

    /// The class that a predictor gives; `None` if there is no such predictor.
    pub(crate) fn classify(&self, arm: usize, cells: &Cells) -> Option<u8> {
        let predictor = self.predictors.get(arm)?;
        let cells = cells.get(..usize::from(self.inputs)).unwrap_or(cells);
        Some(predictor.prepared.classify(cells).class)
    }

    /// The classes that all predictors give; those beyond the predictors are no class.
    pub(crate) fn classify_all(&self, cells: &Cells) -> [u8; MAX_ARMS] {
        let mut classes = [u8::MAX; MAX_ARMS];
        for (arm, class) in classes.iter_mut().enumerate().take(self.predictors.len()) {
            *class = self.classify(arm, cells).unwrap_or(u8::MAX);
        }
        classes
    }
}
