//! What gpuctl does: one file or folder per subcommand, all reading the same op table.

pub mod stress;
