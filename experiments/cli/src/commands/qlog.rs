//! `ccplane qlog`: a flow's trace.

use crate::cli::QlogArgs;
use ccplane_agent::control::{Request, Response, open};
use ccplane_agent::failure::Failure;
use ccplane_agent::qlog::{Bounded, Filter, Format, MAX_TRACE_BYTES, header};
use std::fs::File;
use std::io::{BufRead, ErrorKind, Write};

/// The trace has reached its bound.
#[derive(Debug, thiserror::Error)]
#[error("the trace has {MAX_TRACE_BYTES} bytes, the most that one file gets: what came later is not in it")]
struct Full;

pub(crate) fn qlog(args: &QlogArgs) -> Result<(), Failure> {
    let located = args.place.locate(None)?;
    let format = if args.ndjson { Format::Ndjson } else { Format::JsonSeq };
    let filter = Filter { flow: args.flow, datapath: args.datapath.clone() };
    let timeout = located.config.control.timeout_ms.millis();
    let (response, records) = open(&located.control_socket, timeout, &Request::Qlog { filter })?;
    let Response::Qlog { reference_ms } = response else { return Err(super::control::unexpected(response)) };
    let (to, bytes): (Box<dyn Write>, u64) = match &args.output {
        Some(path) => (Box::new(File::create(path)?), MAX_TRACE_BYTES),
        None => (Box::new(std::io::stdout().lock()), u64::MAX),
    };
    let mut to = Bounded::new(to, bytes);
    let mut put = |record: &str| {
        let written = to.put(format.frame(record).as_bytes()).and_then(|fits| to.flush().map(|()| fits));
        match written {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::runtime(Full)),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::ReaderLeft),
            Err(error) => Err(error.into()),
        }
    };
    put(&header(format, reference_ms, "TCP").to_string())?;
    records.lines().try_for_each(|record| put(&record?))
}
