//! Copies the checked files without their own tests, as they are and with a fault planted in each, so that the checks can be
//! seen to find it.

use std::path::Path;

fn main() {
    let source = Path::new("../../src");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let faults = [
        (
            "engine/shelves.rs",
            // Looks, and takes what it saw, as two steps.
            "self.idle_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()",
            "match room(self.idle_bytes.load(Ordering::Relaxed)) {
                Some(sum) => { self.idle_bytes.store(sum, Ordering::Relaxed); true }
                None => false,
            }",
        ),
        (
            "engine/recover.rs",
            // Another thread gets an attempt as well.
            "i.state = State::Trying { until: now + self.config.patience.as_secs_f64() };",
            "",
        ),
        (
            "engine/turns.rs",
            // One who was woken and looks is still thought to be on its way: nobody else is woken any more.
            "            state.waking = false;\n",
            "",
        ),
        (
            "device/cpu/gate.rs",
            // Who is inside is not waited for: a helper works on a job whose owner is gone.
            "while word & INSIDE != 0 {",
            "while word & INSIDE > 1 {",
        ),
    ];
    for (file, right, wrong) in faults {
        let path = source.join(file);
        let file = file.rsplit('/').next().unwrap_or(file);
        println!("cargo:rerun-if-changed={}", path.display());
        let text = std::fs::read_to_string(&path).expect("the file is there");
        assert_eq!(text.matches(right).count(), 1, "{file}: the place of the planted fault has changed");
        // A file's own comment cannot be included, and its tests run outside of a model.
        let text: Vec<&str> =
            text.lines().take_while(|l| *l != "#[cfg(test)]").filter(|l| !l.starts_with("//!")).collect();
        let text = text.join("\n").replace("pub(super)", "pub(crate)");
        let write = |folder: &str, text: &str| {
            let folder = Path::new(&out).join(folder);
            std::fs::create_dir_all(&folder).expect("cargo's folder");
            std::fs::write(folder.join(file), text).expect("cargo's folder");
        };
        write("right", &text);
        write("wrong", &text.replace(right, wrong));
    }
}
