//! The library's one error type: what failed, where, on what, and what to do next.

use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};

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
    DriverTooOld "driver-too-old" Unsupported Warning "the driver lacks a needed function" "update the driver";
    NoDevice "no-device" Unsupported Warning "the API reports no device" "check the driver, the permissions of /dev nodes and the container's device flags";
    AllocTooLarge "alloc-too-large" Unsupported Error "one buffer would exceed the device's limit" "use a smaller size or another device";
    LaunchTooLarge "launch-too-large" Unsupported Error "the launch exceeds the device's limits" "use a smaller size";
    OutOfDeviceMemory "out-of-device-memory" Oom Error "the device has not enough memory" "free memory on the device or use a smaller size";
    OutOfHostMemory "out-of-host-memory" Oom Error "the host has not enough memory" "use a smaller size";
    CompileFailed "compile-failed" Internal Error "a kernel does not compile on this device" "report the compile log with the driver's version";
    LaunchFailed "launch-failed" Transient Error "a kernel launch failed" "try again; if it persists, run `gpuctl verify` on this device";
    LaunchTimeout "launch-timeout" Lost Error "the device did not finish in time" "the device may hang: restart the process and look at the kernel log";
    QueueBusy "queue-busy" Transient Error "no queue of the device came free in time" "let fewer threads call at once, or allow more time";
    TransferFailed "transfer-failed" Transient Error "a copy between host and device failed" "try again; if it persists, run `gpuctl stress` on this device";
    BufferBounds "buffer-bounds" Internal Error "an access lies outside its buffer" "report this with the command line";
    BufferForeign "buffer-foreign" Internal Error "a buffer or program belongs to another device" "use each buffer only on the device that made it";
    ContextPoisoned "context-poisoned" Sticky Critical "the device's context is unusable after a fault" "restart the process";
    DeviceLost "device-lost" Lost Critical "the device is lost" "re-create the device or restart the process; see the kernel log";
    KernelFailed "kernel-failed" Internal Error "a CPU kernel could not run" "report this with the command line";
    ResultWrong "result-wrong" Internal Critical "a result differs from the oracle beyond its bound" "do not use this device for this op; run `gpuctl verify --op OP --device ID`";
    ProfileNotFound "profile-not-found" Usage Error "the profile cannot be found" "name an existing file or a preset: default, high-end, low-end, always-cpu, always-gpu";
    ProfileParse "profile-parse" Usage Error "the profile is not valid" "make a new one with `gpuctl calibrate > thresholds.toml`";
    ProfileTruncated "profile-truncated" Usage Error "the profile lacks its end mark: it is truncated" "make a new one with `gpuctl calibrate > thresholds.toml`";
    ProfileDigest "profile-digest" Usage Error "the profile was edited or damaged after it was written" "if the change is meant, `gpuctl profile lint --seal FILE` signs it; else calibrate again";
    ProfileSchema "profile-schema" Usage Error "the profile has an unknown schema version" "use the gpuctl version that wrote it, or calibrate again";
    ProfileStale "profile-stale" Unsupported Warning "the profile was measured on another device, driver or host" "calibrate on this machine";
    NumberRange "number-range" Usage Error "a result is no number of its type" "use a wider type, or data within its range";
    ArrayFile "array-file" Usage Error "a file is not an array that can be used" "write one array per file with numpy.save: f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8";
    Io "io" Internal Error "a file or stream could not be read or written" "check the path, its permissions and the free space";
    Cancelled "cancelled" Transient Info "the run was interrupted" "run the command again";
    WorkerCrashed "worker-crashed" Internal Critical "a worker process ended without a report" "see the journal for its last operation";
    Injected "injected" Transient Error "a fault was injected on purpose" "leave --inject out for real use";
    Internal "internal" Internal Critical "an invariant of gpuctl does not hold" "report this with the command line";
}

impl Code {
    /// The kebab-case name.
    pub const fn name(self) -> &'static str {
        self.row().name
    }
}

#[derive(Debug)]
struct Inner {
    code: Code,
    op: Option<String>,
    device: Option<String>,
    shape: Option<String>,
    detail: String,
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
        Error(Box::new(Inner { code, op: None, device: None, shape: None, detail: detail.into(), source: None }))
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
    /// The next step.
    pub fn next_step(&self) -> &'static str {
        self.0.code.row().next
    }
}

/// An error on its way from one process to another; the cause's text joins the detail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    code: String,
    op: Option<String>,
    device: Option<String>,
    shape: Option<String>,
    detail: String,
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
        }
    }
}

impl Told {
    /// The error as it was; `Internal` for a code that this version does not know.
    pub fn error(self) -> Error {
        let code = Code::ALL.iter().copied().find(|c| c.name() == self.code).unwrap_or(Code::Internal);
        let Told { op, device, shape, detail, .. } = self;
        Error(Box::new(Inner { code, op, device, shape, detail, source: None }))
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
}
