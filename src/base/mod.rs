//! Ground floor: types without dependencies on the rest of the crate.

mod analysis;
pub mod attr;
pub mod case;
pub mod clock;
pub mod cost;
pub mod device_info;
pub mod dtype;
pub mod env;
pub mod error;
pub mod exact;
pub mod exact_erf;
pub mod host;
pub mod npy;
pub mod os;
pub mod record;
pub mod regret;
pub mod rng;
pub mod sink;
pub mod stats;
pub mod system;
pub mod telemetry;
pub mod text;
pub mod units;
pub mod worth;

pub use attr::{Attr, AttrDecl, AttrType, Attrs};
pub use case::{Case, Fill};
pub use clock::{Clock, RealClock, VirtualClock};
pub use cost::{Cost, Features, MOST_DIMS};
pub use device_info::{Absence, Backend, DeviceClass, DeviceInfo, Feature, Lang, Library, Theoretical};
pub use dtype::DType;
pub use env::Env;
pub use error::{Class, Code, Error, Result, Severity, Told};
pub use exact::Exact;
pub use host::{Element, HostTensor};
pub use record::{Document, Record, Status, Subject};
pub use sink::{Cancel, Progress, Sink};
