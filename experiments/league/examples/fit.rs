//! Prints `cellular.jsonl`: a model of each recorded drive in a folder, `fit FOLDER`.

use ccplane_league::{Set, recordings};
use ccplane_netsim::trace::Trace;
use ccplane_traces::markov::{DEFAULT_STEP_MS, Model};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("fit FOLDER")?);
    for name in Set::ALL.into_iter().flat_map(recordings) {
        let model = Model::fit(&Trace::load(&folder.join(&name))?, DEFAULT_STEP_MS)?;
        println!("{}", serde_json::json!({ "name": name, "model": model }));
    }
    Ok(())
}
