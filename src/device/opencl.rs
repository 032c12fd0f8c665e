//! Placeholder until the backend lands.
/// Asks the backend.
pub fn probe() -> super::Probe {
    super::probe::absent(crate::base::Backend::Opencl, "not built yet", "wait")
}
