//! Plans of the WGSL kernels.

use crate::base::{Case, Code, DeviceInfo, Error, Result};

use super::{Kernel, Plan};

fn later() -> Result<Plan> {
    Err(Error::new(Code::OpUnsupported, "the WGSL text is not written yet"))
}
pub fn unary(_: &Kernel, _: &Case, _: &DeviceInfo) -> Result<Plan> {
    later()
}
pub fn binary(_: &Kernel, _: &Case, _: &DeviceInfo) -> Result<Plan> {
    later()
}
pub fn sum(_: &Kernel, _: &Case, _: &DeviceInfo) -> Result<Plan> {
    later()
}
pub fn softmax(_: &Kernel, _: &Case, _: &DeviceInfo) -> Result<Plan> {
    later()
}
pub fn transpose(_: &Kernel, _: &Case, _: &DeviceInfo) -> Result<Plan> {
    later()
}
pub fn gemm(_: &Kernel, _: &Case, _: &DeviceInfo) -> Result<Plan> {
    later()
}
pub fn launch(_: &Kernel, _: &Case, _: &DeviceInfo) -> Result<Plan> {
    later()
}
