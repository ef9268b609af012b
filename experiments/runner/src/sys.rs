//! The system calls that no safe wrapper covers; the only file with `unsafe`.

use std::os::fd::{AsFd, AsRawFd};

/// The largest `struct tcp_info` of kernels to come, bytes; that of 6.18 has 280.
const TCP_INFO_ROOM: usize = 512;

/// Returns the bytes of a TCP socket's `struct tcp_info`, as many as the running kernel has.
pub fn tcp_info(socket: impl AsFd) -> nix::Result<Vec<u8>> {
    let mut bytes = vec![0u8; TCP_INFO_ROOM];
    let mut len = TCP_INFO_ROOM as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, which lives across the call, and the length to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    nix::errno::Errno::result(result)?;
    bytes.truncate(len as usize);
    Ok(bytes)
}
