//! `ccplane predict`: predictors are trained, served and asked.

mod client;
mod folder;
mod serve;
mod train;

use crate::cli::{PredictCommand, PredictImages};
use ccplane_agent::failure::Failure;
use ccplane_agent::sequences::RefusedSnapshot;
use ccplane_files::Bound;
use ccplane_predict::data::{DataError, Images, MAX_IDX_BYTES};
use ccplane_predict::{PortfolioError, ServerError};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

const IDX: Bound = Bound { what: "an IDX file", bytes: MAX_IDX_BYTES };
/// The name of the built-in data set.
const DIGITS: &str = "digits";

/// Reasons why a `predict` command fails.
#[derive(Debug, thiserror::Error)]
enum PredictError {
    #[error("{}: {source}", folder.display())]
    Predictors { folder: PathBuf, source: PortfolioError },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Untrusted { path: PathBuf, source: RefusedSnapshot },
    #[error("listen on {at}: {source}")]
    Listen { at: SocketAddr, source: io::Error },
    #[error("{server}: {source}")]
    Ask { server: SocketAddr, source: io::Error },
    #[error("{0} does not answer")]
    Silent(SocketAddr),
    #[error("the system gives no randomness: {0}")]
    Random(String),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the datapath has failed: {0}")]
    Datapath(String),
}

pub(crate) fn predict(command: &PredictCommand) -> Result<(), Failure> {
    match command {
        PredictCommand::Train(args) => train::train(args),
        PredictCommand::Serve(args) => serve::serve(args),
        PredictCommand::Ask(args) => client::ask(args),
        PredictCommand::Bench(args) => client::bench(args),
    }
}

/// The data set that the flags name, and its name.
fn images(args: &PredictImages) -> Result<(Images, String), Failure> {
    let (Some(images), Some(labels)) = (&args.images, &args.labels) else {
        return Ok((Images::digits().map_err(Failure::runtime)?, DIGITS.to_owned()));
    };
    let read = |file| {
        ccplane_files::read(file, IDX)
            .map_err(|e| DataError::File { file: e.file().to_owned(), why: e.reason() })
    };
    let parsed = read(images).and_then(|pixels| Images::parse(&pixels, &read(labels)?));
    let name = images.file_stem().and_then(|stem| stem.to_str()).unwrap_or("images");
    let name: String = name.chars().filter(char::is_ascii_graphic).take(32).collect();
    Ok((parsed.map_err(Failure::input)?, name))
}
