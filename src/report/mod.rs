//! Records as text, JSON, CSV, Markdown and charts. Everything is a pure function to a string; writing it is `cli`'s.

pub mod csv;
pub mod json;
pub mod markdown;
#[cfg(feature = "plot")]
pub mod plot;
pub mod rows;
#[cfg(feature = "cli")]
pub mod text;
