//! Copies of rows, copies between devices, and what the driver is told of managed memory.

// Calls into the driver; each block says what makes it sound.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUmem_advise as A, CUresult};

use crate::base::{Code, Error, Result};
use crate::device::{Advice, Block, Buffer, DEADLINE, Pitch, Place, rows};

use super::driver::{Context, Memory, has_symbol};
use super::queue::CudaQueue;

/// Functions of the driver that are used where it has them.
#[cfg(test)]
pub(super) const SYMBOLS: [&str; 7] = [
    "cuMemcpy2DAsync_v2",
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
    "cuMemcpyPeerAsync",
    "cuMemPrefetchAsync",
    "cuMemAdvise",
    "cuMemRangeGetAttribute",
];

/// The largest pitch of a copy of rows (CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device so far).
const MOST_PITCH: u64 = (1 << 31) - 1;

/// The number by which the driver knows the host (CU_DEVICE_CPU), and that of no place at all (CU_DEVICE_INVALID).
const HOST: c_int = -1;
const NOWHERE: c_int = -2;

/// One side of a copy of rows.
enum Side {
    Device(u64),
    /// Read or written by the driver, never by us.
    Host(*mut u8),
}

/// Whether rows are for one call of the driver.
fn in_one(a: Pitch, b: Pitch, block: Block) -> bool {
    let dense = a.pitch == block.row_bytes && b.pitch == block.row_bytes;
    block.rows > 1
        && !block.is_empty()
        && !dense
        && a.pitch.max(b.pitch) <= MOST_PITCH
        && has_symbol("cuMemcpy2DAsync_v2")
}

impl CudaQueue {
    fn rect(&mut self, (to, to_pitch): (Side, u64), (from, from_pitch): (Side, u64), block: Block) -> Result<()> {
        // Unified: the driver tells by the address which memory of its own it is.
        let side = |side: &Side| match *side {
            Side::Device(address) => (sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED, std::ptr::null_mut(), address),
            Side::Host(pointer) => (sys::CUmemorytype::CU_MEMORYTYPE_HOST, pointer, 0),
        };
        let ((src_kind, src_host, src_device), (dst_kind, dst_host, dst_device)) = (side(&from), side(&to));
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: src_kind,
            srcHost: src_host.cast_const().cast(),
            srcDevice: src_device,
            srcArray: std::ptr::null_mut(),
            srcPitch: from_pitch as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: dst_kind,
            dstHost: dst_host.cast(),
            dstDevice: dst_device,
            dstArray: std::ptr::null_mut(),
            dstPitch: to_pitch as usize,
            WidthInBytes: block.row_bytes as usize,
            Height: block.rows as usize,
        };
        // SAFETY: both blocks were checked to lie inside of what the addresses begin; who calls keeps both sides until the copy
        // is done; the description lives through the call; the symbol was looked up.
        let rc = unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.stream) };
        self.ctx.check(rc, "copy of rows", Code::TransferFailed)
    }

    pub(super) fn write_block(
        &mut self,
        dst: &Buffer,
        to: Pitch,
        data: &[u8],
        from: Pitch,
        block: Block,
    ) -> Result<()> {
        rows::check_write(dst, to, data, from, block)?;
        if !in_one(to, from, block) {
            return rows::write(self, dst, to, data, from, block);
        }
        let address = self.address(dst, to.offset)?;
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        self.clear(DEADLINE)?;
        // The driver reads there alone.
        let host = data[from.offset as usize..].as_ptr().cast_mut();
        self.rect((Side::Device(address), to.pitch), (Side::Host(host), from.pitch), block)?;
        // `data` stays borrowed until the copy is done.
        self.landed(dst)
    }

    pub(super) fn read_block(
        &mut self,
        src: &Buffer,
        from: Pitch,
        out: &mut [u8],
        to: Pitch,
        block: Block,
    ) -> Result<()> {
        rows::check_read(src, from, out, to, block)?;
        if !in_one(from, to, block) {
            return rows::read(self, src, from, out, to, block);
        }
        let address = self.address(src, from.offset)?;
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        self.clear(DEADLINE)?;
        let host = out[to.offset as usize..].as_mut_ptr();
        self.rect((Side::Host(host), to.pitch), (Side::Device(address), from.pitch), block)?;
        self.landed(src)
    }

    pub(super) fn copy_block(
        &mut self,
        src: &Buffer,
        from: Pitch,
        dst: &Buffer,
        to: Pitch,
        block: Block,
    ) -> Result<()> {
        rows::check_copy(src, from, dst, to, block)?;
        let (a, b) = (self.address(src, from.offset)?, self.address(dst, to.offset)?);
        // Blocks that may overlap are copied row by row, where overlaps are seen.
        let apart = || -> Result<bool> { Ok(a + from.span(block)? <= b || b + to.span(block)? <= a) };
        if !in_one(from, to, block) || !apart()? {
            return rows::copy(self, src, from, dst, to, block);
        }
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        self.rect((Side::Device(b), to.pitch), (Side::Device(a), from.pitch), block)?;
        self.issue([src.clone(), dst.clone()], None)
    }

    pub(super) fn peer(
        &mut self,
        src: &Buffer,
        src_offset: u64,
        dst: &Buffer,
        dst_offset: u64,
        bytes: u64,
    ) -> Result<()> {
        src.check(src_offset, bytes)?;
        dst.check(dst_offset, bytes)?;
        let to = self.address(dst, dst_offset)?;
        let Some(far) = src.raw_of_any::<Memory>().filter(|_| has_symbol("cuMemcpyPeerAsync")) else {
            return Err(Error::new(Code::FeatureUnsupported, "the other array does not lie on a CUDA device"));
        };
        if bytes == 0 {
            return Ok(());
        }
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        // Without access the driver goes by way of the host: slower, and as right.
        let _ = ctx.reaches(far.context());
        // SAFETY: both ranges lie inside live buffers of these contexts, which are kept alive below; the symbol was looked up.
        let rc = unsafe {
            sys::cuMemcpyPeerAsync(
                to,
                ctx.raw(),
                far.address + src_offset,
                far.context().raw(),
                bytes as usize,
                self.stream,
            )
        };
        ctx.check(rc, "copy between devices", Code::TransferFailed)?;
        self.issue([src.clone(), dst.clone()], None)
    }

    /// A managed buffer's address and bytes, if the driver can do something for it.
    fn managed(&self, buffer: &Buffer, symbol: &str) -> Result<(u64, usize)> {
        let memory = buffer.raw::<Memory>(self.serial)?;
        if !memory.is_managed() {
            return Err(Error::new(Code::FeatureUnsupported, "the array does not lie in managed memory"));
        }
        if !has_symbol(symbol) {
            return Err(Error::new(Code::FeatureUnsupported, format!("the driver has no {symbol}")));
        }
        Ok((memory.address, buffer.bytes().max(1) as usize))
    }

    fn number(&self, place: Place) -> c_int {
        match place {
            Place::Device => self.ctx.device(),
            Place::Host => HOST,
        }
    }

    pub(super) fn prefetch_to(&mut self, buffer: &Buffer, to: Place) -> Result<()> {
        let (address, bytes) = self.managed(buffer, "cuMemPrefetchAsync")?;
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        if !ctx.moves_managed() {
            let why = "the driver moves managed memory only when it is touched (no concurrent managed access)";
            return Err(Error::new(Code::FeatureUnsupported, why));
        }
        // SAFETY: the range is a live managed buffer, kept alive below; the symbol was looked up.
        let rc = unsafe { sys::cuMemPrefetchAsync(address, bytes, self.number(to), self.stream) };
        ctx.check(rc, "cuMemPrefetchAsync", Code::TransferFailed)?;
        self.issue([buffer.clone()], None)
    }

    pub(super) fn advised(&mut self, buffer: &Buffer, advice: Advice) -> Result<()> {
        let (address, bytes) = self.managed(buffer, "cuMemAdvise")?;
        let (advice, place) = match advice {
            Advice::ReadMostly(true) => (A::CU_MEM_ADVISE_SET_READ_MOSTLY, HOST),
            Advice::ReadMostly(false) => (A::CU_MEM_ADVISE_UNSET_READ_MOSTLY, HOST),
            Advice::Preferred(Some(place)) => (A::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, self.number(place)),
            Advice::Preferred(None) => (A::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, HOST),
            Advice::AccessedBy(place, true) => (A::CU_MEM_ADVISE_SET_ACCESSED_BY, self.number(place)),
            Advice::AccessedBy(place, false) => (A::CU_MEM_ADVISE_UNSET_ACCESSED_BY, self.number(place)),
        };
        let _bound = self.ctx.bind()?;
        // SAFETY: the range is a live managed buffer; the symbol was looked up.
        let rc = unsafe { sys::cuMemAdvise(address, bytes, advice, place) };
        self.ctx.check(rc, "cuMemAdvise", Code::Internal)
    }

    pub(super) fn located(&mut self, buffer: &Buffer) -> Result<Option<Place>> {
        let (address, bytes) = self.managed(buffer, "cuMemRangeGetAttribute")?;
        let mut place: c_int = NOWHERE;
        let what = sys::CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
        let _bound = self.ctx.bind()?;
        // SAFETY: the attribute is one int, which lives through the call; the range is a live managed buffer.
        let rc = unsafe { sys::cuMemRangeGetAttribute((&raw mut place).cast(), 4, what, address, bytes) };
        self.ctx.check(rc, "cuMemRangeGetAttribute", Code::Internal)?;
        Ok(match place {
            HOST => Some(Place::Host),
            p if p == self.ctx.device() => Some(Place::Device),
            _ => None,
        })
    }
}

impl Context {
    /// Whether this device reaches the other one's memory directly; makes it so at the first question. Must be current.
    pub(super) fn reaches(&self, other: &Context) -> bool {
        if !["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess"].iter().all(|s| has_symbol(s)) {
            return false;
        }
        let mut known = self.peers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, reached)) = known.iter().find(|(device, _)| *device == other.device()) {
            return *reached;
        }
        let mut can: c_int = 0;
        // SAFETY: `can` lives through the call; the symbol was looked up.
        let rc = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device(), other.device()) };
        let mut reached = rc == CUresult::CUDA_SUCCESS && can == 1;
        if reached {
            // SAFETY: both contexts are alive, this one is current. The only flag there is, 0.
            let rc = unsafe { sys::cuCtxEnablePeerAccess(other.raw(), 0) };
            reached = matches!(rc, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        if let (true, Some(pool)) = (reached, other.ordered()) {
            // What lies in a pool is opened by the pool alone.
            reached = pool.open_to(self.device()) == CUresult::CUDA_SUCCESS;
        }
        known.push((other.device(), reached));
        reached
    }
}
