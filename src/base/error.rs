//! The library's one error type: what failed, where, on what, and what to do next.

use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::context::{self, ApiStatus, Context, LaunchShape, MemorySnapshot};
use super::dtype::DType;

/// What an error means for the caller's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The request is wrong; nothing was touched.
    Usage,
    /// The request is right but this device, build or version cannot do it.
    Unsupported,
    /// Not enough memory; smaller work may succeed.
    Oom,
    /// May succeed when tried again.
    Transient,
    /// The context is poisoned; the process must end before the device works again.
    Sticky,
    /// The device is gone.
    Lost,
    /// A defect of gpuctl or of the machine.
    Internal,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// The result stands, with a restriction.
    Warning,
    /// The operation failed.
    Error,
    /// The device or process must not be used further.
    Critical,
}

macro_rules! codes {
    ($($name:ident $text:literal $class:ident $severity:ident $message:literal $next:literal;)*) => {
        /// Every kind of error; one row each in [`Code::row`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the row's message documents the code")]
        pub enum Code { $($name),* }
        impl Code {
            /// All codes in order of declaration.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];
            /// The code's row: name, class, severity, message, next step.
            pub const fn row(self) -> CodeRow {
                match self { $(Code::$name => CodeRow {
                    name: $text, class: Class::$class, severity: Severity::$severity, message: $message, next: $next }),* }
            }
        }
    };
}

/// What is known about a code whatever the circumstances.
#[derive(Clone, Copy, Debug)]
pub struct CodeRow {
    /// Kebab-case name as in JSON.
    pub name: &'static str,
    /// Class of the error.
    pub class: Class,
    /// Severity.
    pub severity: Severity,
    /// What happened, in general.
    pub message: &'static str,
    /// What to do next.
    pub next: &'static str,
}

codes! {
    BadArgument "bad-argument" Usage Error "an argument is not valid" "correct the argument; `gpuctl SUBCOMMAND --help` lists the accepted forms";
    UnknownOp "unknown-op" Usage Error "there is no such op" "`gpuctl devices --ops` lists the ops";
    ShapeMismatch "shape-mismatch" Usage Error "the operands' shapes do not fit the op" "compare the shapes with the op's dims in docs/quick-reference.md";
    DTypeMismatch "dtype-mismatch" Usage Error "the operands' dtypes differ or do not fit" "cast the operands to one dtype; gpuctl never promotes";
    SizeOverflow "size-overflow" Usage Error "a size exceeds 64 bits" "use smaller dimensions";
    DTypeUnsupported "dtype-unsupported" Unsupported Error "this dtype is not available here" "`gpuctl devices --ops` shows which device holds which dtype";
    OpUnsupported "op-unsupported" Unsupported Error "no kernel of this op fits the device" "`gpuctl devices --ops` shows where the op runs, and why not elsewhere";
    FeatureUnsupported "feature-unsupported" Unsupported Error "the device or API lacks a feature" "`gpuctl devices --why` names the feature; choose another variant or device";
    DeviceMissing "device-missing" Unsupported Error "the requested device is not there" "`gpuctl devices --why` lists what is there and why the rest is not";
    DeviceDisabled "device-disabled" Unsupported Error "GPUs are switched off" "unset GPUCTL_DISABLE_GPU";
    LibraryNotFound "library-not-found" Unsupported Warning "a driver library was not found" "install the vendor's driver or runtime package";
    LibraryVersion "library-version" Unsupported Warning "a library does not fit the driver or the device" "`gpuctl devices --why` names both; install matching versions, restart after a driver update";
    DriverTooOld "driver-too-old" Unsupported Warning "the driver lacks a needed function" "update the driver";
    NoPlatform "no-platform" Unsupported Warning "the OpenCL loader found no driver" "install the vendor's OpenCL driver; `ls /etc/OpenCL/vendors` lists what there is";
    PermissionDenied "permission-denied" Unsupported Error "the driver or the system forbids the operation" "check the rights on /dev nodes, the container's device flags and the driver's own settings";
    NoDevice "no-device" Unsupported Warning "the API reports no device" "check the driver, the permissions of /dev nodes and the container's device flags";
    DeviceBusy "device-busy" Transient Error "the device or its service is busy or not ready yet" "try again later; `nvidia-smi -q` shows the compute mode and who uses the card";
    ContextCreate "context-create" Lost Error "the device cannot be opened" "`gpuctl devices --health` and the kernel log may say why; restart the machine if it stays so";
    AllocTooLarge "alloc-too-large" Unsupported Error "one buffer would exceed the device's limit" "use a smaller size or another device";
    LaunchTooLarge "launch-too-large" Unsupported Error "the launch exceeds the device's limits" "use a smaller size";
    OutOfDeviceMemory "out-of-device-memory" Oom Error "the device has not enough memory" "free memory on the device or use a smaller size";
    OutOfResources "out-of-resources" Oom Error "the device lacks memory, registers or other resources for the command" "use a smaller size; if it fails at every size, a kernel may have faulted: run `gpuctl verify` on this device";
    OutOfHostMemory "out-of-host-memory" Oom Error "the host has not enough memory" "use a smaller size";
    CompileFailed "compile-failed" Internal Error "a kernel does not compile on this device" "report the compile log with the driver's version";
    LinkFailed "link-failed" Internal Error "compiled kernels cannot be linked on this device" "report the compile log with the driver's version";
    EntryNotFound "entry-not-found" Internal Error "a built program has no such entry point" "report this with the command line and the driver's version";
    BinaryRefused "binary-refused" Unsupported Error "the driver does not take a compiled kernel" "update the driver, or delete the cache of kernels so that they are built anew";
    InvalidCall "invalid-call" Internal Error "the API refused a call as not valid" "report this with the command line";
    LaunchFailed "launch-failed" Transient Error "a kernel launch failed" "try again; if it persists, run `gpuctl verify` on this device";
    LaunchTimeout "launch-timeout" Lost Error "the device did not finish in time" "the device may hang: restart the process and look at the kernel log";
    QueueBusy "queue-busy" Transient Error "no queue of the device came free in time" "let fewer threads call at once, or allow more time";
    TransferFailed "transfer-failed" Transient Error "a copy between host and device failed" "try again; if it persists, run `gpuctl stress` on this device";
    MapFailed "map-failed" Transient Error "device memory could not be mapped for the host" "try again; if it persists, run `gpuctl stress` on this device";
    BufferBounds "buffer-bounds" Internal Error "an access lies outside its buffer" "report this with the command line";
    BufferForeign "buffer-foreign" Internal Error "a buffer or program belongs to another device" "use each buffer only on the device that made it";
    ContextPoisoned "context-poisoned" Sticky Critical "the device's context is unusable after a fault" "restart the process";
    IllegalAddress "illegal-address" Sticky Critical "a kernel touched memory that is not its own" "restart the process, then run `gpuctl verify` on this device to find the kernel";
    MisalignedAddress "misaligned-address" Sticky Critical "a kernel touched memory at a wrong alignment" "restart the process, then run `gpuctl verify` on this device to find the kernel";
    IllegalInstruction "illegal-instruction" Sticky Critical "a kernel ran an instruction that the device does not have" "restart the process; delete the cache of kernels and update the driver if it returns";
    DeviceAssert "device-assert" Sticky Critical "an assertion in a kernel failed" "restart the process and report the command line";
    EccUncorrectable "ecc-uncorrectable" Sticky Critical "the device's memory has an error that cannot be corrected" "move work away; `gpuctl devices --health` says whether the card must be reset or replaced";
    HardwareError "hardware-error" Sticky Critical "the device reports an error of its hardware" "move work away; see `gpuctl devices --health` and the kernel log";
    UnknownStatus "unknown-status" Sticky Critical "the driver gave a status that gpuctl does not know" "restart the process; report the number with the driver's version";
    DeviceLost "device-lost" Lost Critical "the device is lost" "re-create the device or restart the process; see the kernel log";
    KernelFailed "kernel-failed" Internal Error "a CPU kernel could not run" "report this with the command line";
    ResultWrong "result-wrong" Internal Critical "a result differs from the oracle beyond its bound" "do not use this device for this op; run `gpuctl verify --op OP --device ID`";
    ProfileNotFound "profile-not-found" Usage Error "the profile cannot be found" "name an existing file or a preset: default, high-end, low-end, always-cpu, always-gpu";
    ProfileParse "profile-parse" Usage Error "the profile is not valid" "make a new one with `gpuctl calibrate > thresholds.toml`";
    ProfileTruncated "profile-truncated" Usage Error "the profile lacks its end mark: it is truncated" "make a new one with `gpuctl calibrate > thresholds.toml`";
    ProfileDigest "profile-digest" Usage Error "the profile was edited or damaged after it was written" "if the change is meant, `gpuctl profile lint --seal FILE` signs it; else calibrate again";
    ProfileSchema "profile-schema" Usage Error "the profile has an unknown schema version" "use the gpuctl version that wrote it, or calibrate again";
    NumberRange "number-range" Usage Error "a result is no number of its type" "use a wider type, or data within its range";
    ArrayFile "array-file" Usage Error "a file is not an array that can be used" "write one array per file with numpy.save: f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8";
    Io "io" Internal Error "a file or stream could not be read or written" "check the path, its permissions and the free space";
    Cancelled "cancelled" Transient Info "the run was interrupted" "run the command again";
    WorkerCrashed "worker-crashed" Internal Critical "a worker process ended without a report" "see the journal for its last operation";
    Internal "internal" Internal Critical "an invariant of gpuctl does not hold" "report this with the command line";
}

impl Code {
    /// The kebab-case name.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The code of that name.
    pub fn named(name: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|c| c.name() == name)
    }

    /// True if what was opened on the device can serve no further call. An unknown status says nothing certain: the engine
    /// stops using the device, and a call that fails by itself again says so.
    pub fn ends_context(self) -> bool {
        matches!(self.row().class, Class::Lost | Class::Sticky) && self != Code::UnknownStatus
    }
}

#[derive(Debug)]
struct Inner {
    code: Code,
    op: Option<String>,
    device: Option<String>,
    shape: Option<String>,
    detail: String,
    context: Context,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The error of every fallible call in the library.
#[derive(Debug)]
pub struct Error(Box<Inner>);

/// Shorthand for results with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with its code and one sentence of detail.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            code,
            op: None,
            device: None,
            shape: None,
            detail: detail.into(),
            context: Context::default(),
            source: None,
        }))
    }
    /// Names the op, unless a deeper layer did.
    pub fn op(mut self, op: &str) -> Self {
        self.0.op.get_or_insert_with(|| op.to_string());
        self
    }
    /// Names the device, unless a deeper layer did.
    pub fn device(mut self, device: &str) -> Self {
        self.0.device.get_or_insert_with(|| device.to_string());
        self
    }
    /// Names the shape, unless a deeper layer did.
    pub fn shape(mut self, shape: &str) -> Self {
        self.0.shape.get_or_insert_with(|| shape.to_string());
        self
    }
    /// Names the dtype, unless a deeper layer did.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.0.context.dtype.get_or_insert(dtype);
        self
    }
    /// Names the kernel by its variant and entry points, unless a deeper layer did.
    pub fn kernel(mut self, variant: &str, entry: &str) -> Self {
        let c = &mut self.0.context;
        c.variant.get_or_insert_with(|| variant.to_string());
        c.entry.get_or_insert_with(|| entry.to_string());
        self
    }
    /// Keeps the sizes of a launch, unless a deeper layer did.
    pub fn launch(mut self, launch: LaunchShape) -> Self {
        self.0.context.launch.get_or_insert(launch);
        self
    }
    /// Keeps the state of the device's memory, unless a deeper layer did.
    pub fn memory(mut self, memory: MemorySnapshot) -> Self {
        self.0.context.memory.get_or_insert(memory);
        self
    }
    /// Keeps the API's own status, unless a deeper layer did.
    pub fn status(mut self, status: ApiStatus) -> Self {
        self.0.context.status.get_or_insert(status);
        self
    }
    /// Keeps what a compiler said, whole; messages show its first lines.
    pub fn log(mut self, log: impl Into<String>) -> Self {
        let log = log.into();
        if !log.trim().is_empty() {
            self.0.context.log.get_or_insert(log);
        }
        self
    }
    /// Keeps the cause.
    pub fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }
    /// The code.
    pub fn code(&self) -> Code {
        self.0.code
    }
    /// The code's class.
    pub fn class(&self) -> Class {
        self.0.code.row().class
    }
    /// The detail sentence alone.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }
    /// The op, if known.
    pub fn op_name(&self) -> Option<&str> {
        self.0.op.as_deref()
    }
    /// Id of the device, if known.
    pub fn device_id(&self) -> Option<&str> {
        self.0.device.as_deref()
    }
    /// The shape in declared order (`m64,n64,k64`), if known.
    pub fn shape_text(&self) -> Option<&str> {
        self.0.shape.as_deref()
    }
    /// Kernel, launch, memory, the API's status and the compiler's log, as far as known.
    pub fn context(&self) -> &Context {
        &self.0.context
    }
    /// The next step.
    pub fn next_step(&self) -> &'static str {
        self.0.code.row().next
    }
}

/// An error on its way from one process to another, or into a record; the cause's text joins the detail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The code's name.
    pub code: String,
    /// Op.
    pub op: Option<String>,
    /// Device id.
    pub device: Option<String>,
    /// Shape in declared order.
    pub shape: Option<String>,
    /// What happened.
    pub detail: String,
    /// Kernel, launch, memory, the API's status, the compiler's log.
    #[serde(default)]
    pub context: Context,
}

impl From<&Error> for Told {
    fn from(e: &Error) -> Self {
        let i = &e.0;
        let cause = i.source.as_ref().map_or_else(String::new, |s| format!(": {s}"));
        Told {
            code: i.code.name().into(),
            op: i.op.clone(),
            device: i.device.clone(),
            shape: i.shape.clone(),
            detail: format!("{}{cause}", i.detail),
            context: i.context.clone(),
        }
    }
}

impl Told {
    /// The error as it was; `Internal` for a code that this version does not know.
    pub fn error(self) -> Error {
        let code = Code::named(&self.code).unwrap_or(Code::Internal);
        let Told { op, device, shape, detail, context, .. } = self;
        Error(Box::new(Inner { code, op, device, shape, detail, context, source: None }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = &self.0;
        write!(f, "{}", i.code.name())?;
        if let Some(op) = &i.op {
            write!(f, ": {op}")?;
        }
        if let Some(shape) = &i.shape {
            write!(f, " [{shape}]")?;
        }
        if let Some(device) = &i.device {
            write!(f, " on {device}")?;
        }
        write!(f, ": {}", i.detail)?;
        if let Some(log) = &i.context.log {
            write!(f, ": {}", context::excerpt(log))?;
        }
        if let Some(s) = &i.source {
            write!(f, ": {s}")?;
        }
        write!(f, " (next: {})", i.code.row().next)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|s| s.as_ref() as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_unique_name_and_a_next_step() {
        let mut names: Vec<_> = Code::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        for c in Code::ALL {
            let row = c.row();
            assert!(row.next.len() > 10 && row.message.len() > 10, "{} lacks text", row.name);
            assert!(row.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", row.name);
        }
    }

    #[test]
    fn message_names_everything_on_one_line() {
        let e = Error::new(Code::OutOfDeviceMemory, "12.0 GiB asked, 4.0 GiB free")
            .op("gemm")
            .device("cuda:0")
            .shape("m4096,n4096,k4096");
        let text = e.to_string();
        assert!(text.starts_with("out-of-device-memory: gemm [m4096,n4096,k4096] on cuda:0: 12.0 GiB"), "{text}");
        assert!(text.contains("(next: ") && !text.contains('\n'));
    }

    /// What a worker knows of an error must be known to who started it.
    #[test]
    fn an_error_keeps_its_context_on_its_way_to_another_process() {
        let memory = MemorySnapshot { held: 12, peak: 34, buffers: 1, ..MemorySnapshot::default() };
        let log = "relu.cl:3: error: no x\nrelu.cl:4: error: no y\nmore\nand more";
        let e = Error::new(Code::CompileFailed, "clBuildProgram")
            .op("relu")
            .dtype(DType::F32)
            .kernel("plain", "relu_f32")
            .launch(LaunchShape { groups: [1, 1, 1], group: [64, 1, 1] })
            .memory(memory)
            .status(ApiStatus { api: "opencl".into(), number: Some(-11), name: "CL_BUILD_PROGRAM_FAILURE".into() })
            .log(log)
            .caused_by(fmt::Error);
        let text = e.to_string();
        assert!(text.contains("error: no x | relu.cl:4: error: no y | more [1 more line]"), "{text}");
        assert!(!text.contains('\n'), "{text}");
        let sent = serde_json::to_string(&Told::from(&e)).unwrap();
        let got = serde_json::from_str::<Told>(&sent).unwrap().error();
        assert_eq!(got.context(), e.context());
        assert_eq!(got.context().log.as_deref(), Some(log), "the whole log");
        assert_eq!((got.code(), got.op_name()), (Code::CompileFailed, Some("relu")));
        // An empty log is none, and what a deeper layer knew stays.
        let e = Error::new(Code::CompileFailed, "x").log(" \n").kernel("a", "b").kernel("c", "d");
        assert_eq!((e.context().log.as_deref(), e.context().variant.as_deref()), (None, Some("a")));
    }
}
