//! The `gpuctl` command. Everything is in the library; see `gpuctl::cli`.

fn main() -> std::process::ExitCode {
    gpuctl::cli::main(std::env::args_os())
}
