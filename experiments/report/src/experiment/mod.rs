//! The report of a plan's runs: one page, its figures as CSV, its charts as SVG and PNG.
//!
//! `View` sorts the results; `figures`, `series`, `fairness`, `compare` compute; `charts` and `sweep` make
//! [`Figure`]s; `glance` finds the best contender of each link and `picture` draws that; `tables`, `summary` and `page` write the page; `export` the CSV files.

mod charts;
mod compare;
mod export;
mod fairness;
mod families;
mod figures;
mod glance;
mod leaving;
mod matrix;
mod page;
mod picture;
mod series;
mod summary;
mod sweep;
mod tables;
mod verdicts;
mod view;

use std::fs;
use std::path::{Path, PathBuf};

use ccplane_results::{Header, Results};

use crate::ReportError;
use crate::draw::scene::{self, Scene};
use crate::draw::{Figure, png, svg};

pub use glance::{ContenderGlance, LinkGlance};
pub use verdicts::{Compared, comparisons};

/// Results of more runs than this are not drawn: their report has tables only, and [`write_scenario`] draws what is asked for.
pub const MAX_DRAWN_RUNS: usize = 1000;

/// The files of a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The path of the page.
    pub html: PathBuf,
    /// One row for each run and flow, with all its figures.
    pub csv: PathBuf,
    /// One row for each sample of each flow; of reports that are drawn.
    pub series_csv: Option<PathBuf>,
    /// One row for each short flow that completed; of reports that are drawn.
    pub fct_csv: Option<PathBuf>,
    /// Each chart of the page twice: as SVG, then as PNG. All in the folder `NAME-charts`.
    pub charts: Vec<PathBuf>,
}

/// The page alone, as one HTML text. Its links are to the files that `write` puts beside it for a report of that `name`.
#[must_use]
pub fn html(results: &Results, name: &str) -> String {
    page::page(&view::View::new(results), name, is_drawn(results)).0
}

/// Writes the report of `results` into `dir`, which is made if it is not there: `NAME.html`, `NAME.csv`, `NAME-series.csv`,
/// `NAME-fct.csv` and, in `NAME-charts`, each chart as SVG and PNG. A former report's files are written over, and its charts
/// removed. Of more than [`MAX_DRAWN_RUNS`] runs: `NAME.html` and `NAME.csv`.
///
/// # Errors
/// `Io` names the file; `Picture` the chart.
pub fn write(results: &Results, dir: &Path, name: &str) -> Result<Files, ReportError> {
    let drawn = is_drawn(results);
    let view = view::View::new(results);
    let (html, drawing) = page::page(&view, name, drawn);
    let charts = dir.join(page::Drawing::folder(name));
    make_folder(dir)?;
    clear(&charts)?;
    let mut files = Files {
        html: dir.join(format!("{name}.html")),
        csv: dir.join(format!("{name}.csv")),
        series_csv: drawn.then(|| dir.join(format!("{name}-series.csv"))),
        fct_csv: drawn.then(|| dir.join(format!("{name}-fct.csv"))),
        charts: Vec::new(),
    };
    put(&files.html, html.as_bytes())?;
    put(&files.csv, export::runs(results).as_bytes())?;
    if let Some(path) = &files.series_csv {
        put(path, export::series(results).as_bytes())?;
    }
    if let Some(path) = &files.fct_csv {
        put(path, export::completions(results).as_bytes())?;
    }
    if drawing.picture.is_some() || !drawing.figures.is_empty() {
        make_folder(&charts)?;
    }
    if let Some(picture) = &drawing.picture {
        files.charts.extend(write_scene(picture, page::GLANCE, &charts)?);
    }
    files.charts.extend(write_charts(&drawing.figures, &charts)?);
    Ok(files)
}

/// Writes the report of one scenario of `results`, as `write` does, with its plots; `None` if there is none of that name.
///
/// # Errors
/// As `write`.
pub fn write_scenario(
    results: &Results,
    scenario: &str,
    dir: &Path,
    name: &str,
) -> Result<Option<Files>, ReportError> {
    let Some(only) = results.header.scenarios.iter().find(|s| s.name == scenario) else { return Ok(None) };
    let header = Header { scenarios: vec![only.clone()], ..results.header.clone() };
    let runs = results.runs.iter().filter(|run| run.scenario == scenario).cloned().collect();
    write(&Results { header, runs }, dir, &format!("{name}-{}", charts::slug(scenario))).map(Some)
}

/// Returns for each link the best contender and the decisions of ours, in words. Plans of one link, or of many links or
/// contenders, get none.
#[must_use]
pub fn at_a_glance(results: &Results) -> Vec<LinkGlance> {
    glance::links(&view::View::new(results))
}

fn is_drawn(results: &Results) -> bool {
    results.runs.len() <= MAX_DRAWN_RUNS
}

/// Pictures take the most time: each processor draws a part.
fn write_charts(figures: &[Figure], dir: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let part = figures.len().div_ceil(processors).max(1);
    std::thread::scope(|scope| {
        let parts: Vec<_> = figures
            .chunks(part)
            .map(|figures| {
                scope.spawn(|| figures.iter().map(|f| write_chart(f, dir)).collect::<Result<Vec<_>, _>>())
            })
            .collect();
        let mut paths = Vec::new();
        for part in parts {
            match part.join() {
                Ok(written) => paths.extend(written?.into_iter().flatten()),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(paths)
    })
}

fn write_chart(figure: &Figure, dir: &Path) -> Result<[PathBuf; 2], ReportError> {
    write_scene(&scene::scene(figure), &figure.name, dir)
}

fn write_scene(scene: &Scene, name: &str, dir: &Path) -> Result<[PathBuf; 2], ReportError> {
    let paths = ["svg", "png"].map(|extension| dir.join(format!("{name}.{extension}")));
    let [vector, picture] = &paths;
    put(vector, svg::write(scene).as_bytes())?;
    let bytes =
        png::write(scene).map_err(|e| ReportError::Picture { path: picture.clone(), why: e.to_string() })?;
    put(picture, &bytes)?;
    Ok(paths)
}

fn make_folder(dir: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(dir).map_err(|error| ReportError::Io { path: dir.into(), error })
}

/// Removes the charts of a former report; other files stay.
fn clear(dir: &Path) -> Result<(), ReportError> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    let chart = |path: &Path| path.extension().is_some_and(|e| e == "svg" || e == "png");
    for path in entries.flatten().map(|e| e.path()).filter(|p| chart(p)) {
        fs::remove_file(&path).map_err(|error| ReportError::Io { path, error })?;
    }
    Ok(())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    fs::write(path, bytes).map_err(|error| ReportError::Io { path: path.into(), error })
}
