//! A flood from others' addresses beside a client that asks: the client is served, and nobody hears more than was asked in his name.

use std::io;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use ccplane_emulator::netns::Namespace;
use ccplane_predict::packet::MAX_DATAGRAM_BYTES;

use super::request;

/// Datagrams of a flood that are no request.
pub const FLOOD: u64 = 20_000;
/// The client and a stranger ask once in so many of them: a prime, so that all strangers have their turns.
const EVERY: u64 = 101;
/// Bytes of the longest datagram that is no request, plus 1.
const LENGTHS: u64 = 600;
/// Time that the client waits for an answer. A full queue may lose a question, as any network may.
const PATIENCE: Duration = Duration::from_secs(1);
/// Addresses that are for examples (RFC 5737), to which no server has a way.
const FORGED: &str = "198.51.100";
const STRANGERS: usize = 64;

/// Binds sockets to addresses to which the other end of a cable has no way; what is sent back over the cable reaches them all the same.
pub fn strangers(namespace: &Namespace) -> Vec<UdpSocket> {
    for arguments in ["link set lo up", &format!("route add local {FORGED}.0/24 dev lo")] {
        let mut ip = Command::new("ip");
        let output = namespace.enter(ip.args(arguments.split(' '))).unwrap().output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let bind = |n| UdpSocket::bind(format!("{FORGED}.{n}:0")).unwrap();
    namespace.run(|| (1..=STRANGERS).map(bind).collect()).unwrap()
}

/// Floods the server to which `client` is connected, and asks it in between under the client's and the strangers' addresses.
///
/// Returns how many answers came, to the client and to the strangers.
pub fn run(client: &UdpSocket, strangers: &[UdpSocket], inputs: &[u8]) -> u64 {
    let server = client.peer_addr().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut garbage = [0x43; LENGTHS as usize];
    let mut reply = [0; MAX_DATAGRAM_BYTES];
    let (mut asked, mut answered, mut longest) = (0, 0, 0);
    for n in 0..FLOOD {
        let stranger = &strangers[n as usize % strangers.len()];
        garbage[0] = n as u8;
        stranger.send_to(&garbage[..(n % LENGTHS) as usize], server).unwrap();
        if n.is_multiple_of(EVERY) {
            let question = request(0, n, inputs);
            stranger.send_to(&question, server).unwrap();
            client.send(&question).unwrap();
            answered += u64::from(client.recv(&mut reply).is_ok());
            asked += 1;
            longest = question.len();
        }
    }
    assert!(answered > asked / 2, "{answered} of {asked} answered");
    let mut heard = 0;
    for stranger in strangers {
        stranger.set_nonblocking(true).unwrap();
        let silence = loop {
            match stranger.recv(&mut reply) {
                Ok(bytes) => assert!(bytes <= longest, "{bytes} bytes for {longest}"),
                Err(error) => break error,
            }
            heard += 1;
        };
        assert_eq!(silence.kind(), io::ErrorKind::WouldBlock);
    }
    // They hear what was asked in their names, so what came beyond that would be seen here.
    assert!((asked / 2..=asked).contains(&heard), "{heard} answers to {asked} questions");
    answered + heard
}
