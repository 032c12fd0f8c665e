//! `gpuctl run`: ops on arrays from files, against values computed here and by NumPy; bad files and bad calls.

#![allow(clippy::print_stderr, reason = "skips are named")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpuctl::base::{Attrs, Case, DType, Document, Env, Exact, Fill, HostTensor, Lang, Record, npy};
use gpuctl::op::{self, OpDesc, Role, case};

fn gpuctl(args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    for name in ["GPUCTL_PROFILE", "GPUCTL_DISABLE_GPU", "GPUCTL_CPU_ISA", "GPUCTL_REQUIRE"] {
        c.env_remove(name);
    }
    c.env("NODEVICE_SELECT", "1").args(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The CPU, and the first device of each of these backends where there is one.
fn devices_of(backends: &[&str]) -> Vec<String> {
    let out = gpuctl(&["devices", "--json", "-"]);
    let doc: Document = serde_json::from_slice(&out.stdout).expect("a document");
    let mut found = vec!["cpu".to_string()];
    for backend in backends {
        let id = format!("{backend}:0");
        if doc.devices.iter().any(|d| d.id == id) {
            found.push(id);
        } else {
            assert!(!Env::read().unwrap().require.iter().any(|r| r == backend), "there is no {id}");
            eprintln!("skipped: gpuctl run on {id}: no such device");
        }
    }
    found
}

fn devices() -> Vec<String> {
    devices_of(&["opencl"])
}

/// A file as NumPy writes it, made without gpuctl's own writer.
fn bytes(descr: &str, fortran: bool, shape: &[u64], data: &[u8]) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    let sizes: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({sizes}), }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }
    fn save(&self, name: &str, content: &[u8]) -> String {
        std::fs::write(self.path(name), content).unwrap();
        self.path(name)
    }
    /// Descriptor, shape and data of a file, read without gpuctl's own reader.
    fn load(&self, name: &str) -> (String, String, Vec<u8>) {
        let all = std::fs::read(self.path(name)).unwrap();
        assert_eq!(&all[..8], b"\x93NUMPY\x01\x00");
        let end = 10 + usize::from(u16::from_le_bytes([all[8], all[9]]));
        assert_eq!(end % 64, 0, "NumPy maps files whose data are aligned");
        let header = text(&all[10..end]);
        let between = |a: &str, b: &str| {
            let from = header.find(a).unwrap() + a.len();
            header[from..from + header[from..].find(b).unwrap()].to_string()
        };
        assert!(header.contains("'fortran_order': False") && header.ends_with('\n'), "{header}");
        (between("'descr': '", "'"), between("'shape': (", ")"), all[end..].to_vec())
    }
    fn load_f32(&self, name: &str, shape: &str) -> Vec<f32> {
        let (descr, got, data) = self.load(name);
        assert_eq!((descr.as_str(), got.as_str()), ("<f4", shape));
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// Runs and gives the one record.
fn run(args: &[&str]) -> gpuctl::base::record::RunRecord {
    let out = gpuctl(&[&["run"], args, &["--json", "-"]].concat());
    assert_eq!(out.status.code(), Some(0), "{args:?}: {}", text(&out.stderr));
    let doc: Document = serde_json::from_slice(&out.stdout).expect("stdout is one document");
    match doc.records.as_slice() {
        [Record::Run(r)] => *r.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn add_broadcasts_and_says_where_it_ran() {
    let f = Folder::new();
    let a = f.save("a.npy", &bytes("<f4", false, &[2, 3], &f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])));
    let b = f.save("b.npy", &bytes("<f4", false, &[3], &f32s(&[10.0, 20.0, 30.0])));
    for device in &devices() {
        let out = f.path("y.npy");
        let r = run(&["add", "--in", &a, "--in", &b, "--device", device, "--out", &out]);
        assert_eq!(f.load_f32("y.npy", "2, 3"), [11.0, 22.0, 33.0, 14.0, 25.0, 36.0]);
        assert_eq!((r.subject.ran_on.as_str(), r.subject.dtype), (device.as_str(), DType::F32));
        assert!(!r.subject.variant.is_empty() && r.seconds > 0.0 && r.fallback.is_none());
        assert_eq!((r.inputs.len(), r.outputs[0].shape.as_slice()), (2, &[2, 3][..]));
        assert_eq!(r.inputs[1].operand, "b");
    }
    // As text, and where the profile says: nothing measured means the CPU.
    let out = f.path("t.npy");
    let said = gpuctl(&["run", "add", "--in", &a, "--in", &b, "--out", &out, "--profile", "always-cpu"]);
    assert!(said.status.success() && said.stderr.is_empty(), "{}", text(&said.stderr));
    let line = text(&said.stdout);
    assert!(line.starts_with("add f32 n6 ran on cpu (") && line.contains("t.npy f32 [2, 3]"), "{line}");
    assert_eq!(f.load_f32("t.npy", "2, 3").len(), 6);
}

/// Integers are exact whatever the order of summation: every element must match. B comes big-endian, A in Fortran order.
#[test]
fn gemm_reads_every_layout() {
    let (m, k, n) = (19usize, 23usize, 17usize);
    let value = |i: usize, j: usize, s: usize| ((i * 31 + j * 17 + s) % 9) as f32 - 4.0;
    let a: Vec<f32> = (0..k).flat_map(|j| (0..m).map(move |i| value(i, j, 1))).collect();
    let b: Vec<u8> = (0..k).flat_map(|i| (0..n).flat_map(move |j| value(i, j, 2).to_be_bytes())).collect();
    let f = Folder::new();
    let a = f.save("a.npy", &bytes("<f4", true, &[m as u64, k as u64], &f32s(&a)));
    let b = f.save("b.npy", &bytes(">f4", false, &[k as u64, n as u64], &b));
    let c0: Vec<f32> = (0..m * n).map(|i| (i % 5) as f32).collect();
    let c = f.save("c.npy", &bytes("<f4", false, &[m as u64, n as u64], &f32s(&c0)));
    for device in &devices() {
        // The third operand is read where beta says so; the result may replace its file.
        let args = ["gemm", "--in", &a, "--in", &b, "--in", &c, "--attr", "alpha=2", "--attr", "beta=3"];
        run(&[&args[..], &["--device", device, "--out", &f.path("y.npy")]].concat());
        let got = f.load_f32("y.npy", &format!("{m}, {n}"));
        for i in 0..m {
            for j in 0..n {
                let dot: f32 = (0..k).map(|p| value(i, p, 1) * value(p, j, 2)).sum();
                assert_eq!(got[i * n + j], 2.0 * dot + 3.0 * c0[i * n + j], "{device} [{i}, {j}]");
            }
        }
    }
    let naive = run(&["gemm", "--in", &a, "--in", &b, "--device", "cpu", "--variant", "naive", "--out", &c]);
    assert_eq!(naive.subject.variant, "naive");
    assert_ne!(f.load_f32("c.npy", &format!("{m}, {n}")), c0, "an input's file may be replaced by the result");
}

#[test]
fn softmax_sum_and_transpose_agree_with_plain_loops() {
    let (m, n) = (7usize, 33usize);
    let x: Vec<f32> = (0..m * n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 8.0).collect();
    let f = Folder::new();
    let file = f.save("x.npy", &bytes("<f4", false, &[m as u64, n as u64], &f32s(&x)));
    for device in &devices() {
        let one = |op: &str, attrs: &[&str], shape: &str| {
            let y = f.path("y.npy");
            run(&[&[op, "--in", &file, "--device", device], attrs, &["--out", &y]].concat());
            f.load_f32("y.npy", shape)
        };
        let y = one("softmax", &[], "7, 33");
        for (row, got) in x.chunks(n).zip(y.chunks(n)) {
            let total: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            for (v, g) in row.iter().zip(got) {
                let want = f64::from(*v).exp() / total;
                assert!((f64::from(*g) - want).abs() < 1e-5 * want + 1e-9, "{device}: {g} for {want}");
            }
        }
        // Multiples of 1/8 below 2^24/8: exact in any order.
        let sums: Vec<f32> = (0..n).map(|j| (0..m).map(|i| x[i * n + j]).sum()).collect();
        assert_eq!(one("sum", &["--attr", "axes=0,keepdims=0"], "33,"), sums);
        assert_eq!(one("sum", &["--attr", "axes=1,keepdims=1"], "7, 1").len(), m);
        assert_eq!(one("sum", &["--attr", "keepdims=0"], "").len(), 1);
        let turned: Vec<f32> = (0..n).flat_map(|j| (0..m).map(move |i| (i, j))).map(|(i, j)| x[i * n + j]).collect();
        assert_eq!(one("transpose", &[], "33, 7"), turned);
    }
}

#[test]
fn dtypes_are_the_arrays_own_and_bf16_is_said() {
    let f = Folder::new();
    let wide: Vec<u8> = [1.5f64, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let d = f.save("d.npy", &bytes("<f8", false, &[2], &wide));
    let y = f.path("y.npy");
    assert_eq!(run(&["relu", "--in", &d, "--device", "cpu", "--out", &y]).subject.dtype, DType::F64);
    assert_eq!(f.load("y.npy").0, "<f8");
    let ints: Vec<u8> = [7i32, -9, i32::MAX].iter().flat_map(|v| v.to_le_bytes()).collect();
    let i = f.save("i.npy", &bytes("<i4", false, &[3], &ints));
    let r = run(&["sum", "--in", &i, "--device", "cpu", "--dtype", "i32", "--out", &y]);
    assert_eq!((r.subject.dtype, r.outputs[0].dtype), (DType::I32, DType::I64), "sums of integers are 64 bits wide");
    assert_eq!(f.load("y.npy").2, (i64::from(i32::MAX) - 2).to_le_bytes());
    // bf16: the upper halves of the f32 bits in u2.
    let halves: Vec<u8> = [1.5f32, -3.0].iter().flat_map(|v| v.to_le_bytes()[2..].to_vec()).collect();
    let h = f.save("h.npy", &bytes("<u2", false, &[2], &halves));
    let r = run(&["relu", "--in", &h, "--device", "cpu", "--dtype", "bf16", "--out", &y]);
    assert_eq!((r.subject.dtype, r.inputs[0].dtype), (DType::BF16, DType::BF16));
    let (descr, _, data) = f.load("y.npy");
    assert_eq!((descr.as_str(), data.as_slice()), ("<u2", &[halves[0], halves[1], 0, 0][..]));
    // No elements: a result without elements.
    let none = f.save("none.npy", &bytes("<f4", false, &[0, 3], &[]));
    run(&["relu", "--in", &none, "--device", "cpu", "--out", &y]);
    assert_eq!(f.load("y.npy"), ("<f4".into(), "0, 3".into(), vec![]));
}

/// Every mistake: one line, nothing on stdout, exit code 2 or 3, and the old result untouched.
#[test]
fn mistakes_are_one_clear_line() {
    let f = Folder::new();
    let a = f.save("a.npy", &bytes("<f4", false, &[2, 3], &[0; 24]));
    let b = f.save("b.npy", &bytes("<f4", false, &[4, 5], &[0; 80]));
    let wide = f.save("wide.npy", &bytes("<f8", false, &[2, 3], &[0; 48]));
    let flags = f.save("flags.npy", &bytes("|b1", false, &[2], &[0; 2]));
    let small = f.save("small.npy", &bytes("|u1", false, &[2], &[0; 2]));
    let cut = f.save("cut.npy", &bytes("<f4", false, &[2, 3], &[0; 23]));
    let claims = f.save("claims.npy", &bytes("<f4", false, &[1 << 40], &[0; 24]));
    let nested = f.save("nested.npy", b"\x93NUMPY\x01\x00\x20\x00{'shape':(((((((((((((((((((((((");
    let zip = f.save("zip.npy", b"PK\x03\x04 this is an archive");
    let out = f.save("out.npy", b"old");
    let none = f.path("none/out.npy");
    let gone = f.path("gone.npy");
    let folder = f.path("");
    let cases: &[(&[&str], &str, i32)] = &[
        (&["addd", "--in", &a], "unknown op 'addd'", 2),
        (&["add", "--in", &a], "add: takes 2 inputs (a, b), --in was given 1 times; b is missing", 2),
        (&["relu", "--in", &a, "--in", &a], "relu: takes 1 inputs (x), --in was given 2 times", 2),
        (&["gemm", "--in", &a], "gemm: takes 2 to 3 inputs (A, B, C)", 2),
        (&["relu", "--in", &a, "--out", &out], "relu: gives 1 results (y), --out was given 2 times", 2),
        (&["gemm", "--in", &a, "--in", &b], "op(A) is 2 by 3, op(B) is 4 by 5", 2),
        (&["gemm", "--in", &a, "--in", &a, "--in", &b, "--attr", "transB=1"], "[2, 2] is expected", 2),
        (&["add", "--in", &a, "--in", &wide], "add: b is f64, expected f32", 2),
        (&["add", "--in", &a, "--in", &b], "add", 2),
        (&["relu", "--in", &a, "--dtype", "f64"], "relu: x is f32, expected f64 as --dtype says", 2),
        (&["softmax", "--in", &small], "softmax: x is u8, expected one of f32", 2),
        (&["relu", "--in", &a, "--dtype", "f31"], "unknown dtype 'f31'", 2),
        (&["relu", "--in", &a, "--attr", "slope=2"], "no attribute 'slope'", 2),
        (&["sum", "--in", &a, "--attr", "axes=7"], "axis 7", 2),
        (&["sum", "--in", &a, "--attr", "axes"], "name=value", 2),
        (&["alloc"], "a measurement, not a library call", 2),
        (&["relu", "--in", &a, "--device", "cuda:9"], "no device 'cuda:9'", 3),
        (&["relu", "--in", &a, "--device", "all"], "one device", 2),
        (&["relu", "--in", &a, "--device", "cpu,sim:laptop"], "one device", 2),
        (&["relu", "--in", &a, "--device", "cpu", "--variant", "warp"], "no variant 'warp'", 2),
        (&["relu", "--in", &a, "--threads", "0"], "--threads", 2),
        (&["relu", "--in", &flags], "flags.npy: dtype '|b1': no op computes with booleans", 2),
        (&["relu", "--in", &cut], "cut.npy: [2, 3] of f32 needs 24 bytes of data, the file has 23", 2),
        (&["relu", "--in", &claims], "needs 4398046511104 bytes of data, the file has 24", 2),
        (&["relu", "--in", &nested], "nested.npy: the header", 2),
        (&["relu", "--in", &zip], "zip.npy: no .npy file", 2),
        (&["relu", "--in", &gone], "gone.npy cannot be read", 2),
        (&["relu", "--in", &folder], "no regular file", 2),
    ];
    for (args, needle, code) in cases {
        let said = gpuctl(&[&["run"], *args, &["--out", &out]].concat());
        let (stdout, stderr) = (text(&said.stdout), text(&said.stderr));
        assert_eq!(said.status.code(), Some(*code), "{args:?}: {stderr}");
        assert!(stderr.contains(needle), "{args:?}: expected '{needle}' in {stderr}");
        assert_eq!((stderr.trim_end().lines().count(), stdout.as_str()), (1, ""), "{args:?}: {stderr}");
        assert_eq!(std::fs::read(&out).unwrap(), b"old", "{args:?} touched the result's file");
    }
    let twice = gpuctl(&["run", "relu", "--in", &a, "--variant", "simd", "--out", &out]);
    assert_eq!(twice.status.code(), Some(2), "a variant needs a device");
    let said = gpuctl(&["run", "relu", "--in", &a, "--out", &none]);
    assert!(!said.status.success() && text(&said.stderr).contains("none/out.npy"), "{}", text(&said.stderr));
    let left: Vec<_> = std::fs::read_dir(f.0.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|n| n.to_string_lossy().contains("part")), "{left:?}");
}

/// A sparse file really has the terabytes that its header claims; the machine has not.
#[test]
fn more_than_the_memory_is_refused_before_it_is_taken() {
    let f = Folder::new();
    let start = bytes("<f8", false, &[1 << 40], &[]);
    let path = f.save("huge.npy", &start);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    if file.set_len(start.len() as u64 + (8 << 40)).is_err() {
        eprintln!("skipped: a sparse file of 8 TiB: this file system has none");
        return;
    }
    let said = gpuctl(&["run", "relu", "--in", &path, "--device", "cpu", "--out", &f.path("y.npy")]);
    assert!(!said.status.success());
    assert!(text(&said.stderr).contains("out-of-host-memory"), "{}", text(&said.stderr));
}

/// Paths of a folder's `inN.npy` or `wantN.npy`.
fn numbered(folder: &Path, stem: &str) -> Vec<PathBuf> {
    (0..9).map(|i| folder.join(format!("{stem}{i}.npy"))).take_while(|p| p.exists()).collect()
}

/// ONNX writes pads for both ends of every axis; an op may take one number per axis.
fn pads(op: &OpDesc, shapes: &[Vec<u64>], rest: &str) -> String {
    let fits = |text: &String| case::parse_attrs(op, text).and_then(|a| (op.bind)(shapes, &a)).is_ok();
    ["1:1:1:1", "1:1"].map(|p| format!("{rest},pads={p}")).into_iter().find(fits).expect("pads in one of two forms")
}

/// NumPy's results, computed in f64, against ours by the op's own bound.
#[test]
fn ops_agree_with_numpy() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference.py");
    let python3 = || {
        // Where tests/fetch-numpy puts them, if it did.
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", target.join("numpy"));
        command
    };
    let python = |args: &[&str]| python3().arg(script).args(args).output();
    let have = python3().args(["-c", "import numpy, scipy.signal, scipy.special"]).output();
    if !have.is_ok_and(|o| o.status.success()) {
        let required = Env::read().unwrap().require.iter().any(|r| r == "numpy");
        assert!(!required, "GPUCTL_REQUIRE lists numpy: tests/fetch-numpy installs it");
        eprintln!("skipped: comparison with NumPy: python3 has no numpy or no scipy; tests/fetch-numpy installs them");
        return;
    }
    let dir = Folder::new();
    let made = python(&[&dir.path("")]).unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let devices = devices_of(&["opencl", "wgpu"]);
    let mut compared = 0;
    let names = ["gemm", "softmax", "softmax-far", "conv2d", "maxpool2d", "layernorm", "layernorm-far"];
    for name in names {
        let folder = dir.0.path().join(name);
        let (inputs, wants) = (numbered(&folder, "in"), numbered(&folder, "want"));
        let op = op::find(name.split('-').next().unwrap()).unwrap();
        assert!(!wants.is_empty(), "{name}: {}", text(&made.stderr));
        let tensors: Vec<HostTensor> = inputs.iter().map(|p| npy::read(p).unwrap()).collect();
        let shapes: Vec<Vec<u64>> = tensors.iter().map(|t| t.shape.clone()).collect();
        let attrs = match op.name {
            "conv2d" => pads(op, &shapes, "strides=2:2"),
            "maxpool2d" => "kernel_shape=2:2,strides=2:2".to_string(),
            "layernorm" => "epsilon=1e-5".to_string(),
            _ => String::new(),
        };
        let wants: Vec<HostTensor> = wants.iter().map(|p| npy::read(p).unwrap()).collect();
        for device in &devices {
            compared += against(op, &folder, &attrs, &tensors, &wants, device);
        }
    }
    assert_eq!(compared, devices.len() * names.len(), "every case on every device");
    // NumPy reads what we write.
    let y = dir.path("gemm/out0.npy");
    let read = python(&["--load", &y]).unwrap();
    let back = npy::read(Path::new(&y)).unwrap();
    let total: f64 = back.to_vec::<f32>().unwrap().iter().map(|v| f64::from(*v)).sum();
    let said = text(&read.stdout);
    assert!(said.starts_with("<f4 37 29 "), "{said}{}", text(&read.stderr));
    let theirs: f64 = said.split_whitespace().last().unwrap().parse().unwrap();
    assert!((theirs - total).abs() < 1e-9, "{theirs} {total}");
}

/// Runs one op on one device and judges every element; 1 if it ran.
fn against(
    op: &'static OpDesc,
    folder: &Path,
    attrs: &str,
    inputs: &[HostTensor],
    wants: &[HostTensor],
    device: &str,
) -> usize {
    let written = op.operands.iter().filter(|o| o.role != Role::In).count();
    let files = |stem: &str, n: usize| -> Vec<String> {
        (0..n).map(|i| folder.join(format!("{stem}{i}.npy")).to_str().unwrap().to_string()).collect()
    };
    let (ins, outs) = (files("in", inputs.len()), files("out", written));
    let mut args = vec![op.name, "--device", device];
    ins.iter().for_each(|p| args.extend(["--in", p.as_str()]));
    outs.iter().for_each(|p| args.extend(["--out", p.as_str()]));
    if !attrs.is_empty() {
        args.extend(["--attr", attrs]);
    }
    let record = run(&args);
    let case = case_of(op, &record.subject.shape_text, record.subject.attrs.clone());
    let lang = match device.split(':').next() {
        Some("cpu") => Lang::Native,
        Some("wgpu") => Lang::Wgsl,
        _ => Lang::OpenclC,
    };
    let bounds = op.bounds(&case, lang).unwrap_or_else(|| panic!("{case}: no bound in {lang:?}"));
    // The values are NumPy's; only the scale that errors are measured by comes from the op's record.
    let mut read: Vec<Vec<Exact>> = inputs.iter().map(Exact::read_all).collect();
    let operands = op.operands.iter().filter(|o| o.role != Role::Out).count();
    if read.len() < operands {
        let zeros = (op.shapes)(&case).unwrap();
        let count = zeros[read.len()].iter().product::<u64>() as usize;
        read.push(vec![Exact::f(0.0); count]);
    }
    let scales = (op.oracle)(&case, &read);
    for (i, want) in wants.iter().enumerate() {
        let got = npy::read(Path::new(&outs[i])).unwrap();
        assert_eq!(got.len(), want.len(), "{case} {device}: {:?} against {:?}", got.shape, want.shape);
        if i == 0 {
            assert_eq!(got.shape, want.shape, "{case} {device}");
        }
        for k in 0..got.len() {
            let (g, w) = (Exact::read(&got, k), Exact::read(want, k));
            let judged = bounds[i].judge(g, w, scales[i].scale[k as usize]);
            let words = &bounds[i].words;
            assert!(
                judged.ok,
                "{case} {device} [{k}]: {} for {}, bound {} ({words})",
                g.to_f64(),
                w.to_f64(),
                judged.allowed
            );
        }
    }
    if op.name == "maxpool2d" {
        points_at_maxima(
            &inputs[0],
            &npy::read(Path::new(&outs[0])).unwrap(),
            &npy::read(Path::new(&outs[1])).unwrap(),
        );
    }
    1
}

fn case_of(op: &OpDesc, shape: &str, attrs: Attrs) -> Case {
    let dims: Vec<u64> =
        shape.split(',').zip(op.dims).map(|(t, d)| t.strip_prefix(d).unwrap().parse().unwrap()).collect();
    op.case(DType::F32, &dims, attrs, Fill::Uniform).unwrap()
}

/// Every index leads to its maximum, counted within the plane or over the whole tensor.
fn points_at_maxima(x: &HostTensor, y: &HostTensor, indices: &HostTensor) {
    let (x, values) = (x.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
    let planes = (y.shape[0] * y.shape[1]) as usize;
    let (size, per_plane) = (x.len() / planes, values.len() / planes);
    let at = |k: usize| Exact::read(indices, k as u64).to_f64() as usize;
    let whole = (0..values.len()).all(|k| x.get(at(k)) == Some(&values[k]));
    let within = (0..values.len()).all(|k| at(k) < size && x[k / per_plane * size + at(k)] == values[k]);
    assert!(whole || within, "indices do not lead to the maxima");
}
