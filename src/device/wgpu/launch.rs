//! A launch against the text it runs: bindings, limits, and the bytes of its scalars. Touches no queue.

use crate::base::{Code, Result};
use crate::device::Launch;
use crate::kernel::Param;

use super::core::Core;
use super::program::{Access, RawProgram};
use super::queue::RawBuffer;

/// Bindings of a launch, checked against the program and the device's limits.
pub(super) fn checked(
    core: &Core,
    launch: &Launch,
    program: &RawProgram,
) -> Result<Vec<(u32, wgpu::Buffer, u64, u64, u64)>> {
    let bad = |code, why: String| Err(core.fail(code, why));
    let most = u64::from(core.limits.max_compute_workgroups_per_dimension);
    if launch.groups.iter().any(|g| *g == 0 || *g > most) {
        return bad(Code::LaunchTooLarge, format!("{:?} groups; 1 to {most} fit one axis", launch.groups));
    }
    if launch.group != program.group {
        let why = format!("the plan has groups of {:?}, the text of {:?}", launch.group, program.group);
        return bad(Code::Internal, why);
    }
    if launch.args.len() != launch.writes.len() {
        return bad(Code::Internal, "a launch must say of each buffer whether it is written".into());
    }
    let align = u64::from(core.limits.min_storage_buffer_offset_alignment);
    let mut out: Vec<(u32, wgpu::Buffer, u64, u64, u64)> = Vec::with_capacity(launch.args.len());
    for (i, slice) in launch.args.iter().enumerate() {
        slice.buffer.check(slice.offset, slice.bytes)?;
        let raw = slice.buffer.raw::<RawBuffer>(core.serial)?;
        if slice.offset % align != 0 || slice.bytes % 4 != 0 || slice.bytes == 0 {
            let why = format!(
                "slices start at multiples of {align} bytes and hold whole words: {} + {}",
                slice.offset, slice.bytes
            );
            return bad(Code::BufferBounds, why);
        }
        if slice.bytes > core.limits.max_storage_buffer_binding_size {
            let why = format!(
                "an operand of {} bytes; a kernel sees at most {}",
                slice.bytes, core.limits.max_storage_buffer_binding_size
            );
            return bad(Code::LaunchTooLarge, why);
        }
        let written = launch.writes[i];
        if let Some(j) = out.iter().position(|o| o.2 == raw.number)
            && (written || launch.writes[j])
        {
            return bad(Code::BadArgument, "a written buffer may appear only once in a launch".into());
        }
        let text = program.bindings.iter().find(|(b, _)| *b == i as u32).map(|(_, a)| *a);
        if text.is_some_and(|a| matches!(a, Access::Params(_)) || (a == Access::Write) != written) {
            let why = format!("binding {i}: the text has {text:?}, the plan written = {written}");
            return bad(Code::Internal, why);
        }
        out.push((i as u32, raw.buffer.clone(), raw.number, slice.offset, slice.bytes));
    }
    Ok(out)
}

/// The scalars as the entry's uniform struct: declared order, natural alignment, u64 as u32.
pub(super) fn encode_params(
    core: &Core,
    slot: u64,
    params: &[Param],
    args: usize,
    program: &RawProgram,
) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(64);
    let put = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.resize(out.len().div_ceil(bytes.len()) * bytes.len(), 0);
        out.extend_from_slice(bytes);
    };
    for p in params {
        match *p {
            Param::U64(v) => {
                let v = u32::try_from(v)
                    .map_err(|_| core.fail(Code::LaunchTooLarge, format!("{v} does not fit WGSL's u32")))?;
                put(&mut out, &v.to_le_bytes());
            }
            Param::F32(v) => put(&mut out, &v.to_le_bytes()),
            Param::F64(v) => put(&mut out, &v.to_le_bytes()),
            Param::I32(v) => put(&mut out, &v.to_le_bytes()),
            Param::U32(v) => put(&mut out, &v.to_le_bytes()),
            Param::I64(v) => put(&mut out, &v.to_le_bytes()),
            Param::Wide(v) => put(&mut out, &v.to_le_bytes()),
        }
    }
    let wide = params.iter().any(|p| matches!(p, Param::F64(_) | Param::I64(_) | Param::Wide(_)));
    let unit = if wide { 8 } else { 4 };
    let size = out.len().div_ceil(unit) * unit;
    out.resize(size, 0);
    let declared = program.bindings.iter().find_map(|(i, a)| match a {
        Access::Params(bytes) => Some((*i as usize, *bytes)),
        _ => None,
    });
    match declared {
        None if params.is_empty() => Ok(out),
        Some((at, bytes)) if at == args && bytes == size as u64 && bytes <= slot => Ok(out),
        other => {
            let why = format!("{size} bytes of scalars for binding {args}; the text has {other:?}");
            Err(core.fail(Code::Internal, why))
        }
    }
}
