//! A wgpu device that the program owns: what an engine does on it, what it leaves alone, and a loss.

use gpuctl::base::DType;

use super::*;
use gpuctl::device::wgpu::WgpuDevice;
use gpuctl::device::wgpu::wgpu;
use std::sync::Mutex;

fn mine(test: &str) -> Option<(wgpu::Device, wgpu::Queue)> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let Some(adapter) = wait(instance.enumerate_adapters(wgpu::Backends::all())).into_iter().next() else {
        assert!(!Env::read().unwrap().require.iter().any(|b| b == "wgpu"));
        println!("skipped: {test}: no adapter");
        return None;
    };
    // What a program asks for that has other things in mind: no features, the default limits.
    Some(wait(adapter.request_device(&wgpu::DeviceDescriptor::default())).unwrap())
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        let waker = Arc::new(Quiet).into();
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// The program's own use of its device: bytes through two buffers of its own.
fn used(device: &wgpu::Device, queue: &wgpu::Queue, theirs: &wgpu::Buffer) -> Vec<u8> {
    let size = theirs.size();
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let back = device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
    let mut encoder = device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(theirs, 0, &back, 0, size);
    queue.submit([encoder.finish()]);
    back.map_async(wgpu::MapMode::Read, .., |mapped| mapped.unwrap());
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    back.get_mapped_range(..).unwrap().to_vec()
}

#[test]
fn an_engine_works_on_the_programs_own_device_and_leaves_it() {
    let Some((device, queue)) = mine("an_engine_works_on_the_programs_own_device_and_leaves_it") else { return };
    let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let theirs =
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 64, usage, mapped_at_creation: false });
    queue.write_buffer(&theirs, 0, &[7; 64]);
    let engine = Engine::from_wgpu(device.clone(), queue.clone()).unwrap();
    let x = HostTensor::from_slice(&numbers(1000, |i| i as f32 - 500.0), &[1000]).unwrap();
    let out = engine.run("relu", &[&x], &Attrs::new()).unwrap();
    assert_eq!((out.ran_on.as_str(), out.fallback), ("wgpu:given", None));
    assert_eq!(out.outputs[0].to_vec::<f32>().unwrap(), numbers(1000, |i| (i as f32 - 500.0).max(0.0)));
    let target = engine.on("wgpu:given").unwrap();
    let max = u64::from(device.limits().max_compute_invocations_per_workgroup);
    assert!(u64::from(target.info().max_group) <= max, "the device's limits, not the adapter's");
    let kept = target.upload(&[1.5f32; 10]).unwrap();
    // A mistake of the program's own is the program's to hear, not the engine's.
    let heard = Arc::new(Mutex::new(0));
    let hears = Arc::clone(&heard);
    device.on_uncaptured_error(Arc::new(move |_| *hears.lock().unwrap() += 1));
    let wrong = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::STORAGE;
    let _ = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wrong,
        mapped_at_creation: false,
    });
    assert_eq!(*heard.lock().unwrap(), 1);
    assert_eq!(kept.to_vec().unwrap(), [1.5; 10]);
    drop((engine, kept));
    assert_eq!(used(&device, &queue, &theirs), [7; 64], "the device and its buffers are the program's");
    assert_eq!(*heard.lock().unwrap(), 1);
}

#[test]
fn a_loss_of_the_programs_device_is_told_to_both() {
    let Some((device, queue)) = mine("a_loss_of_the_programs_device_is_told_to_both") else { return };
    let told = Arc::new(Mutex::new(Vec::new()));
    let tells = Arc::clone(&told);
    let on_lost = Box::new(move |why: wgpu::DeviceLostReason, _: String| tells.lock().unwrap().push(why));
    let given = Arc::new(WgpuDevice::from_wgpu(device.clone(), queue, Some(on_lost)).unwrap());
    let engine = plain().device(given).build().unwrap();
    let target = engine.on("wgpu:given").unwrap();
    let x = target.upload(&[1.0f32; 10]).unwrap();
    device.destroy();
    assert_eq!(x.to_vec().unwrap_err().code(), Code::DeviceLost);
    assert_eq!(target.run("neg", &[&x], &Attrs::new()).unwrap_err().code(), Code::DeviceLost);
    assert_eq!(*told.lock().unwrap(), [wgpu::DeviceLostReason::Destroyed]);
    assert_eq!(engine.on("wgpu:given").unwrap_err().code(), Code::DeviceLost, "out of use");
    assert_eq!(
        engine.run("neg", &[&HostTensor::zeros(DType::F32, &[3]).unwrap()], &Attrs::new()).unwrap().ran_on,
        "cpu"
    );
}
