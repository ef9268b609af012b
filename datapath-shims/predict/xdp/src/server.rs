//! The server's maps and program, and what user space changes and reads of them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use ccplane_bpf::{self as bpf, AttachTo, F_MMAPABLE, MapType, ProgType, Shared, XDP, XdpMode, XdpRun};
use ccplane_infer::image::{CLIP_LIMIT, FEATURE_BYTES, FEATURES, u32_at};
use ccplane_infer::{Shape, check};
use ccplane_nn_codegen::asm::{Asm, Insn};
use ccplane_nn_codegen::bpf::{ByteTable, tables};
use nix::unistd::{SysconfVar, sysconf};

use crate::counters::Counter;
use crate::error::{XdpError, os};
use crate::frame::{self, MAX_ADDRESSES, Target};
use crate::layout::{BUFFERS, MAX_PREDICTORS, Networks, block, services};
use crate::program::{Choice, Maps, Program, Random};
use crate::reference::{WINDOW, thresholds};
use crate::siphash::initial;

/// Most processors: a token has a byte for the one that issued it.
pub const MAX_PROCESSORS: usize = 256;
/// Most services.
pub const MAX_SERVICES: usize = 8;
/// Time for which a buffer rests after a predictor has left it: longer than any request takes.
const GRACE: Duration = Duration::from_micros(100);

/// The server's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The packets that it takes.
    pub target: Target,
    /// How each service chooses, by its number.
    pub services: Vec<Choice>,
    /// The key of the tokens' tags.
    pub key: [u64; 2],
    /// The epoch of the first tokens.
    pub epoch: u32,
    pub random: Random,
}

/// A loaded server. Dropping it, and what [`XdpServer::attach`] returned, removes everything from the kernel.
pub struct XdpServer {
    services: Shared,
    blocks: Shared,
    networks: Shared,
    program: OwnedFd,
    shape: Shape,
    places: Networks,
    predictors: usize,
    processors: usize,
    choices: Vec<Choice>,
    ranges: Vec<u64>,
    /// The number of the last image, which is its uid.
    images: u32,
    /// The time at which a predictor last left a buffer.
    left: Vec<Option<Instant>>,
    /// The maps, which the program holds, too.
    _maps: [OwnedFd; 5],
}

/// A program at a device, which it leaves when this is dropped or the process ends.
#[derive(Debug)]
pub struct Attachment {
    _link: OwnedFd,
}

impl XdpServer {
    /// Loads a server whose predictors are images of `shape`; it starts with equal weights.
    ///
    /// # Errors
    /// [`XdpError`]: an option, an image, or the kernel's refusal, usually for lack of CAP_BPF.
    pub fn load(options: &Options, shape: &Shape, images: &[Vec<u64>]) -> Result<XdpServer, XdpError> {
        let processors = sysconf(SysconfVar::_NPROCESSORS_CONF).ok().flatten().unwrap_or(1) as usize;
        within("predictors", images.len(), 1, MAX_PREDICTORS)?;
        within("services", options.services.len(), 1, MAX_SERVICES)?;
        within("addresses", options.target.addresses.len(), 0, MAX_ADDRESSES)?;
        within("processors", processors, 1, MAX_PROCESSORS)?;
        let places = Networks::new(shape, images.len());
        let services_bytes = services::at(options.services.len());
        let window_bytes = (WINDOW / 8) as usize;
        let (services_map, services) = array("ccp_predict_s", services_bytes)?;
        let (blocks_map, blocks) = array("ccp_predict_b", processors * block::BYTES)?;
        let (windows_map, _) = array("ccp_predict_w", processors * window_bytes)?;
        let (networks_map, networks) = array("ccp_predict_n", places.bytes)?;
        let locks = os("create locks", bpf::map_create_locks("ccp_predict_l", options.services.len() as u32))?;
        let program = Program {
            target: options.target.clone(),
            shape: *shape,
            predictors: images.len(),
            processors,
            services: options.services.clone(),
            random: options.random,
            maps: Maps {
                services: services_map.as_raw_fd(),
                blocks: blocks_map.as_raw_fd(),
                windows: windows_map.as_raw_fd(),
                networks: networks_map.as_raw_fd(),
                locks: locks.as_raw_fd(),
            },
        };
        let program = load("ccp_predict", &program.assemble()?)?;
        let ranges = images.first().map(|image| input_ranges(shape, image)).unwrap_or_default();
        let mut server = XdpServer {
            services,
            blocks,
            networks,
            program,
            shape: *shape,
            places,
            predictors: images.len(),
            processors,
            choices: options.services.clone(),
            ranges,
            images: 0,
            left: vec![None; images.len()],
            _maps: [services_map, blocks_map, windows_map, networks_map, locks],
        };
        server.fill(options, images)?;
        Ok(server)
    }

    fn fill(&mut self, options: &Options, images: &[Vec<u64>]) -> Result<(), XdpError> {
        store(&self.networks, self.places.tables, &tables());
        let table = images.first().map(|image| ByteTable::new(&self.shape, image));
        store(&self.networks, self.places.inputs, table.as_ref().map_or(&[], ByteTable::words));
        for (predictor, image) in images.iter().enumerate() {
            self.check(predictor, image)?;
            self.write(predictor, 0, image);
        }
        store(&self.services, services::KEY as usize, &initial(options.key));
        self.services.u32(services::EPOCH as usize).store(options.epoch, Relaxed);
        for processor in 0..self.processors {
            self.next(processor).store(1, Relaxed);
        }
        let equal = vec![0; self.predictors];
        (0..self.choices.len()).for_each(|service| self.set_deficits(service, &equal));
        Ok(())
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

    /// Sets the random number of a server with [`Random::Memory`].
    pub fn set_random(&self, random: u32) {
        self.services.u32(services::RANDOM as usize).store(random, Relaxed);
    }

    /// Replaces a predictor while requests are served, and returns the epoch of tokens from then on. Those before are outdated.
    ///
    /// # Errors
    /// There is no such predictor, or the image is not one of the server's shape and input ranges.
    pub fn replace(&mut self, predictor: usize, image: &[u64]) -> Result<u32, XdpError> {
        self.check(predictor, image)?;
        let in_use = self.services.u64(services::IN_USE as usize);
        let flipped = in_use.load(Relaxed) ^ 1 << predictor;
        if let Some(left) = self.left[predictor] {
            std::thread::sleep(GRACE.saturating_sub(left.elapsed()));
        }
        self.write(predictor, (flipped >> predictor & 1) as usize, image);
        // A request reads the epoch first: one of the new epoch finds the new predictor.
        self.services.u64(services::IN_USE as usize).store(flipped, Release);
        self.left[predictor] = Some(Instant::now());
        Ok(self.services.u32(services::EPOCH as usize).fetch_add(1, Release).wrapping_add(1))
    }

    fn check(&self, predictor: usize, image: &[u64]) -> Result<(), XdpError> {
        if predictor >= self.predictors {
            return Err(XdpError::NoPredictor { found: predictor, max: self.predictors - 1 });
        }
        check(&self.shape, image).map_err(|source| XdpError::Image { predictor, source })?;
        if input_ranges(&self.shape, image) != self.ranges {
            return Err(XdpError::Ranges { predictor });
        }
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

    /// The number of predictors.
    pub fn predictors(&self) -> usize {
        self.predictors
    }

    /// The count of an event, over all processors.
    pub fn count(&self, counter: Counter) -> u64 {
        let of = |processor| {
            let at = processor * block::BYTES + block::COUNTERS as usize + 8 * counter as usize;
            self.blocks.u64(at).load(Relaxed)
        };
        (0..self.processors).map(of).sum()
    }

    /// The number of a processor's next token.
    pub fn next(&self, processor: usize) -> &std::sync::atomic::AtomicU64 {
        self.blocks.u64(processor * block::BYTES + block::NEXT as usize)
    }

    /// The deficits of a service, which are its weights. While feedback arrives they may be of neighbouring updates.
    pub fn deficits(&self, service: usize) -> Vec<u64> {
        let at = services::at(service) + services::DEFICITS as usize;
        (0..self.predictors).map(|n| self.services.u64(at + 8 * n).load(Relaxed)).collect()
    }

    /// The cumulative thresholds by which a service draws.
    pub fn thresholds(&self, service: usize) -> Vec<u64> {
        let at = services::at(service);
        let version = self.services.u64(at + services::VERSION as usize).load(Acquire) as usize;
        let at = at + services::THRESHOLDS as usize + ((version % crate::layout::VERSIONS) << services::VERSION_SHIFT);
        (0..self.predictors).map(|n| self.services.u64(at + 8 * n).load(Relaxed)).collect()
    }

    /// Sets the deficits of a service before it is attached.
    pub fn set_deficits(&self, service: usize, deficits: &[u64]) {
        let at = services::at(service);
        store(&self.services, at + services::DEFICITS as usize, deficits);
        let version = self.services.u64(at + services::VERSION as usize);
        let next = version.load(Relaxed) + 1;
        let place = (next as usize % crate::layout::VERSIONS) << services::VERSION_SHIFT;
        store(&self.services, at + services::THRESHOLDS as usize + place, &thresholds(deficits));
        version.store(next, Release);
    }
}

/// A loaded program without state: the echo server, or what the other end of a virtual cable needs.
pub struct Plain(OwnedFd);

impl Plain {
    /// Loads a server that returns each datagram's first `bytes` bytes.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn echo(target: &Target, bytes: u16) -> Result<Plain, XdpError> {
        let mut asm = Asm::default();
        frame::echo(&mut asm, target, bytes as i16);
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
fn array(name: &str, bytes: usize) -> Result<(OwnedFd, Shared), XdpError> {
    let map = os(
        format!("create map {name}"),
        bpf::map_create(MapType::Array, name, 4, bytes as u32, 1, F_MMAPABLE),
    )?;
    let shared = os(format!("map {name}"), Shared::new(&map, 0, bytes, true))?;
    Ok((map, shared))
}

fn store(memory: &Shared, at: usize, words: &[u64]) {
    for (n, word) in words.iter().enumerate() {
        memory.u64(at + 8 * n).store(*word, Relaxed);
    }
}

/// The words of an image that say how inputs are converted.
fn input_ranges(shape: &Shape, image: &[u64]) -> Vec<u64> {
    let (from, bytes) = (FEATURES / 8, FEATURE_BYTES * shape.inputs());
    image.get(from..from + bytes / 8).unwrap_or_default().to_vec()
}

fn within(field: &'static str, found: usize, min: usize, max: usize) -> Result<(), XdpError> {
    if (min..=max).contains(&found) { Ok(()) } else { Err(XdpError::BadOption { field, found, min, max }) }
}
