//! WGSL text to pipeline. naga tells which bindings the entry point uses and how, so that the layout is explicit and
//! a launch can be checked against it.

use std::num::NonZeroU64;
use std::time::Instant;

use wgpu::naga;
use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::base::{Code, Result};

use super::core::Core;
use super::pipelines::Pipelines;

/// What the entry point does with a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// The uniform struct of the scalars, with its size in bytes.
    Params(u64),
}

/// A built program.
pub(super) struct RawProgram {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
    /// Bindings that the entry uses, by number.
    pub(super) bindings: Vec<(u32, Access)>,
    pub(super) group: [u32; 3],
    /// A number that no other program has.
    pub(super) number: u64,
    pub(super) seconds: f64,
}

/// Builds `entry` of `text`. Errors: `CompileFailed` with the compiler's message.
pub(super) fn build(core: &Core, text: &str, entry: &str, pipelines: Option<&Pipelines>) -> Result<RawProgram> {
    let start = Instant::now();
    core.pump()?;
    let failed = |why: String| core.fail(Code::CompileFailed, format!("entry {entry}: {why}"));
    let refused = |log: String| failed("the text is not valid WGSL".into()).log(log.trim());
    let module = naga::front::wgsl::parse_str(text).map_err(|e| refused(e.emit_to_string(text)))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|e| refused(e.emit_to_string(text)))?;
    let found = module
        .entry_points
        .iter()
        .enumerate()
        .find(|(_, e)| e.name == entry && e.stage == naga::ShaderStage::Compute)
        .ok_or_else(|| core.fail(Code::EntryNotFound, format!("the text has no such compute entry point: {entry}")))?;
    let uses = info.get_entry_point(found.0);
    let mut bindings = Vec::new();
    for (handle, var) in module.global_variables.iter() {
        let Some(binding) = &var.binding else { continue };
        if uses[handle].is_empty() {
            continue;
        }
        let access = match var.space {
            naga::AddressSpace::Uniform => Access::Params(u64::from(module.types[var.ty].inner.size(module.to_ctx()))),
            naga::AddressSpace::Storage { access } if access.contains(naga::StorageAccess::STORE) => Access::Write,
            naga::AddressSpace::Storage { .. } => Access::Read,
            _ => return Err(failed(format!("binding {} is no buffer", binding.binding))),
        };
        if binding.group != 0 {
            return Err(failed(format!("binding {} is in group {}; 0 is expected", binding.binding, binding.group)));
        }
        bindings.push((binding.binding, access));
    }
    bindings.sort_unstable_by_key(|(i, _)| *i);
    let group = found.1.workgroup_size;
    core.guarded(Code::CompileFailed, || {
        let shader = core.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(entry),
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let entries: Vec<_> = bindings.iter().map(|(i, access)| layout_entry(*i, *access)).collect();
        let layout = core
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(entry), entries: &entries });
        let pipeline_layout = core.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(entry),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = core.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(entry),
            layout: Some(&pipeline_layout),
            module: &shader,
            entry_point: Some(entry),
            // Every kernel writes its tiles before it reads them.
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: pipelines.map(|p| &p.cache),
        });
        RawProgram {
            pipeline,
            layout,
            bindings,
            group,
            number: core.buffer_number(),
            seconds: start.elapsed().as_secs_f64(),
        }
    })
}

fn layout_entry(binding: u32, access: Access) -> wgpu::BindGroupLayoutEntry {
    let ty = match access {
        Access::Params(bytes) => wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Uniform,
            has_dynamic_offset: true,
            min_binding_size: NonZeroU64::new(bytes),
        },
        storage => wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: storage == Access::Read },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
    };
    wgpu::BindGroupLayoutEntry { binding, visibility: wgpu::ShaderStages::COMPUTE, ty, count: None }
}
