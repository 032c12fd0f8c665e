//! `gpuctl devices`: the table, the wide one, lines for scripts, everything known, how the cards hang together.

use comfy_table::{Cell, CellAlignment, ContentArrangement};

use crate::base::facts::{Hardware, Matrix, minimum, uid_explained};
use crate::base::record::Host;
use crate::base::system::Cache;
use crate::base::telemetry::Link;
use crate::base::topology::{Pair, Topology};
use crate::base::{Absence, DType, DeviceClass, DeviceInfo, Lang, units};

use super::text::{folded as fold, table as plain};

/// Columns that the table never exceeds.
pub const WIDTH: u16 = 100;

/// Columns of the terminal, if it tells.
pub fn terminal() -> u16 {
    plain(&[]).width().unwrap_or(WIDTH)
}

/// The lines around a table no wider than the table may be.
pub fn folded(text: &str, width: u16) -> String {
    fold(text, width.min(WIDTH))
}

fn class(c: DeviceClass) -> String {
    format!("{c:?}").to_lowercase()
}

/// A block of rows for each piece of hardware, at most `width` columns: what it is, and a row for each device through which an
/// API shows it.
pub fn table(rows: &[Hardware], devices: &[DeviceInfo], width: u16) -> String {
    let mut t = plain(&["hardware", "device", "class", "memory", "enough", "API", "driver"]);
    t.set_width(width.min(WIDTH));
    for r in rows {
        let of = |id: &String| devices.iter().find(|d| d.id == *id);
        let mut name = r.name.clone();
        for d in r.ids.iter().filter_map(of) {
            let free = r
                .memory_free
                .filter(|_| !d.is_software())
                .map_or(String::new(), |b| format!(", {} free", units::bytes(b)));
            let memory = d.memory_bytes.map_or("not told".into(), |b| format!("{}{free}", units::bytes(b)));
            let cells = [d.id.clone(), class(d.class), memory, minimum(d).met, d.api.clone(), d.driver.clone()];
            t.add_row(std::iter::once(std::mem::take(&mut name)).chain(cells));
        }
        if r.ids.is_empty() {
            let memory = r.memory_bytes.map_or("not told".into(), units::bytes);
            let driver = r.kernel_driver.clone().unwrap_or_else(|| "none".into());
            let cells =
                ["none".into(), class(r.class), memory, r.minimum.met.clone(), "no API shows it".into(), driver];
            t.add_row(std::iter::once(name).chain(cells));
        }
    }
    let mut out = format!("{t}\n");
    for r in rows {
        for note in &r.notes {
            out.push_str(&folded(&format!("note: {}: {note}", named(r)), width));
        }
    }
    out
}

/// Two cards of one model are told apart by what names them.
fn named(r: &Hardware) -> String {
    match (r.ids.first(), &r.pci) {
        (Some(id), _) => format!("{id} {}", r.name),
        (None, Some(pci)) => format!("{} at {pci}", r.name),
        (None, None) => r.name.clone(),
    }
}

/// Everything that fits into columns, a row for each device; as wide as it needs to be.
pub fn wide(rows: &[Hardware], devices: &[DeviceInfo]) -> String {
    let mut t = plain(&[
        "id",
        "hardware",
        "name",
        "class",
        "API",
        "driver",
        "memory",
        "free",
        "largest buffer",
        "largest slice",
        "local",
        "group",
        "units",
        "in step",
        "stored",
        "computed",
        "atomics",
        "matrix units",
        "memory kinds",
        "unified",
        "link",
        "NUMA",
        "PCI",
        "UUID",
        "enough",
        "uid",
    ]);
    t.set_content_arrangement(ContentArrangement::Disabled);
    let unknown = || "-".to_string();
    for (number, r) in rows.iter().enumerate() {
        let of = |id: &String| devices.iter().find(|d| d.id == *id);
        for d in r.ids.iter().filter_map(of) {
            let f = &d.facts;
            let cells = [
                d.id.clone(),
                number.to_string(),
                d.name.clone(),
                class(d.class),
                d.api.clone(),
                d.driver.clone(),
                d.memory_bytes.map_or_else(unknown, units::bytes),
                r.memory_free.map_or_else(unknown, units::bytes),
                units::bytes(d.max_alloc_bytes),
                units::bytes(d.max_binding_bytes),
                units::bytes(d.local_bytes.into()),
                d.max_group.to_string(),
                if d.compute_units == 0 { unknown() } else { d.compute_units.to_string() },
                f.subgroup.map_or_else(unknown, span),
                names(&d.dtypes),
                names(&f.arithmetic),
                f.atomics.join(", "),
                if f.matrix.is_empty() {
                    unknown()
                } else {
                    f.matrix.iter().map(|m| m.precision.as_str()).collect::<Vec<_>>().join(" ")
                },
                f.memory_kinds.join(" "),
                if d.unified_memory { "yes" } else { "no" }.into(),
                r.link.as_ref().map_or_else(unknown, link),
                r.numa_node.map_or_else(unknown, |n| n.to_string()),
                f.pci.clone().unwrap_or_else(unknown),
                f.uuid.clone().unwrap_or_else(unknown),
                minimum(d).met,
                d.uid.clone(),
            ];
            t.add_row(cells);
        }
        if r.ids.is_empty() {
            let mut cells: Vec<String> =
                vec![unknown(), number.to_string(), r.name.clone(), class(r.class), "no API".into()];
            cells.resize_with(26, unknown);
            (cells[5], cells[22]) =
                (r.kernel_driver.clone().unwrap_or_else(unknown), r.pci.clone().unwrap_or_else(unknown));
            t.add_row(cells);
        }
    }
    format!("{t}\n")
}

/// One line for each device, and for each card that no API shows: `ID CLASS ENOUGH UID NAME`; only the name has blanks.
pub fn lines(rows: &[Hardware], devices: &[DeviceInfo]) -> String {
    let mut out = String::new();
    for r in rows {
        let of = |id: &String| devices.iter().find(|d| d.id == *id);
        for d in r.ids.iter().filter_map(of) {
            out.push_str(&format!("{} {} {} {} {}\n", d.id, class(d.class), minimum(d).met, d.uid, d.name));
        }
        if r.ids.is_empty() {
            let uid = r.pci.as_ref().map_or("-".into(), |p| format!("pci:{p}"));
            out.push_str(&format!("- {} {} {uid} {}\n", class(r.class), r.minimum.met, r.name));
        }
    }
    out
}

fn span(s: [u32; 2]) -> String {
    if s[0] == s[1] { s[0].to_string() } else { format!("{}..{}", s[0], s[1]) }
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(" ")
}

/// A link as `PCIe 5 x16 (card 5 x16, slot 4 x16)`. An idle card lowers it.
fn link(l: &Link) -> String {
    let side = |generation: Option<u32>, width: Option<u32>| match (generation, width) {
        (Some(g), Some(w)) => Some(format!("{g} x{w}")),
        _ => None,
    };
    let now = side(l.generation, l.width).map_or("not told".into(), |s| format!("PCIe {s} now"));
    let most = [("card", side(l.card_generation, l.card_width)), ("slot", side(l.slot_generation, l.slot_width))];
    let most: Vec<String> = most.into_iter().filter_map(|(who, s)| Some(format!("{who} {}", s?))).collect();
    if most.is_empty() { now } else { format!("{now} ({})", most.join(", ")) }
}

/// The BLAS that the processor's products run on, and what is to be said of it; nothing where they run on our own kernels.
pub fn blas(devices: &[DeviceInfo]) -> String {
    let of = |d: &DeviceInfo| {
        let b = d.facts.blas.as_ref()?;
        let weak = if b.weak.is_empty() { String::new() } else { format!("{}: {}\n", d.id, b.weakness()) };
        Some(format!("{}: products run on {} ({})\n{weak}", d.id, b.text(), b.path))
    };
    devices.iter().filter_map(of).collect()
}

/// What is not usable, one line each.
pub fn absences(absent: &[Absence]) -> String {
    let mut out = String::new();
    for a in absent {
        let what = if a.what == a.backend.name() { String::new() } else { format!(" {}", a.what) };
        out.push_str(&format!("{}{what}: not usable: {}\n    next: {}\n", a.backend, a.reason, a.next));
    }
    out
}

/// Everything known about a piece of hardware and its devices.
pub fn details(r: &Hardware, devices: &[DeviceInfo]) -> String {
    let mut out = format!("{}\n", r.name);
    let mut line = |name: &str, value: String| out.push_str(&format!("    {name:<14} {value}\n"));
    let matched = match r.matched_by.as_str() {
        "processor" => "all of these compute on the host's processor",
        "uuid" => "these tell one UUID",
        "pci" => "these tell one PCI address",
        _ => "no other device tells its UUID or address",
    };
    let ids = if r.ids.is_empty() { "no API shows it".to_string() } else { format!("{} ({matched})", r.ids.join(" ")) };
    line("devices", ids);
    let why = if r.minimum.why.is_empty() { String::new() } else { format!(": {}", r.minimum.why) };
    if r.minimum.met != "host" {
        line("enough", format!("{}{why}", r.minimum.met));
    }
    line("free memory", r.memory_free.map_or_else(|| format!("not told: {}", r.memory_free_why), units::bytes));
    let told = [
        ("UUID", r.uuid.clone()),
        ("PCI", r.pci.clone()),
        ("link", r.link.as_ref().map(link)),
        ("NUMA node", r.numa_node.map(|n| n.to_string())),
        ("MIG", r.mig.map(|m| if m { "divided" } else { "whole" }.to_string())),
        ("kernel driver", r.kernel_driver.clone()),
    ];
    for (name, value) in told {
        if let Some(value) = value {
            line(name, value);
        }
    }
    for n in &r.not_seen_by {
        line("not seen by", format!("{}: {}", n.what, n.why));
    }
    for note in &r.notes {
        line("note", note.clone());
    }
    let of = |id: &String| devices.iter().find(|d| d.id == *id);
    out + &r.ids.iter().filter_map(of).map(device).collect::<String>()
}

fn matrix(m: &Matrix) -> String {
    let shapes: Vec<String> = m.shapes.iter().map(|[m, n, k]| format!("{m}x{n}x{k}")).collect();
    format!("{} ({}{})", m.precision, shapes.join(" "), if m.sparse { ", sparse" } else { "" })
}

/// Everything known about one device.
fn device(d: &DeviceInfo) -> String {
    let list = |v: Vec<String>| if v.is_empty() { "none".to_string() } else { v.join(" ") };
    let f = &d.facts;
    let mut out = format!("  {}  {}\n", d.id, d.name);
    let mut line = |name: &str, value: String| out.push_str(&format!("      {name:<14} {value}\n"));
    line("uid", format!("{} ({})", d.uid, uid_explained(&d.uid)));
    line("class", class(d.class));
    line("driver", d.driver.clone());
    line("API", d.api.clone());
    line("memory", d.memory_bytes.map_or("not told by the API".into(), units::bytes));
    line("memory kinds", list(f.memory_kinds.clone()));
    line("unified memory", if d.unified_memory { "yes" } else { "no" }.into());
    line("largest buffer", units::bytes(d.max_alloc_bytes));
    line("largest slice", units::bytes(d.max_binding_bytes));
    // Rust functions have no groups.
    if !d.takes(Lang::Native) {
        line("group", format!("{} work-items, {} local", d.max_group, units::bytes(d.local_bytes.into())));
        line("in step", f.subgroup.map_or("not told by the API".into(), |s| format!("{} work-items", span(s))));
    }
    line("dtypes", format!("stored {}; computed {}", names(&d.dtypes), names(&f.arithmetic)));
    line("atomics", if f.atomics.is_empty() { "none told".into() } else { f.atomics.join(", ") });
    line("features", list(d.features.iter().map(|f| format!("{f:?}")).collect()));
    if d.compute_capability.is_some() {
        line("tensor cores", list(f.matrix.iter().map(matrix).collect()));
        line("peers", list(f.peers.clone()));
    }
    line("libraries", list(d.libraries.iter().map(|(l, v)| format!("{l:?} {v}")).collect()));
    let below = minimum(d);
    if !below.why.is_empty() {
        line("enough", format!("{}: {}", below.met, below.why));
    }
    for note in &d.notes {
        line("note", note.clone());
    }
    for q in &f.quirks {
        line("quirk", format!("{} ({}): {}; {}", q.code, q.kind, q.what, q.answer));
    }
    out
}

/// NUMA nodes, cards and how they reach each other.
pub fn topology(t: &Topology) -> String {
    let mut out = String::new();
    if t.nodes.is_empty() {
        out.push_str("NUMA nodes: the system does not tell\n");
    } else {
        let mut nodes = plain(&["NUMA node", "processors", "memory", "distances"]);
        for n in &t.nodes {
            let distances: Vec<String> = n.distances.iter().map(u32::to_string).collect();
            let memory = n.memory_bytes.map_or("not told".into(), units::bytes);
            nodes.add_row([n.node.to_string(), n.cpus.clone(), memory, distances.join(" ")]);
        }
        out.push_str(&format!("{nodes}\n"));
    }
    if t.cards.is_empty() {
        out.push_str("cards: none but the processor\n");
        return out;
    }
    let mut cards = plain(&["", "card", "devices", "PCI", "NUMA node", "near processors"]);
    let or = |v: Option<String>| v.unwrap_or_else(|| "not told".into());
    for (i, c) in t.cards.iter().enumerate() {
        let node = or(c.numa_node.map(|n| n.to_string()));
        cards.add_row([i.to_string(), c.name.clone(), c.ids.join(" "), or(c.pci.clone()), node, or(c.cpus.clone())]);
    }
    out.push_str(&format!("\n{cards}\n"));
    if t.pairs.is_empty() {
        return out;
    }
    let mut head = vec![String::new()];
    head.extend((0..t.cards.len()).map(|i| i.to_string()));
    let mut matrix = plain(&head.iter().map(String::as_str).collect::<Vec<_>>());
    for (i, a) in t.cards.iter().enumerate() {
        let cell = |b: &crate::base::topology::Place| {
            let is = |p: &&Pair| {
                let [x, y] = &p.between;
                [(x, y), (y, x)].iter().any(|(x, y)| a.pci.as_ref() == Some(x) && b.pci.as_ref() == Some(y))
            };
            t.pairs.iter().find(is).map_or("-".into(), pair)
        };
        let mut row = vec![Cell::new(i)];
        row.extend(t.cards.iter().map(|b| Cell::new(cell(b)).set_alignment(CellAlignment::Left)));
        matrix.add_row(row);
    }
    out.push_str(&format!("\n{matrix}\n"));
    out
}

fn pair(p: &Pair) -> String {
    let links = p.nvlinks.filter(|n| *n > 0).map_or(String::new(), |n| format!(" x{n}"));
    let peers = match p.peers {
        Some(true) => ", peers",
        Some(false) => ", no peers",
        None => "",
    };
    format!("{}{links}{peers}", p.path)
}

/// The host, for `devices --why`.
pub fn host(h: &Host) -> String {
    let mut out = format!("host  {}\n", h.cpu);
    let mut line = |what: &str, value: String| out.push_str(&format!("    {what:<14} {value}\n"));
    line("system", h.os.clone());
    let Some(s) = &h.system else { return out };
    let of = s.processors.map_or(String::new(), |n| format!(" of {n}"));
    line("processors", format!("{}{of} may be used", h.cpus));
    let unknown = || "not told".to_string();
    line("cgroup quota", s.quota.map_or("none".into(), |q| format!("{q:.2} processors")));
    line("memory", units::bytes(h.memory_bytes));
    line("memory limit", s.memory_limit.map_or("none".into(), units::bytes));
    line("NUMA nodes", s.numa_nodes.map_or_else(unknown, |n| n.to_string()));
    let cache = |c: &Cache| format!("L{} {} {}", c.level, c.kind.to_lowercase(), units::bytes(c.bytes));
    let caches: Vec<String> = s.caches.iter().map(cache).collect();
    line("caches", if caches.is_empty() { unknown() } else { caches.join(", ") });
    line("governor", s.governor.clone().unwrap_or_else(unknown));
    let virtualised = s.virtualised.map_or_else(unknown, |v| if v { "yes" } else { "no" }.into());
    line("virtualised", virtualised);
    line("container", s.container.clone().unwrap_or_else(unknown));
    line("instructions", if s.instruction_sets.is_empty() { unknown() } else { s.instruction_sets.join(" ") });
    for (name, value) in &s.hiding {
        line("hides devices", format!("{name}={value}"));
    }
    out
}
