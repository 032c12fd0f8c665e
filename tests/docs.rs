//! The commands that README.md and docs/ show are run, and the files that they name exist.
//!
//! A block that opens with "```sh test" is run: each of its lines that begins with `gpuctl` or `GPUCTL_X=Y gpuctl`, by sh, in one empty folder
//! per document, with this build's binary on the PATH. A line must end with exit code 0, or with N where the line ends in
//! `# exit N`. Other lines and blocks are only read.

#![allow(clippy::print_stderr, reason = "skips are named")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpuctl::base::system;

/// No line may take longer, so that a reader's first try is over soon; generous, for this build is not optimised.
const LIMIT: Duration = Duration::from_secs(120);

/// One line to run.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    number: usize,
    command: String,
    exit: i32,
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<PathBuf> = std::fs::read_dir(root.join("docs"))
        .map(|d| d.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "md")).collect())
        .unwrap_or_default();
    found.extend(Some(root.join("README.md")).filter(|p| p.exists()));
    found.sort();
    found
}

fn lines(text: &str) -> Vec<Line> {
    let mut out = Vec::new();
    let mut run = false;
    let mut inside = false;
    for (i, line) in text.lines().enumerate() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            inside = !inside;
            let words: Vec<&str> = info.split_whitespace().collect();
            run = inside && words.first() == Some(&"sh") && words.contains(&"test");
        } else if run {
            let line = line.trim_start().trim_start_matches("$ ");
            // With variables in front, too.
            let command = line.trim_start_matches(|c: char| c != ' ').trim_start();
            let ours = |l: &str| l == "gpuctl" || l.starts_with("gpuctl ");
            if ours(line) || (line.starts_with("GPUCTL_") && ours(command)) {
                let (command, exit) = match line.rsplit_once("# exit ") {
                    Some((command, code)) => (command.trim_end(), code.trim().parse().unwrap_or(-1)),
                    None => (line, 0),
                };
                out.push(Line { number: i + 1, command: command.to_string(), exit });
            }
        }
    }
    out
}

/// Runs one line; the error says what went wrong.
fn run(line: &Line, folder: &Path, binary: &Path) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let bin = binary.parent().ok_or("the binary has no folder")?;
    let out = std::fs::File::create(folder.join(".stdout")).map_err(|e| e.to_string())?;
    let log = std::fs::File::create(folder.join(".stderr")).map_err(|e| e.to_string())?;
    let mut child = Command::new("sh")
        .args(["-c", &line.command])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("XDG_STATE_HOME", folder)
        .env("XDG_CONFIG_HOME", folder)
        .env("XDG_CACHE_HOME", folder)
        .env_remove("GPUCTL_CACHE")
        .env_remove("GPUCTL_REQUIRE")
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(log)
        .spawn()
        .map_err(|e| format!("sh: {e}"))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break status,
            None if begun.elapsed() > LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("not over after {LIMIT:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    eprintln!("{:6.1} s  {}", begun.elapsed().as_secs_f64(), line.command);
    if status.code() == Some(line.exit) {
        return Ok(());
    }
    // On a busy machine `bench` may rightly call its own row suspect or noisy; that says nothing about the document.
    let data = std::fs::read_to_string(folder.join(".stdout")).unwrap_or_default();
    let doubted = ["suspect", "noisy"].iter().any(|w| data.contains(w));
    if line.exit == 0 && line.command.contains("gpuctl bench ") && matches!(status.code(), Some(1 | 4)) && doubted {
        eprintln!("busy machine: {} doubts its own figures ({status})", line.command);
        return Ok(());
    }
    let talk = std::fs::read_to_string(folder.join(".stderr")).unwrap_or_default();
    Err(format!("{status}, expected {}; it said: {}", line.exit, talk.trim()))
}

#[test]
fn shown_commands_work() {
    let Some(binary) = option_env!("CARGO_BIN_EXE_gpuctl") else {
        eprintln!("skipped: commands of the documents: built without the feature cli");
        return;
    };
    let mut faults = Vec::new();
    let mut count = 0;
    for document in documents() {
        let folder = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(&document).unwrap();
        for line in lines(&text) {
            count += 1;
            if line.command.starts_with("GPUCTL_AWAKE=1 ") && system::quota().is_some() {
                eprintln!("skipped: processors are not kept awake within a quota: {}", line.command);
                continue;
            }
            if let Err(why) = run(&line, folder.path(), Path::new(binary)) {
                let name = document.file_name().unwrap_or_default().display();
                faults.push(format!("{name}:{}: {}: {why}", line.number, line.command));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count >= 5, "only {count} commands found: the search is broken");
}

#[test]
fn marked_blocks_are_found_and_failures_seen() {
    let text = "```sh\ngpuctl no\n```\n```sh test\n$ gpuctl a > b\ncargo run\ngpuctl c  # exit 2\nGPUCTL_A=b gpuctl d\nGPUCTL_A=b cargo run\n```\ngpuctl no\n```text test\ngpuctl no\n```\n";
    let found = lines(text);
    assert_eq!(
        found,
        [
            Line { number: 5, command: "gpuctl a > b".into(), exit: 0 },
            Line { number: 7, command: "gpuctl c".into(), exit: 2 },
            Line { number: 8, command: "GPUCTL_A=b gpuctl d".into(), exit: 0 }
        ]
    );
    let folder = tempfile::tempdir().unwrap();
    let line = |command: &str, exit| Line { number: 1, command: command.into(), exit };
    let binary = folder.path().join("bin/gpuctl");
    assert!(run(&line("exit 3", 3), folder.path(), &binary).is_ok());
    let why = run(&line("echo oh no >&2; exit 3", 0), folder.path(), &binary).unwrap_err();
    assert!(why.contains("oh no"), "{why}");
}

/// Paths of this project in `backticks`: the first word, if it begins with one of our folders.
fn paths(text: &str) -> Vec<String> {
    const OURS: [&str; 6] = ["src/", "tests/", "docs/", "kernels/", "benches/", "profiles/"];
    let mut inside = false;
    let mut out = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            for span in line.split('`').skip(1).step_by(2) {
                let word = span.split_whitespace().next().unwrap_or_default();
                if OURS.iter().any(|o| word.starts_with(o)) && !word.contains(['*', '<', '{']) {
                    out.push(word.to_string());
                }
            }
        }
    }
    out
}

#[test]
fn named_files_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut faults = Vec::new();
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let missing = paths(&text).into_iter().filter(|p| !root.join(p).exists());
        faults.extend(missing.map(|p| format!("{}: {p} does not exist", document.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(paths("see `src/none.rs`, `cargo test`, `src/*.rs` and `tests/run --x`"), ["src/none.rs", "tests/run"]);
}

/// Headings that stand more than once in a text, as after a part was pasted twice.
fn headings_twice(text: &str) -> Vec<&str> {
    let mut inside = false;
    let (mut seen, mut twice) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside && line.starts_with('#') {
            if seen.contains(&line) {
                twice.push(line);
            }
            seen.push(line);
        }
    }
    twice
}

#[test]
fn no_heading_stands_twice() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        assert_eq!(headings_twice(&text), [""; 0], "{}", document.display());
    }
    assert_eq!(headings_twice("# a\n## b\n```sh\n# a\n```\ntext\n## b\n"), ["## b"]);
}

/// Parts of pages that are made from the op table: page, name of the part, text.
fn generated() -> [(&'static str, &'static str, String); 2] {
    use gpuctl::jobs::reference;
    [("docs/ops.md", "ops", reference::ops()), ("docs/tolerances.md", "limits", reference::limits())]
}

/// A page with its generated part renewed.
fn renewed(page: &str, name: &str, text: &str) -> String {
    let begin = format!("<!-- generated: {name} -->\n");
    let from = page.find(&begin).unwrap_or_else(|| panic!("no part '{name}'")) + begin.len();
    let to = from + page[from..].find("<!-- end -->").expect("no end of the generated part");
    format!("{}{}{}", &page[..from], text, &page[to..])
}

#[test]
fn generated_pages_are_those_of_the_table() {
    for (path, name, text) in generated() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let page = std::fs::read_to_string(file).unwrap();
        assert!(page == renewed(&page, name, &text), "{path} is stale: cargo test --test docs -- --ignored renew");
    }
}

/// Writes the generated parts: `cargo test --test docs -- --ignored renew`.
#[test]
#[ignore = "changes files of the project"]
fn renew() {
    for (path, name, text) in generated() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let page = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, renewed(&page, name, &text)).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().len() > 500);
    }
}

/// The row that "Writing an op" takes apart is in the source as it stands there.
#[test]
fn the_row_in_writing_an_op_is_the_tables_own() {
    let page = include_str!("../docs/writing-an-op.md");
    let row = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(row.starts_with("unary_op!("), "{row}");
    assert!(include_str!("../src/op/elementwise.rs").contains(row), "no such row in src/op/elementwise.rs:\n{row}");
}
