//! Patterns of odd sizes at odd offsets through every kind of memory that a device has. What was sent is compared byte by byte,
//! and so is what lies beside it.

use crate::base::rng::Philox;
use crate::base::{Code, Result};
use crate::device::{Buffer, MemoryKind};

use super::Ctx;

/// Bytes of the largest block, and of the buffers.
const MOST: u64 = 1 << 20;
const ROOM: u64 = MOST + 2 * PAGE;
const PAGE: u64 = 4096;
/// Bytes looked at on each side of a block.
const BESIDE: u64 = 64;
/// What lies beside.
const GROUND: u8 = 0x5A;
/// Kinds of memory besides the device's own.
const KINDS: [MemoryKind; 3] = [MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Managed];

/// A buffer on the way, by the kind of its memory.
struct Stage {
    name: String,
    buffer: Buffer,
}

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let own = |name: &str| -> Result<Stage> {
        Ok(Stage { name: name.into(), buffer: ctx.device.alloc(ROOM, MemoryKind::Device)? })
    };
    let (first, last) = (own("device memory")?, own("device memory after a copy")?);
    let mut between = Vec::new();
    for kind in KINDS {
        let name = format!("{kind:?} memory").to_lowercase();
        match ctx.device.alloc(ROOM, kind) {
            Ok(buffer) => between.push(Stage { name, buffer }),
            Err(e) if e.code() == Code::FeatureUnsupported => ctx.meter.not_tested(format!("{name}: {}", e.detail())),
            Err(e) => ctx.meter.survive(e)?,
        }
    }
    ctx.meter.count("kinds_of_memory", 1 + between.len() as u64);
    let rng = Philox::new(ctx.seed);
    let moved = ctx.repeat(&runner, |q, round| {
        let (bytes, offset) = place(&rng, round);
        ctx.meter.doing(0, &format!("transfer {round}: {bytes} bytes at {offset}, {}", PATTERNS[pattern(round)].0));
        let data = block(&rng, round, bytes);
        let hash = crc32(&data);
        // To the device, through one of the other kinds of memory in turn, and on to the last: copies move whole words.
        let words = |at: u64| at / 4 * 4;
        let (from, until) = (words(offset - BESIDE), words(offset + bytes + BESIDE + 3));
        let mut way = vec![&first];
        way.extend(between.get(round as usize % between.len().max(1)));
        way.push(&last);
        for stage in &way {
            q.fill(&stage.buffer, from, until - from, GROUND)?;
        }
        q.write(&first.buffer, offset, &data)?;
        for pair in way.windows(2) {
            q.copy(&pair[0].buffer, from, &pair[1].buffer, from, until - from)?;
        }
        q.finish(ctx.deadline())?;
        let mut checked = 0;
        for stage in &way {
            let mut got = vec![0u8; (until - from) as usize];
            q.read(&stage.buffer, from, &mut got)?;
            compare(ctx, stage, &got, &data, (offset - from) as usize, round);
            checked += bytes;
        }
        // Unaligned as well.
        let mut back = vec![0u8; data.len()];
        q.read(&last.buffer, offset, &mut back)?;
        if crc32(&back) != hash {
            compare(ctx, &last, &back, &data, 0, round);
        }
        Ok((checked, checked))
    });
    drop((first, last, between));
    ctx.meter.quiet(ctx.device.ledger().state());
    moved
}

/// Size and first byte of a block: every power of two as likely as the next, about half of them one byte off, across pages.
fn place(rng: &Philox, round: u64) -> (u64, u64) {
    let [size, shape, offset, _] = rng.block(0, round);
    let top = 1u64 << (size % (MOST.ilog2() + 1));
    let bytes = match shape % 4 {
        0 => top,
        1 => top - top.min(2) / 2,
        2 => top + 1,
        _ => 1 + u64::from(shape / 4) % top,
    };
    (bytes.min(MOST), BESIDE + u64::from(offset) % PAGE)
}

/// How a byte follows from its place and a random number.
type Pattern = fn(usize, u8) -> u8;

const PATTERNS: [(&str, Pattern); 7] = [
    ("random", |_, r| r),
    ("zeros", |_, _| 0),
    ("ones", |_, _| 0xFF),
    ("checkers", |i, _| if i % 2 == 0 { 0x55 } else { 0xAA }),
    ("a walking one", |i, _| 1 << (i % 8)),
    ("a walking zero", |i, _| !(1 << (i % 8))),
    ("its own place", |i, _| (i ^ (i >> 8) ^ (i >> 16)) as u8),
];

fn pattern(round: u64) -> usize {
    // Random data every other time.
    if round.is_multiple_of(2) { 0 } else { (round / 2) as usize % PATTERNS.len() }
}

fn block(rng: &Philox, round: u64, bytes: u64) -> Vec<u8> {
    let rule = PATTERNS[pattern(round)].1;
    let mut state = rng.u64(1, round) | 1;
    (0..bytes as usize)
        .map(|i| {
            // Marsaglia's xorshift64: fast, and no two blocks alike.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            rule(i, (state >> 32) as u8)
        })
        .collect()
}

/// CRC-32 (ISO 3309, as in Ethernet and zip), four bits at a time.
fn crc32(data: &[u8]) -> u32 {
    const TABLE: [u32; 16] = {
        let mut table = [0u32; 16];
        let mut i = 0;
        while i < 16 {
            let mut crc = i as u32;
            let mut bit = 0;
            while bit < 4 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    let step = |crc: u32, nibble: u32| (crc >> 4) ^ TABLE[((crc ^ nibble) & 15) as usize];
    !data.iter().fold(!0u32, |crc, byte| step(step(crc, u32::from(*byte)), u32::from(*byte >> 4)))
}

/// Compares a block that begins at `at` of what was read, and what lies around it.
fn compare(ctx: &Ctx<'_>, stage: &Stage, got: &[u8], data: &[u8], at: usize, round: u64) {
    let end = at + data.len();
    let (head, tail) = (&got[..at], &got[end..]);
    let name = PATTERNS[pattern(round)].0;
    if got[at..end] != *data {
        let wrong = data.iter().zip(&got[at..end]).enumerate().filter(|(_, (want, got))| want != got);
        let bits: u64 = wrong.clone().map(|(_, (w, g))| u64::from((w ^ g).count_ones())).sum();
        let count = wrong.clone().count();
        if let Some((i, (want, got))) = wrong.clone().next() {
            let (stage, all) = (&stage.name, data.len());
            let first = format!("byte {i} is {got:#04x}, {want:#04x} was written");
            let crc = crc32(data);
            ctx.meter.mismatch(format!(
                "{stage}, transfer {round} of {all} bytes ({name}, CRC-32 {crc:08x}): {first}; {count} bytes and {bits} \
                 bits are wrong"
            ));
        }
    }
    if let Some(i) = head.iter().chain(tail).position(|b| *b != GROUND) {
        ctx.meter.mismatch(format!("{}, transfer {round}: byte {i} beside the block was changed", stage.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_crc_32() {
        // The check value of ISO 3309's polynomial, as catalogues of CRCs give it.
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn blocks_have_odd_sizes_and_cross_pages() {
        let rng = Philox::new(7);
        let places: Vec<_> = (0..500).map(|round| place(&rng, round)).collect();
        assert!(places.iter().all(|(bytes, offset)| *bytes >= 1 && offset + bytes + BESIDE + 3 <= ROOM));
        assert!(places.iter().filter(|p| p.0 % 2 == 1).count() > 100);
        assert!(places.iter().filter(|p| p.1 % 4 != 0).count() > 200);
        assert!(places.iter().filter(|(b, o)| o / PAGE != (o + b - 1) / PAGE).count() > 100);
        assert!((0..20).any(|round| block(&rng, round, 64) != block(&rng, round + 2, 64)));
    }
}
