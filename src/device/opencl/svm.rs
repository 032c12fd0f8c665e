//! Memory that host and device share (coarse-grained SVM, OpenCL 2.0): the managed memory of this backend.
//!
//! Kernels take it as a buffer: one that is made on an SVM allocation (`CL_MEM_USE_HOST_PTR`) has its storage there (OpenCL 3.0,
//! 5.2.1). The driver moves it where it is used next: to the device by a launch, to the host by mapping. Coarse-grained, so that host
//! and device never touch it at one time; that is what every driver with SVM has.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use opencl3::command_queue::enqueue_migrate_mem_object;
use opencl3::device::{CL_DEVICE_SVM_CAPABILITIES, CL_DEVICE_SVM_COARSE_GRAIN_BUFFER};
use opencl3::memory::{
    CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, CL_MIGRATE_MEM_OBJECT_HOST, create_buffer, release_mem_object,
    set_mem_object_destructor_callback, svm_alloc, svm_free,
};

use crate::base::{Code, Error, Result};
use crate::device::managed::Managed;
use crate::device::{Buffer, Place};

use super::queue::OpenclQueue;
use super::sys::{self, Handle, Raw};
use super::{ClBuffer, Host, Shared};

/// Whether the device has it. Versions before 2.0 do not know the question.
pub(super) fn has(device: Raw) -> bool {
    sys::device_number(device, CL_DEVICE_SVM_CAPABILITIES).unwrap_or(0) & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER != 0
}

/// Where such memory was last sent as a whole; a launch or a mapping moves it, and is not asked.
#[derive(Default)]
pub(super) struct Sent(AtomicU8);

impl Sent {
    fn set(&self, to: Place) {
        self.0.store(if to == Place::Device { 1 } else { 2 }, Ordering::Relaxed);
    }
    fn get(&self) -> Option<Place> {
        match self.0.load(Ordering::Relaxed) {
            1 => Some(Place::Device),
            2 => Some(Place::Host),
            _ => None,
        }
    }
}

/// What is left to do when the last that uses the memory is done with it.
struct Hold {
    context: Raw,
    memory: *mut c_void,
    bytes: u64,
    counted: Arc<Managed>,
}

/// Called by the driver once the buffer is gone and no command uses its memory.
extern "C" fn freed(_: Raw, hold: *mut c_void) {
    // SAFETY: `hold` is the box that `alloc` gave away; the driver calls this once.
    let hold = unsafe { Box::from_raw(hold.cast::<Hold>()) };
    // SAFETY: allocated by clSVMAlloc in this context, which the buffer that is being destroyed still holds; freed once.
    let _ = unsafe { svm_free(hold.context, hold.memory) };
    hold.counted.leave(hold.bytes);
}

/// A buffer of `bytes` bytes, not 0, whose storage host and device share.
pub(super) fn alloc(s: &Shared, bytes: usize) -> Result<ClBuffer> {
    s.managed.enter(bytes as u64, s.limit())?;
    let undo = |e: Error| {
        s.managed.leave(bytes as u64);
        Err(e)
    };
    let failed = |call: &str, status| s.fail(&format!("{call} of {bytes} bytes"), status, Code::OutOfDeviceMemory);
    let context = s.context.raw();
    // SAFETY: the context is alive; an alignment of 0 is the largest that any type needs.
    let memory = match unsafe { svm_alloc(context, CL_MEM_READ_WRITE, bytes, 0) } {
        Ok(memory) => memory,
        // The call tells no reason: it gives no memory.
        Err(sys::NO_FUNCTION) => return undo(failed("clSVMAlloc", sys::NO_FUNCTION)),
        Err(_) => {
            let why = format!("clSVMAlloc of {bytes} bytes gave none");
            return undo(Error::new(Code::OutOfDeviceMemory, why).device(&s.info.id));
        }
    };
    let free = |e: Error| {
        // SAFETY: allocated above; no buffer is made on it, or it is released.
        let _ = unsafe { svm_free(context, memory) };
        undo(e)
    };
    // SAFETY: the pointer is an SVM allocation of this context of as many bytes, which lives as long as the buffer.
    let raw = match unsafe { create_buffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, memory) } {
        Ok(raw) => raw,
        Err(status) => return free(failed("clCreateBuffer on shared memory", status)),
    };
    let mem = Handle::new(raw, "buffer", release_mem_object, &s.ledger);
    let hold = Box::new(Hold { context, memory, bytes: bytes as u64, counted: Arc::clone(&s.managed) });
    let hold = Box::into_raw(hold).cast::<c_void>();
    // SAFETY: `raw` is a live buffer, and `hold` lives until the callback takes it.
    if let Err(status) = unsafe { set_mem_object_destructor_callback(raw, freed, hold) } {
        // SAFETY: the driver did not take it.
        drop(unsafe { Box::from_raw(hold.cast::<Hold>()) });
        drop(mem);
        return free(failed("clSetMemObjectDestructorCallback", status));
    }
    Ok(ClBuffer { mem, host: Host::Shared(Sent::default()) })
}

impl OpenclQueue {
    fn shared_memory<'b>(&self, buffer: &'b Buffer) -> Result<(Raw, &'b Sent)> {
        let b = buffer.raw::<ClBuffer>(self.shared.serial)?;
        match &b.host {
            Host::Shared(sent) => Ok((b.mem.raw(), sent)),
            _ => Err(Error::new(Code::FeatureUnsupported, "the array does not lie in managed memory")
                .device(&self.shared.info.id)),
        }
    }

    /// Sends a managed buffer to a side in the order of the queue.
    pub(super) fn sent(&mut self, buffer: &Buffer, to: Place) -> Result<()> {
        let (mem, sent) = self.shared_memory(buffer)?;
        let flags = if to == Place::Host { CL_MIGRATE_MEM_OBJECT_HOST } else { 0 };
        // SAFETY: one live memory object of the queue's context; the driver keeps it until the command is done.
        let event =
            unsafe { enqueue_migrate_mem_object(self.queue.raw(), 1, &raw const mem, flags, 0, std::ptr::null()) };
        self.enqueued("clEnqueueMigrateMemObjects", event, Code::TransferFailed)?;
        sent.set(to);
        Ok(())
    }

    /// Where a managed buffer was last sent.
    pub(super) fn place_of(&self, buffer: &Buffer) -> Result<Option<Place>> {
        self.shared_memory(buffer).map(|(_, sent)| sent.get())
    }

    /// There is nothing to tell the driver: neither SVM nor buffers take advice.
    pub(super) fn advised(&self, buffer: &Buffer) -> Result<()> {
        self.shared_memory(buffer)?;
        Err(Error::new(Code::FeatureUnsupported, "OpenCL takes no advice of how shared memory is used")
            .device(&self.shared.info.id))
    }
}
