//! A cable between two namespaces, a client at one end, servers at the other.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth::{self, DEVICE, ENDS};
use ccplane_predict::load::{self, Load, LoadOutcome};
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, write_request};
use ccplane_predict::xsk::Xsk;
use ccplane_predict::{Choice, Key, Server, Service, sockets, uring};
use ccplane_predict_xdp::{Attachment, Counter, Options, Plain, Random, Target, XdpMode, XdpServer};

use super::client::ClientEnd;
#[cfg(feature = "dpdk")]
use super::port::PortCable;
use super::{Asked, missing};
use crate::cores::OneCore;
#[cfg(feature = "dpdk")]
use crate::error::tell_lack;
use crate::error::{BenchError, context};
use crate::processor;
use crate::proof::{Proof, Unproven};

const PORT: u16 = 7117;
/// The core of the client, and that of a server with a thread.
const CLIENT_CORE: usize = 0;
const SERVER_CORE: usize = 1;
/// Runs of networks alone.
const NETWORK_RUNS: u32 = 20_000;

/// A server that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contender {
    Blocking,
    IoUring,
    AfXdp,
    /// A DPDK port over XDP sockets.
    #[cfg(feature = "dpdk")]
    Dpdk,
    Xdp,
    /// No server, but what one in XDP takes at least.
    Echo,
}

impl Contender {
    /// Those with rows of their own.
    pub(super) const ALL: &'static [Contender] = &[
        Contender::Blocking,
        Contender::IoUring,
        Contender::AfXdp,
        #[cfg(feature = "dpdk")]
        Contender::Dpdk,
        Contender::Xdp,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Blocking => "blocking",
            Contender::IoUring => "io_uring",
            Contender::AfXdp => "af_xdp",
            #[cfg(feature = "dpdk")]
            Contender::Dpdk => "dpdk",
            Contender::Xdp => "xdp",
            Contender::Echo => "echo",
        }
    }

    /// The cores that take part.
    pub(super) fn cores(self) -> &'static str {
        match self {
            Contender::Xdp | Contender::Echo => "as many requests as one core can send and answer",
            _ => "as many requests as the client's core can send, answered by another core",
        }
    }
}

/// The cable. Each end has an XDP program in native mode all the time.
pub(super) struct Lab<'a> {
    asked: &'a Asked,
    client: ClientEnd,
    far: Namespace,
    /// The port's own cable, where DPDK runs here.
    #[cfg(feature = "dpdk")]
    port: Option<PortCable>,
    pass: Plain,
}

impl<'a> Lab<'a> {
    pub(super) fn new(asked: &'a Asked) -> Result<Lab<'a>, BenchError> {
        crate::error::check_namespaces()?;
        let (client, server) = (Namespace::anonymous()?, Namespace::anonymous()?);
        veth::connect(&client, &server)?;
        Ok(Lab {
            asked,
            client: ClientEnd::open(client, &server, PORT)?,
            far: server,
            #[cfg(feature = "dpdk")]
            port: match PortCable::new(PORT) {
                Ok(port) => Some(port),
                Err(BenchError::Missing(lack)) => {
                    tell_lack("predict", "predict.dpdk", lack);
                    None
                }
                Err(error) => return Err(error),
            },
            pass: Plain::pass().map_err(missing)?,
        })
    }

    /// The servers with rows of their own that can be had here.
    pub(super) fn contenders(&self) -> impl Iterator<Item = Contender> {
        let is_here = move |contender: &Contender| match contender {
            #[cfg(feature = "dpdk")]
            Contender::Dpdk => self.port.is_some(),
            Contender::Blocking
            | Contender::IoUring
            | Contender::AfXdp
            | Contender::Xdp
            | Contender::Echo => true,
        };
        Contender::ALL.iter().copied().filter(is_here)
    }

    /// Starts a server, which ends when what is returned does.
    pub(super) fn serve(&self, contender: Contender) -> Result<Running, BenchError> {
        let attach = |attach: &(dyn Fn() -> Result<Attachment, ccplane_predict_xdp::XdpError> + Sync)| {
            self.far.run(attach)?.map_err(missing)
        };
        let key = Key::random().map_err(missing)?;
        let target = Target { port: PORT, addresses: vec![ENDS[1]] };
        Ok(match contender {
            Contender::Blocking | Contender::IoUring => {
                let pass = &self.pass;
                let attached = attach(&|| pass.attach(DEVICE, XdpMode::Native))?;
                let socket = context("bind", self.far.run(|| UdpSocket::bind((ENDS[1], PORT)))?)?;
                let serve = if contender == Contender::IoUring { uring::serve } else { sockets::serve };
                let started =
                    Threaded::start(self.server(key)?, move |service, stop| serve(&socket, service, stop));
                Running::Thread(started, Some(attached))
            }
            Contender::AfXdp => {
                // Its own XDP program leads to the socket.
                let mut socket = self.far.run(|| Xsk::open(DEVICE, PORT))?.map_err(missing)?;
                let started =
                    Threaded::start(self.server(key)?, move |service, stop| socket.serve(service, stop));
                Running::Thread(started, None)
            }
            #[cfg(feature = "dpdk")]
            Contender::Dpdk => {
                let port = self.port.as_ref().ok_or_else(|| missing("there is no DPDK port"))?.port();
                let started =
                    Threaded::start(self.server(key)?, move |service, stop| port.serve(service, stop));
                Running::Thread(started, None)
            }
            Contender::Xdp => {
                let server = self.xdp(target, key)?;
                let attached = attach(&|| server.attach(DEVICE, XdpMode::Native))?;
                Running::Kernel(Box::new(server), attached)
            }
            Contender::Echo => {
                let echo = Plain::echo(&target).map_err(missing)?;
                Running::Echo(attach(&|| echo.attach(DEVICE, XdpMode::Native))?)
            }
        })
    }

    /// Makes a server of user space.
    fn server(&self, key: Key) -> Result<Server, BenchError> {
        let portfolio = Arc::clone(&self.asked.portfolio);
        Server::new(portfolio, &Choice::DEFAULT, key, None).map_err(missing)
    }

    fn xdp(&self, target: Target, key: Key) -> Result<XdpServer, BenchError> {
        let options = Options { target, choices: Choice::DEFAULT.to_vec(), key, random: Random::Kernel };
        XdpServer::load(&options, &self.asked.portfolio, None).map_err(missing)
    }

    /// The end of the cable from which a server is asked.
    fn beside(&self, contender: Contender) -> &ClientEnd {
        match contender {
            #[cfg(feature = "dpdk")]
            Contender::Dpdk => self.port.as_ref().map_or(&self.client, PortCable::client),
            Contender::Blocking
            | Contender::IoUring
            | Contender::AfXdp
            | Contender::Xdp
            | Contender::Echo => &self.client,
        }
    }

    /// Another ordinary socket of a client.
    pub(super) fn socket(&self, contender: Contender) -> Result<UdpSocket, BenchError> {
        self.beside(contender).socket()
    }

    /// Puts a load on the server.
    pub(super) fn ask(&self, contender: Contender, load: &Load) -> Result<LoadOutcome, BenchError> {
        let _core = OneCore::nth(CLIENT_CORE);
        let mut client = self.beside(contender).polling();
        context("ask", load::run(&mut *client, &self.asked.images, load))
    }

    /// Puts a load on the server from an ordinary socket.
    pub(super) fn ask_by_socket(&self, contender: Contender, load: &Load) -> Result<LoadOutcome, BenchError> {
        let _core = OneCore::nth(CLIENT_CORE);
        // A socket of its own, so that no late reply to an earlier load counts.
        context("ask", load::run(&self.socket(contender)?, &self.asked.images, load))
    }

    /// Puts a load on the server. Also returns the replies that came for each second of processor time that the machine spent, the
    /// client's included, while requests were sent.
    pub(super) fn ask_per_core(
        &self,
        contender: Contender,
        load: &Load,
    ) -> Result<(LoadOutcome, f64), BenchError> {
        let _core = OneCore::nth(CLIENT_CORE);
        let mut client = self.beside(contender).polling();
        let before = processor::busy()?;
        let (mut answered, mut after) = (0, Ok(before));
        let mut ended = |outcome: &LoadOutcome| {
            answered = outcome.answered;
            after = processor::busy();
        };
        let outcome = context("ask", load::run_then(&mut *client, &self.asked.images, load, &mut ended))?;
        let spent = after?.saturating_sub(before).as_secs_f64();
        Ok((outcome, answered as f64 / spent.max(f64::MIN_POSITIVE)))
    }

    /// The time that the networks of a request take in the kernel, over some images.
    pub(super) fn network_ns(&self, choice: Choice) -> Result<f64, BenchError> {
        const IMAGES: usize = 16;
        let key = Key::random().map_err(missing)?;
        let server = self.xdp(Target { port: PORT, addresses: Vec::new() }, key)?;
        let mut sum = 0.0;
        for n in 0..IMAGES {
            let (pixels, _) = self.asked.images.get(n).ok_or_else(|| missing("too few images"))?;
            let mut request = [0; MAX_DATAGRAM_BYTES];
            let length = write_request(&mut request, 0, 0, pixels);
            sum += server.network_ns(choice, &request[..length], NETWORK_RUNS).map_err(missing)?;
        }
        Ok(sum / IMAGES as f64)
    }
}

/// A server that runs.
pub(super) enum Running {
    Thread(Threaded, Option<Attachment>),
    Kernel(Box<XdpServer>, Attachment),
    Echo(#[expect(dead_code, reason = "it is attached as long as it lives")] Attachment),
}

impl Running {
    /// Ends the server, and proves that it answered at least so many requests.
    pub(super) fn proof(self, answered: u64) -> Result<Proof, BenchError> {
        let counted = match self {
            Running::Thread(thread, _attached) => thread.end()?,
            Running::Kernel(server, _attached) => server.count(Counter::Requests),
            Running::Echo(_) => 0,
        };
        if counted < answered {
            let what = "requests that the server answered";
            return Err(Unproven::Count { what, counted, wanted: answered }.into());
        }
        Ok(Proof::counted("requests that the server answered", counted)?)
    }
}

/// A server in a thread of its own.
pub(super) struct Threaded {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Threaded {
    fn start(
        server: Server,
        serve: impl FnOnce(&mut Service, &AtomicBool) -> io::Result<()> + Send + 'static,
    ) -> Threaded {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let _core = OneCore::nth(SERVER_CORE);
            let (mut service, _remote) = Service::new(server, [1; 32]);
            serve(&mut service, &stopped)?;
            Ok(service.server().counters().requests)
        });
        Threaded { stop, thread: Some(thread) }
    }

    /// Ends the thread; returns the requests that it answered.
    fn end(mut self) -> Result<u64, BenchError> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(counted)) => context("serve", counted),
            _ => Err(missing("the server's thread ended")),
        }
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its socket is to be closed before another one is bound.
            let _ = thread.join();
        }
    }
}
