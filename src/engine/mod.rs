//! Runs ops: on one device ([`Runner`]), or wherever a profile says.

pub mod run;

pub use run::{Leased, Prepared, Runner};
