//! The end of a read: a mapping of the staging buffer, waited for and copied out.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::base::api::Api;
use crate::base::{Code, Error, Result};
use crate::device::DEADLINE;

use super::core::{Core, one_line};

/// What the callback of a mapping is given.
pub(super) type Word = std::result::Result<(), wgpu::BufferAsyncError>;

/// Copies the first bytes of `staging` to `out`: its mapping was asked for, the work before it is done, and the callback
/// tells `told`. A mapping that failed is `map-failed`.
pub(super) fn take(core: &Core, staging: &wgpu::Buffer, told: &Receiver<Word>, out: &mut [u8]) -> Result<()> {
    if !arrived(core, told)? {
        core.pump()?;
        return Err(
            not_mapped("BufferAsyncError", "its callback told of a failure, or of nothing in time").device(&core.id)
        );
    }
    let bytes = (out.len() as u64).div_ceil(4) * 4;
    let view = core.guarded(Code::TransferFailed, || staging.get_mapped_range(..bytes))?;
    match view {
        Ok(view) => out.copy_from_slice(&view[..out.len()]),
        Err(e) => return Err(not_mapped("MapRangeError", &e.to_string()).device(&core.id)),
    }
    Ok(())
}

/// Whether a mapping may be looked at: false if its callback was told of a failure. Any thread's poll may have taken the
/// callback and not have run it yet, so its word is waited for. A poll that is overtaken ([`super::core::overtaken`]) maps
/// and then drops the callbacks: what comes without a word is told by the mapping itself, which is refused unless it is made.
fn arrived(core: &Core, told: &Receiver<Word>) -> Result<bool> {
    let start = Instant::now();
    loop {
        match told.recv_timeout(Duration::from_millis(1)) {
            Ok(result) => return Ok(result.is_ok()),
            Err(RecvTimeoutError::Disconnected) => return Ok(true),
            Err(RecvTimeoutError::Timeout) if start.elapsed() > DEADLINE => return Ok(false),
            Err(RecvTimeoutError::Timeout) => core.pump()?,
        }
    }
}

/// The error of a mapping that failed.
fn not_mapped(row: &str, why: &str) -> Error {
    Api::Wgpu.named_error(row, format!("the staging buffer could not be mapped: {}", one_line(why)), Code::MapFailed)
}
