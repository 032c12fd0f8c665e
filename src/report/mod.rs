//! Records as text, JSON, CSV, Markdown and charts. Everything is a pure function to a string; writing it is `cli`'s.

pub mod ablate;
#[cfg(feature = "cli")]
pub mod ceilings;
pub mod csv;
#[cfg(feature = "cli")]
pub mod devices;
#[cfg(feature = "cli")]
pub mod explain;
#[cfg(feature = "cli")]
pub mod health;
#[cfg(feature = "plot")]
pub mod html;
pub mod json;
pub mod junit;
pub mod markdown;
#[cfg(feature = "plot")]
pub mod plot;
pub mod prometheus;
pub mod rows;
pub mod support;
#[cfg(feature = "cli")]
pub mod text;
pub mod trace;
#[cfg(feature = "cli")]
pub mod trial;
