//! gpuctl
pub mod base;
pub mod device;
pub mod engine;
pub mod kernel;
pub mod op;
pub mod profile;
