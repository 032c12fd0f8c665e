//! Patterns over a part of the device's memory: moving inversions, walking bits, solid, random, each word's own address.
//!
//! A pass writes a pattern to all blocks, reads it back in order, writes its inverse, and reads that back from the other end.
//! What the last pass left is read once more before it is overwritten, and every eighth block (others each time) is left out
//! of a pass, so that its contents stand for two. Between them single words are read in random order.

use crate::base::rng::Philox;
use crate::base::{DeviceClass, DeviceInfo, Result, os};
use crate::device::{Buffer, MemoryKind, Queue};

use super::Ctx;

/// Bytes of a block.
const BLOCK: u64 = 1 << 20;
/// Of memory that the host uses as well: this part, these bytes at most, and as many per second of the phase.
const SHARED: (f64, u64, f64) = (0.10, 256 << 20, 16e6);
/// Of a card's own memory, which devices that are one card divide.
const OWN: (f64, u64, f64) = (0.75, 64 << 30, 256e6);
/// One block in so many stays as it is for a pass.
const KEPT: usize = 8;
/// Words read in random order after each half of a pass.
const RANDOM: u64 = 64;

/// A word from its number among all words and the pass's seed.
type Pattern = fn(u64, u64) -> u64;

const PATTERNS: [(&str, Pattern); 6] = [
    ("own address", |i, _| 8 * i),
    ("random", |i, seed| mixed(i ^ seed)),
    ("walking one", |i, seed| 1 << ((i + seed) % 64)),
    ("solid", |_, _| 0),
    ("checkers", |i, _| if i % 2 == 0 { 0x5555_5555_5555_5555 } else { 0xAAAA_AAAA_AAAA_AAAA }),
    // Sixteen bits that wander through the word, as in moving inversions of random data.
    ("wandering pairs", |i, seed| 0x0000_0000_0003_0003u64.rotate_left(((i + seed) % 64) as u32)),
];

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): all bits depend on all bits.
const fn mixed(i: u64) -> u64 {
    let z = i.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What a block holds.
#[derive(Clone, Copy)]
struct Held {
    pattern: usize,
    seed: u64,
    inverse: bool,
    /// Read back since it was written.
    seen: bool,
}

impl Held {
    fn word(&self, i: u64) -> u64 {
        let word = PATTERNS[self.pattern].1(i, self.seed);
        if self.inverse { !word } else { word }
    }
}

struct Block {
    buffer: Buffer,
    /// Number of its first word among all.
    first: u64,
    held: Option<Held>,
}

/// What one visit does to a block.
#[derive(Clone, Copy)]
enum Step {
    /// Writes a pattern over what was read for the last time.
    Write(Held),
    Read,
    /// A few words of all blocks.
    Random,
}

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let blocks = blocks(ctx)?;
    let Some(mut blocks) = blocks else { return Ok(()) };
    ctx.meter.count("memory_bytes", BLOCK * blocks.len() as u64);
    let rng = Philox::new(ctx.seed);
    let mut plan: Vec<(usize, Step)> = Vec::new();
    let (mut pass, mut at) = (0, 0);
    let mut words = vec![0u64; (BLOCK / 8) as usize];
    ctx.repeat(&runner, |q, _| {
        if at == plan.len() {
            (plan, at) = (steps(pass, blocks.len(), &rng), 0);
            pass += 1;
        }
        let (number, step) = plan[at];
        at += 1;
        visit(ctx, q, &mut blocks, number, step, &mut words, &rng, pass)
    })?;
    // What was written and not read yet counts as made and must be checked as well.
    let mut lease = runner.lease()?;
    for block in blocks.iter_mut().filter(|b| b.held.is_some_and(|h| !h.seen)) {
        ctx.meter.doing(0, &format!("the last read of block {}", block.first * 8 / BLOCK));
        match lease.queue().and_then(|q| read(ctx, q, block, &mut words)) {
            Ok(bytes) => ctx.meter.cycle(0, 0, bytes, 0.0),
            Err(e) => {
                lease.discard();
                return ctx.meter.survive(e);
            }
        }
    }
    ctx.meter.count("passes", pass);
    drop((lease, blocks));
    ctx.meter.quiet(ctx.device.ledger().state());
    Ok(())
}

/// The blocks of the chosen part of memory. A device that has no more ends the list; one that has none ends the phase.
fn blocks(ctx: &Ctx<'_>) -> Result<Option<Vec<Block>>> {
    let room = room(ctx.device.info(), ctx.device.memory().free, os::memory().map(|m| m.1), ctx.sharing, ctx.seconds);
    let mut blocks = Vec::new();
    for number in 0..(room / BLOCK).max(2) {
        match ctx.device.alloc(BLOCK, MemoryKind::Device) {
            Ok(buffer) => blocks.push(Block { buffer, first: number * (BLOCK / 8), held: None }),
            Err(e) => {
                ctx.meter.survive(e)?;
                break;
            }
        }
    }
    Ok((!blocks.is_empty()).then_some(blocks))
}

/// Bytes to be worked on, with so much free on the device and the host, by one of `sharing` devices that are one card: all of
/// them are in this phase at about the same time, and a card that had no more for the last of them would be called faulty.
fn room(info: &DeviceInfo, free: Option<u64>, host: Option<u64>, sharing: u32, seconds: f64) -> u64 {
    let own = matches!(info.class, DeviceClass::Discrete) && !info.unified_memory;
    let (part, most, pace) = if own { OWN } else { SHARED };
    let part = if own { part / f64::from(sharing.max(1)) } else { part };
    let free = if own { free.or(info.memory_bytes) } else { host };
    free.map_or(most, |free| (part * free as f64) as u64).min(most).min((pace * seconds) as u64)
}

/// The visits of a pass.
fn steps(pass: u64, blocks: usize, rng: &Philox) -> Vec<(usize, Step)> {
    let held = |inverse| Held {
        pattern: (pass % PATTERNS.len() as u64) as usize,
        seed: rng.u64(0, pass),
        inverse,
        seen: false,
    };
    // The first pass leaves out none: there is nothing to keep.
    let worked = |b: &usize| pass == 0 || blocks < KEPT || b % KEPT != (pass % KEPT as u64) as usize;
    let up = || (0..blocks).filter(worked);
    let mut plan: Vec<(usize, Step)> = up().map(|b| (b, Step::Write(held(false)))).collect();
    for b in up() {
        plan.extend([(b, Step::Read), (b, Step::Write(held(true)))]);
    }
    plan.push((0, Step::Random));
    plan.extend(up().rev().map(|b| (b, Step::Read)));
    plan.push((0, Step::Random));
    plan
}

/// One visit; returns bytes written and bytes read back for the first time.
#[allow(clippy::too_many_arguments, reason = "the state of a pass, passed on by its only caller")]
fn visit(
    ctx: &Ctx<'_>,
    q: &mut dyn Queue,
    blocks: &mut [Block],
    number: usize,
    step: Step,
    words: &mut [u64],
    rng: &Philox,
    pass: u64,
) -> Result<(u64, u64)> {
    match step {
        Step::Random => {
            ctx.meter.doing(0, &format!("random reads, pass {pass}"));
            for i in 0..RANDOM {
                let spot = rng.u64(1, pass * 2 * RANDOM + i);
                let block = &blocks[spot as usize % blocks.len()];
                let Some(held) = block.held else { continue };
                let word = (spot >> 32) % (BLOCK / 8);
                let mut got = [0u8; 8];
                q.read(&block.buffer, 8 * word, &mut got)?;
                differ(ctx, block, &held, std::iter::once((word, u64::from_le_bytes(got))));
            }
            ctx.meter.count("random_reads", RANDOM);
            Ok((0, 0))
        }
        Step::Read => {
            ctx.meter.doing(0, &format!("reading block {number}, pass {pass}"));
            Ok((0, read(ctx, q, &mut blocks[number], words)?))
        }
        Step::Write(held) => {
            let block = &mut blocks[number];
            let mut first = 0;
            if !held.inverse && block.held.is_some() {
                ctx.meter.doing(0, &format!("reading block {number} again, pass {pass}"));
                first = read(ctx, q, block, words)?;
            }
            let name = PATTERNS[held.pattern].0;
            ctx.meter.doing(0, &format!("writing block {number}, pass {pass}: {name}"));
            for (i, word) in words.iter_mut().enumerate() {
                *word = held.word(block.first + i as u64);
            }
            // Unknown until the write has ended.
            block.held = None;
            q.write(&block.buffer, 0, bytemuck::cast_slice(words))?;
            q.finish(ctx.deadline())?;
            block.held = Some(held);
            Ok((BLOCK, first))
        }
    }
}

/// Reads a block and compares all of it. Returns its bytes if they had not been read before.
fn read(ctx: &Ctx<'_>, q: &mut dyn Queue, block: &mut Block, words: &mut [u64]) -> Result<u64> {
    let Some(mut held) = block.held else { return Ok(0) };
    q.read(&block.buffer, 0, bytemuck::cast_slice_mut(words))?;
    differ(ctx, block, &held, words.iter().enumerate().map(|(i, w)| (i as u64, u64::from_le(*w))));
    let fresh = !std::mem::replace(&mut held.seen, true);
    block.held = Some(held);
    if !fresh {
        ctx.meter.count("bytes_read_again", BLOCK);
    }
    Ok(if fresh { BLOCK } else { 0 })
}

/// Compares words of a block, each with its place in it. What differs is counted by its bits; the first word is named.
fn differ(ctx: &Ctx<'_>, block: &Block, held: &Held, words: impl Iterator<Item = (u64, u64)>) {
    let mut first: Option<String> = None;
    let (mut single, mut multi) = (0, 0);
    for (i, got) in words {
        let want = held.word(block.first + i);
        let mask = want ^ got;
        if mask == 0 {
            continue;
        }
        if mask.count_ones() == 1 {
            single += 1
        } else {
            multi += 1
        }
        first.get_or_insert_with(|| {
            format!("byte {:#x} reads {got:#018x}, {want:#018x} was written, mask {mask:#018x}", 8 * (block.first + i))
        });
    }
    if let Some(first) = first {
        ctx.meter.count("words_with_one_wrong_bit", single);
        ctx.meter.count("words_with_more_wrong_bits", multi);
        let (name, inverse) = (PATTERNS[held.pattern].0, if held.inverse { ", inverted" } else { "" });
        ctx.meter.mismatch(format!(
            "memory ({name}{inverse}): {first}; of its block {} words are wrong, {single} of them in one bit",
            single + multi
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_from_word_to_word_and_pass_to_pass() {
        for (name, pattern) in PATTERNS {
            if !matches!(name, "solid" | "checkers") {
                assert!((1..100).all(|i| pattern(i, 3) != pattern(i - 1, 3)), "{name}");
            }
            if !matches!(name, "solid" | "checkers" | "own address") {
                assert!((0..100).all(|i| pattern(i, 3) != pattern(i, 4)), "{name}");
            }
        }
        let held = Held { pattern: 1, seed: 9, inverse: false, seen: false };
        assert_eq!(held.word(5), !Held { inverse: true, ..held }.word(5));
    }

    /// Three interfaces of one card asked for three quarters of it each.
    #[test]
    fn devices_that_are_one_card_divide_its_memory() {
        const CARD: u64 = 24 << 30;
        let card = DeviceInfo { memory_bytes: Some(CARD), ..DeviceInfo::ordinary_gpu() };
        let hours = |sharing| room(&card, None, Some(1 << 40), sharing, 6000.0);
        assert_eq!((hours(1), hours(0)), (CARD / 4 * 3, CARD / 4 * 3));
        assert_eq!(3 * hours(3), CARD / 4 * 3);
        assert_eq!(room(&card, Some(CARD / 2), None, 1, 6000.0), CARD / 8 * 3, "what is free counts where it is told");
        // The host's memory is taken by little already.
        let host = DeviceInfo { class: DeviceClass::Software, ..card };
        assert_eq!(room(&host, None, Some(1 << 40), 3, 6000.0), SHARED.1);
    }

    /// Every block is written and read both ways, and stands for a whole pass now and then.
    #[test]
    fn a_pass_visits_every_block_that_it_does_not_keep() {
        let rng = Philox::new(1);
        let kept = |pass| {
            let plan = steps(pass, 20, &rng);
            (0..20usize)
                .filter(|b| {
                    let count = |f: fn(&Step) -> bool| plan.iter().filter(|(n, s)| n == b && f(s)).count();
                    let writes = count(|s| matches!(s, Step::Write(_)));
                    assert_eq!(count(|s| matches!(s, Step::Read)), writes);
                    assert!(writes == 0 || writes == 2);
                    writes == 0
                })
                .collect::<Vec<_>>()
        };
        assert!(kept(0).is_empty());
        assert_eq!((kept(1), kept(2)), (vec![1, 9, 17], vec![2, 10, 18]));
    }
}
