//! A context and a stream that the program made itself, for its own ends: gpuctl works beside the program.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use crate::base::{Code, Error, RealClock, Result};
use crate::device::{Ledger, next_serial};

use super::driver::{self, Context};
use super::queue::Given;
use super::{CudaDevice, describe, driver_version, libraries_for};

/// Id of a device that a program brings.
const ID: &str = "cuda:given";

impl CudaDevice {
    /// A device on a context and a stream of the program's.
    ///
    /// All work of gpuctl's goes into that one stream, behind what the program put there before; what gpuctl waits for includes
    /// it, within the same deadline. Both stay the program's, and live at least as long as this device. Memory, events and modules are gpuctl's own, made
    /// in that context.
    ///
    /// Errors: `BadArgument` for a stream of another context, `DriverTooOld`, and what the driver says of the device.
    pub fn from_cuda(context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Result<Self> {
        if !Arc::ptr_eq(stream.context(), context) {
            return Err(Error::new(Code::BadArgument, "the stream is of another context").device(ID));
        }
        let missing = driver::missing_symbols();
        if !missing.is_empty() {
            return Err(Error::new(Code::DriverTooOld, format!("it lacks {}", missing.join(", "))).device(ID));
        }
        let named = |e: Error| e.device(ID);
        let version = driver_version().map_err(named)?;
        let ordinal = i32::try_from(context.ordinal())
            .map_err(|_| Error::new(Code::Internal, format!("device number {}", context.ordinal())).device(ID))?;
        let (mut info, limits) = describe(ordinal, version).map_err(named)?;
        info.id = ID.into();
        info.notes.push("a context that the program brought".into());
        let ledger = Ledger::new();
        let owner = Box::new(Arc::clone(context));
        Ok(CudaDevice {
            info,
            serial: next_serial(),
            clock: Arc::new(RealClock::new()),
            ctx: Context::given(context.cu_device(), context.cu_ctx(), Arc::clone(&ledger), owner),
            ledger,
            limits,
            libraries: libraries_for(version / 1000),
            given: Some(Given { stream: stream.cu_stream(), owner: Arc::new(Arc::clone(stream)) }),
        })
    }
}
