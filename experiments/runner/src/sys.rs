//! The system calls that no safe wrapper covers; the only file with `unsafe`.

use std::os::fd::{AsFd, AsRawFd};

/// Room for `struct tcp_info` of kernels to come; 6.18's has 280 bytes.
const TCP_INFO_ROOM: usize = 512;

mod ioctl {
    nix::ioctl_read_bad!(window_size, libc::TIOCGWINSZ, libc::winsize);
}

/// The bytes of a TCP socket's `struct tcp_info`, as many as the running kernel has.
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

/// Columns and rows of a terminal; `None` if `fd` is none, or does not know.
pub fn terminal_size(fd: impl AsFd) -> Option<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one `winsize`, which lives across the call.
    unsafe { ioctl::window_size(fd.as_fd().as_raw_fd(), &raw mut size) }.ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}
