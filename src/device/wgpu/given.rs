//! A device that the program opened itself, for its own ends: gpuctl works on it beside the program.

use std::sync::Arc;

use crate::base::{Code, Error, Result};

use super::core::{Core, Owner};
use super::{API, WgpuDevice};

/// Hears of a loss what wgpu says.
pub type OnLost = Box<dyn Fn(wgpu::DeviceLostReason, String) + Send + Sync>;

/// Id of a device that a program brings: it has no number among the adapters.
const ID: &str = "wgpu:given";

impl WgpuDevice {
    /// A device on a wgpu device and queue of the program's, with what the program asked for of features and limits.
    ///
    /// What stays the program's: the device, which is never destroyed here and lives on after the engine, its buffers, and its
    /// handler of uncaptured errors. What it shares: wgpu keeps one callback for the loss of a device, and gpuctl needs it;
    /// `on_lost` is called in its place. Polls by gpuctl may run the program's callbacks on gpuctl's threads, and work of the
    /// two is in one order on the one queue.
    ///
    /// Errors: `FeatureUnsupported` for an API whose kernels gpuctl does not know (OpenGL, WebGPU in a browser).
    pub fn from_wgpu(device: wgpu::Device, queue: wgpu::Queue, on_lost: Option<OnLost>) -> Result<Self> {
        let (adapter, limits, features) = (device.adapter_info(), device.limits(), device.features());
        if !API.contains(wgpu::Backends::from(adapter.backend)) {
            let why = format!("the device is one of {:?}, gpuctl works on {API:?} here", adapter.backend);
            return Err(Error::new(Code::FeatureUnsupported, why).device(ID));
        }
        let mut info = super::told_of(adapter, &limits, features);
        info.id = ID.into();
        info.notes.push("a device that the program brought".into());
        info.facts.quirks = crate::device::quirks::of(&info);
        let timestamps = features.contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);
        let core = Core::new(info.id.clone(), device, queue, timestamps, Owner::Program(on_lost));
        Ok(WgpuDevice { info, core: Arc::new(core) })
    }
}
