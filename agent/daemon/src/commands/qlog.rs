//! `ccplane qlog`: a flow's trace.

use crate::cli::QlogArgs;
use crate::control::{Request, Response, open};
use crate::failure::Failure;
use crate::qlog::{Filter, Format, header};
use std::fs::File;
use std::io::{BufRead, ErrorKind, Write};

/// `ccplane qlog`
pub(crate) fn qlog(args: &QlogArgs) -> Result<(), Failure> {
    let located = args.place.locate(None)?;
    let format = if args.ndjson { Format::Ndjson } else { Format::JsonSeq };
    let filter = Filter { flow: args.flow, datapath: args.datapath.clone() };
    let timeout = located.config.control.timeout_ms.millis();
    let (response, records) = open(&located.control_socket, timeout, &Request::Qlog { filter })?;
    let Response::Qlog { reference_ms } = response else { return Err(super::control::unexpected(response)) };
    let mut to: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(File::create(path)?),
        None => Box::new(std::io::stdout().lock()),
    };
    let mut put = |record: &str| match to.write_all(format.frame(record).as_bytes()).and_then(|()| to.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::ReaderLeft),
        other => other.map_err(Failure::from),
    };
    put(&header(format, reference_ms, "TCP").to_string())?;
    records.lines().try_for_each(|record| put(&record?))
}
