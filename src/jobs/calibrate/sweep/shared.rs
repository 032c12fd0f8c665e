//! What all groups' looks know of each other.

use std::cell::{Ref, RefCell, RefMut};

use crate::base::Reading;
use crate::measure::Residency;
use crate::measure::common::Common;
use crate::measure::state::State;

/// What looks at all groups are off by in common, and the devices and residencies that they are of.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    common: RefCell<Common>,
    /// By number: id of the device, and where operands are.
    kinds: RefCell<Vec<(String, Residency)>>,
}

impl Shared {
    pub(super) fn common(&self) -> Ref<'_, Common> {
        self.common.borrow()
    }

    pub(super) fn common_mut(&self) -> RefMut<'_, Common> {
        self.common.borrow_mut()
    }

    /// Number of a device and residency.
    pub(super) fn kind(&self, device: &str, residency: Residency) -> usize {
        let mut kinds = self.kinds.borrow_mut();
        let known = kinds.iter().position(|(id, r)| id == device && *r == residency);
        known.unwrap_or_else(|| {
            kinds.push((device.to_string(), residency));
            kinds.len() - 1
        })
    }

    /// Judges all looks so far, for devices that read as is asked of them in a residency, where it is.
    pub(crate) fn settle(&self, asked: impl Fn(&str, Residency) -> Option<Reading>) {
        let asked: Vec<_> = self.kinds.borrow().iter().map(|(id, residency)| asked(id, *residency)).collect();
        self.common.borrow_mut().settle(&asked);
    }

    /// What was read of each device in each residency, and what its looks are stated at.
    pub(crate) fn states(&self) -> Vec<(String, Residency, State)> {
        let (kinds, common) = (self.kinds.borrow(), self.common.borrow());
        let of = |(kind, (id, residency)): (usize, &(String, Residency))| {
            Some((id.clone(), *residency, common.state(kind)?))
        };
        kinds.iter().enumerate().filter_map(of).collect()
    }
}
