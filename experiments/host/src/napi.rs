//! The NAPI instances of an interface, through which its queues are polled, by the kernel's netdev family of generic netlink
//! (Documentation/netlink/specs/netdev.yaml).
//!
//! Instances have numbers that change when the device is set up anew; here the first one of an interface is 0.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_ALIGNTO,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

use crate::machine::Machine;

/// A value of an instance that may be changed.
struct Value {
    /// The name in the kernel's specification.
    name: &'static str,
    attribute: u16,
    /// Whether it is written as a long number.
    is_long: bool,
}

/// The values of an instance that may be changed (include/uapi/linux/netdev.h).
const TABLE: [Value; 3] = [
    Value { name: "irq-suspend-timeout", attribute: 7, is_long: true },
    Value { name: "gro-flush-timeout", attribute: 6, is_long: true },
    Value { name: "defer-hard-irqs", attribute: 5, is_long: false },
];
/// The names of these values.
pub(crate) const VALUES: [&str; 3] = [TABLE[0].name, TABLE[1].name, TABLE[2].name];

/// Bytes of an answer that are taken at once; the kernel's pieces are shorter.
const MAX_ANSWER_BYTES: usize = 1 << 16;
/// Bytes of `struct genlmsghdr`, which is before the attributes.
const GENERIC_BYTES: usize = 4;
/// The version of both families' commands.
const COMMAND_VERSION: u8 = 1;

/// The family that knows the others by name, its question and the attributes (include/uapi/linux/genetlink.h).
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The family, its questions and the attributes that name an instance (include/uapi/linux/netdev.h).
const NETDEV: &str = "netdev";
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const INTERFACE: u16 = 1;
const ID: u16 = 2;

impl Value {
    fn named(name: &str) -> io::Result<&'static Value> {
        const ALL: &[Value] = &TABLE;
        ALL.iter().find(|value| value.name == name).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// The number in a text, as the attribute has it.
    fn bytes(&self, text: &str) -> io::Result<Vec<u8>> {
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, "no number that it could have");
        Ok(if self.is_long {
            text.parse::<u64>().map_err(wrong)?.to_ne_bytes().to_vec()
        } else {
            text.parse::<u32>().map_err(wrong)?.to_ne_bytes().to_vec()
        })
    }
}

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
    let value = Value::named(value)?;
    let instance = Netdev::open(machine)?.instance(machine, interface, napi)?;
    Ok(instance.number(value.attribute).map(|number| number.to_string()))
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
    let value = Value::named(value)?;
    let netdev = Netdev::open(machine)?;
    let instance = netdev.instance(machine, interface, napi)?;
    let id = instance.number(ID).and_then(|id| u32::try_from(id).ok()).ok_or(io::ErrorKind::InvalidData)?;
    let wanted = vec![number(ID, id), DefaultNla::new(value.attribute, value.bytes(text)?)];
    netdev.ask(NAPI_SET, NLM_F_ACK, wanted).map(drop)
}

/// An attribute that is a number.
fn number(attribute: u16, number: u32) -> DefaultNla {
    DefaultNla::new(attribute, number.to_ne_bytes().to_vec())
}

/// A question to a family of generic netlink.
struct Question {
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl Question {
    /// The bytes of the message that asks.
    fn framed(self, flags: u16) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = 1;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(self));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }
}

impl NetlinkSerializable for Question {
    fn message_type(&self) -> u16 {
        self.family
    }
    fn buffer_len(&self) -> usize {
        GENERIC_BYTES + self.attributes.as_slice().buffer_len()
    }
    fn serialize(&self, buffer: &mut [u8]) {
        let (head, attributes) = buffer.split_at_mut(GENERIC_BYTES);
        head.copy_from_slice(&[self.command, COMMAND_VERSION, 0, 0]);
        self.attributes.as_slice().emit(attributes);
    }
}

/// The attributes of an answer, by their types.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Attributes(BTreeMap<u16, Vec<u8>>);

impl NetlinkDeserializable for Attributes {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Attributes, DecodeError> {
        let attributes = payload.get(GENERIC_BYTES..).ok_or("an answer without a command")?;
        let found =
            NlasIterator::new(attributes).map(|nla| nla.map(|nla| (nla.kind(), nla.value().to_vec())));
        found.collect::<Result<_, _>>().map(Attributes)
    }
}

impl Attributes {
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
        let found = control.ask(GET_FAMILY, NLM_F_ACK, vec![DefaultNla::new(FAMILY_NAME, name)])?;
        let family = found.iter().find_map(|family| family.number(FAMILY_ID));
        let family = family.and_then(|id| u16::try_from(id).ok()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Netdev { family, ..control })
    }

    /// Returns an interface's instances, in the order of their numbers.
    fn instances(&self, machine: &Machine, interface: &str) -> io::Result<Vec<Attributes>> {
        let index: u32 = machine
            .number(&format!("/sys/class/net/{interface}/ifindex"))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such interface"))?;
        let mut found = self.ask(NAPI_GET, NLM_F_DUMP, vec![number(INTERFACE, index)])?;
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
    fn ask(&self, command: u8, flags: u16, attributes: Vec<DefaultNla>) -> io::Result<Vec<Attributes>> {
        let question = Question { family: self.family, command, attributes }.framed(flags);
        send(self.socket.as_raw_fd(), &question, MsgFlags::empty())?;
        let (mut found, mut buffer) = (Vec::new(), vec![0; MAX_ANSWER_BYTES]);
        loop {
            let bytes = match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => continue,
                received => received?,
            };
            let mut rest = buffer.get(..bytes).unwrap_or_default();
            while !rest.is_empty() {
                let (message, behind) = first(rest)?;
                rest = behind;
                let code = match message {
                    NetlinkPayload::InnerMessage(attributes) => {
                        found.push(attributes);
                        continue;
                    }
                    NetlinkPayload::Noop => continue,
                    NetlinkPayload::Done(done) => done.code,
                    NetlinkPayload::Error(error) => error.raw_code(),
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                };
                return if code == 0 { Ok(found) } else { Err(io::Error::from_raw_os_error(-code)) };
            }
        }
    }
}

/// The first of the kernel's messages, and the bytes behind it.
fn first(bytes: &[u8]) -> io::Result<(NetlinkPayload<Attributes>, &[u8])> {
    let message = NetlinkMessage::<Attributes>::deserialize(bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let length = (message.header.length as usize).next_multiple_of(NLMSG_ALIGNTO.into());
    Ok((message.payload, bytes.get(length..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(attributes: Vec<DefaultNla>) -> Vec<u8> {
        Question { family: 0x22, command: 9, attributes }.framed(NLM_F_ACK)
    }

    /// The bytes that linux/netlink.h and linux/genetlink.h describe.
    #[test]
    fn a_question_is_framed_as_the_kernel_reads_it() {
        let framed = question(vec![DefaultNla::new(FAMILY_NAME, b"netdev\0".to_vec()), number(ID, 7)]);
        let halves = |halves: [u16; 2]| halves.map(u16::to_ne_bytes).concat();
        let expected = [
            40_u32.to_ne_bytes().to_vec(),
            halves([0x22, 1 | 4]),
            1_u32.to_ne_bytes().to_vec(),
            0_u32.to_ne_bytes().to_vec(),
            vec![9, 1, 0, 0],
            halves([11, 2]),
            b"netdev\0\0".to_vec(),
            halves([8, 2]),
            7_u32.to_ne_bytes().to_vec(),
        ];
        assert_eq!(framed, expected.concat());
    }

    #[test]
    fn answers_are_read_one_after_the_other() {
        let long = DefaultNla::new(6, 9_u64.to_ne_bytes().to_vec());
        let attributes = vec![number(ID, 7), DefaultNla::new(3, b"odd".to_vec()), long];
        let (one, other) = (question(attributes), question(vec![number(ID, 8)]));
        let both = [&one[..], &other].concat();
        let (NetlinkPayload::InnerMessage(read), rest) = first(&both).unwrap() else { panic!("no answer") };
        assert_eq!((read.number(ID), read.number(6), read.number(3)), (Some(7), Some(9), None));
        assert_eq!(read.0[&3], b"odd");
        let (NetlinkPayload::InnerMessage(read), rest) = first(rest).unwrap() else { panic!("no answer") };
        assert_eq!((read.number(ID), rest.len()), (Some(8), 0));
        for end in 0..one.len() {
            assert!(first(&one[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn values_are_numbers_that_fit() {
        let bytes = |name, text| Value::named(name).unwrap().bytes(text).ok();
        assert_eq!(bytes("gro-flush-timeout", "5000000000"), Some(5_000_000_000_u64.to_ne_bytes().to_vec()));
        assert_eq!(bytes("defer-hard-irqs", "3"), Some(3_u32.to_ne_bytes().to_vec()));
        assert_eq!([bytes("defer-hard-irqs", "5000000000"), bytes("gro-flush-timeout", "few")], [None, None]);
        assert!(Value::named("ifindex").is_err());
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
