//! What is there, what it can do, and why the rest is not there.

use crate::base::{Attrs, DType, DeviceInfo, Fill, Lang, Result};
use crate::kernel;
use crate::op::{self, OpDesc, Tier};

/// One cell of the op matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// The variant that runs.
    Yes(&'static str),
    /// Why none does.
    No(String),
}

/// One line of the op matrix: an op and a dtype, with one cell per device.
#[derive(Clone, Debug)]
pub struct OpRow {
    /// Op.
    pub op: &'static OpDesc,
    /// Dtype.
    pub dtype: DType,
    /// Support by device, in the order of the devices given.
    pub cells: Vec<Support>,
}

/// Which op runs where, by asking every op's plans about every device. Touches no device.
pub fn matrix(devices: &[&DeviceInfo]) -> Result<Vec<OpRow>> {
    let mut rows = Vec::new();
    for op in op::all() {
        for dtype in op.dtypes {
            let spec = (op.cases)(Tier::Smoke).into_iter().max_by_key(|s| s.dims.iter().sum::<u64>());
            let Some(spec) = spec else { continue };
            let case = op.case(*dtype, &spec.dims, Attrs::new(), Fill::Uniform).or_else(|_| {
                // A broadcast case needs its attributes.
                op.case(*dtype, &spec.dims, spec.attrs.clone(), Fill::Uniform)
            })?;
            let cells = devices
                .iter()
                .map(|info| match kernel::choose(op.kernels, &case, info, None) {
                    Ok(choice)
                        if op
                            .tolerance
                            .bound(&case, choice.lang, op.operand_dtype(op.operands.len() - 1, &case))
                            .is_none() =>
                    {
                        Support::No(format!("no published error limit in {:?}", choice.lang))
                    }
                    Ok(choice) => Support::Yes(choice.kernel.variant),
                    Err(e) => Support::No(e.detail().to_string()),
                })
                .collect();
            rows.push(OpRow { op, dtype: *dtype, cells });
        }
    }
    Ok(rows)
}

/// One line of remarks about a device for the table of devices.
pub fn remarks(info: &DeviceInfo) -> String {
    let mut parts = Vec::new();
    let compute: Vec<_> = [DType::F64, DType::F16, DType::BF16]
        .into_iter()
        .filter(|d| info.dtypes.contains(d))
        .map(DType::name)
        .collect();
    if !compute.is_empty() {
        parts.push(format!("f32 {}", compute.join(" ")));
    }
    for (lib, version) in &info.libraries {
        parts.push(format!("{lib:?} {version}"));
    }
    if info.langs.iter().all(|l| *l == Lang::Native) && info.backend == crate::base::Backend::Cpu {
        parts.push(info.api.clone());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::kernel::Isa;

    #[test]
    fn the_cpu_runs_every_op_in_every_dtype() {
        let cpu = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
        let rows = matrix(&[cpu.info()]).unwrap();
        assert!(rows.len() > 25);
        for row in rows {
            assert!(matches!(row.cells[0], Support::Yes(_)), "{} {}: {:?}", row.op.name, row.dtype, row.cells[0]);
        }
    }

    #[test]
    fn a_device_without_f64_says_why() {
        let cpu = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
        let mut info = cpu.info().clone();
        info.dtypes.retain(|d| *d != DType::F64);
        info.notes.push("no f64: needs cl_khr_fp64".into());
        let rows = matrix(&[&info]).unwrap();
        let add = rows.iter().find(|r| r.op.name == "add" && r.dtype == DType::F64).unwrap();
        assert!(matches!(&add.cells[0], Support::No(why) if why.contains("cl_khr_fp64")), "{:?}", add.cells[0]);
    }
}
