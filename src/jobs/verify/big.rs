//! The case beyond 2^31: of the full tier, one whose operands have more bytes and more elements than 31 bits count. Where a
//! kernel, a driver or gpuctl itself counts in fewer, it shows here. Most devices hold it; the others say why not.

use crate::base::{Attrs, Case, Code, DType, DeviceClass, DeviceInfo, Error, Fill, Result, os, units};
use crate::kernel;
use crate::op::{self, OpDesc, Role};

use super::config::VerifyConfig;

/// Bytes of a case's operands beyond which devices take turns, and room is asked for first.
pub(super) const LARGE: u64 = 256 << 20;

/// Bytes beyond which the comparison with the CPU is left out.
pub(super) const HUGE: u64 = 1 << 30;

/// Bytes that must stay free on the host.
const SPARE: u64 = 1 << 30;

/// The op, for the least memory per element; its dtype; its elements, no multiple of any tile.
const OP: &str = "neg";
const DTYPE: DType = DType::I8;
const ELEMENTS: u64 = (1 << 31) + 4097;

/// The refusal of a request that requires the case and leaves it out.
pub(super) fn left_out() -> Error {
    Error::new(Code::BadArgument, format!("--require big: that case belongs to --tier full, op {OP}, dtype {DTYPE}"))
}

/// The case, if the request covers it.
pub(super) fn case(cfg: &VerifyConfig) -> Result<Option<(&'static OpDesc, Case)>> {
    let op = op::find(OP)?;
    let asked = cfg.ops.iter().any(|o| o.name == OP) && cfg.dtypes.as_ref().is_none_or(|d| d.contains(&DTYPE));
    asked.then(|| Ok((op, op.case(DTYPE, &[ELEMENTS], Attrs::new(), Fill::Integer)?))).transpose()
}

/// True for that case and any larger one.
pub(super) fn is(op: &OpDesc, case: &Case) -> bool {
    (op.work)(case) > 1 << 31
}

/// Why no device of these takes a large case at all; its data are then not made.
pub(super) fn refused_by_all(op: &OpDesc, case: &Case, devices: &[DeviceInfo]) -> Option<String> {
    if op.total_bytes(case).is_some_and(|b| b <= LARGE) {
        return None;
    }
    let takes = |d: &DeviceInfo| kernel::choose(op.kernels, case, d, None).is_ok() && lacks(op, case, d).is_none();
    match devices.iter().any(takes) {
        true => lacks_host(sizes(op, case)?.iter().map(|s| s.1).sum()),
        false => Some(devices.iter().find_map(|d| lacks(op, case, d)).unwrap_or_else(|| "no device takes it".into())),
    }
}

/// Bytes of each operand, with its role; `None` if they cannot be counted.
fn sizes(op: &OpDesc, case: &Case) -> Option<Vec<(Role, u64)>> {
    let shapes = (op.shapes)(case).ok()?;
    let of = |(i, s): (usize, &Vec<u64>)| {
        let bytes = s.iter().try_fold(op.operand_dtype(i, case).size(), |a, b| a.checked_mul(*b))?;
        Some((op.operands[i].role, bytes))
    };
    shapes.iter().enumerate().map(of).collect()
}

/// Why a large case has no room on a device, or on the host for what comes back from it.
pub(super) fn lacks(op: &OpDesc, case: &Case, device: &DeviceInfo) -> Option<String> {
    let Some(sizes) = sizes(op, case) else { return Some("more bytes than 64 bits count".into()) };
    let total: u64 = sizes.iter().map(|s| s.1).fold(0, u64::saturating_add);
    if total <= LARGE {
        return None;
    }
    let largest = sizes.iter().map(|s| s.1).max().unwrap_or(0);
    let most = device.max_alloc_bytes.min(device.max_binding_bytes);
    if largest > most {
        // Exact, since limits and sizes may be a few bytes apart.
        return Some(format!("an operand of {largest} bytes; the device takes {most} in one buffer"));
    }
    if let Some(memory) = device.memory_bytes.filter(|m| total > m / 10 * 9) {
        return Some(format!("{} of operands; the device has {}", units::bytes(total), units::bytes(memory)));
    }
    // Both runs' results are on the host, and what a processor computes with.
    let results: u64 = sizes.iter().filter(|s| s.0 != Role::In).map(|s| s.1).sum();
    let shared = !matches!(device.class, DeviceClass::Discrete | DeviceClass::Virtual);
    lacks_host(2 * results + if shared { total } else { 0 })
}

fn lacks_host(need: u64) -> Option<String> {
    let (_, free) = os::memory()?;
    let [all, left] = [need.saturating_add(SPARE), free].map(units::bytes);
    (free < need.saturating_add(SPARE)).then(|| format!("needs {all} of the host's memory, {left} are free"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim;

    #[test]
    fn the_case_is_beyond_31_bits_and_has_to_fit() {
        let (op, c) = case(&VerifyConfig::default()).unwrap().unwrap();
        assert!(is(op, &c) && sizes(op, &c).unwrap().iter().all(|s| s.1 > 1 << 31));
        assert!(!is(op, &op.case(DTYPE, &[1 << 20], Attrs::new(), Fill::Integer).unwrap()));
        let floats = VerifyConfig { dtypes: Some(vec![DType::F32]), ..VerifyConfig::default() };
        assert!(case(&floats).unwrap().is_none());
        let mut info = sim::open("h200").unwrap().1.info().clone();
        info.max_alloc_bytes = 1 << 30;
        assert!(lacks(op, &c, &info).unwrap().contains("an operand of"));
        assert!(refused_by_all(op, &c, &[info.clone()]).unwrap().contains("an operand of"));
        (info.max_alloc_bytes, info.max_binding_bytes, info.memory_bytes) = (u64::MAX, u64::MAX, Some(4 << 30));
        assert!(lacks(op, &c, &info).unwrap().contains("the device has"));
        assert!(lacks_host(u64::MAX).unwrap().contains("are free"));
        let small = op.case(DTYPE, &[100], Attrs::new(), Fill::Integer).unwrap();
        info.max_alloc_bytes = 10;
        assert_eq!((lacks(op, &small, &info), refused_by_all(op, &small, &[])), (None, None));
    }
}
