//! `ccplane predict train`: ten snapshots in a folder.

use super::{PredictError, images};
use crate::cli::PredictTrainArgs;
use crate::commands::output::{print, print_json};
use ccplane_agent::failure::Failure;
use ccplane_predict::train::{Origin, Trained};
use serde::Serialize;
use std::fs;

/// One predictor of `--json`.
#[derive(Serialize)]
struct Record<'a> {
    name: &'a str,
    hash: String,
    /// Share of the validation images that it classifies right.
    accuracy: f64,
    /// Share of the training images to which the integer network gives another class than the float network.
    quantisation_error: f64,
    bits: u8,
}

pub(super) fn train(args: &PredictTrainArgs) -> Result<(), Failure> {
    let (images, data) = images(&args.images)?;
    let origin = Origin {
        command: format!("ccplane predict train --seed {} ({data})", args.seed),
        data,
        seed: args.seed,
        created_by: concat!("ccplane ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    let mut said = Ok(());
    let trained = ccplane_predict::train::train(&images.split(), &origin, |trained| {
        if said.is_ok() {
            said = say(trained, args.json);
        }
    });
    said?;
    let failed = |path: &std::path::Path, source| {
        Failure::runtime(PredictError::File { path: path.to_owned(), source })
    };
    fs::create_dir_all(&args.folder).map_err(|e| failed(&args.folder, e))?;
    for trained in trained.map_err(Failure::runtime)? {
        // A server that looks meanwhile sees each file whole.
        let path = args.folder.join(format!("{}.{}", trained.name, super::folder::ENDING));
        let unfinished = path.with_extension("new");
        let written = fs::write(&unfinished, trained.snapshot.to_bytes());
        written.and_then(|()| fs::rename(&unfinished, &path)).map_err(|e| failed(&path, e))?;
    }
    Ok(())
}

fn say(trained: &Trained, json: bool) -> Result<(), Failure> {
    let record = Record {
        name: &trained.name,
        hash: trained.snapshot.hash().to_string(),
        accuracy: trained.accuracy,
        quantisation_error: trained.snapshot.fidelity().visited_mean_error,
        bits: trained.snapshot.shape().bits() as u8,
    };
    if json {
        return print_json(&record);
    }
    print(&format!(
        "{:<12} {:5.1} % right on validation images; its {} bits differ on {:.2} % of training images\n",
        record.name,
        100.0 * record.accuracy,
        record.bits,
        100.0 * record.quantisation_error,
    ))
}
