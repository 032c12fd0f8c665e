//! What is there, what it can do, and why the rest is not there.

use crate::base::record::SupportRecord;
use crate::base::{Attrs, Case, DType, DeviceInfo, Fill};
use crate::kernel;
use crate::op::{self, OpDesc, Tier};

/// Every op in every dtype on every device, by asking the ops' plans. Touches no device; no cell is left without a reason.
pub fn matrix(devices: &[&DeviceInfo]) -> Vec<SupportRecord> {
    let mut cells = Vec::new();
    for op in op::all() {
        for dtype in DType::ALL {
            let case = typical(op, dtype);
            cells.extend(devices.iter().map(|info| cell(op, dtype, case.as_ref(), info)));
        }
    }
    cells
}

/// The largest smoke case that the op has in a dtype.
fn typical(op: &'static OpDesc, dtype: DType) -> Option<Case> {
    let mut specs = (op.cases)(Tier::Smoke);
    specs.sort_by_key(|s| std::cmp::Reverse(s.dims.iter().sum::<u64>()));
    specs.into_iter().find_map(|s| {
        // Without attributes if it can: a broadcast needs its own.
        let plain = op.case(dtype, &s.dims, Attrs::new(), Fill::Uniform);
        plain.or_else(|_| op.case(dtype, &s.dims, s.attrs, Fill::Uniform)).ok()
    })
}

fn cell(op: &'static OpDesc, dtype: DType, case: Option<&Case>, info: &DeviceInfo) -> SupportRecord {
    let mut record = SupportRecord {
        op: op.name.to_string(),
        dtype,
        device: info.id.clone(),
        uid: info.uid.clone(),
        support: "no".into(),
        variant: String::new(),
        reason: String::new(),
        detail: String::new(),
    };
    let Some(case) = case.filter(|_| op.dtypes.contains(&dtype)) else {
        let known: Vec<&str> = op.dtypes.iter().map(|d| d.name()).collect();
        record.support = "undefined".into();
        record.reason = "the op is not made for this dtype".into();
        record.detail = format!("it has {}", known.join(" "));
        return record;
    };
    match kernel::choose(op.kernels, case, info, None) {
        Ok(choice) if op.bounds(case, choice.lang).is_none() => {
            record.reason = format!("no published error limit in {:?}", choice.lang);
        }
        Ok(choice) => {
            record.support = "yes".into();
            record.variant = choice.kernel.variant.into();
        }
        Err(e) => {
            record.reason = plain_reason(e.detail(), dtype);
            record.detail = e.detail().to_string();
        }
    }
    record
}

/// The reasons of all variants without the variants' names and the dtype, so that equal ones are equal texts:
/// `tiled (no i8: WGSL ...); flat (no i8: WGSL ...)` becomes `WGSL ...`.
fn plain_reason(detail: &str, dtype: DType) -> String {
    let prefix = format!("no {dtype}: ");
    let mut parts: Vec<&str> = Vec::new();
    for part in variants(detail) {
        // A variant's name is one word.
        let named = part.split_once(" (").filter(|(name, _)| !name.contains(' '));
        let inner = named.and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(part);
        let reason = inner.strip_prefix(&prefix).unwrap_or(inner);
        if !parts.contains(&reason) {
            parts.push(reason);
        }
    }
    parts.join("; ")
}

/// The parts between semicolons that stand outside of brackets.
fn variants(detail: &str) -> Vec<&str> {
    let (mut depth, mut from) = (0i32, 0);
    let mut out = Vec::new();
    for (i, c) in detail.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ';' if depth == 0 => {
                out.push(detail[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    out.push(detail[from..].trim());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Lang;
    use crate::device::Device;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::kernel::Isa;

    fn cpu() -> DeviceInfo {
        CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap().info().clone()
    }

    #[test]
    fn the_cpu_runs_every_op_in_every_dtype_that_it_has() {
        let cells = matrix(&[&cpu()]);
        assert_eq!(cells.len(), op::all().count() * DType::ALL.len());
        for c in cells {
            let has = op::find(&c.op).unwrap().dtypes.contains(&c.dtype);
            assert_eq!(c.support, if has { "yes" } else { "undefined" }, "{c:?}");
            assert_eq!((c.support == "yes"), !c.variant.is_empty());
        }
    }

    #[test]
    fn every_empty_cell_has_a_reason() {
        let mut bare = cpu();
        bare.langs = vec![Lang::Wgsl];
        bare.dtypes = vec![DType::F32, DType::I32];
        bare.features.clear();
        bare.notes.push("no f64: needs cl_khr_fp64".into());
        let cells = matrix(&[&cpu(), &bare, &DeviceInfo::ordinary_gpu()]);
        assert!(cells.iter().all(|c| (c.support == "yes") == c.reason.is_empty()));
        let add = cells.iter().find(|c| c.op == "add" && c.dtype == DType::F64 && c.support == "no").unwrap();
        assert_eq!(add.reason, "needs cl_khr_fp64");
        assert!(add.detail.contains("no f64: needs cl_khr_fp64"), "{}", add.detail);
    }

    #[test]
    fn reasons_lose_the_names_of_variants() {
        let detail = "tiled (no i8: x (y; z)); pairs (no i8: x (y; z)); other (needs 9 B)";
        assert_eq!(plain_reason(detail, DType::I8), "x (y; z); needs 9 B");
        assert_eq!(plain_reason("the op has no kernel ([Cuda])", DType::I8), "the op has no kernel ([Cuda])");
    }
}
