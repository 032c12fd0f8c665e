//! Tensors in host memory: dtype, shape, bytes. What goes into an op and what comes out.

use bytemuck::Pod;

use super::dtype::DType;
use super::error::{Code, Error, Result};

/// A dense, row-major tensor in host memory. Bytes are in the host's (little-endian) order.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Number type of the elements.
    pub dtype: DType,
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    bytes: Vec<u8>,
}

/// Rust types that are a dtype's representation.
pub trait Element: Pod + Send + Sync {
    /// The dtype.
    const DTYPE: DType;
}

macro_rules! elements { ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* } }
elements!(f32 => F32, f64 => F64, half::f16 => F16, half::bf16 => BF16, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
          u8 => U8, u16 => U16, u32 => U32, u64 => U64);

/// Product of extents; an error if it leaves 64 bits.
pub fn count(shape: &[u64]) -> Result<u64> {
    shape
        .iter()
        .try_fold(1u64, |acc, d| acc.checked_mul(*d))
        .ok_or_else(|| Error::new(Code::SizeOverflow, format!("the product of {shape:?} exceeds 64 bits")))
}

/// Bytes of a tensor. Errors: `SizeOverflow`.
fn bytes(dtype: DType, shape: &[u64]) -> Result<usize> {
    let bytes = count(shape)?.checked_mul(dtype.size()).and_then(|b| usize::try_from(b).ok());
    bytes.ok_or_else(|| Error::new(Code::SizeOverflow, format!("{shape:?} of {dtype} exceeds the address space")))
}

fn too_much(bytes: usize, shape: &[u64]) -> Error {
    Error::new(Code::OutOfHostMemory, format!("{bytes} bytes for a tensor {shape:?}"))
}

impl HostTensor {
    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[u64]) -> Result<Self> {
        let bytes = bytes(dtype, shape)?;
        let mut data = Vec::new();
        data.try_reserve_exact(bytes).map_err(|_| too_much(bytes, shape))?;
        data.resize(bytes, 0);
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes: data })
    }

    /// The same in memory whose pages the system provides when they are first written to: for one who writes all of it at once, on
    /// several threads, before anything is timed. Errors: as those of [`HostTensor::zeros`].
    pub(crate) fn untouched(dtype: DType, shape: &[u64]) -> Result<Self> {
        let bytes = bytes(dtype, shape)?;
        let data = bytemuck::try_zeroed_vec(bytes).map_err(|()| too_much(bytes, shape))?;
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes: data })
    }

    /// A tensor from values in row-major order; their number must be the product of `shape`.
    pub fn from_slice<T: Element>(values: &[T], shape: &[u64]) -> Result<Self> {
        if count(shape)? != values.len() as u64 {
            return Err(Error::new(Code::ShapeMismatch, format!("{} values for the shape {shape:?}", values.len())));
        }
        Ok(HostTensor { dtype: T::DTYPE, shape: shape.to_vec(), bytes: bytemuck::cast_slice(values).to_vec() })
    }

    /// The values, copied; an error if `T` is not the tensor's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::new(
                Code::DTypeMismatch,
                format!("the tensor holds {}, {} was asked for", self.dtype, T::DTYPE),
            ));
        }
        Ok(bytemuck::pod_collect_to_vec(&self.bytes))
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64 / self.dtype.size()
    }
    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// The raw bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The raw bytes, to be overwritten.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
