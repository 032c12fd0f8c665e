//! What can be typed. Values stay text here where our own messages say more than the parser's could.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(super) use super::soak_args::{Stress, StressReports};

/// Tells the truth about GPUs: devices, honest benchmarks, calibrated CPU/GPU thresholds, verification, soak tests.
#[derive(Debug, Parser)]
#[command(name = "gpuctl", version, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List what is there, what it can do, and why the rest is not there
    Devices(Devices),
    /// Time ops over sizes, with intervals, phases and the comparison with the CPU
    Bench(Bench),
    /// Find the size from which the GPU wins and print a threshold profile (TOML)
    Calibrate(Calibrate),
    /// Check every op on every device against an exact oracle
    Verify(Verify),
    /// Soak: leaks, wrong results, hangs, crashes over time
    Stress(Stress),
    /// Read profiles and explain their decisions
    Profile(Profile),
    /// Run one op on your own arrays (.npy) on any device
    Run(Run),
    /// What a code means that gpuctl or a driver's API has shown, and what to do about it
    Explain(Explain),
    /// A worker of `bench`
    #[command(hide = true)]
    BenchWorker(BenchWorker),
    /// A worker of `devices --measure`
    #[command(hide = true)]
    DevicesWorker(DevicesWorker),
    /// Asks one backend for `devices`
    #[command(hide = true)]
    ProbeWorker {
        /// Its name
        #[arg(long)]
        backend: String,
    },
    /// Tries one device for `devices --trial`
    #[command(hide = true)]
    TrialWorker(TrialWorker),
    /// A worker of `calibrate`
    #[command(hide = true)]
    CalibrateWorker(CalibrateWorker),
    /// A worker of `stress`
    #[command(hide = true)]
    StressWorker {
        /// Its orders as JSON
        task: String,
    },
}

/// Options of every subcommand that runs on devices.
#[derive(Clone, Debug, Args)]
pub(super) struct Common {
    /// Devices: ids, uids or PCI addresses separated by commas, `cuda:*` for all of a backend, or `all` (software devices too) [default: cpu and all real GPUs]
    #[arg(long, value_name = "ID,..|all")]
    pub(super) device: Option<String>,
    /// CPU threads; `calibrate` takes several counts, each a key of its own [default: all that are allowed]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(super) threads: Vec<usize>,
    /// Whose matrix and vector products the CPU runs: own, auto (the first of OpenBLAS, MKL and BLIS that is installed), or a library's file
    #[arg(long, value_name = "own|auto|PATH", default_value = "own")]
    pub(super) cpu_blas: String,
    /// Write the JSON document to a file, or to stdout with `-` (instead of the table)
    #[arg(long, value_name = "PATH|-")]
    pub(super) json: Option<String>,
    /// Write what the devices did, call by call, for Perfetto or chrome://tracing; what it adds up to goes to stderr
    #[arg(long, value_name = "FILE.json")]
    pub(super) trace: Option<String>,
    /// No progress and no remarks on stderr
    #[arg(long, short)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct Devices {
    /// Why each missing backend or device is missing, and everything known about those that are there
    #[arg(long)]
    pub(super) why: bool,
    /// Which op runs on which device in which dtype, and why not elsewhere; with --json also with which kernel
    #[arg(long)]
    pub(super) ops: bool,
    /// Whether each card is fit for work: errors of its memory, temperature, clocks, power, link under load, other
    /// programs, driver, kernel log; exit code 1 if not, 4 if no card tells
    #[arg(long, conflicts_with_all = ["ops", "why", "measure", "trial"])]
    pub(super) health: bool,
    /// How NUMA nodes, links and cards hang together
    #[arg(long, conflicts_with_all = ["ops", "health", "measure", "line"])]
    pub(super) topology: bool,
    /// Figures of all cards again and again, until Ctrl-C
    #[arg(long, conflicts_with_all = ["ops", "why", "health", "measure", "topology", "line", "json"])]
    pub(super) watch: bool,
    /// With --watch: time between looks
    #[arg(long, value_name = "2s", default_value = "2s", requires = "watch")]
    pub(super) interval: String,
    /// With --watch: end after so many looks
    #[arg(long, value_name = "N", requires = "watch")]
    pub(super) count: Option<u64>,
    /// All that fits into columns, a row for each device, as wide as it needs to be
    #[arg(long, conflicts_with_all = ["ops", "health", "measure", "topology", "watch", "line"])]
    pub(super) wide: bool,
    /// One line for each device: `ID CLASS ENOUGH UID NAME`; with --health `ID VERDICT CODE,..`
    #[arg(long, conflicts_with_all = ["ops", "why", "measure", "json"])]
    pub(super) line: bool,
    /// Ask only these: cpu, cuda, opencl, wgpu [default: all]
    #[arg(long, value_name = "A,B", conflicts_with_all = ["health", "measure", "watch"])]
    pub(super) backend: Option<String>,
    /// Measure what each device reaches at most, and keep it for `bench`
    #[arg(long, group = "runs", conflicts_with_all = ["ops", "why"])]
    pub(super) measure: bool,
    /// Whether each device compiles and computes right: the smoke tier of `verify`, each device in a process of its own; what
    /// is found wrong is kept, listed, and not used. Exit code 1 if a device is unfit, 4 if one cannot be judged
    #[arg(long, group = "runs", conflicts_with_all = ["ops", "why", "topology", "watch", "wide", "line", "backend"])]
    pub(super) trial: bool,
    /// With --trial: ops, separated by commas [default: all]
    #[arg(long, value_name = "A,B", requires = "trial")]
    pub(super) op: Option<String>,
    /// With --trial: dtypes, separated by commas [default: all that the op has]
    #[arg(long, value_name = "f32,..", requires = "trial")]
    pub(super) dtype: Option<String>,
    /// With --measure or --trial: devices, ids or uids separated by commas, or `all` [default: cpu and all real GPUs]
    #[arg(long, value_name = "ID,..|all", requires = "runs")]
    pub(super) device: Option<String>,
    /// With --measure: CPU threads [default: all that are allowed]
    #[arg(long, value_name = "N", requires = "measure")]
    pub(super) threads: Option<usize>,
    /// Whose matrix and vector products the CPU runs: own, auto, or a library's file
    #[arg(long, value_name = "own|auto|PATH", default_value = "own", conflicts_with_all = [
        "health", "topology", "watch", "line", "measure",
    ])]
    pub(super) cpu_blas: String,
    /// With --measure: time per probe and device
    #[arg(long, value_name = "1s", default_value = "1s")]
    pub(super) budget: String,
    /// With --measure: fresh processes that measure in turn; 1 measures in this one
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(super) processes: usize,
    /// With --measure or --trial: write what the devices did, call by call, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE.json", requires = "runs")]
    pub(super) trace: Option<String>,
    /// Write the JSON document to a file, or to stdout with `-`
    #[arg(long, value_name = "PATH|-")]
    pub(super) json: Option<String>,
    /// No remarks on stderr
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// A worker of `bench`: its number and the arguments of the command.
#[derive(Debug, Args)]
pub(super) struct BenchWorker {
    /// Number of the worker
    #[arg(long, default_value_t = 0)]
    pub(super) worker: u64,
    /// Folder for its part of a trace
    #[arg(long)]
    pub(super) trace_parts: Option<String>,
    #[command(flatten)]
    pub(super) of: Bench,
}

/// A worker of `devices --measure`: its number and the arguments of the command.
#[derive(Debug, Args)]
pub(super) struct DevicesWorker {
    /// Number of the worker
    #[arg(long, default_value_t = 0)]
    pub(super) worker: u64,
    /// Folder for its part of a trace
    #[arg(long)]
    pub(super) trace_parts: Option<String>,
    #[command(flatten)]
    pub(super) of: Devices,
}

/// The process that tries a device: which one, and what of it.
#[derive(Debug, Args)]
pub(super) struct TrialWorker {
    /// Its backend
    #[arg(long)]
    pub(super) backend: String,
    /// Its uid; the id of a simulated device
    #[arg(long)]
    pub(super) uid: String,
    /// Ops
    #[arg(long)]
    pub(super) op: Option<String>,
    /// Dtypes
    #[arg(long)]
    pub(super) dtype: Option<String>,
    /// As of `devices`
    #[arg(long, default_value = "own")]
    pub(super) cpu_blas: String,
    /// Folder for its part of a trace
    #[arg(long)]
    pub(super) trace_parts: Option<String>,
}

/// A worker of `calibrate`: its number, which of the counts of CPU threads it uses, and the arguments of the command.
#[derive(Debug, Args)]
pub(super) struct CalibrateWorker {
    /// Number of the worker
    #[arg(long, default_value_t = 0)]
    pub(super) worker: u64,
    /// Folder for its part of a trace
    #[arg(long)]
    pub(super) trace_parts: Option<String>,
    /// CPU threads of this worker
    #[arg(long)]
    pub(super) of_threads: Option<usize>,
    #[command(flatten)]
    pub(super) of: Calibrate,
}

#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Ops, separated by commas, or `all` [default: gemm]
    #[arg(long, value_name = "A,B|all")]
    pub(super) op: Option<String>,
    /// A suite instead of ops: ablate (what the engine's pool, kernel cache, page-locked copies and thresholds are worth)
    #[arg(long, value_name = "NAME", value_parser = ["ablate"], conflicts_with_all = [
        "shape", "attr", "dtype", "residency", "cache", "region", "variant", "cpu_variant", "processes", "baseline", "csv",
        "markdown", "plot",
    ])]
    pub(super) suite: Option<String>,
    /// Sizes in the op's unit: 128..4096 doubles, 128..4096:128 steps, 128..4096x1.5 multiplies, 64,256 lists
    #[arg(long, value_name = "SIZES", conflicts_with = "shape")]
    pub(super) sizes: Option<String>,
    /// One shape, all dimensions in the op's order: 1024x512x64
    #[arg(long, value_name = "AxBxC")]
    pub(super) shape: Option<String>,
    /// Attributes: transA=1,alpha=2
    #[arg(long, value_name = "k=v,..", default_value = "")]
    pub(super) attr: String,
    /// Dtypes, separated by commas
    #[arg(long, value_name = "f32,..", default_value = "f32")]
    pub(super) dtype: String,
    /// Where operands are when a call begins: resident, always (copied each call), always-pinned (the same, page-locked), once
    /// (copied every tenth), managed, managed-prefetched (memory that migrates), or all
    #[arg(long, value_name = "LIST|all", default_value = "resident")]
    pub(super) residency: String,
    /// What caches hold when a call begins: hot (of the call before), or cold (swept before each sample)
    #[arg(long, value_name = "hot|cold", default_value = "hot")]
    pub(super) cache: String,
    /// Timed region: resident calls that are shorter follow each other and share one wait. 50us is nearly a call of a program that
    /// waits for each result; with 5ms (at most 30 single calls) the wait does not count, as with tools that time kernels one
    /// behind the other
    #[arg(long, value_name = "50us", default_value = "50us")]
    pub(super) region: String,
    /// Kernel variant on the GPUs
    #[arg(long, value_name = "V")]
    pub(super) variant: Option<String>,
    /// Kernel variant on the CPU, e.g. naive
    #[arg(long, value_name = "V")]
    pub(super) cpu_variant: Option<String>,
    /// Time per point and device
    #[arg(long, value_name = "10s", default_value = "10s")]
    pub(super) budget: String,
    /// Fresh processes that measure each point in turn; 1 measures in this one
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(super) processes: usize,
    /// Judge every row against that of an earlier run (its JSON document)
    #[arg(long, value_name = "FILE.json")]
    pub(super) baseline: Option<String>,
    /// End with 1 if a row is slower than in the baseline
    #[arg(long, requires = "baseline")]
    pub(super) fail_on_regression: bool,
    /// Compare although the machine, a device or a driver is another one
    #[arg(long, requires = "baseline")]
    pub(super) allow_mismatch: bool,
    /// CSV on stdout instead of the table
    #[arg(long, conflicts_with = "markdown")]
    pub(super) csv: bool,
    /// A Markdown table on stdout instead of the table
    #[arg(long)]
    pub(super) markdown: bool,
    /// Draw time, speed-up and phases over size into an SVG or PNG file
    #[arg(long, value_name = "FILE.svg|png")]
    pub(super) plot: Option<String>,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Calibrate {
    /// Ops, separated by commas [default: every op that has a threshold]
    #[arg(long, value_name = "A,B")]
    pub(super) op: Option<String>,
    /// Dtypes, separated by commas [default: f32]
    #[arg(long, value_name = "f32,..")]
    pub(super) dtype: Option<String>,
    /// Where operands are when a call begins: resident, always, always-pinned, once, managed, managed-prefetched, or all
    /// [default: resident,always]
    #[arg(long, value_name = "LIST|all")]
    pub(super) residency: Option<String>,
    /// Every dtype, every residency, one CPU thread and all of them: hours; raise --budget
    #[arg(long)]
    pub(super) full: bool,
    /// The calls of a program (recorded by GPUCTL_RECORD=FILE) instead of ops: is a GPU worth it for them?
    #[arg(long, value_name = "FILE", conflicts_with_all = ["op", "dtype", "residency", "full", "merge"])]
    pub(super) workload: Option<String>,
    /// Kernel variant on the CPU, e.g. naive
    #[arg(long, value_name = "V")]
    pub(super) cpu_variant: Option<String>,
    /// Time in all (of the simulator's clock on simulated devices)
    #[arg(long, value_name = "2m", default_value = "2m")]
    pub(super) budget: String,
    /// Threshold = crossing times this
    #[arg(long, value_name = "1.10", default_value_t = 1.10)]
    pub(super) margin: f64,
    /// Let software devices take part; implies `--device all`
    #[arg(long)]
    pub(super) allow_software: bool,
    /// Measure the keys of this profile again, as it was made where no option says otherwise; exit code 1 if a threshold
    /// moved beyond both intervals and 15 %, or another side wins, and does so when it is measured once more
    #[arg(long, value_name = "FILE", conflicts_with_all = ["merge", "workload", "full", "regret", "output", "margin"])]
    pub(super) check: Option<String>,
    /// Add to an earlier profile of this machine; one that was interrupted is resumed
    #[arg(long, value_name = "FILE")]
    pub(super) merge: Option<String>,
    /// Write the profile to a file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    pub(super) output: Option<String>,
    /// Then measure shapes that the calibration did not see, in as much time again, and say what placing them by the
    /// profile costs; exit code 1 if always the CPU or always the GPU is better
    #[arg(long)]
    pub(super) regret: bool,
    /// Draw times, speed-up and crossing of each key into an SVG or PNG file
    #[arg(long, value_name = "FILE.svg|png")]
    pub(super) plot: Option<String>,
    /// Fresh processes that measure near a crossing, 3 to 64 (3 elsewhere); 1 measures in this one
    #[arg(long, value_name = "N", default_value_t = 11)]
    pub(super) processes: usize,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Ops, separated by commas [default: all]
    #[arg(long, value_name = "A,B")]
    pub(super) op: Option<String>,
    /// Dtypes, separated by commas [default: all that the op has]
    #[arg(long, value_name = "f32,..")]
    pub(super) dtype: Option<String>,
    /// One case by its name, as failing lines print it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["op", "dtype", "tier"])]
    pub(super) case: Option<String>,
    /// Kernel variant [default: the one that would run]
    #[arg(long, value_name = "V")]
    pub(super) variant: Option<String>,
    /// Every variant that a device takes, the weak baseline too
    #[arg(long)]
    pub(super) all_variants: bool,
    /// How thoroughly: smoke (seconds), full (minutes), or exhaustive (every f16, bf16 and f32 through functions of one number; hours)
    #[arg(long, value_name = "smoke|full|exhaustive", default_value = "smoke")]
    pub(super) tier: String,
    /// Note passed cases in this file and leave out those that it holds already: goes on after an interruption
    #[arg(long, value_name = "FILE")]
    pub(super) resume: Option<String>,
    /// Judge by |got - want| <= ATOL + RTOL |want| instead of the derived bounds (labelled in every record)
    #[arg(long, value_name = "X", conflicts_with_all = ["resume", "self_test"])]
    pub(super) rtol: Option<f64>,
    /// See --rtol
    #[arg(long, value_name = "Y", conflicts_with_all = ["resume", "self_test"])]
    pub(super) atol: Option<f64>,
    /// `big`: the full tier's case beyond 2^31 bytes fails where it cannot run, instead of being skipped
    #[arg(long, value_name = "big", conflicts_with = "self_test")]
    pub(super) require: Option<String>,
    /// Write the records as JUnit XML
    #[arg(long, value_name = "PATH", conflicts_with = "self_test")]
    pub(super) junit: Option<String>,
    /// Save inputs, results and expected values of each failing case as .npy in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "self_test")]
    pub(super) save_failing: Option<PathBuf>,
    /// Print the published error limits and end
    #[arg(long)]
    pub(super) limits: bool,
    /// Write the texts of all kernels that the request takes, what their compilers said and made, and end
    #[arg(long, value_name = "DIR")]
    pub(super) dump_kernels: Option<String>,
    /// Plant faults and see each found by the rule that exists for it
    #[arg(long, conflicts_with_all = ["op", "dtype", "case", "variant", "all_variants", "limits"])]
    pub(super) self_test: bool,
    /// List passing cases too
    #[arg(long, short)]
    pub(super) verbose: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Args)]
pub(super) struct Run {
    /// Op; `gpuctl devices --ops` lists them
    pub(super) op: String,
    /// Array to read (.npy), once per operand in the op's order
    #[arg(long = "in", value_name = "FILE.npy")]
    pub(super) inputs: Vec<PathBuf>,
    /// Array to write (.npy), once per result in the op's order; an existing file is replaced
    #[arg(long = "out", value_name = "FILE.npy")]
    pub(super) outputs: Vec<PathBuf>,
    /// Attribute: transA=1, axes=0:2; may be given several times
    #[arg(long, value_name = "k=v")]
    pub(super) attr: Vec<String>,
    /// Dtype that the arrays must have; bf16 reads u2 as its bits [default: that of the arrays]
    #[arg(long, value_name = "D")]
    pub(super) dtype: Option<String>,
    /// Device by id or uid, on which it runs or fails [default: where the profile says]
    #[arg(long, value_name = "ID")]
    pub(super) device: Option<String>,
    /// Kernel variant
    #[arg(long, value_name = "V", requires = "device")]
    pub(super) variant: Option<String>,
    /// Profile file or preset [default: GPUCTL_PROFILE, then the user's profile, then always-cpu]
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "device")]
    pub(super) profile: Option<String>,
    /// Who decides: automatic (the profile), force-cpu, force-gpu:ID, minimize-transfers or cost-based
    #[arg(long, value_name = "POLICY", default_value = "automatic", conflicts_with = "device")]
    pub(super) placement: String,
    /// CPU threads [default: all that are allowed]
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Whose matrix and vector products the CPU runs: own, auto, or a library's file
    #[arg(long, value_name = "own|auto|PATH", default_value = "own")]
    pub(super) cpu_blas: String,
    /// Write the JSON document to a file, or to stdout with `-` (instead of the text)
    #[arg(long, value_name = "PATH|-")]
    pub(super) json: Option<String>,
    /// Write what the devices did, call by call, for Perfetto or chrome://tracing; what it adds up to goes to stderr
    #[arg(long, value_name = "FILE.json")]
    pub(super) trace: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// A code (out-of-device-memory, ecc-off, pocl-binary, non-monotone), an API's status by name or number
    /// (CL_OUT_OF_RESOURCES, cuda:700, -5), or an API (cuda, nvrtc, cublas, opencl, wgpu) for all its statuses [default: all
    /// codes]
    #[arg(allow_hyphen_values = true)]
    pub(super) code: Option<String>,
    /// Markdown tables on stdout: errors, or the statuses of an API
    #[arg(long)]
    pub(super) markdown: bool,
    /// Write the JSON document to a file, or to stdout with `-` (instead of the text)
    #[arg(long, value_name = "PATH|-")]
    pub(super) json: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Profile {
    #[command(subcommand)]
    pub(super) what: ProfileCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum ProfileCommand {
    /// Where a call would run, and why
    Why(Why),
    /// List the entries of a profile
    Show {
        /// Profile file or preset
        #[arg(value_name = "NAME|FILE")]
        profile: String,
    },
    /// Compare two profiles key by key; exit code 1 if they place calls differently
    Diff(Diff),
    /// Join profiles of one machine: other devices, or later runs
    Merge {
        /// Profile files
        #[arg(value_name = "FILE", num_args = 2.., required = true)]
        files: Vec<String>,
        /// Write the profile to a file instead of stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<String>,
    },
    /// Change one value and sign the file again
    Set(Set),
    /// Check a profile file
    Lint {
        /// Sign a file that was edited by hand; what was changed is marked and loses its evidence
        #[arg(long)]
        seal: bool,
        /// Profile file
        #[arg(value_name = "FILE")]
        file: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct Diff {
    /// The first profile: file or preset
    #[arg(value_name = "A")]
    pub(super) a: String,
    /// The second
    #[arg(value_name = "B")]
    pub(super) b: String,
    /// How far thresholds may be apart whatever their intervals say
    #[arg(long, value_name = "15%", default_value = "0%")]
    pub(super) tolerance: String,
    /// Write the JSON document to a file, or to stdout with `-` (instead of the table)
    #[arg(long, value_name = "PATH|-")]
    pub(super) json: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Set {
    /// name=TEXT, margin=1.2, rule=curve|threshold, OP[.DTYPE[.FAMILY]].threshold=N or OP[.DTYPE[.FAMILY]].verdict=always|never|unmeasured
    #[arg(value_name = "KEY=VALUE")]
    pub(super) assignment: String,
    /// Profile file; a preset with -o
    #[arg(value_name = "FILE")]
    pub(super) file: String,
    /// The entry of this device: id or uid
    #[arg(long, value_name = "ID")]
    pub(super) device: Option<String>,
    /// The entry of this residency
    #[arg(long, value_name = "R")]
    pub(super) residency: Option<String>,
    /// The entry against this number of CPU threads
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<u32>,
    /// The entry against this CPU kernel
    #[arg(long, value_name = "V")]
    pub(super) cpu_variant: Option<String>,
    /// Write to this file instead
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Why {
    /// Op
    pub(super) op: String,
    /// All dimensions in the op's order: 1024x512x64
    #[arg(long, value_name = "AxBxC")]
    pub(super) shape: String,
    /// Dtype
    #[arg(long, default_value = "f32")]
    pub(super) dtype: String,
    /// Attributes: transA=1,alpha=2
    #[arg(long, value_name = "k=v,..", default_value = "")]
    pub(super) attr: String,
    /// Profile file or preset [default: GPUCTL_PROFILE, then the user's profile, then always-cpu]
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) profile: Option<String>,
    /// Who decides: automatic (the profile), force-cpu, force-gpu:ID, minimize-transfers or cost-based
    #[arg(long, value_name = "POLICY", default_value = "automatic")]
    pub(super) placement: String,
    /// CPU threads [default: all that are allowed]
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Whose matrix and vector products the CPU runs: own, auto, or a library's file
    #[arg(long, value_name = "own|auto|PATH", default_value = "own")]
    pub(super) cpu_blas: String,
    /// Kernel variant on the CPU, e.g. naive
    #[arg(long, value_name = "V")]
    pub(super) cpu_variant: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        let names: Vec<_> = Cli::command().get_subcommands().map(|c| c.get_name().to_string()).collect();
        assert_eq!(names[..5], ["devices", "bench", "calibrate", "verify", "stress"]);
    }
}
