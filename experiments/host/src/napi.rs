//! The NAPI instances of an interface, through which its queues are polled, by the kernel's netdev family of generic netlink
//! (Documentation/netlink/specs/netdev.yaml).
//!
//! Instances have numbers that change when the device is set up anew; here the first one of an interface is 0.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

use crate::machine::Machine;

/// Values of an instance that may be changed, as the kernel's specification names them.
pub(crate) const VALUES: [&str; 3] = ["irq-suspend-timeout", "gro-flush-timeout", "defer-hard-irqs"];

/// Bytes of an answer that are taken at once; the kernel's pieces are shorter.
const MAX_ANSWER_BYTES: usize = 1 << 16;
/// Bytes of `struct nlmsghdr`, and of `struct genlmsghdr` behind it.
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
/// Bytes before an attribute's value, and what its length is rounded up to.
const ATTRIBUTE_BYTES: usize = 4;
const ALIGNMENT: usize = 4;
/// Bits of an attribute's type that do not name it (`NLA_TYPE_MASK`).
const TYPE_FLAGS: u16 = 0xc000;

/// Flags of a request that is answered once and then acknowledged (include/uapi/linux/netlink.h).
const DO: u16 = 1 | 4;
/// Flags of a request that is answered by all that there are.
const DUMP: u16 = 1 | 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// The family that knows the others by name, its question and the attributes (include/uapi/linux/genetlink.h).
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The family, its questions and the attributes of an instance (include/uapi/linux/netdev.h).
const NETDEV: &str = "netdev";
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const INTERFACE: u16 = 1;
const ID: u16 = 2;
const DEFER_HARD_IRQS: u16 = 5;
const GRO_FLUSH_TIMEOUT: u16 = 6;
const IRQ_SUSPEND_TIMEOUT: u16 = 7;

/// Returns the number of an interface's instances; 0 where the kernel tells of none.
pub(crate) fn count(machine: &Machine, interface: &str) -> u32 {
    let found = Netdev::open(machine).and_then(|netdev| netdev.instances(machine, interface));
    found.map_or(0, |found| u32::try_from(found.len()).unwrap_or(u32::MAX))
}

/// Reads a value of [`VALUES`]; none where the kernel has no such value.
///
/// # Errors
/// There is no such instance, or the kernel does not tell of it.
pub(crate) fn read(machine: &Machine, interface: &str, napi: u32, value: &str) -> io::Result<Option<String>> {
    let instance = Netdev::open(machine)?.instance(machine, interface, napi)?;
    Ok(instance.number(attribute_of(value)).map(|number| number.to_string()))
}

/// Changes a value of [`VALUES`].
///
/// # Errors
/// There is no such instance, the text is no number, or the kernel refuses.
pub(crate) fn write(
    machine: &Machine,
    interface: &str,
    napi: u32,
    value: &str,
    text: &str,
) -> io::Result<()> {
    let netdev = Netdev::open(machine)?;
    let instance = netdev.instance(machine, interface, napi)?;
    let id = instance.number(ID).and_then(|id| u32::try_from(id).ok()).ok_or(io::ErrorKind::InvalidData)?;
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, "no number that it could have");
    let number = match attribute_of(value) {
        DEFER_HARD_IRQS => text.parse::<u32>().map_err(wrong)?.to_ne_bytes().to_vec(),
        _ => text.parse::<u64>().map_err(wrong)?.to_ne_bytes().to_vec(),
    };
    let wanted = [attribute(ID, &id.to_ne_bytes()), attribute(attribute_of(value), &number)].concat();
    netdev.ask(NAPI_SET, DO, &wanted).map(drop)
}

/// The attribute of a value of [`VALUES`].
fn attribute_of(value: &str) -> u16 {
    match value {
        "defer-hard-irqs" => DEFER_HARD_IRQS,
        "gro-flush-timeout" => GRO_FLUSH_TIMEOUT,
        _ => IRQ_SUSPEND_TIMEOUT,
    }
}

/// Attributes by their types.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Attributes(BTreeMap<u16, Vec<u8>>);

impl Attributes {
    /// Takes those that are whole.
    fn of(mut bytes: &[u8]) -> Attributes {
        let mut found = BTreeMap::new();
        while let Some((length, kind)) = two(bytes) {
            let Some(value) = bytes.get(ATTRIBUTE_BYTES..usize::from(length)) else { break };
            found.insert(kind & !TYPE_FLAGS, value.to_vec());
            bytes = bytes.get(usize::from(length).next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        Attributes(found)
    }

    /// Returns an attribute that is a number, whatever its length.
    fn number(&self, kind: u16) -> Option<u64> {
        let value = self.0.get(&kind)?.as_slice();
        match value.len() {
            2 => Some(u64::from(u16::from_ne_bytes(value.try_into().ok()?))),
            4 => Some(u64::from(u32::from_ne_bytes(value.try_into().ok()?))),
            8 => Some(u64::from_ne_bytes(value.try_into().ok()?)),
            _ => None,
        }
    }
}

/// The first two halves of a word.
fn two(bytes: &[u8]) -> Option<(u16, u16)> {
    let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    Some((half(0)?, half(2)?))
}

/// Writes an attribute, filled up to a word's end.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = ATTRIBUTE_BYTES + value.len();
    let mut out = Vec::with_capacity(length.next_multiple_of(ALIGNMENT));
    out.extend((length as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(length.next_multiple_of(ALIGNMENT), 0);
    out
}

/// A message of the kernel: its type, its content, and the bytes behind it; none where there is no whole one.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let content = bytes.get(HEADER_BYTES..length)?;
    Some((kind, content, bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default()))
}

/// A socket to the kernel's family netdev, in the network namespace of the thread that opened it.
struct Netdev {
    socket: OwnedFd,
    family: u16,
}

impl Netdev {
    /// Opens the socket and asks for the family.
    ///
    /// # Errors
    /// The kernel has no such family; a recorded machine has none.
    fn open(machine: &Machine) -> io::Result<Netdev> {
        if machine.is_recorded() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkGeneric)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let control = Netdev { socket, family: CONTROL };
        let name = [NETDEV.as_bytes(), &[0]].concat();
        let found = control.ask(GET_FAMILY, DO, &attribute(FAMILY_NAME, &name))?;
        let family = found.iter().find_map(|family| family.number(FAMILY_ID));
        let family = family.and_then(|id| u16::try_from(id).ok()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Netdev { family, ..control })
    }

    /// Returns an interface's instances, in the order of their numbers.
    fn instances(&self, machine: &Machine, interface: &str) -> io::Result<Vec<Attributes>> {
        let index: u32 = machine
            .number(&format!("/sys/class/net/{interface}/ifindex"))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such interface"))?;
        let mut found = self.ask(NAPI_GET, DUMP, &attribute(INTERFACE, &index.to_ne_bytes()))?;
        found.retain(|instance| instance.number(INTERFACE) == Some(u64::from(index)));
        found.sort_by_key(|instance| instance.number(ID));
        Ok(found)
    }

    fn instance(&self, machine: &Machine, interface: &str, napi: u32) -> io::Result<Attributes> {
        let mut found = self.instances(machine, interface)?;
        if (napi as usize) < found.len() {
            return Ok(found.swap_remove(napi as usize));
        }
        let why = format!("NAPI instances of the interface: {}", found.len());
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }

    /// Asks and returns all answers.
    ///
    /// # Errors
    /// The kernel's error.
    fn ask(&self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Attributes>> {
        let length = HEADER_BYTES + GENERIC_BYTES + attributes.len();
        let mut request = Vec::with_capacity(length);
        request.extend((length as u32).to_ne_bytes());
        request.extend(self.family.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        // The number of the request, and the port of the asker, which the kernel fills in; then the command of version 1.
        request.extend(1_u32.to_ne_bytes());
        request.extend(0_u32.to_ne_bytes());
        request.extend([command, 1, 0, 0]);
        request.extend(attributes);
        send(self.socket.as_raw_fd(), &request, MsgFlags::empty())?;
        let (mut found, mut buffer) = (Vec::new(), vec![0; MAX_ANSWER_BYTES]);
        loop {
            let bytes = match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => continue,
                received => received?,
            };
            let mut rest = buffer.get(..bytes).unwrap_or_default();
            while let Some((kind, content, after)) = message(rest) {
                rest = after;
                match kind {
                    DONE => return Ok(found),
                    ERROR => {
                        let code = content.get(..4).and_then(|code| code.try_into().ok());
                        return match code.map_or(0, i32::from_ne_bytes) {
                            0 => Ok(found),
                            code => Err(io::Error::from_raw_os_error(-code)),
                        };
                    }
                    _ => found.push(Attributes::of(content.get(GENERIC_BYTES..).unwrap_or_default())),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back() {
        let bytes =
            [attribute(ID, &7_u32.to_ne_bytes()), attribute(3, b"odd"), attribute(6, &9_u64.to_ne_bytes())];
        assert_eq!(bytes.each_ref().map(Vec::len), [8, 8, 12]);
        let read = Attributes::of(&bytes.concat());
        assert_eq!((read.number(ID), read.number(6), read.number(3)), (Some(7), Some(9), None));
        assert_eq!(read.0[&3], b"odd");
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let bytes = [attribute(ID, &7_u32.to_ne_bytes()), attribute(6, &9_u64.to_ne_bytes())].concat();
        for end in 0..bytes.len() {
            let read = Attributes::of(&bytes[..end]);
            assert_eq!((read.number(ID), read.number(6)), ((end >= 8).then_some(7), None), "{end} bytes");
        }
        assert_eq!(Attributes::of(&[2, 0, 1, 0, 9, 9]), Attributes::default(), "shorter than its own head");
        assert_eq!(message(&[0; 15]), None);
        assert_eq!(message(&[4, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None, "shorter than its head");
    }

    /// Loopback has no device, and so nothing to poll.
    #[test]
    fn loopback_has_no_instances() {
        let machine = Machine::this();
        assert_eq!(count(&machine, "lo"), 0);
        assert!(read(&machine, "lo", 0, VALUES[0]).is_err());
        assert!(write(&machine, "no-such-device", 0, VALUES[0], "1").is_err());
    }
}
