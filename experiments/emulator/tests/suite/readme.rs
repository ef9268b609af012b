//! The README's blocks, which are these lines.

use std::error::Error;
use std::net::UdpSocket;
use std::path::Path;

use ccplane_emulator::{Direction, Emulator, LinkConfig, MultiPath, Queue, Shape, netns};
use nix::sys::socket::{setsockopt, sockopt};

/// One link, whose rate becomes that of a trace.
fn one_link(folder: &Path, trace: &Path) -> Result<(), Box<dyn Error>> {
    let mut config = LinkConfig::symmetric(Shape::mbit(12), 20_000); // 12 Mb/s, 20 ms each way
    config.up.queue = Queue::packets(60);
    config.up.log = Some(folder.join("up.log")); // for mm-throughput-graph
    let emulator = Emulator::start(&config)?;
    let socket = emulator.sender_ns().run(|| UdpSocket::bind("0.0.0.0:0"))?; // or enter(&mut Command)
    emulator.set_shape(Direction::Up, Shape::load(trace)?)?;
    println!("{:?}", emulator.stats().up);
    emulator.stop()?; // or drop it
    drop(socket?);
    Ok(())
}

/// Two links, and a socket on the second one.
fn two_links(socket: &UdpSocket, slow: LinkConfig, fast: LinkConfig) -> Result<(), Box<dyn Error>> {
    let paths = MultiPath::start(&[slow, fast])?; // 2 to 8 links between two namespaces
    setsockopt(&socket, sockopt::Mark, &MultiPath::mark(1))?; // before or after it connects, IPv4 or IPv6
    drop(paths);
    Ok(())
}

#[test]
fn the_readmes_lines_run() {
    if !netns::available() {
        let why = "needs root and /dev/net/tun to make network namespaces";
        return ccplane_testing::skipped("the_readmes_lines_run", why);
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("link.trace");
    std::fs::write(&trace, "1\n2\n").unwrap();
    one_link(folder.path(), &trace).unwrap();
    assert!(folder.path().join("up.log").is_file());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let [slow, fast] = [12, 24].map(|mbit| LinkConfig::symmetric(Shape::mbit(mbit), 5_000));
    two_links(&socket, slow, fast).unwrap();
}
