//! Copies of rows that do not lie behind each other: a part of a matrix, or one whose rows are padded.
//!
//! A queue that has a call of its own for this overrides the three methods of [`Queue`]; the checks here are for all.

use crate::base::{Code, Error, Result};

use super::{Buffer, Queue};

/// Where rows lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pitch {
    /// First byte of the first row.
    pub offset: u64,
    /// Bytes from the beginning of one row to that of the next; at least a row's length. Of one row it means nothing.
    pub pitch: u64,
}

/// What is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Rows.
    pub rows: u64,
    /// Bytes of each.
    pub row_bytes: u64,
}

/// Rows are read together with what lies between them if that is at most so many times their own bytes: one round trip to the
/// device costs more than the bytes.
const MOST_SPREAD: u64 = 4;
/// Most bytes that are read so at once.
const MOST_SPAN: u64 = 64 << 20;

impl Block {
    /// True if nothing is to be copied.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.row_bytes == 0
    }
}

impl Pitch {
    /// Bytes from the first row's first to the last row's last; 0 for an empty block.
    ///
    /// Errors: `BadArgument` if rows overlap, `SizeOverflow` beyond 64 bits.
    pub fn span(&self, block: Block) -> Result<u64> {
        if block.is_empty() {
            return Ok(0);
        }
        if block.rows > 1 && self.pitch < block.row_bytes {
            let why = format!("rows of {} bytes every {} bytes overlap", block.row_bytes, self.pitch);
            return Err(Error::new(Code::BadArgument, why));
        }
        let span = (block.rows - 1).checked_mul(self.pitch).and_then(|b| b.checked_add(block.row_bytes));
        span.filter(|s| self.offset.checked_add(*s).is_some())
            .ok_or_else(|| Error::new(Code::SizeOverflow, format!("{block:?} at {self:?} exceeds 64 bits")))
    }

    /// Checks that the rows lie inside so many bytes of host memory.
    fn check_host(&self, block: Block, len: usize) -> Result<()> {
        let span = self.span(block)?;
        if block.is_empty() {
            return Ok(());
        }
        let end = self.offset + span;
        if end > len as u64 {
            let why = format!("{block:?} at {self:?} ends at byte {end}, the host's slice at {len}");
            return Err(Error::new(Code::ShapeMismatch, why));
        }
        Ok(())
    }

    fn check_device(&self, block: Block, buffer: &Buffer) -> Result<()> {
        let span = self.span(block)?;
        if block.is_empty() { Ok(()) } else { buffer.check(self.offset, span) }
    }

    /// Where row `r` begins. The last row's end was checked to be a number.
    fn row(&self, r: u64) -> u64 {
        self.offset + r * self.pitch
    }

    fn host(&self, r: u64, block: Block) -> std::ops::Range<usize> {
        let from = self.row(r) as usize;
        from..from + block.row_bytes as usize
    }
}

/// The checks of a copy from the host.
pub(super) fn check_write(dst: &Buffer, to: Pitch, data: &[u8], from: Pitch, block: Block) -> Result<()> {
    to.check_device(block, dst)?;
    from.check_host(block, data.len())
}

/// The checks of a copy to the host.
pub(super) fn check_read(src: &Buffer, from: Pitch, out: &[u8], to: Pitch, block: Block) -> Result<()> {
    from.check_device(block, src)?;
    to.check_host(block, out.len())
}

/// The checks of a copy on the device.
pub(super) fn check_copy(src: &Buffer, from: Pitch, dst: &Buffer, to: Pitch, block: Block) -> Result<()> {
    from.check_device(block, src)?;
    to.check_device(block, dst)
}

/// Whether the rows are one behind the other, so that they are one long row.
fn dense(a: Pitch, b: Pitch, block: Block) -> Option<u64> {
    let whole = block.rows <= 1 || (a.pitch == block.row_bytes && b.pitch == block.row_bytes);
    whole.then(|| block.rows * block.row_bytes)
}

pub(super) fn write<Q: Queue + ?Sized>(
    q: &mut Q,
    dst: &Buffer,
    to: Pitch,
    data: &[u8],
    from: Pitch,
    block: Block,
) -> Result<()> {
    check_write(dst, to, data, from, block)?;
    if block.is_empty() {
        return Ok(());
    }
    if let Some(bytes) = dense(to, from, block) {
        return q.write(dst, to.offset, &data[from.host(0, Block { rows: 1, row_bytes: bytes })]);
    }
    (0..block.rows).try_for_each(|r| q.write(dst, to.row(r), &data[from.host(r, block)]))
}

pub(super) fn read<Q: Queue + ?Sized>(
    q: &mut Q,
    src: &Buffer,
    from: Pitch,
    out: &mut [u8],
    to: Pitch,
    block: Block,
) -> Result<()> {
    check_read(src, from, out, to, block)?;
    if block.is_empty() {
        return Ok(());
    }
    if let Some(bytes) = dense(from, to, block) {
        return q.read(src, from.offset, &mut out[to.host(0, Block { rows: 1, row_bytes: bytes })]);
    }
    let span = from.span(block)?;
    if span <= MOST_SPAN && span / MOST_SPREAD <= block.rows * block.row_bytes {
        let mut all = vec![0u8; span as usize];
        q.read(src, from.offset, &mut all)?;
        let within = Pitch { offset: 0, ..from };
        for r in 0..block.rows {
            out[to.host(r, block)].copy_from_slice(&all[within.host(r, block)]);
        }
        return Ok(());
    }
    (0..block.rows).try_for_each(|r| q.read(src, from.row(r), &mut out[to.host(r, block)]))
}

pub(super) fn copy<Q: Queue + ?Sized>(
    q: &mut Q,
    src: &Buffer,
    from: Pitch,
    dst: &Buffer,
    to: Pitch,
    block: Block,
) -> Result<()> {
    check_copy(src, from, dst, to, block)?;
    if block.is_empty() {
        return Ok(());
    }
    if let Some(bytes) = dense(from, to, block) {
        return q.copy(src, from.offset, dst, to.offset, bytes);
    }
    (0..block.rows).try_for_each(|r| q.copy(src, from.row(r), dst, to.row(r), block.row_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_their_errors() {
        let block = Block { rows: 3, row_bytes: 10 };
        assert_eq!(Pitch { offset: 7, pitch: 16 }.span(block).unwrap(), 42);
        assert_eq!(Pitch { offset: 7, pitch: 10 }.span(block).unwrap(), 30);
        let code = |p: Pitch, b: Block| p.span(b).unwrap_err().code();
        assert_eq!(code(Pitch { offset: 0, pitch: 9 }, block), Code::BadArgument);
        assert_eq!(code(Pitch { offset: 0, pitch: u64::MAX / 2 }, Block { rows: 4, row_bytes: 1 }), Code::SizeOverflow);
        assert_eq!(code(Pitch { offset: u64::MAX - 5, pitch: 16 }, block), Code::SizeOverflow);
        // Nothing overlaps where there is nothing, or one row.
        assert_eq!(Pitch { offset: u64::MAX, pitch: 0 }.span(Block { rows: 0, row_bytes: 10 }).unwrap(), 0);
        assert_eq!(Pitch { offset: 0, pitch: 0 }.span(Block { rows: 1, row_bytes: 10 }).unwrap(), 10);
        let host = |len| Pitch { offset: 7, pitch: 16 }.check_host(block, len);
        assert!(host(49).is_ok());
        assert_eq!(host(48).unwrap_err().code(), Code::ShapeMismatch);
    }
}
