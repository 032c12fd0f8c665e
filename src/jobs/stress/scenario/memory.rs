//! Patterns over a part of the device's memory: moving inversions, walking bits, solid, random, each word's own address.
//!
//! A pass writes a pattern to all blocks, reads it back in order, writes its inverse, and reads that back from the other end.
//! What the last pass left is read once more before it is overwritten, and every eighth block (others each time) is left out
//! of a pass, so that its contents stand for two. Between them single words are read in random order.
//!
//! The first pass is over two blocks and tells how long a block takes: of the memory as much is taken as has time for all patterns.

use std::time::Instant;

use crate::base::rng::Philox;
use crate::base::{DeviceClass, DeviceInfo, Result, os};
use crate::device::{Buffer, MemoryKind, Queue};

use super::Ctx;

/// Bytes of a block.
const BLOCK: u64 = 1 << 20;
/// Of memory that the host uses as well: this part, and these bytes at most.
const SHARED: (f64, u64) = (0.10, 256 << 20);
/// Of a card's own memory, which devices that are one card divide.
const OWN: (f64, u64) = (0.75, 64 << 30);
/// Blocks of the first pass, and the fewest of all.
const FEWEST: u64 = 2;
/// Writes and reads of a block in one pass, with that of what the last one left.
const VISITS: (f64, f64) = (2.0, 3.0);
/// Part of what is left of a phase that all patterns together are planned to take: a machine may become slower, and what is left
/// over is used for more passes.
const PLANNED: f64 = 0.6;
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

/// The fastest visits so far, in seconds: the first ones wake things up.
struct Pace {
    write: f64,
    read: f64,
}

impl Pace {
    fn take(&mut self, step: Step, seconds: f64) {
        match step {
            Step::Write(_) => self.write = self.write.min(seconds),
            Step::Read => self.read = self.read.min(seconds),
            Step::Random => {}
        }
    }

    /// How many blocks have time for all patterns in so many seconds.
    fn blocks(&self, seconds: f64) -> u64 {
        let pass = VISITS.0 * self.write + VISITS.1 * self.read;
        (PLANNED * seconds / (PATTERNS.len() as f64 * pass)) as u64
    }
}

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let most = room(ctx.device.info(), ctx.device.memory().free, os::memory().map(|m| m.1), ctx.sharing) / BLOCK;
    let mut blocks = Vec::new();
    extend(ctx, &mut blocks, FEWEST)?;
    if blocks.is_empty() {
        return Ok(());
    }
    let rng = Philox::new(ctx.seed);
    let mut pace = Pace { write: f64::INFINITY, read: f64::INFINITY };
    let mut plan: Vec<(usize, Step)> = Vec::new();
    let (mut pass, mut at) = (0, 0);
    let mut words = vec![0u64; (BLOCK / 8) as usize];
    ctx.repeat(&runner, |q, _| {
        if at == plan.len() {
            if pass == 1 {
                extend(ctx, &mut blocks, pace.blocks(ctx.seconds - ctx.elapsed()).min(most))?;
            }
            (plan, at) = (steps(pass, blocks.len(), &rng), 0);
            pass += 1;
        }
        let (number, step) = plan[at];
        at += 1;
        let from = Instant::now();
        let bytes = visit(ctx, q, &mut blocks, number, step, &mut words, &rng, pass)?;
        pace.take(step, from.elapsed().as_secs_f64());
        Ok(bytes)
    })?;
    ctx.meter.count("memory_bytes", BLOCK * blocks.len() as u64);
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
    // Of all that were begun the first is none over the memory, and the last may have been cut off.
    let finished = if at == plan.len() { pass } else { pass.saturating_sub(1) }.saturating_sub(1);
    ctx.meter.count("passes", finished);
    let missing = unfinished(finished);
    if !missing.is_empty() {
        ctx.meter.not_tested(format!("patterns for which the time did not suffice: {}", missing.join(", ")));
    }
    drop((lease, blocks));
    ctx.meter.quiet(ctx.device.ledger().state());
    Ok(())
}

/// The patterns that so many passes over the memory did not get to.
fn unfinished(passes: u64) -> Vec<&'static str> {
    let all = PATTERNS.len() as u64;
    (passes.min(all)..all).map(|pass| PATTERNS[pattern_of(pass + 1)].0).collect()
}

/// The pattern of a pass.
fn pattern_of(pass: u64) -> usize {
    (pass % PATTERNS.len() as u64) as usize
}

/// Takes memory until there are so many blocks. A device that has no more ends the list.
fn extend(ctx: &Ctx<'_>, blocks: &mut Vec<Block>, upto: u64) -> Result<()> {
    for number in blocks.len() as u64..upto {
        match ctx.device.alloc(BLOCK, MemoryKind::Device) {
            Ok(buffer) => blocks.push(Block { buffer, first: number * (BLOCK / 8), held: None }),
            Err(e) => return ctx.meter.survive(e),
        }
        ctx.meter.step(0);
    }
    Ok(())
}

/// Bytes to be worked on at most, with so much free on the device and the host, by one of `sharing` devices that are one card: all
/// of them are in this phase at about the same time, and a card that had no more for the last of them would be called faulty.
fn room(info: &DeviceInfo, free: Option<u64>, host: Option<u64>, sharing: u32) -> u64 {
    let own = matches!(info.class, DeviceClass::Discrete) && !info.unified_memory;
    let (part, most) = if own { OWN } else { SHARED };
    let part = if own { part / f64::from(sharing.max(1)) } else { part };
    let free = if own { free.or(info.memory_bytes) } else { host };
    free.map_or(most, |free| (part * free as f64) as u64).min(most)
}

/// The visits of a pass.
fn steps(pass: u64, blocks: usize, rng: &Philox) -> Vec<(usize, Step)> {
    let held = |inverse| Held { pattern: pattern_of(pass), seed: rng.u64(0, pass), inverse, seen: false };
    // The first pass over all of them leaves out none: there is nothing to keep.
    let worked = |b: &usize| pass <= 1 || blocks < KEPT || b % KEPT != (pass % KEPT as u64) as usize;
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
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::device::Device;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
    use crate::jobs::stress::scenario::testing::on;
    use crate::kernel::Isa;

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
        let hours = |sharing| room(&card, None, Some(1 << 40), sharing);
        assert_eq!((hours(1), hours(0)), (CARD / 4 * 3, CARD / 4 * 3));
        assert_eq!(3 * hours(3), CARD / 4 * 3);
        assert_eq!(room(&card, Some(CARD / 2), None, 1), CARD / 8 * 3, "what is free counts where it is told");
        // The host's memory is taken by little already.
        let host = DeviceInfo { class: DeviceClass::Software, ..card };
        assert_eq!(room(&host, None, Some(1 << 40), 3), SHARED.1);
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
        assert!(kept(0).is_empty() && kept(1).is_empty());
        assert_eq!((kept(2), kept(9)), (vec![2, 10, 18], vec![1, 9, 17]));
    }

    /// However long a block takes, all patterns are planned to fit, also with four times as many reads as writes.
    #[test]
    fn as_much_memory_is_taken_as_has_time_for_all_patterns() {
        let rng = Philox::new(1);
        for (write, read) in [(3e-4, 3e-4), (2e-5, 8e-5), (2e-3, 1e-3)] {
            for seconds in [2.0, 20.0] {
                let blocks = Pace { write, read }.blocks(seconds) as usize;
                let visits: Vec<_> = (1..=6).flat_map(|pass| steps(pass, blocks, &rng)).collect();
                let writes = visits.iter().filter(|v| matches!(v.1, Step::Write(_))).count() as f64;
                let took = writes * write + 1.5 * writes * read;
                assert!(
                    blocks >= 8 && (0.4..PLANNED + 0.01).contains(&(took / seconds)),
                    "{blocks}: {took} of {seconds}"
                );
            }
        }
        // Nothing was measured, or there is no time left.
        assert_eq!(Pace { write: f64::INFINITY, read: 1e-3 }.blocks(60.0), 0);
        assert_eq!(Pace { write: 1e-3, read: 1e-3 }.blocks(-1.0), 0);
    }

    #[test]
    fn patterns_that_no_pass_got_to_are_named() {
        assert_eq!((unfinished(6), unfinished(1000)), (vec![], vec![]));
        assert_eq!(unfinished(4), ["wandering pairs", "own address"]);
        assert_eq!(unfinished(0).len(), PATTERNS.len());
    }

    /// A device so slow that its phase of a second has no time for six passes, and a sound one, whose counts fit what it says.
    #[test]
    fn a_phase_says_which_patterns_it_did_not_finish() {
        let slow = |on| Rule { on, when: When::Every(1), fault: Fault::Slow(Duration::from_millis(40)) };
        let cpu = || CpuDevice::new(1, Isa::BASELINE, Pin::Free).unwrap();
        let rules = vec![slow(On::Read), slow(On::Write)];
        let late = Faulty::new(Arc::new(cpu()), FaultPlan { text: "slow".into(), rules });
        for (device, sound) in [(Arc::new(late) as Arc<dyn Device>, false), (Arc::new(cpu()), true)] {
            let (counters, said) = on(device, |ctx| {
                run(ctx).unwrap();
                ctx.meter.counters()
            });
            let missing = unfinished(counters["passes"]);
            assert_eq!(said.contains("time did not suffice"), !missing.is_empty(), "{counters:?} {said}");
            assert!(missing.iter().all(|name| said.contains(name)), "{missing:?} {said}");
            assert!(sound || missing.contains(&"own address"), "{counters:?}");
        }
    }
}
