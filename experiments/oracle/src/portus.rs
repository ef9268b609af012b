//! portus's compiler, with its panics caught.

use std::cell::Cell;
use std::panic::{catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// The result of compiling a source text with portus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The bytes that it would install.
    Bytes(Vec<u8>),
    Refused(String),
    Panicked,
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Compiles and serialises `source` with portus 0.9.
pub fn compile(source: &str) -> Verdict {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(|| ::portus::lang::compile_and_serialize(source.as_bytes(), &[]));
    QUIET.set(false);
    match result {
        Ok(Ok((bytes, _))) => Verdict::Bytes(bytes),
        Ok(Err(error)) => Verdict::Refused(error.0),
        Err(_) => Verdict::Panicked,
    }
}
