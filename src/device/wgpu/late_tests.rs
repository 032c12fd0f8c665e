//! What wgpu says late, outside of a call, or by a panic: each way ends in a typed error. All faults are wgpu's own.

use std::sync::{Arc, mpsc};

use crate::base::{Class, Code, Env};
use crate::device::{DEADLINE, Device, MemoryKind};

use super::WgpuDevice;
use super::core::{Core, not_given, one_line};
use super::mapping;

fn open(test: &str) -> Option<WgpuDevice> {
    match WgpuDevice::open(0) {
        Ok(d) => Some(d),
        Err(e) if Env::read().unwrap().require.iter().any(|r| r == "wgpu") => panic!("wgpu is required: {e}"),
        Err(e) => {
            log::warn!("skipped {test}: {e}");
            None
        }
    }
}

fn buffer(core: &Core, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    core.device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 64, usage, mapped_at_creation: false })
}

fn status(e: &crate::base::Error) -> &str {
    e.context().status.as_ref().map_or("", |s| s.name.as_str())
}

#[test]
fn an_error_outside_of_any_scope_comes_out_of_the_next_call() {
    let Some(d) = open("an_error_outside_of_any_scope") else { return };
    // Mapping and storage exclude each other.
    buffer(&d.core, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::STORAGE);
    let e = d.core.usable().unwrap_err();
    assert_eq!((e.code(), status(&e)), (Code::InvalidCall, "Error::Validation"), "{e}");
    assert!(!e.to_string().contains('\n'), "{e}");
    assert!(d.core.usable().is_ok(), "told once");
    assert_eq!(d.health(), crate::device::Health::Usable);
}

#[test]
fn a_buffer_used_after_its_end_is_a_typed_error() {
    let Some(d) = open("a_buffer_used_after_its_end") else { return };
    let gone = buffer(&d.core, wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC);
    gone.destroy();
    let e = d.core.guarded(Code::TransferFailed, || d.core.queue.write_buffer(&gone, 0, &[0; 4])).unwrap_err();
    assert_eq!((e.code(), e.class()), (Code::InvalidCall, Class::Internal), "not to be tried again: {e}");
    let copied = d.core.guarded(Code::LaunchFailed, || {
        let mut encoder = d.core.device.create_command_encoder(&Default::default());
        encoder.clear_buffer(&gone, 0, None);
        d.core.queue.submit([encoder.finish()])
    });
    assert_eq!(copied.unwrap_err().code(), Code::InvalidCall);
    // Nor may a range that was never mapped be looked at.
    let range = d.core.guarded(Code::TransferFailed, || gone.get_mapped_range(..).map(drop).is_err());
    assert!(!matches!(range, Ok(false)), "{range:?}");
}

#[test]
fn a_shader_that_is_not_valid_is_a_typed_error() {
    let Some(d) = open("a_shader_that_is_not_valid") else { return };
    // As if the check before it had let it pass.
    let text = "@compute @workgroup_size(1) fn f() { let x: u32 = 1.5; }";
    let e = d.core.guarded(Code::CompileFailed, || {
        let source = wgpu::ShaderSource::Wgsl(text.into());
        d.core.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source })
    });
    let e = e.map(drop).unwrap_err();
    assert_eq!((e.code(), status(&e)), (Code::CompileFailed, "Error::Validation"), "{e}");
    assert!(d.core.usable().is_ok(), "the device goes on");
}

#[test]
fn a_wait_for_what_was_never_submitted_is_a_typed_error() {
    let (Some(d), Some(other)) = (open("a_wait_for_what_was_never_submitted"), open("the same")) else { return };
    let foreign = {
        for _ in 0..8 {
            let _ = other.core.queue.submit([]);
        }
        other.core.queue.submit([])
    };
    match d.core.wait(&foreign, DEADLINE) {
        Err(e) => assert_eq!((e.code(), status(&e)), (Code::InvalidCall, "PollError::WrongSubmissionIndex"), "{e}"),
        Ok(waited) => panic!("{waited:?}"),
    }
    assert!(d.core.usable().is_ok());
}

#[test]
fn a_panic_inside_a_call_is_a_loss() {
    let Some(d) = open("a_panic_inside_a_call") else { return };
    let e = d.core.guarded(Code::LaunchFailed, || panic!("planted:\n a panic of wgpu's")).unwrap_err();
    assert_eq!((e.code(), status(&e)), (Code::DeviceLost, "panic"), "{e}");
    assert!(e.detail().contains("planted: a panic of wgpu's"), "{e}");
    assert!(d.queue().is_err() && d.health() != crate::device::Health::Usable, "and stays one");
}

#[test]
fn a_loss_says_why() {
    let Some(d) = open("a_loss_says_why") else { return };
    d.destroy_for_test();
    let e = d.queue().map(drop).unwrap_err();
    assert_eq!((e.code(), status(&e)), (Code::DeviceLost, "DeviceLostReason::Destroyed"), "{e}");
}

#[test]
fn an_adapter_that_gives_no_device_is_a_typed_error() {
    if open("an_adapter_that_gives_no_device").is_none() {
        return;
    }
    let adapter = super::adapters().remove(0);
    let most = adapter.limits();
    let limits = wgpu::Limits { max_bind_groups: most.max_bind_groups + 1, ..most };
    let request = wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() };
    let e = not_given(&pollster::block_on(adapter.request_device(&request)).map(drop).unwrap_err());
    assert_eq!((e.code(), status(&e)), (Code::ContextCreate, "RequestDeviceError"), "{e}");
    assert_eq!(one_line("a\n  b"), "a b");
}

#[test]
fn a_mapping_that_fails_is_a_typed_error() {
    let Some(d) = open("a_mapping_that_fails") else { return };
    let staging = buffer(&d.core, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let told = Arc::new(std::sync::Mutex::new(None));
    let heard = Arc::clone(&told);
    staging.map_async(wgpu::MapMode::Read, .., move |r| *heard.lock().unwrap() = Some(r));
    // The mapping is under way; the end of the buffer ends it.
    staging.destroy();
    d.core.look().unwrap();
    let refused = told.lock().unwrap().take().expect("the callback runs in a poll").unwrap_err();
    let (tell, told) = mpsc::channel();
    tell.send(Err(refused)).unwrap();
    let e = mapping::take(&d.core, &staging, &told, &mut [0; 8]).unwrap_err();
    assert_eq!((e.code(), e.class(), status(&e)), (Code::MapFailed, Class::Transient, "BufferAsyncError"), "{e}");
    assert_eq!(d.health(), crate::device::Health::Usable);
}

/// A poll that is overtaken (`overtaken`) maps what is ready and drops the callbacks unheard. The data are there all the same,
/// and what is not mapped is refused by the mapping itself.
#[test]
fn a_mapping_whose_callback_was_dropped_tells_for_itself() {
    let Some(d) = open("a_mapping_whose_callback_was_dropped") else { return };
    let staging = buffer(&d.core, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let data: Vec<u8> = (1..=64).collect();
    d.core.queue.write_buffer(&staging, 0, &data);
    let submission = d.core.queue.submit([]);
    let unheard = || mpsc::channel().1;
    let e = mapping::take(&d.core, &staging, &unheard(), &mut [0; 8]).unwrap_err();
    assert_eq!((e.code(), e.class(), status(&e)), (Code::MapFailed, Class::Transient, "MapRangeError"), "{e}");
    staging.map_async(wgpu::MapMode::Read, .., |_| {});
    d.core.wait(&submission, DEADLINE).unwrap();
    let mut out = [0; 61];
    mapping::take(&d.core, &staging, &unheard(), &mut out).unwrap();
    assert_eq!(out, data[..61], "bytes that are no whole words, too");
    assert_eq!(d.health(), crate::device::Health::Usable);
}

/// Many threads that submit, wait and read at once: wgpu's own race between a wait that times out and another thread's poll is
/// no loss (`overtaken`). It is rare: whether it was met shows in the output only.
#[test]
fn waits_of_many_threads_lose_no_device() {
    let Some(d) = open("waits_of_many_threads_lose_no_device") else { return };
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let d = &d;
            s.spawn(move || {
                let buffer = d.alloc(4096, MemoryKind::Device).unwrap();
                let mut q = d.queue().unwrap();
                for i in 0..40 {
                    q.write(&buffer, 0, &[t ^ i; 4096]).unwrap();
                    q.finish(DEADLINE).unwrap();
                    let mut out = [0; 4096];
                    q.read(&buffer, 0, &mut out).unwrap();
                    assert_eq!(out, [t ^ i; 4096]);
                }
            });
        }
    });
    assert_eq!(d.health(), crate::device::Health::Usable);
}

#[test]
fn only_wgpus_own_race_is_overtaken() {
    let race =
        "If the queue is empty, the current submission index (0) should be at least the wait submission index (1)";
    assert!(super::core::overtaken(race));
    assert!(!super::core::overtaken("Error in Device::poll: device lost"));
}
