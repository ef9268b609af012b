//! The limit of descriptors.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;

/// Lets this process open as many descriptors as its hard limit allows (`RLIMIT_NOFILE`, getrlimit(2)).
///
/// # Errors
/// The kernel's refusal.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        raise_descriptor_limit().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }
}
