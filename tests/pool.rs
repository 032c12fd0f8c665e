//! Pooling forwards and backwards in one go: the indices that a device's maxpool2d gives are what its gradient is fed.
//! Made-up indices, as `verify` has them, meet their windows on small planes only.

use gpuctl::base::{Case, Env, Exact, HostTensor, Lang};
use gpuctl::device::DEADLINE;
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::engine::{Guard, Runner};
use gpuctl::kernel::choose;
use gpuctl::op::{self, OpDesc, case};

/// What comes out of a case on a device, judged by the op's rule.
fn run(r: &Runner, op: &'static OpDesc, case: &Case, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let choice = choose(op.kernels, case, r.device().info(), None).unwrap();
    let lang: Lang = choice.lang;
    let prepared = r.prepare_choice(op, case, choice, Guard::WIDE).unwrap();
    let mut lease = r.lease().unwrap();
    let out = prepared.call(lease.queue().unwrap(), inputs, DEADLINE).unwrap();
    let exact: Vec<_> = inputs.iter().map(Exact::read_all).collect();
    let (want, bounds) = ((op.oracle)(case, &exact), op.bounds(case, lang).unwrap());
    assert_eq!((want.len(), bounds.len()), (out.len(), out.len()), "{case}");
    for ((want, bound), got) in want.iter().zip(bounds).zip(&out) {
        assert_eq!(bound.first_wrong(want, got), None, "{case} on {}", r.device().info().id);
    }
    out
}

#[test]
fn the_gradient_follows_the_indices_that_the_maximum_gave() {
    let env = Env::read().unwrap();
    let rig = probe::open(&Select::All, &env, CpuConfig { threads: 2, pin: Pin::Free }).unwrap();
    assert!(rig.devices.iter().any(|d| d.info().id == "cpu"));
    let (forward, backward) = (op::find("maxpool2d").unwrap(), op::find("maxpool2d_bwd").unwrap());
    for device in &rig.devices {
        let r = Runner::new(device.clone());
        for dtype in backward.dtypes.iter().filter(|d| device.info().dtypes.contains(d)) {
            for text in [
                "n2,c3,h31,w40/kernel_shape=3:3,pads=1:1,strides=2:2/uniform",
                "n2,c3,h31,w40/kernel_shape=3:3,layout=NHWC,pads=1:1,strides=2:2/uniform",
                "n1,c5,h17,w23/kernel_shape=4:3,pads=3:0:1:2/integer",
            ] {
                let there = case::parse(&format!("maxpool2d/{dtype}/{text}")).unwrap();
                let back = case::parse(&format!("maxpool2d_bwd/{dtype}/{text}")).unwrap();
                let places = run(&r, forward, &there, &case::inputs(forward, &there).unwrap()).remove(1);
                let mut inputs = case::inputs(backward, &back).unwrap();
                inputs[1] = places;
                let dx = run(&r, backward, &back, &inputs).remove(0);
                // No g is lost: sums of all of g and of all of dx agree, up to the rounding of f16 and bf16.
                let total = |t: &HostTensor| Exact::read_all(t).iter().map(|v| v.to_f64()).sum::<f64>();
                let (want, got) = (total(&inputs[0]), total(&dx));
                assert!((want - got).abs() < 0.5, "{back}: g adds up to {want}, dx to {got}");
                assert!(Exact::read_all(&inputs[0]).iter().map(|v| v.abs_f64()).sum::<f64>() > 100.0, "{back}");
            }
        }
    }
}
