//! The CPU's kernels on every instruction set that this processor has, judged by the oracle.

#![allow(clippy::print_stdout, reason = "a test tells what it skipped")]

use std::process::Command;

use gpuctl::kernel::Isa;

/// Ops with a body of their own for each instruction set.
const OPS: &str = "add,avgpool2d,batchnorm_train,bmm,conv2d,conv2d_bwd_data,conv2d_bwd_weight,cos,dot,exp,gelu,gemm,gemv,layernorm,log,max,maxpool2d,min,pow,sigmoid,sin,\
                   softmax,sum,tanh,transpose";

#[test]
fn every_instruction_set_is_right() {
    for name in ["baseline", "avx2", "avx512"] {
        if Isa::capped(name).unwrap().name() != name {
            println!("skipped: {name}: not on this processor");
            continue;
        }
        let out = Command::new(env!("CARGO_BIN_EXE_gpuctl"))
            .args(["verify", "--device", "cpu", "--op", OPS, "--json", "-"])
            .env("GPUCTL_CPU_ISA", name)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert_eq!(out.status.code(), Some(0), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let device = &document["devices"][0];
        assert!(device["api"].as_str().unwrap().ends_with(name), "{name}: {device}");
        let passed = document["records"].as_array().unwrap().iter().filter(|r| r["status"] == "ok").count();
        assert!(passed > 1000, "{name}: {passed} cases");
    }
}
