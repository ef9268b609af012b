//! Fitted models give traces of the same kind: the tolerances that `markov` speaks of.

use std::path::Path;

use ccplane_netsim::trace::Trace;
use ccplane_traces::markov::{DEFAULT_STEP_MS, Model};
use ccplane_traces::rates::{rates_of, trace_of};
use ccplane_traces::stats::{autocorrelation, mean, std_dev};

const HOUR_MS: u32 = 3_600_000;
/// Largest relative difference of the mean rate, over an hour.
const MEAN: f64 = 0.08;
/// Of the standard deviation of the windows' rates.
const STD_DEV: f64 = 0.10;
/// Largest difference of the correlation of neighbouring windows.
const NEIGHBOURS: f64 = 0.06;
/// Of windows one second apart. A chain without contexts misses this one by 0.1 to 0.4.
const A_SECOND: f64 = 0.18;

/// Mean, standard deviation, correlation of neighbours and of windows a second apart.
fn character(trace: &Trace) -> [f64; 4] {
    let rates: Vec<u64> = rates_of(trace, DEFAULT_STEP_MS).unwrap().iter().map(|s| s.bit_per_s).collect();
    [mean(&rates), std_dev(&rates), autocorrelation(&rates, 1), autocorrelation(&rates, 10)]
}

fn assert_alike(what: &str, [mean, std_dev, near, far]: [f64; 4], other: [f64; 4]) {
    let differences =
        [other[0] / mean - 1.0, other[1] / std_dev - 1.0, other[2] - near, other[3] - far].map(f64::abs);
    eprintln!("{what}: {differences:.3?} of mean {:.2} Mb/s, correlations {near:.2} {far:.2}", mean / 1e6);
    let tolerances = [MEAN, STD_DEV, NEIGHBOURS, A_SECOND];
    assert!(differences.iter().zip(tolerances).all(|(d, t)| *d <= t), "{what}: {differences:?}");
}

/// The committed traces, and mahimahi's recorded ones where `make demo` has put them.
fn traces() -> Vec<(String, Trace)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recorded = here.join("../../target/traces");
    let mut paths = vec![here.join("cellular.up"), here.join("cellular.down")];
    for name in
        ["Verizon-LTE-short.up", "Verizon-LTE-short.down", "TMobile-LTE-short.up", "ATT-LTE-driving.up"]
    {
        let path = recorded.join(name);
        if path.exists() {
            paths.push(path);
        } else {
            ccplane_testing::skipped(&format!("a fit to {name}"), "`.ci/traces target/traces` fetches it");
        }
    }
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), Trace::load(path).unwrap())).collect()
}

#[test]
fn generated_traces_are_like_the_fitted_one_and_so_is_a_fit_to_them() {
    for (name, trace) in traces() {
        let model = Model::fit(&trace, DEFAULT_STEP_MS).unwrap();
        let generated = trace_of(&model.generate(1, HOUR_MS).unwrap()).unwrap();
        assert_alike(&name, character(&trace), character(&generated));
        assert_eq!(Trace::parse(&generated.to_string()).unwrap(), generated);
        assert_eq!(generated.period_ms(), u64::from(HOUR_MS));

        let again = Model::fit(&generated, DEFAULT_STEP_MS).unwrap();
        let third = trace_of(&again.generate(2, HOUR_MS).unwrap()).unwrap();
        assert_alike(&format!("{name}, fitted again"), character(&generated), character(&third));
    }
}

#[test]
fn a_seed_gives_the_same_bytes() {
    let (_, trace) = traces().swap_remove(0);
    let model = Model::fit(&trace, DEFAULT_STEP_MS).unwrap();
    assert_eq!(model, Model::fit(&trace, DEFAULT_STEP_MS).unwrap());
    let text = |seed| trace_of(&model.generate(seed, 20_000).unwrap()).unwrap().to_string();
    assert_eq!(text(3), text(3));
    assert_ne!(text(3), text(4));
}

#[test]
fn a_model_says_its_version_and_one_of_another_is_refused_by_both_numbers() {
    let (_, trace) = traces().swap_remove(0);
    let model = Model::fit(&trace, DEFAULT_STEP_MS).unwrap();
    let text = serde_json::to_string(&model).unwrap();
    let read = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        serde_json::from_str::<Model>(&text.replace(from, to)).map_err(|error| error.to_string())
    };
    let version = "\"version\":1,";
    assert_eq!(read(version, version), Ok(model.clone()));
    // What was written before there were versions.
    assert_eq!(read(version, ""), Ok(model));
    let refused = read(version, "\"version\":2,\"speed\":1,").unwrap_err();
    assert!(refused.starts_with("version 2 of a model, this ccplane reads version 1"), "{refused}");
    let refused = read(version, "\"version\":1,\"speed\":1,").unwrap_err();
    assert!(refused.starts_with("speed: a model has no such field"), "{refused}");
}
