//! What a driver keeps of a pipeline that it compiled, for the next process.
//!
//! One cache object for each program: its data are then that program's alone. Vulkan only has it (the feature
//! `PIPELINE_CACHE`), and a driver may keep nothing in it, or not say whether it used what it was given. The text is parsed and
//! translated to SPIR-V again in any case; the driver's own compiler is what is saved.
#![allow(unsafe_code)]

use crate::base::Code;

use super::core::Core;

/// Bytes in front of a driver's own data: wgpu's header (64) and Vulkan's (32, `VkPipelineCacheHeaderVersionOne`).
const HEADS: usize = 64 + 32;

pub(super) struct Pipelines {
    pub(super) cache: wgpu::PipelineCache,
    /// It began with data of an earlier process.
    pub(super) given: bool,
}

impl Pipelines {
    /// With data that [`Pipelines::data`] gave, if wgpu takes them, else empty. `None` where there is no such object.
    pub(super) fn new(core: &Core, data: Option<&[u8]>) -> Option<Self> {
        if !core.device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let make = |data: Option<&[u8]>| {
            let made = core.guarded(Code::CompileFailed, || {
                let how = wgpu::PipelineCacheDescriptor { label: None, data, fallback: false };
                // SAFETY: the data are what this driver gave for this adapter: the kernel cache, which holds them, checks
                // every byte with a digest and reads no file that another user could have written.
                unsafe { core.device.create_pipeline_cache(&how) }
            });
            made.ok()
        };
        let given = data.and_then(|data| make(Some(data)));
        match given {
            Some(cache) => Some(Pipelines { cache, given: true }),
            None => Some(Pipelines { cache: make(None)?, given: false }),
        }
    }

    /// What the driver keeps; `None` if that is nothing.
    pub(super) fn data(&self) -> Option<Vec<u8>> {
        self.cache.get_data().filter(|data| data.len() > HEADS)
    }
}
