//! The server as one XDP program: parse, check, choose, infer, answer; and feedback.

use ccplane_infer::Shape;
use ccplane_infer::image::UID;
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, Label, R, Size};
use ccplane_nn_codegen::bpf::{self, Places, classify};
use ccplane_predict::packet::{HEADER_BYTES, MAGIC, MESSAGE_BYTES, VERSION, kind, offset, request_bytes};
use ccplane_predict::{Choice, Refusal, WINDOW};

use crate::bandit::{self, BLOCK};
use crate::counters::Counter;
use crate::frame::{self, PAYLOAD_OFFSETS, Target, XDP_DROP, XDP_PASS, bounds, within};
use crate::layout::{BUFFERS, Networks, block, services};
use crate::siphash::siphash;

/// Descriptors of the maps.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    pub services: i32,
    pub blocks: i32,
    pub windows: i32,
    pub networks: i32,
    pub locks: i32,
}

/// Sources of random numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Random {
    /// The kernel's generator.
    Kernel,
    /// A word of the services' memory, for tests.
    Memory,
}

/// The server that a program is emitted for.
#[derive(Clone, Debug)]
pub struct Program {
    pub target: Target,
    pub shape: Shape,
    pub predictors: usize,
    pub processors: usize,
    /// The way in which each service chooses, by its number.
    pub services: Vec<Choice>,
    pub random: Random,
    pub maps: Maps,
}

/// Register of the packet's payload.
const PAYLOAD: R = R::R6;
/// Offsets on the stack, after the context's: the service's number and address; epoch and buffers in use; the probability, the
/// predictors that agree, the class; the processor; a token's words; a key.
const SERVICE: i16 = -24;
const STATE: i16 = -32;
const EPOCH: i16 = -40;
const IN_USE: i16 = -48;
const PROBABILITY: i16 = -56;
const AGREED: i16 = -64;
const CLASS: i16 = -72;
const STREAM: i16 = -80;
const TOKEN: [i16; 3] = [-104, -96, -88];
const KEY: i16 = -112;
/// Offset on the subprogram's stack of the image's uid.
const STACK_UID: i16 = -8;

/// Offsets in a payload: kind, slot, argument, the token's words, its tag.
const AT_VERSION: i16 = offset::VERSION as i16;
const AT_KIND: i16 = offset::KIND as i16;
const AT_SLOT: i16 = offset::SLOT as i16;
const AT_ARGUMENT: i16 = offset::ARGUMENT as i16;
const AT_TOKEN: [i16; 3] = [HEADER_BYTES as i16, HEADER_BYTES as i16 + 8, HEADER_BYTES as i16 + 16];
const AT_TAG: i16 = HEADER_BYTES as i16 + 24;

/// Result of the inference's subprogram: the network was replaced meanwhile.
const REPLACED: i32 = 256;
/// Bits of a window's word.
const WORD_BITS: i32 = 64;
const WORD_SHIFT: i32 = 6;
const SHORT: Counter = Counter::Refused(Refusal::Short);
const WINDOW_BYTES: i32 = (WINDOW / 8) as i32;

/// Labels of code that is out of line.
struct Labels {
    drop: Label,
    drops: Vec<(Counter, Label)>,
    siphash: Label,
    classify: Label,
}

impl Labels {
    fn of(&self, counter: Counter) -> Label {
        self.drops.iter().find(|(of, _)| *of == counter).map_or(self.drop, |(_, label)| *label)
    }

    fn refused(&self, why: Refusal) -> Label {
        self.of(Counter::Refused(why))
    }
}

impl Program {
    /// Emits the program.
    ///
    /// # Errors
    /// BPF cannot express a jump.
    pub fn assemble(&self) -> Result<Vec<Insn>, AsmError> {
        let mut assembler = Asm::default();
        let asm = &mut assembler;
        let (drop, siphash_at, classify_at) = (asm.label(), asm.label(), asm.label());
        let drops = Counter::drops().map(|counter| (counter, asm.label())).collect();
        let labels = Labels { drop, drops, siphash: siphash_at, classify: classify_at };
        let (pass, feedback) = (asm.label(), asm.label());
        frame::parse(asm, &self.target, pass);
        self.enter(asm, pass);
        self.header(asm, &labels, feedback);
        self.request(asm, &labels);
        asm.bind(feedback);
        self.feedback(asm, &labels);
        for (counter, label) in labels.drops {
            asm.bind(label);
            count(asm, counter);
            asm.jump(drop);
        }
        asm.bind(drop);
        asm.exit_with(XDP_DROP);
        asm.bind(pass);
        asm.exit_with(XDP_PASS);
        asm.bind(siphash_at);
        siphash(asm, self.maps.services, services::KEY);
        asm.bind(classify_at);
        self.classification(asm);
        Ok(assembler.finish()?.insns)
    }

    /// Emits a program that only runs the networks on the request in a plain IPv4 packet, one of them or all, to time them.
    ///
    /// # Errors
    /// BPF cannot express a jump.
    pub fn networks(&self, choice: Choice) -> Result<Vec<Insn>, AsmError> {
        const PLAIN_OFFSET: i64 = 42;
        let mut assembler = Asm::default();
        let asm = &mut assembler;
        let drop = asm.label();
        let labels = Labels { drop, drops: Vec::new(), siphash: drop, classify: asm.label() };
        asm.store(Size::B8, R::R10, frame::CTX, R::R1);
        asm.mov_imm(R::R9, PLAIN_OFFSET);
        self.enter(asm, drop);
        within(asm, PAYLOAD, request_bytes(self.shape.inputs()) as i16, drop);
        self.inputs(asm);
        let networks = if choice == Choice::Exp3 { 1 } else { self.predictors };
        for n in 0..networks {
            self.infer(asm, &labels, |asm| asm.mov_imm(R::R2, n as i64));
        }
        asm.bind(drop);
        asm.exit_with(XDP_DROP);
        asm.bind(labels.classify);
        self.classification(asm);
        Ok(assembler.finish()?.insns)
    }

    /// Emits BLOCK and PAYLOAD; R8 and R9 remain the payload's length and offset.
    fn enter(&self, asm: &mut Asm, pass: Label) {
        asm.call(Helper::GetSmpProcessorId);
        asm.jump_if_imm(R::R0, Cond::Ge, self.processors as i32, pass);
        asm.store(Size::B8, R::R10, STREAM, R::R0);
        asm.alu_imm(Alu::Mul, R::R0, block::BYTES as i32);
        asm.map_value(BLOCK, self.maps.blocks, 0);
        asm.alu(Alu::Add, BLOCK, R::R0);
        // From memory the verifier takes any offset at once, rather than each in turn.
        asm.store(Size::B8, BLOCK, block::OFFSET, R::R9);
        asm.load(Size::B8, R::R9, BLOCK, block::OFFSET);
        asm.alu_imm(Alu::And, R::R9, PAYLOAD_OFFSETS - 1);
        bounds(asm);
        asm.mov(PAYLOAD, R::R2);
        asm.alu(Alu::Add, PAYLOAD, R::R9);
    }

    /// Emits the checks of all kinds of packets, and the service's number and address; jumps to `feedback` if it is some.
    fn header(&self, asm: &mut Asm, labels: &Labels, feedback: Label) {
        let known = asm.label();
        asm.jump_if_imm(R::R8, Cond::Lt, HEADER_BYTES as i32, labels.of(SHORT));
        within(asm, PAYLOAD, HEADER_BYTES as i16, labels.of(SHORT));
        asm.load(Size::B4, R::R1, PAYLOAD, 0);
        asm.jump_if_imm(R::R1, Cond::Ne, i32::from_le_bytes(MAGIC), labels.refused(Refusal::Magic));
        asm.load(Size::B1, R::R1, PAYLOAD, AT_VERSION);
        asm.jump_if_imm(R::R1, Cond::Ne, VERSION.into(), labels.refused(Refusal::Version));
        asm.load(Size::B1, R::R5, PAYLOAD, AT_KIND);
        asm.jump_if_imm(R::R5, Cond::Eq, kind::REQUEST.into(), known);
        asm.jump_if_imm(R::R5, Cond::Ne, kind::FEEDBACK.into(), labels.refused(Refusal::Kind));
        asm.bind(known);
        asm.load(Size::B1, R::R1, PAYLOAD, AT_SLOT);
        asm.jump_if_imm(R::R1, Cond::Ge, self.services.len() as i32, labels.refused(Refusal::Slot));
        asm.store(Size::B8, R::R10, SERVICE, R::R1);
        asm.alu_imm(Alu::Mul, R::R1, services::BYTES.into());
        asm.map_value(R::R4, self.maps.services, services::FIRST as u32);
        asm.alu(Alu::Add, R::R4, R::R1);
        asm.store(Size::B8, R::R10, STATE, R::R4);
        asm.jump_if_imm(R::R5, Cond::Eq, kind::FEEDBACK.into(), feedback);
    }

    /// Emits all of a request.
    fn request(&self, asm: &mut Asm, labels: &Labels) {
        let expected = request_bytes(self.shape.inputs());
        asm.load(Size::B1, R::R1, PAYLOAD, AT_ARGUMENT);
        asm.jump_if_imm(R::R1, Cond::Ne, self.shape.inputs() as i32, labels.refused(Refusal::Inputs));
        asm.jump_if_imm(R::R8, Cond::Lt, expected as i32, labels.of(SHORT));
        asm.jump_if_imm(R::R8, Cond::Gt, expected as i32, labels.refused(Refusal::Long));
        within(asm, PAYLOAD, expected as i16, labels.of(SHORT));
        self.inputs(asm);
        self.choose(asm, labels);
        let (exp4, chosen) = (asm.label(), asm.label());
        asm.load(Size::B8, R::R1, R::R10, SERVICE);
        for (n, choice) in self.services.iter().enumerate() {
            if *choice == Choice::Exp4 {
                asm.jump_if_imm(R::R1, Cond::Eq, n as i32, exp4);
            }
        }
        self.exp3(asm, labels);
        asm.jump(chosen);
        asm.bind(exp4);
        self.exp4(asm, labels);
        asm.bind(chosen);
        self.token(asm, labels);
        count(asm, Counter::Requests);
        frame::reply(asm, MESSAGE_BYTES as i16, labels.drop);
    }

    /// Emits epoch and buffers in use on the stack, and the list of the inputs. R1, R4, R5 and R8 are lost.
    fn inputs(&self, asm: &mut Asm) {
        // A token of this epoch credits the predictors that were in use then or later, never earlier ones.
        asm.map_value(R::R8, self.maps.services, 0);
        asm.load(Size::B4, R::R1, R::R8, services::EPOCH);
        asm.store(Size::B8, R::R10, EPOCH, R::R1);
        asm.load(Size::B8, R::R1, R::R8, services::IN_USE);
        asm.store(Size::B8, R::R10, IN_USE, R::R1);
        let inputs = Networks::new(&self.shape, self.predictors).inputs;
        asm.map_value(R::R8, self.maps.networks, inputs as u32);
        bpf::inputs(asm, &self.shape, (PAYLOAD, HEADER_BYTES as i16), R::R8, (BLOCK, block::INPUTS));
    }

    /// Emits the draw: the predictor is in the block and in R0, its probability on the stack.
    fn choose(&self, asm: &mut Asm, labels: &Labels) {
        let overtaken = labels.of(Counter::Overtaken);
        asm.load(Size::B8, R::R8, R::R10, STATE);
        bandit::thresholds(asm, self.predictors, R::R8, overtaken);
        match self.random {
            Random::Kernel => asm.call(Helper::GetPrandomU32),
            Random::Memory => {
                asm.map_value(R::R1, self.maps.services, 0);
                asm.load(Size::B4, R::R0, R::R1, services::RANDOM);
            }
        }
        asm.zext32(R::R0);
        bandit::draw(asm, self.predictors);
        asm.store(Size::B8, R::R10, PROBABILITY, R::R1);
        // From memory the verifier takes any predictor at once.
        asm.store(Size::B8, BLOCK, block::ARM, R::R0);
        asm.load(Size::B8, R::R0, BLOCK, block::ARM);
        asm.jump_if_imm(R::R0, Cond::Ge, self.predictors as i32, overtaken);
    }

    /// Emits class and agreement of a service whose drawn predictor, in R0, decides.
    fn exp3(&self, asm: &mut Asm, labels: &Labels) {
        asm.mov(R::R8, R::R0);
        self.infer(asm, labels, |asm| asm.mov(R::R2, R::R8));
        asm.store(Size::B8, R::R10, CLASS, R::R0);
        asm.mov_imm(R::R1, 1);
        asm.alu(Alu::Lsh, R::R1, R::R8);
        asm.store(Size::B8, R::R10, AGREED, R::R1);
    }

    /// Emits class, agreement and probability of a service whose predictors all decide.
    fn exp4(&self, asm: &mut Asm, labels: &Labels) {
        asm.mov(R::R8, R::R0);
        for n in 0..self.predictors {
            self.infer(asm, labels, |asm| asm.mov_imm(R::R2, n as i64));
            asm.store(Size::B1, BLOCK, block::CLASSES + n as i16, R::R0);
        }
        asm.alu(Alu::Add, R::R8, BLOCK);
        asm.load(Size::B1, R::R0, R::R8, block::CLASSES);
        asm.store(Size::B8, R::R10, CLASS, R::R0);
        bandit::agreement(asm, self.predictors);
        asm.store(Size::B8, R::R10, AGREED, R::R2);
        asm.store(Size::B8, R::R10, PROBABILITY, R::R1);
    }

    /// Emits R0 = the class that the predictor in R2, which `predictor` sets, gives the inputs.
    fn infer(&self, asm: &mut Asm, labels: &Labels, predictor: impl Fn(&mut Asm)) {
        predictor(asm);
        asm.mov(R::R1, BLOCK);
        asm.load(Size::B8, R::R3, R::R10, IN_USE);
        asm.call_sub(labels.classify);
        asm.jump_if_imm(R::R0, Cond::Ge, REPLACED, labels.of(Counter::Overtaken));
    }

    /// Emits the reply's token, kind and class.
    fn token(&self, asm: &mut Asm, labels: &Labels) {
        asm.load(Size::B8, R::R1, BLOCK, block::NEXT);
        asm.mov(R::R2, R::R1);
        asm.alu_imm(Alu::Add, R::R2, 1);
        asm.store(Size::B8, BLOCK, block::NEXT, R::R2);
        asm.load(Size::B8, R::R5, R::R10, STREAM);
        self.window(asm);
        asm.atomic_or(R::R4, 0, R::R0);

        let full = asm.label();
        asm.load(Size::B8, R::R2, R::R10, PROBABILITY);
        asm.mov_imm(R::R3, u32::MAX.into());
        asm.jump_if(R::R2, Cond::Le, R::R3, full);
        asm.mov(R::R2, R::R3);
        asm.bind(full);
        or_shifted(asm, R::R2, (R::R10, AGREED), 32);
        or_shifted(asm, R::R2, (R::R10, STREAM), 48);
        or_shifted(asm, R::R2, (R::R10, CLASS), 56);
        asm.load(Size::B8, R::R3, R::R10, EPOCH);
        or_shifted(asm, R::R3, (R::R10, SERVICE), 32);
        or_shifted(asm, R::R3, (BLOCK, block::ARM), 40);
        for (word, at) in [R::R1, R::R2, R::R3].into_iter().zip(AT_TOKEN) {
            asm.store(Size::B8, PAYLOAD, at, word);
        }
        asm.call_sub(labels.siphash);
        asm.store(Size::B8, PAYLOAD, AT_TAG, R::R0);
        asm.load(Size::B8, R::R1, R::R10, CLASS);
        asm.store(Size::B1, PAYLOAD, AT_ARGUMENT, R::R1);
        asm.store_imm(Size::B1, PAYLOAD, AT_KIND, kind::REPLY.into());
    }

    /// Emits R4 = the window's word, and R0 = the bit in it, of the token R1 of the stream R5. R2, R3 and R5 are lost.
    fn window(&self, asm: &mut Asm) {
        asm.mov(R::R2, R::R1);
        asm.alu_imm(Alu::And, R::R2, WINDOW as i32 - 1);
        asm.mov(R::R3, R::R2);
        asm.alu_imm(Alu::Rsh, R::R3, WORD_SHIFT);
        asm.alu_imm(Alu::Lsh, R::R3, 3);
        asm.alu_imm(Alu::Mul, R::R5, WINDOW_BYTES);
        asm.map_value(R::R4, self.maps.windows, 0);
        asm.alu(Alu::Add, R::R4, R::R3);
        asm.alu(Alu::Add, R::R4, R::R5);
        asm.alu_imm(Alu::And, R::R2, WORD_BITS - 1);
        asm.mov_imm(R::R0, 1);
        asm.alu(Alu::Lsh, R::R0, R::R2);
    }

    /// Emits all of a feedback, which is never answered.
    fn feedback(&self, asm: &mut Asm, labels: &Labels) {
        let (forged, late) = (labels.refused(Refusal::Forged), labels.refused(Refusal::Late));
        let classes = self.shape.outputs();
        asm.jump_if_imm(R::R8, Cond::Lt, MESSAGE_BYTES as i32, labels.of(SHORT));
        asm.jump_if_imm(R::R8, Cond::Gt, MESSAGE_BYTES as i32, labels.refused(Refusal::Long));
        within(asm, PAYLOAD, MESSAGE_BYTES as i16, labels.of(SHORT));
        asm.load(Size::B1, R::R1, PAYLOAD, AT_ARGUMENT);
        asm.jump_if_imm(R::R1, Cond::Ge, classes as i32, labels.refused(Refusal::Truth));
        for ((word, at), kept) in [R::R1, R::R2, R::R3].into_iter().zip(AT_TOKEN).zip(TOKEN) {
            asm.load(Size::B8, word, PAYLOAD, at);
            asm.store(Size::B8, R::R10, kept, word);
        }
        asm.map_value(R::R4, self.maps.services, 0);
        asm.load(Size::B8, R::R5, R::R4, services::ACCEPTED);
        asm.mov(R::R4, R::R3);
        asm.zext32(R::R4);
        asm.jump_if(R::R4, Cond::Ne, R::R5, labels.refused(Refusal::Outdated));

        asm.load(Size::B8, R::R8, PAYLOAD, AT_TAG);
        asm.call_sub(labels.siphash);
        asm.jump_if(R::R0, Cond::Ne, R::R8, forged);
        asm.load(Size::B8, R::R3, R::R10, TOKEN[2]);
        part(asm, R::R4, R::R3, 32);
        asm.load(Size::B8, R::R5, R::R10, SERVICE);
        asm.jump_if(R::R4, Cond::Ne, R::R5, forged);
        asm.alu_imm(Alu::Rsh, R::R3, 48);
        asm.jump_if_imm(R::R3, Cond::Ne, 0, forged);
        asm.load(Size::B8, R::R2, R::R10, TOKEN[1]);
        part(asm, R::R5, R::R2, 48);
        asm.jump_if_imm(R::R5, Cond::Ge, self.processors as i32, forged);

        asm.load(Size::B8, R::R1, R::R10, TOKEN[0]);
        asm.mov(R::R2, R::R5);
        asm.alu_imm(Alu::Mul, R::R2, block::BYTES as i32);
        asm.map_value(R::R3, self.maps.blocks, 0);
        asm.alu(Alu::Add, R::R3, R::R2);
        asm.load(Size::B8, R::R4, R::R3, block::NEXT);
        asm.jump_if(R::R1, Cond::Ge, R::R4, late);
        asm.alu(Alu::Sub, R::R4, R::R1);
        asm.jump_if_imm(R::R4, Cond::Gt, WINDOW as i32, late);
        self.window(asm);
        asm.mov(R::R5, R::R0);
        asm.alu_imm(Alu::Xor, R::R5, -1);
        asm.fetch_and(R::R4, 0, R::R5);
        asm.alu(Alu::And, R::R5, R::R0);
        asm.jump_if_imm(R::R5, Cond::Eq, 0, labels.refused(Refusal::Repeated));
        self.learn(asm, labels);
    }

    /// Emits what a token's truth changes.
    fn learn(&self, asm: &mut Asm, labels: &Labels) {
        let (wrong, outdated) = (asm.label(), labels.refused(Refusal::Outdated));
        asm.load(Size::B8, R::R2, R::R10, TOKEN[1]);
        asm.alu_imm(Alu::Rsh, R::R2, 56);
        asm.load(Size::B1, R::R1, PAYLOAD, AT_ARGUMENT);
        asm.jump_if(R::R1, Cond::Ne, R::R2, wrong);
        asm.load(Size::B8, R::R1, R::R10, SERVICE);
        asm.store(Size::B4, R::R10, KEY, R::R1);
        asm.map(R::R1, self.maps.locks);
        asm.mov(R::R2, R::R10);
        asm.alu_imm(Alu::Add, R::R2, KEY.into());
        asm.call(Helper::MapLookupElem);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, labels.drop);
        asm.mov(R::R8, R::R0);
        asm.load(Size::B8, R::R9, R::R10, STATE);
        asm.load(Size::B8, R::R3, R::R10, TOKEN[1]);
        asm.mov(R::R1, R::R3);
        asm.alu_imm(Alu::Rsh, R::R1, 32);
        asm.alu_imm(Alu::And, R::R1, 0xffff);
        asm.zext32(R::R3);
        bandit::step(asm, self.predictors, R::R2, R::R3);
        asm.load(Size::B4, R::R3, R::R10, TOKEN[2]);
        bandit::update(asm, self.predictors, self.maps.services, R::R9);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, outdated);
        count(asm, Counter::Right);
        asm.jump(labels.drop);
        asm.bind(wrong);
        count(asm, Counter::Wrong);
        asm.jump(labels.drop);
    }

    /// Emits the subprogram that infers: the block is in R1, the predictor in R2, the buffers in use in R3; R0 becomes the class, or
    /// [`REPLACED`].
    fn classification(&self, asm: &mut Asm) {
        const IMAGE: R = R::R6;
        let replaced = asm.label();
        let places = Networks::new(&self.shape, self.predictors);
        asm.mov(BLOCK, R::R1);
        asm.alu(Alu::Rsh, R::R3, R::R2);
        asm.alu_imm(Alu::And, R::R3, BUFFERS as i32 - 1);
        asm.alu_imm(Alu::Mul, R::R2, BUFFERS as i32);
        asm.alu(Alu::Add, R::R2, R::R3);
        asm.alu_imm(Alu::Mul, R::R2, places.stride as i32);
        asm.map_value(IMAGE, self.maps.networks, places.images as u32);
        asm.alu(Alu::Add, IMAGE, R::R2);
        asm.load(Size::B4, R::R1, IMAGE, UID as i16);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, replaced);
        asm.store(Size::B8, R::R10, STACK_UID, R::R1);
        let at = Places {
            image: IMAGE,
            memory: BLOCK,
            inputs: block::INPUTS,
            scratch: block::SCRATCH,
            tables: (self.maps.networks, places.tables as u32),
        };
        classify(asm, &self.shape, &at);
        asm.load(Size::B4, R::R1, IMAGE, UID as i16);
        asm.load(Size::B8, R::R2, R::R10, STACK_UID);
        asm.jump_if(R::R1, Cond::Ne, R::R2, replaced);
        asm.exit();
        asm.bind(replaced);
        asm.mov_imm(R::R0, REPLACED.into());
        asm.exit();
    }
}

/// Emits the increment of a counter; R0 is lost.
fn count(asm: &mut Asm, counter: Counter) {
    let at = block::COUNTERS + 8 * counter.place() as i16;
    asm.load(Size::B8, R::R0, BLOCK, at);
    asm.alu_imm(Alu::Add, R::R0, 1);
    asm.store(Size::B8, BLOCK, at, R::R0);
}

/// Emits `to |= *(u64 *)from << bits`; R0 is lost.
fn or_shifted(asm: &mut Asm, to: R, (base, at): (R, i16), bits: i32) {
    asm.load(Size::B8, R::R0, base, at);
    asm.alu_imm(Alu::Lsh, R::R0, bits);
    asm.alu(Alu::Or, to, R::R0);
}

/// Emits `to` = the byte of `from` at `bits`.
fn part(asm: &mut Asm, to: R, from: R, bits: i32) {
    asm.mov(to, from);
    asm.alu_imm(Alu::Rsh, to, bits);
    asm.alu_imm(Alu::And, to, 0xff);
}
