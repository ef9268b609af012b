//! Every algorithm that ships, on everything but live kernel flows.

use ccplane_alg::configure;
use ccplane_kit::golden::{compare, render};
use ccplane_kit::{Bounds, Scenario, assert_conforms_within, check, scenario};
use std::path::Path;

use crate::common::{bounds, each, pinned};

#[test]
fn every_algorithm_conforms() {
    each(|algorithm, bounds| assert_conforms_within(algorithm, &bounds));
}

#[test]
fn goldens_hold() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
    each(|algorithm, bounds| {
        let Some(algorithm) = pinned(algorithm) else { return };
        if let Err(e) = compare(&algorithm, &bounds, &directory) {
            panic!("{e}");
        }
    });
}

/// One asks the policy of another slot, the other asks the same.
#[test]
fn an_aurora_that_does_not_learn_moves_as_one_that_might() {
    let moves = |name| {
        let algorithm = ccplane_algs::all().into_iter().find(|a| a.name() == name).unwrap();
        let text = render(&algorithm, &bounds(&*algorithm)).unwrap();
        text.split_once('\n').unwrap().1.to_owned()
    };
    assert_eq!(moves("aurora-still"), moves("aurora"));
}

#[test]
fn defaults_lie_within_their_ranges_and_say_nothing_new() {
    each(|algorithm, bounds| {
        let defaults: Vec<_> = algorithm.parameters().iter().map(|p| (p.name, p.default)).collect();
        for p in algorithm.parameters() {
            assert!(p.min <= p.default && p.default <= p.max, "{}: {p:?}", algorithm.name());
            assert!(!p.about.is_empty(), "{}: {p:?}", algorithm.name());
            for found in [p.min.checked_sub(1), p.max.checked_add(1)].into_iter().flatten() {
                assert!(configure(&algorithm, [(p.name, found)]).is_err(), "{found}: {p:?}");
            }
        }
        assert!(configure(&algorithm, [("no-such-parameter", 1)]).is_err());
        let configured = configure(&algorithm, defaults).unwrap();
        assert_eq!(configured.name(), algorithm.name());
        assert_eq!(render(&configured, &bounds).unwrap(), render(&algorithm, &bounds).unwrap());
    });
}

/// A parameter at the end of its range may make a flow slow, and report seldom. It must not make it misbehave.
#[test]
fn no_parameter_within_its_range_breaks_a_flow() {
    each(|algorithm, _| {
        for p in algorithm.parameters() {
            for value in [p.min, p.max] {
                let configured = configure(&algorithm, [(p.name, value)]).unwrap();
                let bounds = Bounds { min_rate_bytes_per_s: 1, report_us: 60_000_000, ..bounds(&*algorithm) };
                for Scenario { name, path, operations } in scenario::all() {
                    if let Err(v) = check(&configured, path, &operations, &bounds) {
                        panic!("{} with {} = {value}, {name}: {v}", algorithm.name(), p.name);
                    }
                }
            }
        }
    });
}
