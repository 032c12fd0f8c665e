//! Data that a program and devices work on in turn: one array, with copies on the host and on devices that are brought up to
//! date when somebody looks.
//!
//! ```
//! use gpuctl::base::Attrs;
//! use gpuctl::engine::{Engine, Synced};
//!
//! # fn main() -> gpuctl::base::Result<()> {
//! let engine = Engine::builder().profile("preset:always-cpu").build()?;
//! let device = engine.on("cpu")?;
//! let mut x = Synced::new(vec![-1.0f32, 2.0]);
//! let y = device.run("relu", &[x.on(&device)?], &Attrs::new())?;
//! x.host_mut()?[0] = 7.0; // the device's copy is old from here on ...
//! let z = device.run("relu", &[x.on(&device)?], &Attrs::new())?; // ... and made new here
//! assert_eq!(y[0].clone().typed::<f32>()?.to_vec()?, [0.0, 2.0]);
//! assert_eq!(z[0].clone().typed::<f32>()?.to_vec()?, [7.0, 2.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Invariant: every way to change the data counts the version up, and every look at a copy compares its version with the
//! newest. Whoever changes the data on the host holds the only borrow of it meanwhile, so no device can look before the change
//! is made:
//!
//! ```compile_fail,E0499
//! # use gpuctl::{base::Attrs, engine::{Engine, Synced}};
//! # fn main() -> gpuctl::base::Result<()> {
//! # let engine = Engine::builder().profile("preset:always-cpu").build()?;
//! # let device = engine.on("cpu")?;
//! # let mut x = Synced::new(vec![-1.0f32, 2.0]);
//! let host = x.host_mut()?;
//! let copy = x.on(&device)?; // the copy would miss what is written below
//! host[0] = 7.0;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use crate::base::{Code, Element, Error, Result};

use super::Target;
use super::resident::{DeviceVec, Resident};

/// Copies made for one [`Synced`] so far, and those that were not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncStats {
    /// Copies from the host to a device.
    pub uploads: u64,
    /// Copies from a device to the host.
    pub downloads: u64,
    /// Looks at a copy that was up to date.
    pub hits: u64,
}

/// A device's copy and the version that it is of.
struct Copy<T: Element> {
    array: DeviceVec<T>,
    version: u64,
}

/// An array with a copy on the host and one on each device that asked for it.
pub struct Synced<T: Element> {
    host: Vec<T>,
    shape: Vec<u64>,
    /// Counted up with every change, wherever it is made.
    newest: u64,
    host_version: u64,
    copies: Vec<Copy<T>>,
    stats: SyncStats,
}

impl<T: Element> std::fmt::Debug for Synced<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Synced({} {:?}, version {}, {:?})", T::DTYPE, self.shape, self.newest, self.stats)
    }
}

impl<T: Element> Synced<T> {
    /// Data of the host's, in one dimension.
    pub fn new(host: Vec<T>) -> Self {
        let shape = vec![host.len() as u64];
        Synced { host, shape, newest: 0, host_version: 0, copies: Vec::new(), stats: SyncStats::default() }
    }

    /// The same data in another shape. Errors: `ShapeMismatch` if the numbers of elements differ.
    pub fn reshape(mut self, shape: &[u64]) -> Result<Self> {
        if crate::base::host::count(shape)? != self.host.len() as u64 {
            let why = format!("{} elements, {shape:?} was asked for", self.host.len());
            return Err(Error::new(Code::ShapeMismatch, why));
        }
        shape.clone_into(&mut self.shape);
        Ok(self)
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.host.len()
    }
    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.host.is_empty()
    }
    /// Changes so far.
    pub fn version(&self) -> u64 {
        self.newest
    }
    /// Copies so far.
    pub fn stats(&self) -> SyncStats {
        self.stats
    }

    /// The data on the host, fetched from the device that changed them last if need be.
    pub fn host(&mut self) -> Result<&[T]> {
        self.fetch()?;
        Ok(&self.host)
    }

    /// The same, to be changed: all copies on devices are old from here on.
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        self.fetch()?;
        self.newest += 1;
        self.host_version = self.newest;
        Ok(&mut self.host)
    }

    /// The data on a device, brought up to date if need be.
    ///
    /// A clone of what this gives is a copy of this version for good: when the data change, they are copied to other memory.
    pub fn on(&mut self, target: &Target<'_>) -> Result<&Resident> {
        let newest = self.newest;
        let at = match self.copies.iter().position(|c| c.array.home().is(&target.home)) {
            Some(at) if self.copies[at].version == newest => {
                self.stats.hits += 1;
                at
            }
            known => {
                self.fetch()?;
                // Memory that somebody else looks at, too, keeps what they saw.
                let spare = known.filter(|at| Arc::strong_count(&self.copies[*at].array.memory) == 1);
                if let Some(at) = spare {
                    // Half of a copy that fails is no version.
                    let copy = self.copies.swap_remove(at);
                    copy.array.set(bytemuck::cast_slice(&self.host))?;
                    self.copies.push(Copy { array: copy.array.reshape(&self.shape)?, version: newest });
                } else {
                    let array = target.upload(&self.host)?.reshape(&self.shape)?;
                    array.memory.keep();
                    self.copies.retain(|c| !c.array.home().is(&target.home));
                    self.copies.push(Copy { array, version: newest });
                }
                target.home.traffic.implicit();
                self.stats.uploads += 1;
                self.copies.len() - 1
            }
        };
        Ok(&self.copies[at].array)
    }

    /// The data are from now on what an op made on a device: the host's copy, and those on other devices, are old. The host is
    /// told at the next look, not before. Views of the array can be read from then on, but not written.
    ///
    /// Errors: `DTypeMismatch`, `ShapeMismatch` for an array of another shape. Then the data are what they were.
    pub fn set(&mut self, array: Resident) -> Result<()> {
        if array.shape() != self.shape {
            let why = format!("the array is {:?}, the data are {:?}", array.shape(), self.shape);
            return Err(array.fail(Code::ShapeMismatch, why));
        }
        let array = array.typed::<T>()?;
        array.memory.keep();
        self.newest += 1;
        self.copies.retain(|c| !c.array.home().is(array.home()));
        self.copies.push(Copy { array, version: self.newest });
        Ok(())
    }

    /// Brings the host's copy up to date.
    fn fetch(&mut self) -> Result<()> {
        if self.host_version == self.newest {
            return Ok(());
        }
        let newest = self.copies.iter().find(|c| c.version == self.newest);
        let copy = newest.ok_or_else(|| Error::new(Code::Internal, "nobody holds the newest version"))?;
        copy.array.download(&mut self.host)?;
        copy.array.home().traffic.implicit();
        self.host_version = self.newest;
        self.stats.downloads += 1;
        Ok(())
    }

    /// [`Synced::host_mut`] as it would be with the fault that this type is there to rule out.
    #[cfg(test)]
    fn host_mut_unnoticed(&mut self) -> Result<&mut [T]> {
        self.fetch()?;
        Ok(&mut self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Attrs;
    use crate::base::rng::Philox;
    use crate::device::sim;
    use crate::engine::{Engine, Placement};

    type Touch = fn(&mut Synced<f32>) -> Result<&mut [f32]>;

    /// Random changes on the host, ops on two devices and looks, against a plain vector; the first difference, if any.
    fn differs(touch: Touch, seed: u64, steps: u64) -> Option<String> {
        let (_, device) = sim::open("textbook").unwrap();
        let id = device.info().id.clone();
        let engine = Engine::builder().profile("always-cpu").device(device).placement(Placement::ForceCpu);
        let engine = engine.without_trials().build().unwrap();
        let targets = [engine.on("cpu").unwrap(), engine.on(&id).unwrap()];
        let rng = Philox::new(seed);
        let start = vec![1.0f32, -2.0, 3.0, -4.0, 5.0];
        let (mut model, mut x) = (start.clone(), Synced::new(start));
        let mut kept: Vec<(Resident, Vec<f32>)> = Vec::new();
        for step in 0..steps {
            let draw = |n: u64| rng.u64(step, n);
            let target = &targets[(draw(1) % 2) as usize];
            match draw(0) % 5 {
                0 => {
                    let (at, value) = ((draw(2) % 5) as usize, (draw(3) % 100) as f32 - 50.0);
                    touch(&mut x).unwrap()[at] = value;
                    model[at] = value;
                }
                1 => {
                    let y = target.run("neg", &[x.on(target).unwrap()], &Attrs::new()).unwrap();
                    let y = y[0].to_tensor().unwrap().to_vec::<f32>().unwrap();
                    let want: Vec<f32> = model.iter().map(|v| -v).collect();
                    if y != want {
                        return Some(format!("step {step}: an op saw {y:?} for {want:?}"));
                    }
                }
                2 => {
                    let y = target.run("square", &[x.on(target).unwrap()], &Attrs::new()).unwrap().remove(0);
                    let y = target.run("sqrt", &[&y], &Attrs::new()).unwrap().remove(0);
                    x.set(y).unwrap();
                    model.iter_mut().for_each(|v| *v = v.abs());
                }
                3 => {
                    if x.host().unwrap() != model {
                        return Some(format!("step {step}: the host sees {:?} for {model:?}", x.host));
                    }
                }
                _ => {
                    if kept.len() == 3 {
                        kept.remove(0);
                    }
                    kept.push((x.on(target).unwrap().clone(), model.clone()));
                }
            }
            for (clone, then) in &kept {
                let now = clone.to_tensor().unwrap().to_vec::<f32>().unwrap();
                if now != *then {
                    return Some(format!("step {step}: a kept copy changed from {then:?} to {now:?}"));
                }
            }
        }
        let s = x.stats();
        assert!(s.uploads > 0 && s.downloads > 0 && s.hits > 0, "all of it happened: {s:?}");
        None
    }

    #[test]
    fn no_look_is_ever_old() {
        for seed in 0..4 {
            assert_eq!(differs(|x| x.host_mut(), seed, 300), None, "seed {seed}");
        }
    }

    /// What lies on a device is written by its keeper only, whoever else has a view of it.
    #[test]
    fn nobody_writes_a_kept_copy() {
        let engine = Engine::builder().profile("always-cpu").build().unwrap();
        let target = engine.on("cpu").unwrap();
        let mut x = Synced::new(vec![1.0f32, 2.0]);
        let mut copy = x.on(&target).unwrap().clone().typed::<f32>().unwrap();
        let mut given = target.upload(&[3.0f32, 4.0]).unwrap();
        let rows = crate::engine::Rows { first: 0, pitch: 2 };
        for _ in 0..2 {
            assert_eq!(copy.overwrite(&[9.0, 9.0]).unwrap_err().code(), Code::BadArgument);
            assert_eq!(copy.upload_rows(rows, &[9.0, 9.0], rows, 1, 2).unwrap_err().code(), Code::BadArgument);
            let other = target.upload(&[9.0f32, 9.0]).unwrap();
            assert_eq!(copy.copy_from(&other).unwrap_err().code(), Code::BadArgument);
            given.overwrite(&[5.0, 6.0]).unwrap();
            x.set(given.clone().into()).unwrap();
            std::mem::swap(&mut copy, &mut given);
            given = target.upload(&[3.0f32, 4.0]).unwrap();
            assert_eq!(x.host().unwrap(), [5.0, 6.0]);
        }
        let long = target.upload(&[1.0f32; 3]).unwrap();
        assert_eq!(x.set(long.into()).unwrap_err().code(), Code::ShapeMismatch);
        let ints = target.upload(&[1i32; 2]).unwrap();
        assert_eq!(x.set(ints.into()).unwrap_err().code(), Code::DTypeMismatch);
        assert_eq!(x.host().unwrap(), [5.0, 6.0], "a refused array changes nothing");
    }

    /// Else the first test sees nothing.
    #[test]
    fn a_change_that_counts_no_version_is_found() {
        let found = (0..4).filter(|seed| differs(|x| x.host_mut_unnoticed(), *seed, 300).is_some()).count();
        assert_eq!(found, 4);
    }
}
