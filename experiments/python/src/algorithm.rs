//! Algorithms that are Python objects.
//!
//! The agent calls them as it calls those in Rust, on its own threads, and takes the interpreter's lock for it. An exception
//! is to the agent what a panic is: the flow goes on under the datapath's native algorithm, and its record says why.

use crate::echo::Echo;
use crate::names::interned;
use ccplane_alg::{Algorithm, Control as Requests, Flow, FlowInfo, ProgramSource, Report};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyDict, PyList};
use std::sync::{Arc, Mutex, PoisonError};

/// Exceptions that an algorithm keeps for whoever asks; the first ones tell most.
const MAX_ERRORS: usize = 64;

/// An algorithm beside the built-in ones, as the agent takes it.
#[pyclass(frozen, module = "ccplane._native")]
pub(crate) struct Hosted {
    algorithm: Kind,
    errors: Errors,
}

/// An algorithm by the language of its agent half.
enum Kind {
    Python(Arc<PythonAlgorithm>),
    Echo,
}

impl Hosted {
    /// Returns the algorithm for an agent, which shares it from then on.
    fn share(&self) -> Arc<dyn Algorithm> {
        match &self.algorithm {
            Kind::Python(own) => own.clone(),
            Kind::Echo => Arc::new(Echo),
        }
    }
}

#[pymethods]
impl Hosted {
    /// Takes an object with `name`, `programs` and `flow`.
    #[new]
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Hosted> {
        let name: String = object.getattr("name")?.extract()?;
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(PyValueError::new_err(format!(
                "a name of a-z, 0-9, - and _ is needed, not {name:?}"
            )));
        }
        let declared = object.getattr("programs")?;
        let declared = declared.cast::<PyDict>().map_err(|_| {
            PyTypeError::new_err("`programs` is a dict of programs' names and their fold language")
        })?;
        let mut programs = Vec::new();
        for (name, source) in declared {
            let (name, source): (String, String) = (name.extract()?, source.extract()?);
            programs.push(ProgramSource { name: interned(&name)?, source: interned(&source)? });
        }
        let errors = Errors::default();
        let algorithm = PythonAlgorithm {
            name: interned(&name)?,
            programs,
            object: object.clone().unbind(),
            errors: Arc::clone(&errors),
        };
        Ok(Hosted { algorithm: Kind::Python(Arc::new(algorithm)), errors })
    }

    /// Makes `rust-echo`, which Python's algorithms are measured against.
    #[staticmethod]
    fn echo() -> Hosted {
        Hosted { algorithm: Kind::Echo, errors: Errors::default() }
    }

    /// Shows Python's collector the object, which may keep this `Hosted` in turn.
    ///
    /// What an agent shares has a holder that the collector does not know, and is shown as little as that holder. The count cannot
    /// rise while the collector runs: only this object's own holder, who has the interpreter's lock then, shares it anew. The
    /// reference never changes, so that every cycle has another one to be broken at, and `__clear__` is not needed.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.algorithm {
            Kind::Python(own) if Arc::strong_count(own) == 1 => visit.call(&own.object),
            Kind::Python(_) | Kind::Echo => Ok(()),
        }
    }

    /// The tracebacks of exceptions that flows met, the first ones.
    #[getter]
    fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The tracebacks that an algorithm's flows share.
type Errors = Arc<Mutex<Vec<String>>>;

/// An algorithm whose agent half is a Python object.
struct PythonAlgorithm {
    name: &'static str,
    programs: Vec<ProgramSource>,
    object: Py<PyAny>,
    errors: Errors,
}

impl Algorithm for PythonAlgorithm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<ProgramSource> {
        self.programs.clone()
    }

    fn flow(&self, info: &FlowInfo, control: &mut Requests) -> Box<dyn Flow> {
        let made = Python::attach(|py| -> PyResult<Box<dyn Flow>> {
            let asked = Bound::new(py, Control::default())?;
            let object = self.object.bind(py).call_method1("flow", (flow_info(py, info)?, &asked))?;
            let on_report = object.getattr("on_report")?.unbind();
            let on_close = object.getattr_opt("on_close")?.map(Bound::unbind);
            asked.get().give(control);
            Ok(Box::new(PythonFlow {
                on_report,
                on_close,
                control: asked.unbind(),
                errors: Arc::clone(&self.errors),
            }))
        });
        made.unwrap_or_else(|error| fail(&error, &self.errors))
    }
}

/// Keeps the traceback, and ends the call as a panic does that prints nothing.
fn fail(error: &PyErr, errors: &Errors) -> ! {
    let text = Python::attach(|py| {
        let trace = error.traceback(py).and_then(|trace| trace.format().ok()).unwrap_or_default();
        format!("{trace}{error}")
    });
    let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
    if errors.len() < MAX_ERRORS {
        errors.push(text.clone());
    }
    drop(errors);
    std::panic::resume_unwind(Box::new(text))
}

/// The agent's half of one flow.
struct PythonFlow {
    on_report: Py<PyAny>,
    on_close: Option<Py<PyAny>>,
    control: Py<Control>,
    errors: Errors,
}

impl Flow for PythonFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Requests) {
        let called = Python::attach(|py| -> PyResult<()> {
            let values = PyDict::new(py);
            for (name, value) in report.names.iter().zip(report.values) {
                values.set_item(name, *value)?;
            }
            let asked = self.control.bind(py);
            self.on_report.bind(py).call1((now_us, report.program, values, asked))?;
            asked.get().give(control);
            Ok(())
        });
        if let Err(error) = called {
            fail(&error, &self.errors);
        }
    }

    fn on_close(&mut self) {
        let Some(on_close) = &self.on_close else { return };
        if let Err(error) = Python::attach(|py| on_close.bind(py).call0().map(drop)) {
            fail(&error, &self.errors);
        }
    }
}

/// Makes a dict of the facts that are known of a flow when it starts.
fn flow_info<'py>(py: Python<'py>, info: &FlowInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("mss_bytes", info.mss_bytes)?;
    dict.set_item("init_cwnd_bytes", info.init_cwnd_bytes)?;
    dict.set_item("local", info.local.to_string())?;
    dict.set_item("remote", info.remote.to_string())?;
    dict.set_item("min_rtt_us", info.min_rtt_us)?;
    Ok(dict)
}

/// One request: a program to start or none, and fields to set.
struct Asked {
    program: Option<&'static str>,
    fields: Vec<(&'static str, i64)>,
}

/// The requests of a flow to its datapath, all applied at its next ACK.
#[pyclass(frozen, module = "ccplane._native")]
#[derive(Default)]
pub(crate) struct Control(Mutex<Vec<Asked>>);

impl Control {
    /// Hands over what was asked so far.
    fn give(&self, control: &mut Requests) {
        for asked in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            match asked.program {
                Some(name) => control.set_program(name, &asked.fields),
                None => control.update(&asked.fields),
            }
        }
    }

    fn ask(&self, program: Option<&str>, fields: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let program = program.map(interned).transpose()?;
        let mut named = Vec::new();
        for (name, value) in fields.into_iter().flatten() {
            named.push((interned(&name.extract::<String>()?)?, value.extract()?));
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Asked { program, fields: named });
        Ok(())
    }
}

#[pymethods]
impl Control {
    /// Runs program `name` from its initial state, with these control registers, `Cwnd` (bytes) or `Rate` (bytes per second) set.
    #[pyo3(signature = (name, **fields))]
    fn set_program(&self, name: &str, fields: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        self.ask(Some(name), fields)
    }

    /// Sets control registers, `Cwnd` (bytes) or `Rate` (bytes per second) of the running program.
    #[pyo3(signature = (**fields))]
    fn update(&self, fields: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        self.ask(None, fields)
    }
}

/// The built-in algorithms, and those of Python's beside them.
pub(crate) fn with_built_in(hosted: &Bound<'_, PyList>) -> PyResult<Vec<Arc<dyn Algorithm>>> {
    let mut all = ccplane_algs::all();
    all.extend(own(hosted)?);
    Ok(all)
}

/// Returns the algorithms that are Python's.
pub(crate) fn own(hosted: &Bound<'_, PyList>) -> PyResult<Vec<Arc<dyn Algorithm>>> {
    let one = |object: Bound<'_, PyAny>| -> PyResult<Arc<dyn Algorithm>> {
        let hosted = object.cast::<Hosted>().map_err(PyErr::from)?;
        Ok(hosted.get().share())
    };
    hosted.iter().map(one).collect()
}
