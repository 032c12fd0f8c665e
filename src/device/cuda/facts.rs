//! What CUDA tells of a device beyond launch limits, and what its compute capability stands for.

use std::ffi::c_int;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::base::DType;
use crate::base::facts::{Facts, Matrix};

use super::driver;

/// A precision of tensor cores: name, first and last capability (`None`: to this day), and the smallest instructions with
/// the capability from which on each is there.
type Precision = (&'static str, (u32, u32), Option<(u32, u32)>, &'static [([u32; 3], (u32, u32))]);

/// The `mma` instructions of "PTX ISA", section "Warp-level matrix instructions"; for Hopper and later `wgmma` and `tcgen05` do
/// more at once. i4 ends with Ada: Hopper's tensor cores lack it (its `mma` is emulated). f64 has full rate on 8.0, 9.0 and
/// 10.0 only.
const PRECISIONS: [Precision; 10] = [
    ("f16", (7, 0), None, &[([8, 8, 4], (7, 0)), ([16, 8, 8], (7, 5)), ([16, 8, 16], (8, 0))]),
    ("bf16", (8, 0), None, &[([16, 8, 8], (8, 0)), ([16, 8, 16], (8, 0))]),
    ("tf32", (8, 0), None, &[([16, 8, 4], (8, 0)), ([16, 8, 8], (8, 0))]),
    ("f64", (8, 0), None, &[([8, 8, 4], (8, 0)), ([16, 8, 4], (9, 0)), ([16, 8, 8], (9, 0)), ([16, 8, 16], (9, 0))]),
    ("i8", (7, 2), None, &[([8, 8, 16], (7, 5)), ([16, 8, 16], (8, 0)), ([16, 8, 32], (8, 0))]),
    ("i4", (7, 5), Some((8, 9)), &[([8, 8, 32], (7, 5)), ([16, 8, 32], (8, 0)), ([16, 8, 64], (8, 0))]),
    ("b1", (7, 5), None, &[([8, 8, 128], (7, 5)), ([16, 8, 128], (8, 0)), ([16, 8, 256], (8, 0))]),
    ("f8", (8, 9), None, &[([16, 8, 16], (8, 9)), ([16, 8, 32], (8, 9))]),
    ("f6", (10, 0), None, &[([16, 8, 32], (12, 0))]),
    ("f4", (10, 0), None, &[([16, 8, 32], (12, 0)), ([16, 8, 64], (12, 0))]),
];
/// From here on a factor of half its size with every other value zero.
const SPARSE: (u32, u32) = (8, 0);

/// What tensor cores of a capability multiply; `none` if the chip has none in spite of its capability.
pub(super) fn matrix(cc: (u32, u32), none: bool) -> Vec<Matrix> {
    let there = |from: (u32, u32), to: Option<(u32, u32)>| !none && cc >= from && to.is_none_or(|to| cc <= to);
    let unit = |(precision, _, _, shapes): &Precision| Matrix {
        precision: (*precision).into(),
        shapes: shapes.iter().filter(|(_, since)| cc >= *since).map(|(shape, _)| *shape).collect(),
        // f64 and single bits have no sparse form.
        sparse: cc >= SPARSE && !["f64", "b1"].contains(precision),
    };
    PRECISIONS.iter().filter(|(_, from, to, _)| there(*from, *to)).map(unit).collect()
}

/// Atomic additions by capability: "CUDA Programming Guide", atomicAdd.
fn atomics(cc: (u32, u32)) -> Vec<String> {
    let rows: [(&str, (u32, u32)); 6] = [
        ("i32 add", (1, 1)),
        ("i64 add", (1, 2)),
        ("f32 add", (2, 0)),
        ("f64 add", (6, 0)),
        ("f16 add", (7, 0)),
        ("bf16 add", (8, 0)),
    ];
    rows.iter().filter(|(_, since)| cc >= *since).map(|(what, _)| (*what).to_string()).collect()
}

/// Everything; `none` as for [`matrix`].
pub(super) fn facts(ordinal: c_int, uuid: [u8; 16], pci: &str, cc: (u32, u32), none: bool) -> Facts {
    let mut arithmetic = vec![DType::F32, DType::F64];
    arithmetic.extend((cc >= (5, 3)).then_some(DType::F16));
    arithmetic.extend((cc >= (8, 0)).then_some(DType::BF16));
    arithmetic.extend(DType::ALL.into_iter().filter(|d| !d.is_float()));
    let memory_kinds = ["device", "pinned", "mapped", "managed"].map(String::from).to_vec();
    Facts {
        uuid: uuid.iter().any(|b| *b != 0).then(|| uuid.iter().map(|b| format!("{b:02x}")).collect()),
        pci: (!pci.is_empty()).then(|| pci.to_ascii_lowercase()),
        arithmetic,
        atomics: atomics(cc),
        memory_kinds,
        subgroup: Some([32, 32]),
        matrix: matrix(cc, none),
        async_copies: attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT).map(|n| n > 0),
        peers: peers(ordinal),
        quirks: Vec::new(),
        blas: None,
    }
}

fn attribute(device: c_int, what: Attribute) -> Option<c_int> {
    let mut value: c_int = 0;
    // SAFETY: `value` lives through the call; a device's handle is its ordinal, and the driver refuses others.
    let rc = unsafe { sys::cuDeviceGetAttribute(&raw mut value, what, device) };
    (rc == CUresult::CUDA_SUCCESS).then_some(value)
}

/// Devices whose memory this one can read and write.
fn peers(ordinal: c_int) -> Vec<String> {
    if !driver::has_symbol("cuDeviceCanAccessPeer") {
        return Vec::new();
    }
    let mut count: c_int = 0;
    // SAFETY: `count` lives through the call.
    if unsafe { sys::cuDeviceGetCount(&raw mut count) } != CUresult::CUDA_SUCCESS {
        return Vec::new();
    }
    let reaches = |other: &c_int| {
        let mut can: c_int = 0;
        // SAFETY: `can` lives through the call; both ordinals are below the driver's count.
        let rc = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, ordinal, *other) };
        rc == CUresult::CUDA_SUCCESS && can != 0
    };
    (0..count).filter(|other| *other != ordinal).filter(reaches).map(|other| format!("cuda:{other}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn precisions(cc: (u32, u32)) -> Vec<String> {
        matrix(cc, false).into_iter().map(|m| m.precision).collect()
    }

    #[test]
    fn precisions_follow_the_capability() {
        assert_eq!(precisions((6, 1)), Vec::<String>::new());
        assert_eq!(precisions((7, 0)), ["f16"]);
        // i4 and single bits are Turing's, not Ada's.
        assert_eq!(precisions((7, 5)), ["f16", "i8", "i4", "b1"]);
        assert_eq!(precisions((8, 6)), ["f16", "bf16", "tf32", "f64", "i8", "i4", "b1"]);
        // f8 is Ada's, too.
        assert!(precisions((8, 9)).contains(&"f8".into()) && precisions((8, 9)).contains(&"i4".into()));
        assert_eq!(precisions((9, 0)), ["f16", "bf16", "tf32", "f64", "i8", "b1", "f8"]);
        assert!(precisions((10, 0)).contains(&"f4".into()));
        assert_eq!(matrix((7, 5), true), []);
    }

    #[test]
    fn shapes_and_sparsity_follow_the_capability() {
        let f16 = |cc| matrix(cc, false).into_iter().find(|m| m.precision == "f16").unwrap();
        assert_eq!(f16((7, 0)).shapes, [[8, 8, 4]]);
        assert_eq!(f16((8, 0)).shapes, [[8, 8, 4], [16, 8, 8], [16, 8, 16]]);
        assert!(!f16((7, 5)).sparse && f16((8, 0)).sparse);
        assert!(matrix((9, 0), false).iter().all(|m| m.sparse != ["f64", "b1"].contains(&m.precision.as_str())));
        assert_eq!(atomics((6, 0)).len(), 4);
        assert_eq!(atomics((9, 0)).last().unwrap(), "bf16 add");
    }
}
