//! gpuctl
pub mod base;
pub mod device;
pub mod engine;
pub mod jobs;
pub mod kernel;
pub mod op;
