//! Launches that are enqueued together, again and again: as one where the API can record them, one by one elsewhere.

use std::any::Any;
use std::sync::Arc;

use super::{Buffer, Launch, Program};

/// Launches in their order, with their buffers and scalars; made by [`super::Queue::sequence`], enqueued by
/// [`super::Queue::replay`] of any queue of the same device.
#[derive(Clone)]
pub struct Sequence {
    launches: Arc<[Launch]>,
    recorded: std::result::Result<Arc<dyn Any + Send + Sync>, &'static str>,
}

impl std::fmt::Debug for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sequence({} launches, {})", self.launches.len(), self.one_by_one().unwrap_or("recorded"))
    }
}

impl Sequence {
    /// One whose launches are enqueued one by one; the reason.
    pub fn replayed(launches: Vec<Launch>, why: &'static str) -> Self {
        Sequence { launches: launches.into(), recorded: Err(why) }
    }

    /// One that the API has recorded, in the backend's own form.
    pub fn recorded(launches: Vec<Launch>, form: Arc<dyn Any + Send + Sync>) -> Self {
        Sequence { launches: launches.into(), recorded: Ok(form) }
    }

    /// The launches.
    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// Why the launches are enqueued one by one; `None` if they are one call of the API.
    pub fn one_by_one(&self) -> Option<&'static str> {
        self.recorded.as_ref().err().copied()
    }

    /// The backend's own form, if it is of this type.
    pub fn form<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.recorded.as_ref().ok()?).downcast().ok()
    }

    /// Everything that must stay until the last launch is done.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.launches.iter().flat_map(|l| l.args.iter().map(|a| &a.buffer))
    }

    /// Programs of the launches.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.launches.iter().map(|l| &l.program)
    }
}
