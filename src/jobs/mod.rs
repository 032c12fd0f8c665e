//! What the subcommands do. A job takes a configuration and a rig, puts records into a sink, and returns a summary;
//! it prints nothing and reads no environment.

pub mod ablate;
pub mod bench;
pub mod calibrate;
pub mod ceilings;
mod clocks;
pub mod devices;
pub mod explain;
mod gauge;
mod gross;
pub mod hardware;
pub mod health;
pub mod inventory;
mod look;
pub mod profile;
pub mod reference;
pub mod run;
pub mod stress;
pub mod trial;
pub mod verify;
pub mod workers;
pub mod workload;
