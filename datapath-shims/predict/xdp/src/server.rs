//! The server's maps and program, and what user space changes and reads of them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::time::{Duration, Instant};

use ccplane_bandit::integer::{MAX_ARMS, Weights};
use ccplane_bpf::{
    self as bpf, AttachTo, F_MMAPABLE, MapType, ProgType, ProgramLink, SharedMap, XDP, XdpMode, XdpRun,
};
use ccplane_infer::Shape;
use ccplane_infer::image::{CLIP_LIMIT, u32_at};
use ccplane_nn_codegen::asm::{Asm, Insn};
use ccplane_nn_codegen::bpf::{ByteTable, fold, tables};
use ccplane_predict::packet::{MESSAGE_BYTES, kind, offset};
use ccplane_predict::{Choice, Key, MAX_SLOTS, Portfolio, Server, ServerError, ServerState, WINDOW};
use ccplane_snapshot::{DeployOptions, Snapshot};
use nix::unistd::{SysconfVar, sysconf};

use crate::bandit;
use crate::counters::Counter;
use crate::error::{XdpError, os};
use crate::frame::{self, MAX_ADDRESSES, Target};
use crate::layout::{Networks, VERSIONS, block, services};
use crate::program::{Maps, Program, Random};
use crate::siphash::initial;

/// Most processors: a token has a byte for the one that issued it.
pub const MAX_PROCESSORS: usize = 256;
/// Time for which a buffer rests after a predictor has left it: longer than any request takes.
const GRACE: Duration = Duration::from_micros(100);
/// Bytes before the payload of a plain IPv4 packet.
const PLAIN_HEADERS: usize = 42;
/// Bytes of a packet that a program without interest in it is run on.
const NO_PACKET: [u8; 64] = [0; 64];

/// The server's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The packets that it takes.
    pub target: Target,
    /// The way in which each slot chooses.
    pub choices: Vec<Choice>,
    /// The key of the tokens, which no earlier server has used.
    pub key: Key,
    pub random: Random,
}

/// A loaded server. Dropping it, and what [`XdpServer::attach`] returned, removes everything from the kernel.
pub struct XdpServer {
    services: SharedMap,
    blocks: SharedMap,
    networks: SharedMap,
    program: OwnedFd,
    emitted: Program,
    /// Waits for updates that have begun.
    barrier: OwnedFd,
    portfolio: Arc<Portfolio>,
    shape: Shape,
    places: Networks,
    processors: usize,
    choices: Vec<Choice>,
    /// The number of the last image, which is its uid.
    images: u32,
    /// The time at which predictors were last replaced.
    replaced: Option<Instant>,
    /// The maps, which the program holds, too.
    _maps: [OwnedFd; 5],
}

/// A program at a device, which it leaves when this is dropped or the process ends.
#[derive(Debug)]
pub struct Attachment {
    _link: ProgramLink,
}

impl XdpServer {
    /// Loads a server, with the weights that an earlier one has kept, if it did. Tokens of the earlier one are refused.
    ///
    /// # Errors
    /// [`XdpError`]: an option, a predictor, or the kernel's refusal, usually for lack of CAP_BPF.
    pub fn load(
        options: &Options,
        portfolio: &Arc<Portfolio>,
        kept: Option<&ServerState>,
    ) -> Result<XdpServer, XdpError> {
        let processors = sysconf(SysconfVar::_NPROCESSORS_CONF).ok().flatten().unwrap_or(1) as usize;
        within("addresses", options.target.addresses.len(), 0, MAX_ADDRESSES)?;
        within("processors", processors, 1, MAX_PROCESSORS)?;
        within("slots", options.choices.len(), 1, MAX_SLOTS)?;
        let shape = shape_of(portfolio, None)?;
        let predictors = portfolio.predictors().len();
        let places = Networks::new(&shape, predictors);
        let (services_map, services) = array("ccp_predict_s", services::at(options.choices.len()))?;
        let (blocks_map, blocks) = array("ccp_predict_b", processors * block::BYTES)?;
        let (windows_map, _) = array("ccp_predict_w", processors * (WINDOW / 8) as usize)?;
        let (networks_map, networks) = array("ccp_predict_n", places.bytes)?;
        let locks = bpf::map_create_locks("ccp_predict_l", options.choices.len() as u32);
        let locks = os("create map ccp_predict_l", locks)?;
        let program = Program {
            target: options.target.clone(),
            shape,
            predictors,
            processors,
            services: options.choices.clone(),
            random: options.random,
            maps: Maps {
                services: services_map.as_raw_fd(),
                blocks: blocks_map.as_raw_fd(),
                windows: windows_map.as_raw_fd(),
                networks: networks_map.as_raw_fd(),
                locks: locks.as_raw_fd(),
            },
        };
        let mut asm = Asm::default();
        bandit::barrier(&mut asm, options.choices.len(), locks.as_raw_fd());
        let barrier = load("ccp_barrier", &asm.finish()?.insns)?;
        let mut server = XdpServer {
            services,
            blocks,
            networks,
            program: load("ccp_predict", &program.assemble()?)?,
            emitted: program,
            barrier,
            portfolio: Arc::clone(portfolio),
            shape,
            places,
            processors,
            choices: options.choices.clone(),
            images: 0,
            replaced: None,
            _maps: [services_map, blocks_map, windows_map, networks_map, locks],
        };
        server.fill(options.key, kept)?;
        Ok(server)
    }

    /// The mean nanoseconds that the networks take on a request: one of them, or all, as the choice asks.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn network_ns(&self, choice: Choice, request: &[u8], runs: u32) -> Result<f64, XdpError> {
        let program = load("ccp_networks", &self.emitted.networks(choice)?)?;
        let packet = [&[0; PLAIN_HEADERS], request].concat();
        Ok(f64::from(os("run networks", bpf::time_xdp(&program, &packet, runs))?))
    }

    fn fill(&mut self, key: Key, kept: Option<&ServerState>) -> Result<(), XdpError> {
        let images = images(&self.portfolio);
        store(&self.networks, self.places.tables, &tables());
        let first = images.first().map(Vec::as_slice).unwrap_or_default();
        let table = ByteTable::new(&self.shape, first, self.portfolio.is_signed());
        store(&self.networks, self.places.inputs, table.words());
        for (predictor, image) in images.iter().enumerate() {
            self.write(predictor, 0, image);
        }
        store(&self.services, services::KEY as usize, &initial(key));
        for processor in 0..self.processors {
            self.skip_to(processor, 1);
        }
        let start = self.reference(Arc::clone(&self.portfolio), kept.cloned())?;
        self.begin(&start, start.epoch());
        Ok(())
    }

    /// Makes a server in user space that goes on from a state, but not from its tokens.
    fn reference(&self, portfolio: Arc<Portfolio>, kept: Option<ServerState>) -> Result<Server, ServerError> {
        let kept = kept.map(|state| ServerState { session: None, ..state });
        // Its key is never used.
        Server::new(portfolio, &self.choices, Key([0; 16]), kept.as_ref())
    }

    /// Takes over the weights of a server in user space, while nothing updates ours, and begins an epoch.
    fn begin(&self, from: &Server, epoch: u32) {
        for (slot, of) in from.slots().iter().enumerate() {
            self.set_weights(slot, &of.weights);
        }
        self.services.u32(services::EPOCH as usize).store(epoch, Release);
        self.services.u64(services::ACCEPTED as usize).store(epoch.into(), Release);
    }

    /// Attaches the server to a device of the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no such device, it has an XDP program, or its driver has no native mode.
    pub fn attach(&self, device: &str, mode: XdpMode) -> Result<Attachment, XdpError> {
        attach(&self.program, device, mode)
    }

    /// Runs the program on one packet, as a device of the calling thread's processor would.
    ///
    /// # Errors
    /// The kernel does not run it.
    pub fn run(&self, packet: &[u8]) -> Result<XdpRun, XdpError> {
        os("run the server", bpf::test_run_xdp(&self.program, packet))
    }

    /// Sets the number of the next token of this processor, so that a test need not ask for all before.
    pub fn skip_to(&self, processor: usize, next: u64) {
        self.blocks.u64(processor * block::BYTES + block::NEXT as usize).store(next, Relaxed);
    }

    /// Sets the random number of a server with [`Random::Memory`].
    pub fn set_random(&self, random: u32) {
        self.services.u32(services::RANDOM as usize).store(random, Relaxed);
    }

    /// Replaces the predictors while requests are served, as [`Server::push`] does. A weight stays with its predictor's name.
    ///
    /// Requests are answered throughout. Feedback on tokens of the earlier predictors is refused from the start of the call on.
    ///
    /// # Errors
    /// The new predictors have other inputs, classes or shapes, or there are more or fewer; nothing is changed then.
    pub fn push(&mut self, portfolio: &Arc<Portfolio>) -> Result<(), XdpError> {
        if !self.portfolio.answers_as(portfolio) {
            return Err(ServerError::Other.into());
        }
        let predictors = self.portfolio.predictors().len();
        within("predictors", portfolio.predictors().len(), predictors, predictors)?;
        shape_of(portfolio, Some(self.shape))?;
        if let Some(replaced) = self.replaced {
            std::thread::sleep(GRACE.saturating_sub(replaced.elapsed()));
        }
        let in_use = self.services.u64(services::IN_USE as usize);
        let others = in_use.load(Relaxed) ^ ((1 << predictors) - 1);
        for (predictor, image) in images(portfolio).iter().enumerate() {
            self.write(predictor, (others >> predictor & 1) as usize, image);
        }
        let accepted = self.services.u64(services::ACCEPTED as usize);
        let epoch = accepted.swap(services::NONE, Release);
        let waited = os("wait for updates", bpf::test_run_xdp(&self.barrier, &NO_PACKET));
        if let Err(error) = waited {
            accepted.store(epoch, Release);
            return Err(error);
        }
        // Nothing but this changes weights until an epoch is accepted again.
        let mut next = self.reference(Arc::clone(&self.portfolio), Some(self.state()))?;
        next.push(Arc::clone(portfolio))?;
        self.services.u64(services::IN_USE as usize).store(others, Release);
        self.begin(&next, self.epoch().wrapping_add(1));
        self.replaced = Some(Instant::now());
        self.portfolio = Arc::clone(portfolio);
        Ok(())
    }

    /// Writes an image so that a reader of its uid sees the whole of it.
    fn write(&mut self, predictor: usize, buffer: usize, image: &[u64]) {
        self.images += 1;
        let at = self.places.image(predictor, buffer);
        self.networks.u32(at).store(0, Relaxed);
        fence(Release);
        self.networks.u32(at + CLIP_LIMIT).store(u32_at(image, CLIP_LIMIT), Relaxed);
        store(&self.networks, at + 8, image.get(1..).unwrap_or_default());
        self.networks.u32(at).store(self.images, Release);
    }

    /// The predictors that answer.
    pub fn portfolio(&self) -> &Arc<Portfolio> {
        &self.portfolio
    }

    /// The number of the key and the predictors.
    pub fn epoch(&self) -> u32 {
        self.services.u32(services::EPOCH as usize).load(Acquire)
    }

    /// The count of an event, over all processors.
    pub fn count(&self, counter: Counter) -> u64 {
        let at = block::COUNTERS as usize + 8 * counter.place();
        (0..self.processors).map(|n| self.blocks.u64(n * block::BYTES + at).load(Relaxed)).sum()
    }

    /// The deficits of a slot, which are its weights. Of a slot that learns they may be of neighbouring updates.
    pub fn deficits(&self, slot: usize) -> Vec<u64> {
        self.words(services::at(slot) + services::DEFICITS as usize)
    }

    /// The cumulative thresholds by which a slot draws.
    pub fn thresholds(&self, slot: usize) -> Vec<u64> {
        let version = self.version(slot).load(Acquire);
        self.words(services::at(slot) + services::THRESHOLDS as usize + place_of(version))
    }

    /// Changes of a slot's weights so far.
    pub fn updates(&self, slot: usize) -> u64 {
        // The first version is that of the start.
        self.version(slot).load(Acquire) - 1
    }

    fn words(&self, at: usize) -> Vec<u64> {
        let predictors = self.portfolio.predictors().len();
        (0..predictors).map(|n| self.services.u64(at + 8 * n).load(Relaxed)).collect()
    }

    fn version(&self, slot: usize) -> &AtomicU64 {
        self.services.u64(services::at(slot) + services::VERSION as usize)
    }

    /// Sets the weights of a slot that nothing updates.
    fn set_weights(&self, slot: usize, weights: &Weights) {
        let at = services::at(slot);
        store(&self.services, at + services::DEFICITS as usize, weights.deficits());
        let version = self.version(slot);
        let next = version.load(Relaxed) + 1;
        let thresholds = at + services::THRESHOLDS as usize + place_of(next);
        store(&self.services, thresholds, weights.thresholds());
        version.store(next, Release);
    }

    /// All that a later server goes on from: weights, but no tokens.
    pub fn state(&self) -> ServerState {
        let slot = |(n, choice): (usize, &Choice)| (*choice, self.kept(n));
        ServerState {
            epoch: self.epoch(),
            predictors: self.portfolio.predictors().iter().map(|p| (p.name().to_owned(), p.hash())).collect(),
            slots: self.choices.iter().enumerate().map(slot).collect(),
            session: None,
        }
    }

    /// The deficits of a slot as one state: what was read of neighbouring updates is moved so that the least is 0.
    fn kept(&self, slot: usize) -> Vec<u64> {
        let mut deficits = self.deficits(slot);
        let least = deficits.iter().copied().min().unwrap_or(0);
        deficits.iter_mut().for_each(|deficit| *deficit -= least);
        deficits
    }
}

/// Offset of a version's thresholds.
fn place_of(version: u64) -> usize {
    (version as usize % VERSIONS) << services::VERSION_SHIFT
}

/// The networks' images as the program takes them.
fn images(portfolio: &Portfolio) -> Vec<Vec<u64>> {
    let image = |snapshot: &Snapshot| fold(snapshot.shape(), &snapshot.image(&DeployOptions::ONLY));
    portfolio.predictors().iter().map(|p| image(p.snapshot())).collect()
}

/// The shape that all predictors share: `expected`, or that of the first.
fn shape_of(portfolio: &Portfolio, expected: Option<Shape>) -> Result<Shape, XdpError> {
    let mut shapes = portfolio.predictors().iter().map(|p| (p.name(), *p.snapshot().shape()));
    let first = shapes.clone().next().map(|(_, shape)| shape);
    let shape = expected.or(first).ok_or(XdpError::BadOption {
        field: "predictors",
        found: 0,
        min: 1,
        max: MAX_ARMS,
    })?;
    match shapes.find(|(_, other)| *other != shape) {
        Some((name, _)) => Err(XdpError::Shape { name: name.to_owned() }),
        None => Ok(shape),
    }
}

/// A loaded program without state: the echo server, or what the other end of a virtual cable needs.
pub struct Plain(OwnedFd);

impl Plain {
    /// Loads a server that returns the first bytes of each datagram as a reply, whatever they are.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn echo(target: &Target) -> Result<Plain, XdpError> {
        let mut asm = Asm::default();
        frame::echo(&mut asm, target, MESSAGE_BYTES as i16, (offset::KIND as i16, kind::REPLY));
        Ok(Plain(load("ccp_echo", &asm.finish()?.insns)?))
    }

    /// Loads a program that passes everything on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn pass() -> Result<Plain, XdpError> {
        let mut asm = Asm::default();
        frame::pass(&mut asm);
        Ok(Plain(load("ccp_pass", &asm.finish()?.insns)?))
    }

    /// Attaches the program as [`XdpServer::attach`] does.
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, device: &str, mode: XdpMode) -> Result<Attachment, XdpError> {
        attach(&self.0, device, mode)
    }

    /// Runs the program as [`XdpServer::run`] does.
    ///
    /// # Errors
    /// As there.
    pub fn run(&self, packet: &[u8]) -> Result<XdpRun, XdpError> {
        os("run a program", bpf::test_run_xdp(&self.0, packet))
    }
}

fn attach(program: &OwnedFd, device: &str, mode: XdpMode) -> Result<Attachment, XdpError> {
    let index = nix::net::if_::if_nametoindex(device).map_err(std::io::Error::from);
    let index = os(format!("find device {device}"), index)?;
    let link = os(format!("attach to {device}"), bpf::link_xdp(program, index, mode))?;
    Ok(Attachment { _link: link })
}

fn load(name: &'static str, insns: &[Insn]) -> Result<OwnedFd, XdpError> {
    let to = AttachTo { btf_id: 0, expected: XDP };
    bpf::prog_load(ProgType::Xdp, name, insns, to).map_err(|error| XdpError::refused(name, error))
}

/// Makes an array of one value, and maps it.
fn array(name: &str, bytes: usize) -> Result<(OwnedFd, SharedMap), XdpError> {
    let map = os(
        format!("create map {name}"),
        bpf::map_create(MapType::Array, name, 4, bytes as u32, 1, F_MMAPABLE),
    )?;
    let shared = os(format!("map {name}"), SharedMap::new(&map, 0, bytes, true))?;
    Ok((map, shared))
}

fn store(memory: &SharedMap, at: usize, words: &[u64]) {
    for (n, word) in words.iter().enumerate() {
        memory.u64(at + 8 * n).store(*word, Relaxed);
    }
}

fn within(field: &'static str, found: usize, min: usize, max: usize) -> Result<(), XdpError> {
    if (min..=max).contains(&found) { Ok(()) } else { Err(XdpError::BadOption { field, found, min, max }) }
}
