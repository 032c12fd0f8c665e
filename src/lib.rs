//! gpuctl tells the truth about GPUs: what is there, how fast it really is, from which size on it beats the CPU, whether
//! its results are right, and whether it holds out.
//!
//! One table ([`op`]) says what every op is; small device drivers ([`device`]) say where it can run; an [`engine`] runs
//! one on the other; the [`jobs`] behind the subcommands read the same table. Layers, lowest first; an import may skip
//! layers but never points up (`tests/tidy.rs` checks every path):
//!
//! ```text
//! base      dtype, case, cost, units, stats, clock, record, error ...   nothing of ours below it
//! num       arithmetic on any number type: textbook loops on one CPU thread, apart from everything below
//! kernel    how an op is spelled: texts, variants, launch plans, CPU kernels
//! op        what an op is: the registry
//! device    where it runs: cpu, cuda, opencl, wgpu, sim, and the decorators faulty and traced; knows no op
//! profile   threshold profiles: schema, lookup, file
//! engine    runs one op on one device, or where the profile says
//! measure   sampling and stop rules
//! jobs      devices, bench, calibrate, verify, stress, profile
//! report    records to text, JSON, CSV, Markdown, SVG
//! cli       arguments to configuration to job to report; the only layer that prints
//! ```
//!
//! Invariants: choosing a place and planning a launch are pure functions; no oracle calls a kernel; an absent device,
//! dtype or kernel is a value with a reason, never a silent substitute; nothing panics on bad input, a missing library
//! or a lost device.

/// The Rust of docs/transfers.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/transfers.md")]
pub mod transfers_page {}

pub mod base;
#[cfg(feature = "cli")]
pub mod cli;
pub mod device;
pub mod engine;
pub mod jobs;
pub mod kernel;
pub mod measure;
pub mod num;
pub mod op;
pub mod profile;
pub mod report;
