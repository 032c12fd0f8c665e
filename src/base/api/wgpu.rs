//! wgpu's errors. They are enums, not numbers; each is called by its type and variant.

use super::{Row, named, of_call};
use crate::base::Code;

/// All rows.
pub(super) const ROWS: &[Row] = &[
    named("Error::OutOfMemory", Code::OutOfDeviceMemory),
    // What a call asked for is refused: a text, a size, a binding.
    of_call("Error::Validation"),
    of_call("Error::Internal"),
    named("DeviceLostReason::Unknown", Code::DeviceLost),
    named("DeviceLostReason::Destroyed", Code::DeviceLost),
    named("RequestDeviceError", Code::ContextCreate),
    named("BufferAsyncError", Code::MapFailed),
    named("MapRangeError", Code::MapFailed),
    named("PollError::Timeout", Code::LaunchTimeout),
    // A submission that never came to be.
    named("PollError::WrongSubmissionIndex", Code::InvalidCall),
    // wgpu panics where a call fails and it has no other way to say so; the device is not used further.
    named("panic", Code::DeviceLost),
];
