//! A launch against what the device and the kernel take, and its arguments in the driver's form. Touches no stream.

use crate::base::{Code, Error, Result};
use crate::device::Launch;
use crate::kernel::Param;

use super::driver::{Memory, Module};
use super::queue::Limits;

/// Refuses a launch that writes a buffer and names it once more: kernels are told that their arguments lie apart.
pub(super) fn check_apart(launch: &Launch, serial: u64) -> Result<()> {
    let written = |i: usize| launch.writes.get(i).copied().unwrap_or(false);
    let mut seen = Vec::with_capacity(launch.args.len());
    for (i, slice) in launch.args.iter().enumerate() {
        let address = slice.buffer.raw::<Memory>(serial)?.address;
        if seen.iter().enumerate().any(|(j, other)| *other == address && (written(i) || written(j))) {
            return Err(Error::new(Code::BadArgument, "a written buffer may appear only once in a launch"));
        }
        seen.push(address);
    }
    Ok(())
}

/// Checks a launch of a kernel. One word per parameter; numbers of 4 bytes lie in the low half (all CUDA hosts are
/// little-endian).
pub(super) fn words(launch: &Launch, module: &Module, limits: Limits, serial: u64) -> Result<Vec<u64>> {
    let threads: u64 = launch.group.iter().map(|g| u64::from(*g)).product();
    let most = u64::from(limits.group.min(module.attributes[3]));
    if launch.group.contains(&0) || launch.groups.contains(&0) {
        return Err(Error::new(Code::BadArgument, "a launch has at least one work-item on each axis"));
    }
    if threads > most || launch.group.iter().zip(&limits.group_axes).any(|(g, l)| g > l) {
        return Err(Error::new(
            Code::LaunchTooLarge,
            format!("groups of {:?}; this kernel takes at most {most} work-items", launch.group),
        ));
    }
    if launch.groups.iter().zip(&limits.groups).any(|(g, l)| g > l) {
        return Err(Error::new(
            Code::LaunchTooLarge,
            format!("{:?} groups; the device takes {:?}", launch.groups, limits.groups),
        ));
    }
    check_apart(launch, serial)?;
    let mut words: Vec<u64> = Vec::with_capacity(launch.args.len() + launch.params.len());
    for slice in &launch.args {
        slice.buffer.check(slice.offset, slice.bytes)?;
        words.push(slice.buffer.raw::<Memory>(serial)?.address + slice.offset);
    }
    let mut sizes = vec![8usize; words.len()];
    for param in &launch.params {
        let (word, size) = match *param {
            Param::U64(v) => (v, 8),
            Param::F64(v) => (v.to_bits(), 8),
            Param::F32(v) => (u64::from(v.to_bits()), 4),
            Param::I32(v) => (u64::from(v as u32), 4),
            Param::U32(v) => (u64::from(v), 4),
            Param::I64(v) => (v as u64, 8),
            Param::Wide(v) => (v, 8),
        };
        words.push(word);
        sizes.push(size);
    }
    if let Some(wanted) = &module.parameters
        && *wanted != sizes
    {
        return Err(Error::new(
            Code::Internal,
            format!("the kernel takes parameters of {wanted:?} bytes, the launch gives {sizes:?}"),
        ));
    }
    Ok(words)
}
