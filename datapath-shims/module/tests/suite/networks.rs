//! The C half's networks against the reference inference, its validation of images against the project's, and its slots
//! against the contract's.

use ccplane_contract::suite::{images, random};
use ccplane_contract::{DatapathError, Part, SlotTable};
use ccplane_infer::{
    BUFFERS, Bits, ImageError, Inference, MAX_IMAGE_BYTES, MAX_LAYERS, MAX_WIDTH, Model, Shape, check, tables,
};
use ccplane_module::user::{SlotAnswer, SlotCommand};
use ccplane_nn_codegen::c;
use ccplane_program::ir;
use ccplane_wire::v2::MAX_REG_NAME_BYTES;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Error codes of `vm.h`.
const NO_SLOT: u32 = 14;
const LENGTH: u32 = 16;
const SHAPE: u32 = 17;
const RANGE: u32 = 18;
const RESERVED: u32 = 19;
const FEATURE: u32 = 20;
const WEIGHTS: u32 = 21;
const OVERFLOW: u32 = 22;
const TABLE: u32 = 23;
const BAD_SHAPE: u32 = 24;
const OTHER_SHAPE: u32 = 25;
const SAME_UID: u32 = 26;
const SLOT_BUSY: u32 = 27;
const NO_SNAPSHOT: u32 = 28;

#[test]
fn networks_of_all_shapes_give_the_oracles_bits() {
    let Some(mut interpreter) = crate::common::sanitized("the module's networks") else { return };
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let aurora = [Bits::W8, Bits::W16].map(|bits| Shape::new(bits, &[30, 32, 16, 1]).unwrap());
    let (mut clipped, mut actions) = (0, std::collections::HashSet::new());
    for n in 0..1000_u32 {
        let shape = match aurora.get(n as usize % 10) {
            Some(shape) => *shape,
            None => images::shape(&mut rng, n as usize % 64 + 1).unwrap(),
        };
        let words = images::image(&mut rng, &shape, n + 1);
        let rows: Vec<Vec<i32>> = (0..20)
            .map(|_| {
                (0..shape.inputs())
                    .map(|_| random::number(&mut rng).clamp(i32::MIN.into(), i32::MAX.into()) as i32)
                    .collect()
            })
            .collect();
        let model = Model::new(&shape, &words).unwrap();
        let expected: Vec<Inference> = rows.iter().map(|row| model.infer(row)).collect();
        let found = interpreter.network(&shape, &words, &rows, 0).unwrap();
        assert_eq!(found.results, expected, "{n}: {shape:?}");
        clipped += expected.iter().filter(|i| i.clipped_inputs > 0).count();
        actions.extend(expected.iter().map(|i| i.action_q16));
    }
    assert!(clipped > 3000 && actions.len() > 5_000, "{clipped} clipped, {} actions", actions.len());
}

fn code_of(error: &ImageError) -> u32 {
    match error {
        ImageError::Length { .. } => LENGTH,
        ImageError::Shape { .. } => SHAPE,
        ImageError::Range { .. } => RANGE,
        ImageError::Reserved { .. } => RESERVED,
        ImageError::Feature { .. } => FEATURE,
        ImageError::Weights { .. } => WEIGHTS,
        ImageError::Overflow { .. } => OVERFLOW,
        ImageError::Table { .. } => TABLE,
        other => panic!("an unknown refusal: {other}"),
    }
}

#[test]
fn mutated_images_get_the_projects_verdict() {
    let Some(mut interpreter) = crate::common::sanitized("the module's validation of images") else { return };
    let (mut rng, mut seen) = (ChaCha8Rng::seed_from_u64(6), [0; 29]);
    for n in 0..8_000_u32 {
        let shape = images::shape(&mut rng, n as usize % 64 + 1).unwrap();
        let mut words = images::image(&mut rng, &shape, n + 1);
        let len = words.len();
        let at = |rng: &mut ChaCha8Rng| match rng.next_u32() % 3 {
            0 => rng.next_u32() as usize % 16,
            _ => rng.next_u32() as usize % len,
        };
        match rng.next_u32() % 8 {
            0 => words.truncate(rng.next_u32() as usize % len),
            1 => words.push(rng.next_u64()),
            2 => words[at(&mut rng)] = rng.next_u64() >> (rng.next_u32() % 64),
            3 => {}
            _ => words[at(&mut rng)] ^= 1 << (rng.next_u32() % 64),
        }
        let (found, bytes, action) = interpreter.check_image(shape.code(), &words).unwrap();
        assert_eq!(bytes, shape.image_bytes(), "{shape:?}");
        let expected = check(&shape, &words);
        assert_eq!(found.code, expected.as_ref().map_or_else(code_of, |()| 0), "{expected:?}: {found:?}");
        seen[found.code as usize] += 1;
        if let (Ok(()), Some(model)) = (expected, Model::new(&shape, &words)) {
            assert_eq!(action, model.infer(&[]).action_q16, "{shape:?}");
        }
    }
    for code in [0, LENGTH, SHAPE, RANGE, RESERVED, FEATURE, WEIGHTS, OVERFLOW, TABLE] {
        assert!(seen[code as usize] > 20, "{seen:?}");
    }
}

#[test]
fn the_same_codes_are_shapes() {
    let Some(mut interpreter) = crate::common::sanitized("the module's shapes") else { return };
    let (mut rng, mut shapes) = (ChaCha8Rng::seed_from_u64(7), 0);
    for n in 0..4000_usize {
        let mut code = images::shape(&mut rng, n % 64 + 1).unwrap().code();
        match n % 4 {
            0 => code ^= 1 << (rng.next_u32() % 64),
            1 => code = code & !(0xff << (8 * (n / 4 % 8))) | rng.next_u64() & 0xff << (8 * (n / 4 % 8)),
            2 => code = 8 | 4 << 8 | 0x0140_4040_4000_0000 >> 8 << 8 | (n as u64 & 0xff) << 16,
            _ => {}
        }
        let expected = Shape::from_code(code);
        let (found, bytes, _) = interpreter.check_image(code, &[0]).unwrap();
        assert_eq!(bytes, expected.map_or(0, |shape| shape.image_bytes()), "{code:#x}");
        assert_eq!(found.code, if expected.is_some() { LENGTH } else { BAD_SHAPE }, "{code:#x}");
        shapes += usize::from(expected.is_some());
    }
    assert!((500..3500).contains(&shapes), "{shapes} of 4000 are shapes");
}

/// A command in the words of the contract, and its refusal in those of `vm.h`.
fn command(table: &mut SlotTable, command: SlotCommand) -> u32 {
    let done = match command {
        SlotCommand::Define { slot, code } => match Shape::from_code(code) {
            Some(shape) => table.define(slot, &shape),
            // Rust has no such shape to pass.
            None => return if usize::from(slot) < ir::MAX_POLICY_SLOTS { BAD_SHAPE } else { NO_SLOT },
        },
        SlotCommand::Push { slot, uid, code, part } => {
            table.push(slot, &images::idle(&Shape::from_code(code).unwrap(), uid), part)
        }
        SlotCommand::Share { slot, share } => table.share(slot, share),
        SlotCommand::Promote(slot) => table.promote(slot),
        SlotCommand::Rollback(slot) => table.rollback(slot),
    };
    match done {
        Ok(()) => 0,
        Err(DatapathError::NoSlot(_)) => NO_SLOT,
        Err(DatapathError::OtherShape { .. }) => OTHER_SHAPE,
        Err(DatapathError::BadImage { .. }) => SAME_UID,
        Err(DatapathError::SlotBusy { .. }) => SLOT_BUSY,
        Err(DatapathError::NoSnapshot { .. }) => NO_SNAPSHOT,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn slots_do_what_the_contracts_do() {
    let Some(mut interpreter) = crate::common::sanitized("the module's slots") else { return };
    let (mut rng, mut seen) = (ChaCha8Rng::seed_from_u64(8), std::collections::BTreeSet::new());
    let shapes = [[3, 1], [4, 1]].map(|widths| Shape::new(Bits::W8, &widths).unwrap());
    for _ in 0..300 {
        let mut uid = 0;
        let commands: Vec<SlotCommand> = (0..60)
            .map(|_| {
                let slot = if rng.next_u32() % 20 == 0 { 16 } else { rng.next_u32() as u8 % 3 };
                let code = shapes[usize::from(rng.next_u32() % 10 == 0)].code();
                let share = rng.next_u32() as u16;
                match rng.next_u32() % 10 {
                    0 => SlotCommand::Define { slot, code: if share.is_multiple_of(5) { 9 } else { code } },
                    1..=4 => {
                        uid += u32::from(rng.next_u32() % 8 != 0);
                        let part =
                            if share.is_multiple_of(2) { Part::Active } else { Part::Canary { share } };
                        SlotCommand::Push { slot, uid: uid.max(1), code, part }
                    }
                    5 => SlotCommand::Share { slot, share },
                    6 | 7 => SlotCommand::Promote(slot),
                    _ => SlotCommand::Rollback(slot),
                }
            })
            .collect();
        let found = interpreter.command_slots(&commands).unwrap();
        let mut table = SlotTable::plain();
        for (one, found) in commands.iter().zip(found) {
            let code = command(&mut table, *one);
            let (SlotCommand::Define { slot, .. }
            | SlotCommand::Push { slot, .. }
            | SlotCommand::Share { slot, .. }
            | SlotCommand::Promote(slot)
            | SlotCommand::Rollback(slot)) = one;
            // The C half shows slot 0 in place of one that is none.
            let stats = table.stats().into_iter().find(|stats| stats.slot == slot % 16);
            let uid = |part: Option<ccplane_contract::SnapshotUid>| part.map_or(0, |uid| uid.0);
            let expected =
                stats.map_or(SlotAnswer { code, uids: [0; 3], canary_share: 0 }, |stats| SlotAnswer {
                    code,
                    uids: [stats.active, stats.canary, stats.last_good].map(uid),
                    canary_share: stats.canary_share,
                });
            assert_eq!(found, expected, "{one:?} of {commands:?}");
            seen.insert(code);
        }
    }
    // A buffer is always free: three parts at most have one each.
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        [0, NO_SLOT, BAD_SHAPE, OTHER_SHAPE, SAME_UID, NO_SNAPSHOT]
    );
}

#[test]
fn tables_and_limits_are_the_projects() {
    let Some(mut interpreter) = crate::common::sanitized("the module's tables and limits") else { return };
    let narrow = tables::W8.iter().map(|entry| i64::from(*entry));
    let expected: Vec<i64> = narrow.chain(tables::W16.iter().map(|entry| i64::from(*entry))).collect();
    assert!(interpreter.tables().unwrap() == expected, "the activation tables differ");
    let limits = [
        ir::MAX_REGS as i64,
        ir::MAX_TMPS as i64,
        ir::MAX_INSTS as i64,
        ir::MAX_CLAUSES as i64,
        ir::MAX_HISTORIES as i64,
        ir::MAX_HISTORY_DEPTH as i64,
        ir::MAX_POLICY_INPUTS as i64,
        ir::MAX_POLICY_SLOTS as i64,
        MAX_REG_NAME_BYTES as i64,
        MAX_WIDTH as i64,
        MAX_LAYERS as i64,
        MAX_IMAGE_BYTES as i64,
        ir::INFINITY,
        ir::MAX_CWND_BYTES,
        ir::MAX_RATE_BYTES_PER_S,
        ir::ACK_PRIM_COUNT as i64,
        BUFFERS as i64,
    ];
    let found = interpreter.limits().unwrap();
    assert_eq!(found[..limits.len()], limits);
    // What `vm.h` says of memory: 39 KB a program, 2.4 KB a flow.
    assert!(found[limits.len()] <= 40_960 && found[limits.len() + 1] <= 2_432, "{found:?}");
}

/// `policy.h` in the module's folder is what the generator writes; this test writes it where `CCPLANE_BLESS` is set.
#[test]
fn the_generated_header_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel/policy.h");
    if std::env::var_os("CCPLANE_BLESS").is_some() {
        std::fs::write(path, c::policy_header()).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    assert!(found == c::policy_header(), "{path} is out of date: run this test with CCPLANE_BLESS=1");
}
